// This file decides which attention ops cuDNN can take, makes the graph of their operations (scores,
// mask, softmax, weighted sum, and their gradients), and the program that runs it. Operands may be views of one
// projection: each is four dims with strides, [batch, heads, rows, width].
#include "devices/cuda/attention.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "devices/cuda/cudnn_state.h"

namespace tinyshard::cuda {
namespace {

constexpr size_t kOldest = 90600;      // clears the sum of the gradient of q by itself from here on
constexpr int64_t kWidthMultiple = 8;  // 16 bytes
constexpr int64_t kAddressAlignment = 16;  // of addresses

// Four dims of an operand or a result. The stride of a dim of one element is any that is allowed.
std::optional<AttentionCall::View> four_dims(const StridedView& place) {
  const DimSpan shape = place.shape, strides = place.strides;
  size_t rank = shape.size();
  AttentionCall::View view{place.offset, {0, 0, strides[rank - 2], strides[rank - 1]}};
  if (rank > 2) view.strides[1] = strides[rank - 3];
  if (rank > 3) {
    auto outer = joint_stride(place, 0, rank - 3);
    if (!outer) return std::nullopt;
    view.strides[0] = *outer;
  }
  Dims sizes{product(shape.first(rank > 3 ? rank - 3 : 0)), rank > 2 ? shape[rank - 3] : 1,
             shape[rank - 2], shape[rank - 1]};
  if (sizes[3] == 1) view.strides[3] = 1;
  for (size_t i = 3; i-- > 0;) {
    if (sizes[i] == 1) view.strides[i] = view.strides[i + 1] * sizes[i + 1];
  }
  return view;
}

// A result at `place`, which has the order of its node.
std::optional<AttentionCall::View> result_view(const UOp& node, StridedView place) {
  if (attention_arg(*node).heads_inside) {
    size_t heads = place.shape.size() - 3;
    std::swap(place.shape[heads], place.shape[heads + 1]);
    std::swap(place.strides[heads], place.strides[heads + 1]);
  }
  return four_dims(place);
}

// Says what keeps cuDNN from reading or writing a tensor of the call that lies there. Empty if
// nothing does.
std::string misplaced(const AttentionCall& c, const std::optional<AttentionCall::View>& view,
                      bool statistics) {
  if (!view) return "has batch dims that lie apart";
  if (view->strides[3] != 1) return "has rows that lie apart";
  const int64_t multiple = statistics ? 4 : kWidthMultiple;
  for (size_t d = 0; d < 3; ++d) {
    int64_t stride = view->strides[d];
    if (stride <= 0 || (!statistics && stride % multiple != 0))
      return fmt::format("has a stride of {}", stride);
  }
  if (view->offset % multiple != 0) return fmt::format("starts at element {}", view->offset);
  const Dims packed{c.heads * c.rows, c.rows, 1};
  if (statistics && !std::equal(packed.begin(), packed.end(), view->strides.begin()))
    return "has statistics that lie apart";
  return "";
}

class AttentionGraph {
 public:
  explicit AttentionGraph(const AttentionCall& call)
      : call_(call),
        scores_{call.batch, call.heads, call.rows, call.columns},
        row_{call.batch, call.heads, call.rows, 1} {}

  DnnBuilder& build() {
    if (call_.backward)
      backward();
    else
      forward();
    return g_;
  }

 private:
  int memory(const AttentionCall::View& view, int64_t rows, int64_t width, bool transposed = false,
             DType dtype = DType::F32) {
    Dims dims{call_.batch, call_.heads, rows, width};
    Dims strides(view.strides.begin(), view.strides.end());
    if (transposed) std::swap(dims[2], dims[3]), std::swap(strides[2], strides[3]);
    return g_.memory(dtype, dims, strides);
  }
  int wide(const Dims& dims) { return g_.inside(kDnnF32, dims); }

  int scaled(int scores) {
    int out = wide(scores_);
    g_.binary(DnnBinary::Mul, scores, scale_, out);
    return out;
  }
  int masked(int scores) {
    if (!call_.causal) return scores;
    int row = g_.inside(kDnnI32, scores_), column = g_.inside(kDnnI32, scores_),
        seen = g_.inside(kDnnBool, scores_), out = wide(scores_),
        never = g_.constant(-std::numeric_limits<float>::infinity());
    g_.index(scores, 2, row);
    g_.index(scores, 3, column);
    g_.binary(DnnBinary::GreaterEqual, row, column, seen);
    g_.select(seen, scores, never, out);
    return out;
  }

