// Which attention of single rows there is a kernel for, and its program.
#include "devices/cuda/row_attention.h"

#include <limits>

#include <fmt/format.h>

#include "core/uop/args.h"
#include "devices/cuda/gpu_target.h"

namespace tinyshard::cuda {
namespace {

constexpr int64_t kMostRows = 8;
constexpr int64_t kKeyMultiple = 32, kMostWidth = 128;      // of q and k
constexpr int64_t kValuesMultiple = 64, kMostValues = 128;  // of v
constexpr int64_t kAligned = 8;                             // elements of 16 bytes

// The last two dims of q, k or v, and those before as one; nothing where they lie apart.
std::optional<RowAttentionView> view_of(const StridedView& place) {
  const size_t rank = place.shape.size();
  auto group = joint_stride(place, 0, rank - 2);
  if (!group || place.strides[rank - 1] != 1) return std::nullopt;
  RowAttentionView view{place.offset, *group, place.strides[rank - 2]};
  const bool fits = view.offset % kAligned == 0 && view.group >= 0 && view.group % kAligned == 0 &&
                    view.row >= 0 && view.row % kAligned == 0 &&
                    view.row < std::numeric_limits<int32_t>::max() / 2;
  return fits ? std::optional(view) : std::nullopt;
}

}  // namespace

bool is_row_attention(const LibraryCall& call) {
  return call.node.op() == Op::Attention && call.node->sources > 3;
}

std::optional<RowAttentionShape> row_attention_shape(const LibraryCall& call, std::string* why) {
  auto refuse = [&](std::string reason) {
    if (why) *why = std::move(reason);
    return std::nullopt;
  };
  const UOp& x = call.node;
  const DimSpan q = x.src(0).shape(), k = x.src(1).shape(), v = x.src(2).shape();
  const size_t rank = q.size();
  const AttentionArg arg = attention_arg(*x);
  RowAttentionShape s;
  s.dtype = x.dtype();
  s.position_dtype = x.src(3).dtype();
  if (s.dtype != DType::BF16 && s.dtype != DType::F16)
    return refuse(fmt::format("no attention of single rows of {}", name(s.dtype)));
  if (s.position_dtype != DType::I64 && s.position_dtype != DType::I32)
    return refuse("positions are i64 or i32");
  if (!arg.causal || arg.which != 0 || !call.also.empty()) return refuse("the result alone");
  if (rank < 3 || q[rank - 2] != 1) return refuse("more than one row that looks at the keys");
  s.groups = product(k.first(rank - 2));
  s.columns = k[rank - 2];
  s.width = q[rank - 1];
  s.values = v[rank - 1];
  if (x->numel() == 0 || s.columns == 0 || s.columns > std::numeric_limits<int32_t>::max() / 2)
    return refuse(fmt::format("{} columns", s.columns));
  s.rows = product(q.first(rank - 2)) / s.groups;
  if (s.rows > kMostRows) return refuse(fmt::format("{} rows share their keys", s.rows));
  if (s.width % kKeyMultiple != 0 || s.width > kMostWidth || s.values % kValuesMultiple != 0 ||
      s.values > kMostValues)
    return refuse(fmt::format("widths of {} and {}", s.width, s.values));
  s.scale = float(arg.scale);
  const auto place_q = view_of(call.operands[0]), place_k = view_of(call.operands[1]),
             place_v = view_of(call.operands[2]);
  if (!place_q || !place_k || !place_v) return refuse("an operand lies apart");
  if (!call.results.empty() && !is_row_major(call.results[0])) return refuse("a result lies apart");
  // Heads that follow each other share keys: they are the rows of a group.
  s.q = {place_q->offset, s.rows * place_q->group, place_q->group};
  s.k = *place_k, s.v = *place_v;
  s.position_offset = call.operands[3].offset;
  return s;
}

bool row_attention_supports(const Target& target, const LibraryCall& call, std::string* why) {
  if (!has_clusters(target)) {
    if (why) *why = "the GPU has no clusters of blocks";
    return false;
  }
  return row_attention_shape(call, why).has_value();
}

std::unique_ptr<Program> make_row_attention(Gpu& gpu, const LibraryCall& call) {
  const RowAttentionShape shape = row_attention_shape(call, nullptr).value();
  return std::make_unique<KernelProgram>(gpu, row_attention_code(shape, gpu.target()));
}

}  // namespace tinyshard::cuda
