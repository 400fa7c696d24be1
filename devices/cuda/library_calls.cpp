// Every op has four answers, by one switch each: whether a call can be
// expressed at all, which is asked for plans without a GPU; whether
// the library of this GPU takes it; its preparation; its program.
#include "devices/cuda/library_calls.h"

#include "core/base/error.h"
#include "core/codegen/scatter.h"
#include "core/codegen/sort.h"
#include "devices/cuda/attention.h"
#include "devices/cuda/convolution.h"
#include "devices/cuda/matmul.h"
#include "devices/cuda/matmul_spec.h"
#include "devices/cuda/row_attention.h"
#include "devices/cuda/scatter.h"
#include "devices/gpu/scatter.h"
#include "devices/gpu/sort.h"

namespace tinyshard::cuda {

namespace {

bool results_fit(const LibraryCall& call, std::string* why) {
  const Op op = call.node.op();
  if (call.results.empty() || op == Op::Attention || op == Op::AttentionBackward) return true;
  if (why) *why = "results are contiguous";
  return false;
}

SortCode sorts_for(const Target& target) {
  return {[&target](const SortShape& s) { return compile_row_sort(s, target); },
          [&target](const SortShape& s) { return compile_sort_steps(s, target); }};
}

}  // namespace

bool library_expresses(const Target& target, const LibraryCall& call, std::string* why) {
  if (!results_fit(call, why)) return false;
  if (is_row_attention(call)) return row_attention_supports(target, call, why);
  switch (call.node.op()) {
    case Op::Dot:
      return matmul_spec(call, why).has_value();
    case Op::Attention:
    case Op::AttentionBackward:
      return attention_call(call, why).has_value();
    case Op::Conv:
    case Op::ConvBackwardData:
    case Op::ConvBackwardWeight:
      return convolution_fits(call, why);
    case Op::ScatterAdd:
      return call.also.empty() && scatter_supports(call, why);
    case Op::Sort:
      return sort_supports(call, why);
    default:
      if (why) *why = "no library for it";
      return false;
  }
}

bool library_supports(const Gpu& gpu, const LibraryCall& call, std::string* why) {
  if (!results_fit(call, why)) return false;
  if (is_row_attention(call)) return row_attention_supports(gpu.target(), call, why);
  switch (call.node.op()) {
    case Op::Dot:
      return matmul_supports(gpu, call, why);
    case Op::Attention:
    case Op::AttentionBackward:
      return attention_supports(gpu, call, why);
    case Op::Conv:
    case Op::ConvBackwardData:
    case Op::ConvBackwardWeight:
      return convolution_supports(gpu, call, why);
    case Op::ScatterAdd:
      return call.also.empty() && scatter_supports(call, why);
    case Op::Sort:
      return sort_supports(call, why);
    default:
      if (why) *why = "no library for it";
      return false;
  }
}

void prepare_library_call(Gpu& gpu, const LibraryCall& call) {
  if (is_row_attention(call)) return;
  switch (call.node.op()) {
    case Op::Attention:
    case Op::AttentionBackward:
      return prepare_attention(gpu, call);
    case Op::Conv:
    case Op::ConvBackwardData:
    case Op::ConvBackwardWeight:
      return prepare_convolution(gpu, call);
    default:
      return;
  }
}

std::unique_ptr<Program> make_library_program(Gpu& gpu, const LibraryCall& call) {
  if (is_row_attention(call)) return make_row_attention(gpu, call);
  switch (call.node.op()) {
    case Op::Dot:
      return make_matmul(gpu, call);
    case Op::Attention:
    case Op::AttentionBackward:
      return make_attention(gpu, call);
    case Op::Conv:
    case Op::ConvBackwardData:
    case Op::ConvBackwardWeight:
      return make_convolution(gpu, call);
    case Op::ScatterAdd:
      return make_scatter(
          gpu, call,
          {[&](const ScatterShape& s) {
             return !s.in_place && scatters_apart(s, gpu.target())
                        ? compile_scatter(s, gpu.target())
                        : scatter_code(s);
           },
           [&](const ScatterShape& s) { return compile_sorted_scatter(s, gpu.target()); },
           sorts_for(gpu.target())});
    case Op::Sort:
      return make_sort(gpu, call, sorts_for(gpu.target()));
    default:
      throw InternalError("a library call that was refused: " + describe(*call.node));
  }
}

}  // namespace tinyshard::cuda