  // Tensors in memory come in the order in which `addresses` of the program lists them: operands,
  // results, scratch.
  void forward() {
    const AttentionCall& c = call_;
    int q = memory(c.operands[0], c.rows, c.width, false, c.dtype);
    int k = memory(c.operands[1], c.columns, c.width, true, c.dtype);
    int v = memory(c.operands[2], c.columns, c.values, false, c.dtype);
    int result = memory(c.results[0], c.rows, c.values, false, c.dtype);
    int statistics = memory(c.results[1], c.rows, 1);
    scale_ = g_.constant(c.scale);

    int products = wide(scores_);
    g_.matmul(q, k, products);
    int scores = masked(scaled(products));
    int largest = wide(row_), shifted = wide(scores_), e = wide(scores_), sum = wide(row_);
    g_.reduce(DnnReduce::Max, scores, largest);
    g_.binary(DnnBinary::Sub, scores, largest, shifted);
    g_.unary(DnnUnary::Exp, shifted, e);
    g_.reduce(DnnReduce::Sum, e, sum);
    int log = wide(row_);
    g_.unary(DnnUnary::Log, sum, log);
    g_.binary(DnnBinary::Add, largest, log, statistics);
    int weights = g_.inside(dnn_type(c.dtype), scores_);
    g_.binary(DnnBinary::Div, e, sum, weights);
    g_.matmul(weights, v, result);
  }

  // With p the weights, do the gradient of the result o and r = sum(do * o) of each row:
  // dv = p^T do, ds = p * (do v^T - r) * scale, dq = ds k, dk = ds^T q.
  void backward() {
    const AttentionCall& c = call_;
    int q = memory(c.operands[0], c.rows, c.width, false, c.dtype);
    int k = memory(c.operands[1], c.columns, c.width, true, c.dtype);
    int v = memory(c.operands[2], c.columns, c.values, true, c.dtype);
    int o = memory(c.operands[3], c.rows, c.values, false, c.dtype);
    int statistics = memory(c.operands[4], c.rows, 1);
    int d_o = memory(c.operands[5], c.rows, c.values, false, c.dtype);
    int d_q = memory(c.results[0], c.rows, c.width, false, c.dtype);
    int d_k = memory(c.results[1], c.columns, c.width, false, c.dtype);
    int d_v = memory(c.results[2], c.columns, c.values, false, c.dtype);
    Dims by_row{c.batch, c.heads, c.rows, c.width};
    int row_sums = g_.memory(DType::F32, row_, row_major(row_));
    int d_q_sum = g_.memory(DType::F32, by_row, row_major(by_row));
    scale_ = g_.constant(c.scale);
    int one = g_.constant(1);

    int weighted = wide({c.batch, c.heads, c.rows, c.values}), unscaled = wide(row_);
    g_.binary(DnnBinary::Mul, d_o, o, weighted);
    g_.reduce(DnnReduce::Sum, weighted, unscaled);
    g_.binary(DnnBinary::Mul, unscaled, one, row_sums);

    int products = wide(scores_), below = wide(scores_), p = wide(scores_);
    g_.matmul(q, k, products);
    g_.binary(DnnBinary::Sub, scaled(products), statistics, below);
    g_.unary(DnnUnary::Exp, masked(below), p);
    int p_t = transposed();
    g_.reshape(p, p_t);
    g_.matmul(p_t, d_o, d_v);

    int d_p = wide(scores_), centered = wide(scores_), d_s = wide(scores_);
    g_.matmul(d_o, v, d_p);
    g_.binary(DnnBinary::Sub, d_p, row_sums, centered);
    g_.binary(DnnBinary::Mul, centered, p, d_s);
    int d_scores = scaled(d_s), d_s_t = transposed();
    g_.reshape(d_scores, d_s_t);
    g_.matmul(d_s_t, q, d_k);

    Dims k_strides(c.operands[1].strides.begin(), c.operands[1].strides.end());
    int k_rows = g_.inside(kDnnF32, Dims{c.batch, c.heads, c.columns, c.width}, k_strides);
    g_.reshape(k, k_rows);
    g_.matmul(d_scores, k_rows, d_q_sum);
    g_.unary(DnnUnary::Identity, d_q_sum, d_q);
  }

  int transposed() {
    Dims dims{call_.batch, call_.heads, call_.columns, call_.rows};
    int64_t area = call_.rows * call_.columns;
    return g_.inside(dnn_type(call_.dtype), dims, Dims{call_.heads * area, area, 1, call_.columns});
  }
  static Dims row_major(const Dims& dims) {
    Dims strides(dims.size());
    int64_t stride = 1;
    for (size_t i = dims.size(); i-- > 0; stride *= dims[i]) strides[i] = stride;
    return strides;
  }

