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
  need(step.op == "scatter" || is_float(x.type), "floats");
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
  int64_t how = step.op == "scatter" ? -1 : step.n.at(1);
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
  rules["setitem"] = setitem;
}

}  // namespace fuzz
