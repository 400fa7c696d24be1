// Steps that read or write where indices or masks say.
#include <cmath>

#include "tests/fuzz/draw.h"

namespace fuzz {

// Indices made of counts that wrap: 250 to 261 in u8 are 250 to 255 and 0 to 5. Negative when a step
// cannot be kept.
int draw_wrapped_counts(Draft& d, const Shape& shape) {
  static const std::vector<Type> kNarrow = {Type::I8, Type::U8, Type::I16, Type::U16};
  const Type narrow = d.one_of(kNarrow);
  const int64_t many = bytes(narrow) == 1 ? 256 : 65536, by = d.pick(1, 3);
  const int64_t first = many - d.pick(0, 2 * int(count(shape)));
  Step counts, cut, index, shaped;
  counts.op = "arange", counts.text = "i32", counts.n = {first, first + by * count(shape), by};
  cut.op = "cast", cut.text = std::string(name(narrow));
  index.op = "cast", index.text = d.chance(50) ? "i32" : "i64";
  shaped.op = "reshape", shaped.n = shape;
  int at = d.keep(counts);
  for (Step* s : {&cut, &index, &shaped}) {
    if (at < 0) return at;
    s->in = {at};
    at = d.keep(*s);
  }
  return at;
}

// Indices made of floats: a function of the places, of which one lies at a whole number but for the
// last bit. Devices that read by it must come to the same number as one that has all rows. Negative
// when a step cannot be kept.
int draw_float_counts(Draft& d, const Shape& shape, int64_t n) {
  struct Function {
    const char* op;
    double (*of)(double);
  };
  static const std::vector<Function> kFunctions = {
      {"log2", [](double x) { return std::log2(x); }},
      {"log", [](double x) { return std::log(x); }},
      {"sqrt", [](double x) { return std::sqrt(x); }},
      {"sin", [](double x) { return std::sin(x); }},
      {"rsqrt", [](double x) { return 1 / std::sqrt(x); }}};
  const Function& f = d.one_of(kFunctions);
  const int many = int(count(shape));
  if (many < 2) return -1;
  Step counts, floats, function, scaled, index, shaped;
  counts.op = "arange", counts.text = "i32", counts.n = {2, 2 + many, 1};
  floats.op = "cast", floats.text = d.chance(80) ? "f32" : "f64";
  function.op = f.op;
  scaled.op = "mul", scaled.n = {0};
  scaled.d = {d.pick(1, int(n)) / f.of(d.pick(3, 2 + many - 1))};
  index.op = "cast", index.text = "i32";
  shaped.op = "reshape", shaped.n = shape;
  int at = d.keep(counts);
  for (Step* s : {&floats, &function, &scaled, &index, &shaped}) {
    if (at < 0) return at;
    s->in = {at};
    at = d.keep(*s);
  }
  return at;
}

int draw_indices(Draft& d, const Shape& shape, int64_t n) {
  if (!d.gradient() && d.chance(15)) {
    if (int index = draw_wrapped_counts(d, shape); index >= 0) return index;
  }
  if (!d.gradient() && n > 1 && d.chance(12)) {
    if (int index = draw_float_counts(d, shape, n); index >= 0) return index;
  }
  for (int tries = 0; tries < 5; ++tries) {
    int y = d.any_int();
    if (y < 0 || d.shape(y) != shape || bytes(d.type(y)) < 4) continue;
    Step mod;
    mod.op = "mod", mod.in = {y}, mod.n = {1}, mod.d = {double(n)};
    if (int index = d.keep(mod); index >= 0) return index;
  }
  if (d.leaves() >= 9) return -1;
  static const std::vector<Type> kTypesOfIndices = {Type::I8,  Type::I16, Type::U8,
                                                    Type::U16, Type::U32, Type::U64};
  const Type usual = d.chance(70) ? Type::I32 : Type::I64;
  return d.add_leaf(shape, d.chance(20) && n < 127 ? d.one_of(kTypesOfIndices) : usual,
                    Style::Index, n);
}

bool draw_indexing(Draft& d, Step& s) {
  int x = d.with_dims(1);
  if (x < 0) return false;
  const Shape shape = d.shape(x);
  int64_t dim = d.axis(x), n = shape[size_t(dim)];
  auto with_index = [&](const Shape& index, int64_t limit) {
    s.in = {x, draw_indices(d, index, limit)};
    return s.in[1] >= 0;
  };
  Shape index = shape;
  switch (d.pick(0, 6)) {
    case 0:
      index[size_t(dim)] = d.pick(1, 6);
      s.op = "gather", s.n = {dim};
      return with_index(index, n);
    case 1:
      s.op = "take", s.n = {dim};
      return with_index(d.chance(50) ? Shape{d.pick(1, 6)} : Shape{d.pick(1, 3), d.pick(1, 4)}, n);
    case 2:
      if (shape.size() != 2) return false;
      s.op = "embedding";
      return with_index({d.pick(1, 5), d.pick(1, 4)}, shape[0]);
    case 3: {
      int y = d.any_int();
      if (y < 0 || d.gradient()) return false;
      s.op = "one_hot", s.in = {y}, s.n = {d.pick(2, 7)};
      return true;
    }
    case 4: {
      index[size_t(dim)] = d.pick(1, int(std::min<int64_t>(n + 2, 8)));
      int kind = d.pick(0, 9);
      s.op = kind < 4 ? "scatter" : kind < 8 ? "scatter_reduce" : "scatter_number";
      s.n = {dim};
      if (s.op == "scatter_reduce") s.n = {dim, d.pick(0, 4), d.chance(60)};
      if (!with_index(index, n)) return false;
      if (s.op == "scatter_number") {
        s.n = {1, dim}, s.d = {2};
        return d.type(x) != Type::Bool;
      }
      s.in.push_back(d.like(index, d.type(x)));
      return s.in[2] >= 0;
    }
    case 5: {
      if (shape.size() < 2) return false;
      Shape places = {d.pick(1, 5)};
      int rows = draw_indices(d, places, shape[0]), columns = draw_indices(d, places, shape[1]);
      s.op = "take_pairs", s.in = {x, rows, columns};
      return rows >= 0 && columns >= 0;
    }
    default: {
      if (d.profile().calls < 2 || n < 2) return false;
      int v = d.add_variable(n);
      s.op = "take", s.n = {dim}, s.in = {x, v};
      return v >= 0;
    }
  }
}

// Draws ops that a mask chooses by. Sizes that depend on values are read while the program is
// built, so only of programs that run once.
bool draw_selection(Draft& d, Step& s) {
  int x = d.with_dims(1);
  if (x < 0 || d.gradient()) return false;
  int64_t n = count(d.shape(x));
  if (n > 600) return false;
  bool sized = d.profile().calls > 1 || d.chance(50);
  if (d.chance(40)) {
    s.op = sized ? "nonzero_sized" : "nonzero", s.in = {x};
    if (sized) s.n = {d.pick(1, int(n)), -1};
    return true;
  }
  int mask = d.any([](Type t) { return t == Type::Bool; });
  if (mask < 0 || d.shape(mask) != d.shape(x)) {
    Step compare;
    compare.op = "gt", compare.in = {x}, compare.n = {1}, compare.d = {0};
    if (d.type(x) == Type::Bool) return false;
    mask = d.keep(compare);
    if (mask < 0) return false;
  }
  s.op = sized ? "masked_select_sized" : "masked_select", s.in = {x, mask};
  if (sized) s.n = {d.pick(1, int(n)), 1};
  return true;
}

}  // namespace fuzz