  const AttentionCall& call_;
  Dims scores_, row_;
  DnnBuilder g_;
  int scale_ = -1;
};

int64_t aligned_bytes(int64_t bytes) { return (bytes + 255) / 256 * 256; }

AttentionCall supported_call(const LibraryCall& call) {
  std::string why;
  auto c = attention_call(call, &why);
  if (!c) throw InternalError("attention that was refused: " + why);
  return std::move(*c);
}

DnnPlanner planner(const AttentionCall& call) {
  return [&call](const DnnTarget& target) { return plan_attention(call, target); };
}

class AttentionProgram final : public GpuProgram {
 public:
  AttentionProgram(Gpu& gpu, AttentionCall call, std::shared_ptr<const DnnPlanned> plan)
      : GpuProgram(gpu), call_(std::move(call)), plan_(std::move(plan)), handle_(dnn_handle(gpu)) {
    const AttentionCall& c = call_;
    int64_t groups = c.batch * c.heads, size = sizeof(float);
    // Scratch memory holds results that nobody reads, and what the call's parts tell each other.
    auto scratch = [&](int64_t bytes) {
      places_.push_back(end_);
      end_ += aligned_bytes(bytes);
    };
    for (size_t i = 0; i < c.count(); ++i) {
      auto [length, breadth] = c.result_size(i);
      if (c.order[i] < 0) scratch(groups * length * breadth * size);
    }
    if (c.backward) {
      scratch(groups * c.rows * size);
      scratch(groups * c.rows * c.width * size);
    }
    workspace_ = gpu.workspace(size_t(end_ + plan_->workspace_bytes()));
  }

  void enqueue(void* const* buffers, const int64_t*) override {
    std::vector<void*> addresses;
    size_t operands = call_.operands.size();
    auto add = [&](void* buffer, const AttentionCall::View& view, bool statistics) {
      int64_t size = int64_t(statistics ? sizeof(float) : itemsize(call_.dtype));
      addresses.push_back(static_cast<char*>(buffer) + view.offset * size);
    };
    for (size_t i = 0; i < operands; ++i) add(buffers[i], call_.operands[i], i == 4);
    char* scratch = static_cast<char*>(workspace_.get());
    auto place = places_.begin();
    for (size_t i = 0; i < call_.count(); ++i) {
      int position = call_.order[i];
      if (position >= 0)
        add(buffers[operands + size_t(position)], call_.results[i], !call_.backward && i == 1);
      else
        addresses.push_back(scratch + *place++);
    }
    while (place != places_.end()) addresses.push_back(scratch + *place++);
    for (void* address : addresses) {
      if (reinterpret_cast<uintptr_t>(address) % kAddressAlignment != 0)
        throw InternalError(
            fmt::format("{}: an operand of {} lies at {}, which is no multiple of {}", gpu_.name(),
                        describe(), address, kAddressAlignment));
    }
    plan_->run(handle_, addresses, scratch + end_);
  }

  const void* scratch() const override { return workspace_.get(); }
  std::string describe() const override {
    const AttentionCall& c = call_;
    return fmt::format("cuDNN attention{} {}: batch {}, {} heads, {} x {}, width {} and {}{}",
                       c.backward ? " backward" : "", name(c.dtype), c.batch, c.heads, c.rows,
                       c.columns, c.width, c.values, c.causal ? ", causal" : "");
  }

