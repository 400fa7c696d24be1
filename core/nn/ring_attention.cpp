// Step s of a device works on the keys and values of the device s places before it. Keys of a step
// may travel only after the step `kWindow` before has ended, which an order in both directions
// holds them to: so two steps' worth is in memory, in the backward pass as well.
//
// A column of ones beside v makes the product give both sums, of exp(score) * v and of exp(score).
#include "core/nn/ring_attention.h"

#include <cmath>
#include <cstdint>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/nn/checkpoint_activations.h"
#include "core/passes/gradient.h"
#include "core/tensor/shard_map.h"

namespace tinyshard::nn {
namespace {

// Keys and values of so many steps may be on the way or in use at a time.
constexpr int64_t kWindow = 2;

// The value of a score that does not count. It is finite, so that rows in which nothing counts yet
// have a difference to it: what they sum up is rescaled to 0 by the first score that counts.
constexpr double kNever = -1e30;

// x for the step after `event`. Its gradient is what later steps add to it, as one value.
Tensor in_turn(const Tensor& x, const Tensor& event) {
  return Tensor(in_order_both_ways(x.uop(), event.uop())).contiguous_backward();
}

void check(const Tensor& q, const Tensor& k, const Tensor& v, bool enable_gqa) {
  const std::string texts =
      fmt::format("query is {}, key is {}, value is {}", q.describe(), k.describe(), v.describe());
  if (!is_float(q.dtype()) || k.dtype() != q.dtype() || v.dtype() != q.dtype())
    fail(texts + ": need one float type");
  const int64_t dims = q.ndim();
  if (dims < 2 || k.ndim() != dims || v.ndim() != dims || q.shape(-1) != k.shape(-1) ||
      k.shape(-2) != v.shape(-2))
    fail(texts + ": need [.., L, E], [.., S, E] and [.., S, V]");
  for (int64_t d = 0; d + 2 < dims; ++d) {
    const bool shared =
        enable_gqa && d + 3 == dims && k.shape(d) > 0 && q.shape(d) % k.shape(d) == 0;
    if ((q.shape(d) != k.shape(d) && !shared) || k.shape(d) != v.shape(d))
      fail(fmt::format("{}: sizes of dim {} do not fit", texts, d));
  }
}

// The function that each device runs. Heads that share keys are rows below each other: [.., heads of k, n L, E].
Tensor on_device(const Tensor& query, const Tensor& k, const Tensor& v, const std::string& axis,
                 bool is_causal) {
  const int64_t rows = query.shape(-2), columns = k.shape(-2), width = v.shape(-1);
  Dims grouped = k.shape();
  grouped.end()[-2] = query.numel() / std::max<int64_t>(k.numel() / columns, 1);
  grouped.back() = query.shape(-1);
  const Tensor q = query.reshape(grouped);
  const DType type = q.dtype(), wide = accumulator(type);
  const double scale = 1 / std::sqrt(static_cast<double>(q.shape(-1)));
  const int64_t devices = axis_size(axis);
  const Tensor here = axis_index(axis);
  const Tensor row = (Tensor::arange(grouped.end()[-2], DType::I32) % static_cast<int>(rows) +
                      here * static_cast<int>(rows))
                         .unsqueeze(1);

  auto scores = [&](const Tensor& rows_of, const Tensor& columns_of, int64_t step) {
    const Tensor s = rows_of.matmul(columns_of.transpose(-2, -1), wide) * scale;
    if (!is_causal) return s;
    const Tensor from = (here + static_cast<int>(devices - step)) % static_cast<int>(devices);
    const Tensor column = Tensor::arange(columns, DType::I32) + from * static_cast<int>(columns);
    return (column <= row).where(s, kNever);
  };
  auto arrived = [&](const Tensor& x, int64_t step) {
    return step == 0 ? x : shift(x, axis, step);
  };

  // A step reads these: a gradient is added to those of later steps before earlier ones follow.
  Tensor of = q, keys = k, values = v;
  Tensor largest;                  // score of each row so far
  std::vector<Tensor> sums_up_to;  // a step, [.., width + 1]: of exp(score) * v, and of exp(score)
  for (int64_t step = 0; step < devices; ++step) {
    if (step >= kWindow) {
      for (Tensor* x : {&of, &keys, &values})
        *x = in_turn(*x, sums_up_to[static_cast<size_t>(step - kWindow)]);
    }
    Tensor top = scores(of, arrived(keys, step), step).max(-1, true);
    if (step > 0) top = top.maximum(largest);
    top = top.detach();
    auto terms = [&](const Tensor& sent_q, const Tensor& sent_k, const Tensor& sent_v,
                     const Tensor& relative_to) {
      const Tensor weight = (scores(sent_q, arrived(sent_k, step), step) - relative_to).exp();
      const Tensor value = arrived(sent_v, step);
      Dims ones = value.shape();
      ones.back() = 1;
      return weight.cast(type).matmul(cat({value, Tensor::ones(ones, type)}, -1), wide);
    };
    const Tensor more = checkpoint_activations(terms, of, keys, values, top);
    sums_up_to.push_back(step == 0 ? more : sums_up_to.back() * (largest - top).exp() + more);
    largest = top;
  }
  auto columns_of = [&](int64_t begin, int64_t end) {
    return sums_up_to.back()[{kEllipsis, Slice(begin, end)}];
  };
  Dims shape = query.shape();
  shape.back() = width;
  return (columns_of(0, width) / columns_of(width, width + 1)).cast(type).reshape(shape);
}

}  // namespace

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Mesh& mesh,
                      const std::string& axis, const RingAttentionOptions& options, Caller caller) {
  Call call("ring_attention", caller);
  check(q, k, v, options.enable_gqa);
  std::vector<AxisPlacement> place = options.others;
  place.emplace_back(axis, Shard(static_cast<int>(q.ndim() - 2)));
  auto ring = shard_map(
      mesh,
      [&](const Tensor& query, const Tensor& keys, const Tensor& values) {
        return on_device(query, keys, values, axis, options.is_causal);
      },
      {.in = {place, place, place}, .out = {place}}, caller);
  return ring(q, k, v);
}

}  // namespace tinyshard::nn
