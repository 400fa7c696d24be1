// Rules of operations that read or write where indices say. Reads outside of a tensor give zero and
// writes there are dropped.
#include <algorithm>

#include "tests/fuzz/interpreter.h"
#include "tests/fuzz/real.h"

namespace fuzz {
namespace {

const Element kUnknownElement{0, 0, kUnknown};

bool inside(const Array& index, size_t at, int64_t n) {
  int64_t i = index.at[at].n;
  return i >= 0 && i < n;
}

void need_indices(const Array& index) { need(is_int(index.type), "indices are integers"); }

Array gather(const Step& step, const Operands& in) {
  const Array &x = *in[0], &index = *in[1];
  need_indices(index);
  need(x.rank() > 0 && x.rank() == index.rank(), "rank");
  int64_t axis = resolved(step.n.at(0), x.rank());
  for (int64_t d = 0; d < x.rank(); ++d)
    need(d == axis || index.shape[size_t(d)] <= x.shape[size_t(d)], "index");
  Array out(x.type, index.shape);
  each_place(index.shape, [&](const Shape& place, size_t at) {
    Shape from = place;
    from[size_t(axis)] = index.at[at].n;
    if (!index.at[at].known())
      out.at[at] = kUnknownElement;
    else if (inside(index, at, x.shape[size_t(axis)]))
      out.at[at] = x.at[linear(from, x.shape)];
  });
  return out;
}

// x[{..., index, ...}]: the index's dims in the place of one dim. n: the dim.
Array take(const Step& step, const Operands& in) {
  const Array &x = *in[0], &index = *in[1];
  need_indices(index);
  int64_t axis = resolved(step.n.at(0), x.rank()), n = x.shape[size_t(axis)];
  Shape shape(x.shape.begin(), x.shape.begin() + axis);
  shape.insert(shape.end(), index.shape.begin(), index.shape.end());
  shape.insert(shape.end(), x.shape.begin() + axis + 1, x.shape.end());
  Array out(x.type, shape);
  each_place(shape, [&](const Shape& place, size_t at) {
    Shape within(place.begin() + axis, place.begin() + axis + index.rank());
    size_t k = linear(within, index.shape);
    Shape from(place.begin(), place.begin() + axis);
    int64_t i = index.at[k].n;
    from.push_back(i < 0 ? i + n : i);
    from.insert(from.end(), place.begin() + axis + index.rank(), place.end());
    if (!index.at[k].known())
      out.at[at] = kUnknownElement;
    else if (from[size_t(axis)] >= 0 && from[size_t(axis)] < n)
      out.at[at] = x.at[linear(from, x.shape)];
  });
  return out;
}

Array embedding(const Step&, const Operands& in) {
  const Array &table = *in[0], &index = *in[1];
  need_indices(index);
  need(table.rank() == 2, "table");
  Shape shape = index.shape;
  shape.push_back(table.shape[1]);
  Array out(table.type, shape);
  size_t width = size_t(table.shape[1]);
  for (size_t i = 0; i < index.at.size(); ++i) {
    for (size_t j = 0; j < width; ++j) {
      Element& to = out.at[i * width + j];
      if (!index.at[i].known())
        to = kUnknownElement;
      else if (inside(index, i, table.shape[0]))
        to = table.at[size_t(index.at[i].n) * width + j];
    }
  }
  return out;
}

Array one_hot(const Step& step, const Operands& in) {
  const Array& index = *in[0];
  need_indices(index);
  int64_t n = step.n.at(0);
  Shape shape = index.shape;
  shape.push_back(n);
  Array out(Type::I32, shape);
  for (size_t i = 0; i < out.at.size(); ++i) {
    const Element& e = index.at[i / size_t(n)];
    out.at[i] = integer(Type::I32, e.n == int64_t(i % size_t(n)), e.known());
  }
  return out;
}

// n: dim, and for scatter_reduce which reduction and whether the target counts.
Array scatter(const Step& step, const Operands& in) {
  const Array &x = *in[0], &index = *in[1], &src = *in[2];
  need_indices(index);
  need(x.rank() > 0 && x.rank() == index.rank() && x.rank() == src.rank(), "rank");
  need(x.type == src.type, "one type");
  int64_t axis = resolved(step.n.at(0), x.rank());
  for (int64_t d = 0; d < x.rank(); ++d) {
    size_t i = size_t(d);
    need(index.shape[i] <= src.shape[i] && (d == axis || index.shape[i] <= x.shape[i]), "index");
  }
  const bool writes = !step.op.starts_with("scatter_reduce");
  need(writes || is_float(x.type), "floats");
  bool known = true;
  for (const Element& e : index.at) known = known && e.known();
  std::vector<std::vector<size_t>> writers(x.at.size());
  each_place(index.shape, [&](const Shape& place, size_t at) {
    if (!inside(index, at, x.shape[size_t(axis)])) return;
    Shape to = place;
    to[size_t(axis)] = index.at[at].n;
    writers[linear(to, x.shape)].push_back(linear(place, src.shape));
  });
  Array out = x;
  Math math(x.type);
  int64_t how = writes ? -1 : step.n.at(1);
  bool self = how >= 0 && step.n.at(2);
  for (size_t i = 0; i < out.at.size(); ++i) {
    if (!known) {
      out.at[i].err = kUnknown;
      continue;
    }
    if (writers[i].empty()) continue;
    if (how < 0) {
      out.at[i] = src.at[writers[i].back()];
      continue;
    }
    std::vector<Real> terms;
    if (self) terms.push_back(real(x, i));
    for (size_t k : writers[i]) terms.push_back(real(src, k));
    Real value = terms[0];
    if (how == 0) value = math.sum(terms);
    if (how == 1) value = math.product(terms);
    if (how == 2) value = math.div(math.sum(terms), {double(terms.size()), 0});
    for (size_t k = 1; how > 2 && k < terms.size(); ++k) {
      auto smaller = [](double a, double b) { return std::isnan(a) || a < b ? a : b; };
      bool nan = std::isnan(terms[k].v) && !std::isnan(value.v);
      value = nan        ? terms[k]
              : how == 3 ? math.maximum(value, terms[k])
                         : math.apply(smaller, value, terms[k], 0);
    }
    out.at[i] = element(x.type, value);
  }
  return out;
}

// x with a number where the index says. n: whether the number is whole, the dim.
Array scatter_number(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  Array src(x.type, in[1]->shape);
  for (Element& e : src.at)
    e.v = rounded(x.type, step.d.at(0)), e.n = wrapped(x.type, int64_t(step.d.at(0)));
  Step same;
  same.op = "scatter", same.n = {step.n.at(1)};
  return scatter(same, {&x, in[1], &src});
}

// x[{rows, columns}]: of lists of indices, the element that each pair names.
Array take_pairs(const Step&, const Operands& in) {
  const Array &x = *in[0], &rows = *in[1], &columns = *in[2];
  need_indices(rows), need_indices(columns);
  need(x.rank() >= 2 && rows.shape == columns.shape, "pairs");
  Shape shape = rows.shape, rest(x.shape.begin() + 2, x.shape.end());
  shape.insert(shape.end(), rest.begin(), rest.end());
  Array out(x.type, shape);
  size_t inner = size_t(count(rest));
  for (size_t at = 0; at < out.at.size(); ++at) {
    size_t k = at / inner;
    auto place = [&](const Array& index, size_t dim) {
      int64_t i = index.at[k].n;
      return i < 0 ? i + x.shape[dim] : i;
    };
    int64_t i = place(rows, 0), j = place(columns, 1);
    if (!rows.at[k].known() || !columns.at[k].known())
      out.at[at] = kUnknownElement;
    else if (i >= 0 && i < x.shape[0] && j >= 0 && j < x.shape[1])
      out.at[at] = x.at[size_t(i * x.shape[1] + j) * inner + at % inner];
  }
  return out;
}

// The places of elements that are not zero, in order. Which they are must be known.
std::vector<size_t> places_of(const Array& x) {
  Array mask = converted(x, Type::Bool);
  std::vector<size_t> places;
  for (size_t i = 0; i < mask.at.size(); ++i) {
    need(mask.at[i].known(), "a known mask");
    if (mask.at[i].n) places.push_back(i);
  }
  return places;
}

// Sized: n is how many, and what stands in the place of those that are missing.
Array masked_select(const Step& step, const Operands& in) {
  need(in[1]->type == Type::Bool, "a mask");
  Shape shape = broadcast(in[0]->shape, in[1]->shape);
  Array x = expanded(*in[0], shape);
  std::vector<size_t> places = places_of(expanded(*in[1], shape));
  bool sized = step.op.ends_with("sized");
  Array out(x.type, {sized ? step.n.at(0) : int64_t(places.size())});
  for (size_t i = 0; i < out.at.size(); ++i) {
    if (i < places.size())
      out.at[i] = x.at[places[i]];
    else
      out.at[i].v = double(step.n[1]), out.at[i].n = wrapped(x.type, step.n[1]);
  }
  return out;
}

Array nonzero(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  std::vector<size_t> places = places_of(x);
  bool sized = step.op.ends_with("sized");
  Array out(Type::I32, {sized ? step.n.at(0) : int64_t(places.size()), x.rank()});
  for (size_t i = 0; i < size_t(out.shape[0]); ++i) {
    size_t at = i < places.size() ? places[i] : 0;
    for (size_t d = x.shape.size(); d-- > 0;) {
      int64_t here = int64_t(at % size_t(x.shape[d]));
      at /= size_t(x.shape[d]);
      out.at[i * x.shape.size() + d] = integer(Type::I32, i < places.size() ? here : step.n.at(1));
    }
  }
  return out;
}

// x[i] = a number, for i of the first dim. n: whether it is whole, i.
Array setitem_number(const Step& step, const Operands& in) {
  Array out = *in[0];
  need(out.rank() > 0 && out.shape[0] > 0, "a dim");
  int64_t i = resolved(step.n.at(1), out.shape[0]);
  size_t row = out.at.size() / size_t(out.shape[0]);
  Element e;
  e.v = rounded(out.type, step.d.at(0)), e.n = wrapped(out.type, int64_t(step.d.at(0)));
  std::fill_n(out.at.begin() + i * int64_t(row), row, e);
  return out;
}

// x[i] = v along a dim, of its part [low, high). n: dim, low, high.
Array setitem(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  int64_t axis = resolved(step.n.at(0), x.rank()), low = step.n.at(1), high = step.n.at(2);
  need(low >= 0 && low < high && high <= x.shape[size_t(axis)], "part");
  need(in[1]->type == x.type, "one type");
  Shape part = x.shape;
  part[size_t(axis)] = high - low;
  Array value = expanded(*in[1], part), out = x;
  each_place(part, [&](const Shape& place, size_t at) {
    Shape to = place;
    to[size_t(axis)] += low;
    out.at[linear(to, x.shape)] = value.at[at];
  });
  return out;
}

}  // namespace

void add_indexing_rules(std::map<std::string, Rule>& rules) {
  rules["gather"] = gather;
  rules["take"] = take;
  rules["embedding"] = embedding;
  rules["one_hot"] = one_hot;
  rules["scatter"] = scatter;
  rules["scatter_reduce"] = scatter;
  rules["scatter_assign"] = scatter;
  rules["scatter_reduce_assign"] = scatter;
  rules["setitem"] = setitem;
  rules["setitem_number"] = setitem_number;
  rules["scatter_number"] = scatter_number;
  rules["take_pairs"] = take_pairs;
  for (const char* op : {"masked_select", "masked_select_sized"}) rules[op] = masked_select;
  for (const char* op : {"nonzero", "nonzero_sized"}) rules[op] = nonzero;
}

}  // namespace fuzz
