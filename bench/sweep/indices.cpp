// Reads and writes through indices: gathers, embeddings, sums of segments, scatters, and gradients.
#include "bench/sweep/kind.h"

namespace tinyshard::sweep {
namespace {

// An axis, and how many places along it.
Sizes draw_places(Draw& draw, int64_t elements) {
  Sizes drawn{draw.shape(elements), {}};
  const int64_t axis = draw.axis(std::ssize(drawn.sizes));
  const int64_t size = drawn.sizes[size_t(axis)];
  drawn.numbers = {axis, std::max<int64_t>(1, draw.pick({size, size / 2, size / 10}))};
  return drawn;
}
// [rows, width], and a number of places.
Sizes draw_table(Draw& draw, int64_t elements) {
  const int64_t width = draw.pick<int64_t>({1, 16, 64, 128, 768, 1000, 4096});
  const int64_t rows = std::max<int64_t>(2, elements / width);
  return {{rows, width}, {std::max<int64_t>(2, rows / draw.pick<int64_t>({1, 2, 8, 100}))}};
}

Step gather(const Case& of) {
  const int64_t axis = of.numbers.at(0);
  Dims index = of.sizes;
  index.at(size_t(axis)) = of.numbers.at(1);
  return step_of({numbers(of.sizes, of.dtype), places(index, of.sizes[size_t(axis)])},
                 [axis](const Tensors& v) { return v[0].gather(axis, v[1]); });
}
Step index_select(const Case& of) {
  const int64_t axis = of.numbers.at(0);
  return step_of(
      {numbers(of.sizes, of.dtype), places({of.numbers.at(1)}, of.sizes.at(size_t(axis)))},
      [axis](const Tensors& v) {
        std::vector<Index> index(static_cast<size_t>(axis), Index(Slice()));
        index.emplace_back(v[1]);
        return v[0].at(index);
      });
}
Step embedding(const Case& of) {
  return step_of({numbers(of.sizes, of.dtype), places({of.numbers.at(0)}, of.sizes[0])},
                 [](const Tensors& v) { return v[0].embedding(v[1]); });
}

// Reduces rows into as many as the case's number says.
Step into_rows(const Case& of, ScatterReduce reduce, bool sorted) {
  const int64_t count = of.numbers.at(0);
  Tensor rows = places({of.sizes[0]}, count);
  if (sorted) rows = rows.sort().first.clone().realize();
  const Dims source = of.sizes, result = {count, of.sizes[1]};
  return step_of({numbers(source, of.dtype), rows}, [=, type = of.dtype](const Tensors& v) {
    const Tensor index = v[1].unsqueeze(1).expand(source);
    return Tensor::zeros(result, type).scatter_reduce(0, index, v[0], reduce);
  });
}
Kind rows_kind(std::string_view name, ScatterReduce reduce, bool sorted = false) {
  return {name, kAll, draw_table, [=](const Case& c) { return into_rows(c, reduce, sorted); }};
}

Step scatter(const Case& of) {
  const int64_t axis = of.numbers.at(0);
  return step_of({numbers(of.sizes, of.dtype), places(of.sizes, of.sizes.at(size_t(axis))),
                  numbers(of.sizes, of.dtype)},
                 [axis](const Tensors& v) { return v[0].scatter(axis, v[1], v[2]); });
}
Step masked_fill(const Case& of) {
  const Tensor mask = (Tensor::randn(of.sizes) > 0).realize();
  return step_of({numbers(of.sizes, of.dtype), mask},
                 [](const Tensors& v) { return v[0].masked_fill(v[1], 0); });
}

}  // namespace

Kinds index_kinds() {
  return {
      {"gather", kAll, draw_places, gather, selected},
      {"gather_grad", kFloats, draw_places, [](const Case& c) { return gradient_of(gather(c)); },
       filled},
      {"index_select", kAll, draw_places, index_select, selected},
      {"embedding", kMore, draw_table, embedding, selected},
      {"embedding_grad", kFloats, draw_table,
       [](const Case& c) { return gradient_of(embedding(c)); }, filled},
      rows_kind("index_add", ScatterReduce::Sum),
      rows_kind("segment_sum", ScatterReduce::Sum, true),
      rows_kind("scatter_max", ScatterReduce::Amax),
      {"scatter", kAll, draw_axis, scatter},
      {"masked_fill", kAll, draw_axis, masked_fill},
  };
}

}  // namespace tinyshard::sweep