 private:
  AttentionCall call_;
  std::shared_ptr<const DnnPlanned> plan_;
  DnnHandle handle_;
  std::vector<int64_t> places_;  // in the workspace, before cuDNN's own part
  int64_t end_ = 0;
  std::shared_ptr<void> workspace_;
};

}  // namespace

std::pair<int64_t, int64_t> AttentionCall::result_size(size_t which) const {
  if (!backward) return {rows, which == 0 ? values : 1};
  return {which == 0 ? rows : columns, which == 2 ? values : width};
}

std::string AttentionCall::shape() const {
  return fmt::format("attention {} {} {} {} {} {} {} {} {}", backward, causal, int(dtype), batch,
                     heads, rows, columns, width, values);
}

std::string AttentionCall::key() const {
  std::string text = fmt::format("{} {}", shape(), scale);
  for (const View& v : operands) text += fmt::format(" {}", fmt::join(v.strides, ","));
  for (const View& v : results) text += fmt::format(" {}", fmt::join(v.strides, ","));
  return text;
}

std::optional<AttentionCall> attention_call(const LibraryCall& call, std::string* why) {
  auto refuse = [&](std::string reason) {
    if (why) *why = std::move(reason);
    return std::nullopt;
  };
  const UOp& node = call.node;
  const UOp &q = node.src(0), &k = node.src(1), &v = node.src(2);
  AttentionArg arg = attention_arg(*node);
  AttentionCall c;
  c.backward = node.op() == Op::AttentionBackward;
  c.causal = arg.causal;
  c.scale = float(arg.scale);
  c.dtype = q.dtype();
  size_t rank = q.shape().size();
  c.rows = q.shape()[rank - 2];
  c.width = q.shape()[rank - 1];
  c.columns = k.shape()[rank - 2];
  c.values = v.shape()[rank - 1];
  if (rank > 2) c.heads = q.shape()[rank - 3];
  if (rank > 3) c.batch = product(q.shape().first(rank - 3));
  if (c.dtype != DType::F16 && c.dtype != DType::BF16)
    return refuse(fmt::format("cuDNN has no attention of {}", name(c.dtype)));
  if (q->numel() == 0 || v->numel() == 0) return refuse("there is nothing to compute");
  if (c.width % kWidthMultiple != 0 || c.values % kWidthMultiple != 0)
    return refuse(fmt::format("widths of {} and {} are no multiples of {}", c.width, c.values,
                              kWidthMultiple));
  if (c.backward && c.rows == 1 && c.columns == 1) return refuse("a single score");
  if (call.operands.size() > (c.backward ? 6 : 3))
    return refuse("cuDNN takes no places of rows, which those of a divided sequence need");

  for (size_t i = 0; i < call.operands.size(); ++i) {
    auto view = four_dims(call.operands[i]);
    std::string reason = misplaced(c, view, i == 4);
    if (!reason.empty()) return refuse(fmt::format("operand {} {}", i, reason));
    c.operands.push_back(*view);
  }

  std::vector<UOp> nodes{node};
  nodes.insert(nodes.end(), call.also.begin(), call.also.end());
  for (int i = 0; i < int(nodes.size()); ++i) {
    AttentionArg other = attention_arg(*nodes[size_t(i)]);
    if (other.causal != arg.causal || other.scale != arg.scale || c.order[size_t(other.which)] >= 0)
      return refuse("results of different calls");
    const UOp& result = nodes[size_t(i)];
    auto view = result_view(
        result, call.results.empty() ? row_major(result.shape()) : call.results[size_t(i)]);
    std::string reason = misplaced(c, view, !c.backward && other.which == 1);
    if (!reason.empty()) return refuse(fmt::format("result {} {}", i, reason));
    c.order[size_t(other.which)] = i;
    c.results[size_t(other.which)] = *view;
  }
  // cuDNN writes results that nobody reads as well: row-major, to scratch memory.
  for (size_t which = 0; which < c.count(); ++which) {
    auto [length, breadth] = c.result_size(which);
    if (c.order[which] < 0)
      c.results[which].strides = {c.heads * length * breadth, length * breadth, breadth, 1};
  }
  return c;
}

bool attention_has_engine(const AttentionCall& call, const DnnTarget& target) {
  return AttentionGraph(call).build().supported(target);
}

std::unique_ptr<DnnPlanned> plan_attention(const AttentionCall& call, const DnnTarget& target) {
  return AttentionGraph(call).build().plan(target);
}

bool attention_supports(const Gpu& gpu, const LibraryCall& call, std::string* why) {
  const Cudnn& dnn = Cudnn::get();
  auto refuse = [&](const std::string& reason) {
    if (why) *why = reason;
    return false;
  };
  if (!dnn.found()) return refuse("cuDNN is missing: " + dnn.why_not());
  bool wrong = dnn.number() == 91000 || dnn.number() == 91001;  // known to compute something else
  if (dnn.number() < kOldest || wrong)
    return refuse(fmt::format("cuDNN {} cannot be used for attention", dnn.version()));
  auto c = attention_call(call, why);
  if (!c) return false;
  bool found = dnn_supports(
      gpu, c->shape(), [&](const DnnTarget& target) { return attention_has_engine(*c, target); });
  return found || refuse("cuDNN has no engine for " + c->shape());
}

void prepare_attention(Gpu& gpu, const LibraryCall& call) {
  AttentionCall c = supported_call(call);
  dnn_prepare(gpu, c.key(), planner(c));
}

std::unique_ptr<Program> make_attention(Gpu& gpu, const LibraryCall& call) {
  AttentionCall c = supported_call(call);
  auto plan = dnn_plan(gpu, c.key(), planner(c));
  return std::make_unique<AttentionProgram>(gpu, std::move(c), std::move(plan));
}

}  // namespace tinyshard::cuda
