// Movement of elements: orders, parts, joins, shifts, masks and repeats, each a value of its own.
#include "bench/sweep/kind.h"

namespace tinyshard::sweep {
namespace {

using Rows = std::function<Tensor(const Tensor&, const Dims& numbers)>;
Step moved_by(const Case& of, const Rows& move) {
  return unary(of, [move, numbers = of.numbers](const Tensor& x) { return move(x, numbers); });
}
std::function<Step(const Case&)> by(const Rows& move) {
  return [move](const Case& c) { return moved_by(c, move); };
}
// A view of the operand, copied.
std::function<Step(const Case&)> copied(const Rows& move) {
  return by([move](const Tensor& x, const Dims& numbers) { return move(x, numbers).clone(); });
}

Sizes draw_order(Draw& draw, int64_t elements) {
  const int64_t dims = draw.between(2, 5);
  return {draw.shape(elements, dims), draw.order(dims)};
}
Tensor permute(const Tensor& x, const Dims& order) { return x.permute(order); }

// Adds a tensor that lies in order to one that does not.
Step permute_add(const Case& of) {
  Dims sizes;
  for (int64_t axis : of.numbers) sizes.push_back(of.sizes[size_t(axis)]);
  return step_of({numbers(of.sizes, of.dtype), numbers(sizes, of.dtype)},
                 [order = of.numbers](const Tensors& v) { return v[0].permute(order) + v[1]; });
}
Sizes draw_squares(Draw& draw, int64_t elements) {
  const int64_t side = std::max<int64_t>(1, int64_t(std::sqrt(double(elements) / 3.0)));
  const int64_t n = draw.pick({side, std::min<int64_t>(side, 197), std::min<int64_t>(side, 64)});
  return {{std::max<int64_t>(1, elements / (n * n)), n, n}, {}};
}

// Two numbers a dim: the first element and how many.
Sizes draw_slice(Draw& draw, int64_t elements) {
  Sizes drawn{draw.shape(elements), {}};
  for (int64_t size : drawn.sizes) {
    const int64_t first = draw.pick<int64_t>({0, 0, size > 1 ? 1 : 0, size / 4});
    const double share = draw.pick({1.0, 1.0, 0.9, 0.5});
    drawn.numbers.push_back(first);
    drawn.numbers.push_back(std::max<int64_t>(1, int64_t(double(size - first) * share)));
  }
  return drawn;
}
Tensor slice(const Tensor& x, const Dims& numbers) {
  Pairs bounds;
  for (size_t i = 0; i < numbers.size(); i += 2)
    bounds.emplace_back(numbers[i], numbers[i] + numbers[i + 1]);
  return x.shrink(bounds);
}

// A step a dim.
Sizes draw_steps(Draw& draw, int64_t elements) {
  Sizes drawn{draw.shape(elements), {}};
  for (size_t i = 0; i < drawn.sizes.size(); ++i)
    drawn.numbers.push_back(draw.pick<int64_t>({1, 1, 2, 3}));
  return drawn;
}
Tensor every(const Tensor& x, const Dims& steps) {
  std::vector<Index> index;
  for (int64_t step : steps) index.emplace_back(Slice({}, {}, step));
  return x.at(index);
}

// Two numbers a dim: before and after.
Sizes draw_padding(Draw& draw, int64_t elements) {
  Sizes drawn{draw.shape(elements), {}};
  for (size_t i = 0; i < 2 * drawn.sizes.size(); ++i)
    drawn.numbers.push_back(draw.pick<int64_t>({0, 0, 1, 3}));
  return drawn;
}
Tensor pad(const Tensor& x, const Dims& numbers) {
  Pairs padding;
  for (size_t i = 0; i < numbers.size(); i += 2) padding.emplace_back(numbers[i], numbers[i + 1]);
  return x.pad(padding);
}
Sizes draw_reflection(Draw& draw, int64_t elements) {
  const int64_t side = std::max<int64_t>(4, int64_t(std::sqrt(double(elements) / 6.0)));
  const int64_t n = draw.pick({side, std::min<int64_t>(side, 33)});
  return {{1, std::max<int64_t>(1, elements / (n * n)), n, n}, {draw.between(1, 3)}};
}
Tensor reflect(const Tensor& x, const Dims& numbers) {
  const std::pair<int64_t, int64_t> both(numbers[0], numbers[0]);
  return x.pad({{0, 0}, {0, 0}, both, both}, 0, PadMode::Reflect);
}

// An axis, and how many.
Sizes draw_joined(Draw& draw, int64_t elements) {
  const int64_t count = draw.between(2, 5);
  Sizes drawn{draw.shape(std::max<int64_t>(1, elements / count)), {}};
  drawn.numbers = {draw.axis(std::ssize(drawn.sizes)), count};
  return drawn;
}
Step joined(const Case& of, const std::function<Tensor(const Tensors&, int64_t axis)>& join) {
  Tensors inputs;
  for (int64_t i = 0; i < of.numbers.at(1); ++i) inputs.push_back(numbers(of.sizes, of.dtype));
  return step_of(inputs, [join, axis = of.numbers[0]](const Tensors& v) { return join(v, axis); });
}

// A shift, and an axis.
Sizes draw_roll(Draw& draw, int64_t elements) {
  Sizes drawn{draw.shape(elements), {}};
  const int64_t axis = draw.axis(std::ssize(drawn.sizes));
  drawn.numbers = {draw.below(drawn.sizes[size_t(axis)]), axis};
  return drawn;
}
Tensor roll(const Tensor& x, const Dims& numbers) { return x.roll(numbers[0], numbers[1]); }

Sizes draw_triangle(Draw& draw, int64_t elements) {
  return {draw.shape(elements, draw.between(2, 4)), {draw.between(-2, 2)}};
}
Sizes draw_one_hot(Draw& draw, int64_t elements) {
  const int64_t classes = draw.pick<int64_t>({2, 10, 64, 1000, 32000});
  return {{std::max<int64_t>(1, elements / classes)}, {classes}};
}
Step one_hot(const Case& of) {
  const int64_t classes = of.numbers.at(0);
  return step_of({places(of.sizes, classes)},
                 [classes](const Tensors& v) { return v[0].one_hot(classes); });
}

Sizes draw_repeats(Draw& draw, int64_t elements) {
  Sizes drawn{draw.shape(std::max<int64_t>(1, elements / 4)), {}};
  drawn.numbers.assign(drawn.sizes.size(), 1);
  for (int twice = 0; twice < 2; ++twice)
    drawn.numbers[size_t(draw.below(std::ssize(drawn.sizes)))] *= 2;
  return drawn;
}
// An axis along which the elements come so often.
Sizes draw_interleaved(Draw& draw, int64_t elements) {
  const int64_t count = draw.between(2, 4);
  Sizes drawn{draw.shape(std::max<int64_t>(1, elements / count)), {}};
  drawn.numbers = {count, draw.axis(std::ssize(drawn.sizes))};
  return drawn;
}
// The size of a window, and from which distance the next one begins.
Sizes draw_unfolded(Draw& draw, int64_t elements) {
  const int64_t size = draw.pick<int64_t>({3, 16, 400}), step = draw.pick({size, (size + 1) / 2});
  const int64_t rows = draw.pick<int64_t>({1, 8, 80});
  return {{rows, std::max(size, elements / rows / 2)}, {size, step}};
}
Sizes draw_halves(Draw& draw, int64_t elements) {
  const int64_t width = 2 * draw.pick<int64_t>({64, 100, 1024, 5461, 14336});
  return {{std::max<int64_t>(1, elements / width), width}, {}};
}

}  // namespace

Kinds movement_kinds() {
  return {
      {"permute", kAll, draw_order, copied(permute)},
      {"permute_add", kAll, draw_order, permute_add},
      {"add_transposed", kMore, draw_squares,
       by([](const Tensor& x, const Dims&) { return x + x.transpose(1, 2); })},
      {"slice", kAll, draw_slice, copied(slice), selected},
      {"slice_grad", kFloats, draw_slice,
       [](const Case& c) { return gradient_of(moved_by(c, slice)); }, filled},
      {"strided", kAll, draw_steps, copied(every), selected},
      {"pad", kAll, draw_padding, by(pad)},
      {"reflect", kFloats, draw_reflection, by(reflect)},
      {"flip", kAll, draw_axes,
       copied([](const Tensor& x, const Dims& axes) { return x.flip(axes); })},
      {"cat", kAll, draw_joined,
       [](const Case& c) {
         return joined(c, [](const Tensors& v, int64_t axis) { return cat(v, axis); });
       }},
      {"stack", kAll, draw_joined,
       [](const Case& c) {
         return joined(c, [](const Tensors& v, int64_t axis) { return stack(v, axis); });
       }},
      {"roll", kAll, draw_roll, by(roll)},
      {"tril", kMore, draw_triangle,
       by([](const Tensor& x, const Dims& numbers) { return x.tril(numbers[0]); })},
      {"triu", kMore, draw_triangle,
       by([](const Tensor& x, const Dims& numbers) { return x.triu(numbers[0]); })},
      {"one_hot", {DType::I32}, draw_one_hot, one_hot},
      {"repeat", kAll, draw_repeats,
       by([](const Tensor& x, const Dims& numbers) { return x.repeat(numbers); })},
      {"interleave", kAll, draw_interleaved, by([](const Tensor& x, const Dims& numbers) {
         return x.repeat_interleave(numbers[0], numbers[1]);
       })},
      {"unfold", kFloats, draw_unfolded, copied([](const Tensor& x, const Dims& numbers) {
         return x.unfold(1, numbers[0], numbers[1]);
       })},
      {"halves", kFloats, draw_halves, by([](const Tensor& x, const Dims&) {
         const Tensors half = x.chunk(2, 1);
         return half[0].silu() * half[1];
       })},
  };
}

}  // namespace tinyshard::sweep
