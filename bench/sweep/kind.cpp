// The table of kinds, lines of cases, and what rows of several families are made of.
#include "bench/sweep/kind.h"

#include <charconv>
#include <sstream>
#include <utility>

#include <fmt/format.h>

namespace tinyshard::sweep {

const Kinds& kinds() {
  static const Kinds all = [] {
    Kinds rows;
    for (auto family : {elementwise_kinds, reduction_kinds, norm_kinds, movement_kinds, order_kinds,
                        index_kinds, product_kinds, window_kinds})
      std::ranges::move(family(), std::back_inserter(rows));
    return rows;
  }();
  return all;
}

const Kind& kind_of(std::string_view name) {
  const auto found = std::ranges::find(kinds(), name, &Kind::name);
  if (found == kinds().end()) throw UserError(fmt::format("no kind of step is named \"{}\"", name));
  return *found;
}

std::string text_of(const Case& drawn) {
  std::string text = fmt::format("{} {} {}", drawn.id, drawn.kind, name(drawn.dtype));
  for (int64_t size : drawn.sizes) text += fmt::format(" {}", size);
  text += " :";
  for (int64_t number : drawn.numbers) text += fmt::format(" {}", number);
  return text;
}

Case case_of(const std::string& line) {
  Case read;
  std::istringstream words(line);
  std::string type, word;
  Dims* list = &read.sizes;
  words >> read.id >> read.kind >> type;
  bool good = !words.fail();
  while (good && words >> word) {
    if (word == ":") {
      good = std::exchange(list, &read.numbers) == &read.sizes;
      continue;
    }
    const char* end = word.data() + word.size();
    list->push_back(0);
    const auto parsed = std::from_chars(word.data(), end, list->back());
    good = parsed.ec == std::errc() && parsed.ptr == end;
  }
  if (!good || list == &read.sizes)
    throw UserError(fmt::format(
        "\"{}\" is no case; one is \"7 softmax bf16 1024 768 : 1\", as --draw prints it", line));
  kind_of(read.kind);
  read.dtype = dtype_from_name(type);
  return read;
}

namespace {

double bytes_of(std::span<const Tensor> tensors) {
  double bytes = 0;
  for (const Tensor& t : tensors) bytes += double(t.nbytes());
  return bytes;
}

}  // namespace

Work moved(const Case&, const Step& step) {
  return {.bytes = bytes_of(step.inputs) + bytes_of(step.function(step.inputs))};
}
Work selected(const Case&, const Step& step) {
  return {.bytes = bytes_of(std::span(step.inputs).subspan(1)) +
                   2 * bytes_of(step.function(step.inputs))};
}
Work filled(const Case&, const Step& step) {
  return {.bytes =
              bytes_of(std::span(step.inputs).subspan(1)) + bytes_of(step.function(step.inputs))};
}

Sizes draw_shape(Draw& draw, int64_t elements) { return {draw.shape(elements), {}}; }
Sizes draw_axis(Draw& draw, int64_t elements) {
  Sizes drawn{draw.shape(elements), {}};
  drawn.numbers = {draw.axis(std::ssize(drawn.sizes))};
  return drawn;
}
Sizes draw_axes(Draw& draw, int64_t elements) {
  Sizes drawn{draw.shape(elements), {}};
  drawn.numbers = draw.axes(std::ssize(drawn.sizes));
  return drawn;
}

Tensor numbers(const Dims& shape, DType dtype) {
  return (is_float(dtype) ? Tensor::randn(shape, dtype) : Tensor::randint(shape, 0, 100, dtype))
      .realize();
}
Tensor places(const Dims& shape, int64_t n) { return Tensor::randint(shape, 0, n).realize(); }

Step step_of(Tensors inputs, std::function<Tensor(const Tensors&)> function) {
  return {std::move(inputs),
          [function = std::move(function)](const Tensors& v) { return Tensors{function(v)}; }};
}
Step unary(const Case& of, OneToOne function) {
  return step_of({numbers(of.sizes, of.dtype)},
                 [function = std::move(function)](const Tensors& v) { return function(v[0]); });
}

Step gradient_of(const Step& step, size_t targets) {
  const Tensor result = step.function(step.inputs).at(0);
  Step backward = step;
  backward.inputs.push_back(numbers(result.shape(), result.dtype()));
  backward.function = [forward = step.function, targets](const Tensors& v) {
    const Tensors inputs(v.begin(), v.end() - 1);
    const Tensors wanted(v.begin(), v.begin() + ptrdiff_t(targets));
    return forward(inputs)[0].gradient(wanted, v.back());
  };
  return backward;
}

}  // namespace tinyshard::sweep
