// Library calls of the CPU: which of them oneDNN or code of ours takes, and a program for each.
#include "devices/cpu/library_calls.h"

#include <optional>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/observer.h"
#include "core/uop/args.h"
#include "core/uop/product_region.h"
#include "devices/cpu/decompose.h"
#include "devices/cpu/library.h"
#include "devices/cpu/scan.h"
#include "devices/cpu/scatter.h"
#include "devices/cpu/sort.h"
#include "devices/cpu/thread_pool.h"

namespace tinyshard {
namespace {

std::optional<MatmulSpec> matmul_spec(const LibraryCall& call) {
  const UOp& x = call.node;
  const StridedView &a = call.operands[0], &b = call.operands[1];
  size_t batch = a.shape.size() - 2;
  MatmulSpec spec;
  spec.dtype = x.src(0).dtype();
  spec.out_dtype = x.dtype();
  if (x.src(1).dtype() != spec.dtype) return std::nullopt;
  spec.m = a.shape[batch];
  spec.k = a.shape[batch + 1];
  spec.n = b.shape[batch + 1];
  spec.a_m = a.strides[batch];
  spec.a_k = a.strides[batch + 1];
  spec.b_k = b.strides[batch];
  spec.b_n = b.strides[batch + 1];
  spec.c_m = spec.n;
  spec.c_n = 1;
  int64_t c_stride = spec.m * spec.n;
  std::vector<std::array<int64_t, 4>> dims;  // size and strides, innermost first
  for (size_t i = batch; i-- > 0;) {
    if (a.shape[i] != 1) dims.push_back({a.shape[i], a.strides[i], b.strides[i], c_stride});
    c_stride *= a.shape[i];
  }
  if (dims.size() > MatmulSpec::kMaxBatch) return std::nullopt;
  spec.batch_rank = int(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    size_t to = dims.size() - 1 - i;
    spec.batch[to] = dims[i][0];
    spec.a_batch[to] = dims[i][1];
    spec.b_batch[to] = dims[i][2];
    spec.c_batch[to] = dims[i][3];
  }
  return spec;
}

ConvSpec conv_spec(const LibraryCall& call) {
  const UOp& x = call.node;
  ConvArg arg = conv_arg(*x);
  ConvSpec spec;
  spec.dtype = x.dtype();
  spec.groups = arg.groups;
  DimSpan first = x.src(0).shape(), second = x.src(1).shape(), result(arg.result, 4);
  DimSpan src = first, weight = second;
  switch (x.op()) {
    case Op::Conv:
      spec.direction = ConvDirection::Forward;
      break;
    case Op::ConvBackwardData:
      spec.direction = ConvDirection::BackwardData;
      src = result;
      break;
    default:
      spec.direction = ConvDirection::BackwardWeights;
      weight = result;
  }
  spec.n = src[0];
  spec.c = src[1];
  spec.oc = weight[0];
  for (int i = 0; i < 2; ++i) {
    spec.in[i] = src[2 + i];
    spec.kernel[i] = weight[2 + i];
    spec.stride[i] = arg.stride[i];
    spec.dilation[i] = arg.dilation[i];
    spec.pad_lo[i] = arg.pad_low[i];
    spec.pad_hi[i] = arg.pad_high[i];
  }
  return spec;
}

std::optional<ScatterSpec> scatter_spec(const LibraryCall& call) {
  const UOp& x = call.node;
  const StridedView& index = call.operands[0];
  size_t axis = size_t(scatter_arg(*x).axis), rank = index.shape.size();
  auto outer = joint_stride(index, 0, axis), inner = joint_stride(index, axis + 1, rank);
  if (!outer || !inner) return std::nullopt;
  if (x->sources > 2 && x.src(2).dtype() != x.dtype()) return std::nullopt;
  ScatterSpec spec;
  spec.dtype = x.dtype();
  spec.op = scatter_arg(*x).op;
  spec.writes = scatter_arg(*x).writes;
  spec.index_dtype = x.src(0).dtype();
  spec.outer = product(DimSpan(index.shape).first(axis));
  spec.rows_in = index.shape[axis];
  spec.rows_out = scatter_arg(*x).size;
  spec.inner = product(DimSpan(index.shape).subspan(axis + 1));
  spec.index_outer = *outer;
  spec.index_row = index.strides[axis];
  spec.index_inner = *inner;
  return spec;
}

const char* at(const void* base, const StridedView& view, DType dtype) {
  return static_cast<const char*>(base) + view.offset * int64_t(itemsize(dtype));
}

class MatmulCall : public Program {
 public:
  MatmulCall(const LibraryCall& call, const MatmulSpec& spec, ThreadPool& pool)
      : offset_a_(call.operands[0].offset * int64_t(itemsize(spec.dtype))),
        offset_b_(call.operands[1].offset * int64_t(itemsize(spec.dtype))),
        pool_(pool),
        program_(library_program(spec, pool.threads())) {}
  void launch(void* const* buffers, const int64_t*) override {
    program_->run(static_cast<const char*>(buffers[0]) + offset_a_,
                  static_cast<const char*>(buffers[1]) + offset_b_, buffers[2], nullptr, pool_);
  }
  std::string describe() const override { return program_->describe(); }

 private:
  int64_t offset_a_, offset_b_;
  ThreadPool& pool_;
  std::shared_ptr<const MatmulProgram> program_;
};

class ConvCall : public Program {
 public:
  ConvCall(const ConvSpec& spec, ThreadPool& pool)
      : pool_(pool), program_(library_program(spec, pool.threads())) {}
  // The graph's operand order: (x, w), (gradient, w), (x, gradient), as the library's.
  void launch(void* const* buffers, const int64_t*) override {
    program_->run(buffers[0], buffers[1], buffers[2], nullptr, pool_);
  }
  std::string describe() const override { return program_->describe(); }

 private:
  ThreadPool& pool_;
  std::shared_ptr<const ConvProgram> program_;
};

class ScatterCall : public Program {
 public:
  ScatterCall(const LibraryCall& call, const ScatterSpec& spec, ThreadPool& pool)
      : index_(call.operands[0]), spec_(spec), based_(call.operands.size() > 2), pool_(pool) {}
  void launch(void* const* buffers, const int64_t*) override {
    const void* base = based_ ? buffers[2] : nullptr;
    scatter_add(spec_, base, at(buffers[0], index_, spec_.index_dtype), buffers[1],
                buffers[based_ ? 3 : 2], pool_);
  }
  std::string describe() const override { return "scatter_add"; }

 private:
  StridedView index_;
  ScatterSpec spec_;
  bool based_;
  ThreadPool& pool_;
};

SortSpec sort_spec(const LibraryCall& call) {
  DimSpan shape = call.node.src(0).shape();
  return {.key = call.node.src(0).dtype(),
          .rows = product(shape.first(shape.size() - 1)),
          .n = shape.back(),
          .k = sorted_places(*call.node)};
}

// Memory of a program, which plans and pages know as theirs.
void* take_workspace(Device& device, size_t bytes) {
  void* memory = device.allocate(bytes, "workspaces");
  observe([&] {
    return ObservedEvent{
        .kind = EventKind::Allocation, .name = "workspaces", .bytes = int64_t(bytes)};
  });
  return memory;
}
void give_workspace(Device& device, void* memory, size_t bytes) noexcept {
  device.free(memory, bytes);
  observe([&] {
    return ObservedEvent{
        .kind = EventKind::Allocation, .name = "workspaces", .bytes = -int64_t(bytes)};
  });
}

class SortCall : public Program {
 public:
  SortCall(const SortSpec& spec, ThreadPool& pool, Device& device)
      : spec_(spec),
        pool_(pool),
        device_(device),
        bytes_(size_t(sort_scratch_bytes(spec, pool.threads()))),
        memory_(bytes_ > 0 ? take_workspace(device, bytes_) : nullptr) {}
  ~SortCall() override {
    if (memory_) give_workspace(device_, memory_, bytes_);
  }
  void launch(void* const* buffers, const int64_t*) override {
    sort_rows(spec_, buffers[0], static_cast<int32_t*>(buffers[1]), memory_, pool_);
  }
  std::string describe() const override { return "sort"; }
  const void* scratch() const override { return memory_; }

 private:
  SortSpec spec_;
  ThreadPool& pool_;
  Device& device_;
  size_t bytes_;
  void* memory_;
};

DecomposeSpec decompose_spec(const LibraryCall& call) {
  const DimSpan shape = call.node.src(0).shape();
  const size_t batch = shape.size() - 2;
  return {call.node.dtype(), product(shape.first(batch)), shape[batch], shape[batch + 1]};
}

std::vector<DecomposeArg> decompose_factors(const LibraryCall& call) {
  std::vector<DecomposeArg> factors{decompose_arg(*call.node)};
  for (const UOp& x : call.also) factors.push_back(decompose_arg(*x));
  return factors;
}

ScanSpec scan_spec(const LibraryCall& call) {
  const ScanArg arg = scan_arg(*call.node);
  const DimSpan shape = call.node.shape();
  const auto axis = size_t(arg.axis);
  return {.arg = arg,
          .dtype = call.node.src(0).dtype(),
          .outer = product(shape.first(axis)),
          .n = shape[axis],
          .inner = product(shape.subspan(axis + 1))};
}

class ScanCall : public Program {
 public:
  ScanCall(const ScanSpec& spec, ThreadPool& pool, Device& device)
      : spec_(spec),
        pool_(pool),
        device_(device),
        bytes_(size_t(scan_scratch_bytes(spec))),
        memory_(bytes_ > 0 ? device.allocate(bytes_, "workspaces") : nullptr) {}
  ~ScanCall() override {
    if (memory_) device_.free(memory_, bytes_);
  }
  void launch(void* const* buffers, const int64_t*) override {
    scan_lines(spec_, buffers[0], buffers[1], memory_, pool_);
  }
  std::string describe() const override { return "scan"; }
  const void* scratch() const override { return memory_; }

 private:
  ScanSpec spec_;
  ThreadPool& pool_;
  Device& device_;
  size_t bytes_;
  void* memory_;
};

// Scratch memory is kept, as a sort's is, up to what two singular value decompositions of 1000 rows and
// columns take. More is allocated for each launch: programs live long, and matrices of thousands of
// rows take gigabytes, and minutes.
class DecomposeCall : public Program {
 public:
  DecomposeCall(const LibraryCall& call, ThreadPool& pool, Device& device)
      : pool_(pool), device_(device) {
    spec_ = decompose_spec(call);
    factors_ = decompose_factors(call);
    bytes_ = size_t(decompose_scratch_bytes(spec_, factors_, pool.threads()));
    if (bytes_ <= kMostKept) memory_ = take_workspace(device, bytes_);
  }
  ~DecomposeCall() override {
    if (memory_) give_workspace(device_, memory_, bytes_);
  }
  void launch(void* const* buffers, const int64_t*) override {
    if (memory_) return decompose(spec_, buffers[0], factors_, buffers + 1, memory_, pool_);
    auto release = [this](void* memory) { give_workspace(device_, memory, bytes_); };
    const std::unique_ptr<void, decltype(release)> memory(take_workspace(device_, bytes_), release);
    decompose(spec_, buffers[0], factors_, buffers + 1, memory.get(), pool_);
  }
  std::string describe() const override { return "decompose"; }
  const void* scratch() const override { return memory_; }

 private:
  static constexpr size_t kMostKept = size_t{1} << 26;

  DecomposeSpec spec_;
  std::vector<DecomposeArg> factors_;
  ThreadPool& pool_;
  Device& device_;
  size_t bytes_ = 0;
  void* memory_ = nullptr;
};

}  // namespace

bool cpu_library_supports(const LibraryCall& call, std::string* why) {
  const bool several = !call.also.empty() && call.node.op() != Op::Decompose;
  if (several || !call.results.empty()) {
    if (why) *why = "one contiguous result a call";
    return false;
  }
  switch (call.node.op()) {
    case Op::Dot: {
      if (region_of(call.node)) {
        if (why) *why = "products alone, without what follows them";
        return false;
      }
      auto spec = matmul_spec(call);
      return spec && library_supports(*spec, why);
    }
    case Op::Conv:
    case Op::ConvBackwardData:
    case Op::ConvBackwardWeight:
      return library_supports(conv_spec(call), why);
    case Op::ScatterAdd: {
      auto spec = scatter_spec(call);
      return spec && scatter_supports(*spec);
    }
    case Op::Sort:
      return is_row_major(call.operands[0]) && sort_supports(sort_spec(call));
    case Op::Scan:
      return is_row_major(call.operands[0]) && scan_supports(scan_spec(call));
    case Op::Decompose:
      return is_row_major(call.operands[0]);
    default:
      return false;
  }
}

std::unique_ptr<Program> make_cpu_library_program(const LibraryCall& call, ThreadPool& pool,
                                                  Device& device) {
  switch (call.node.op()) {
    case Op::Dot:
      return std::make_unique<MatmulCall>(call, matmul_spec(call).value(), pool);
    case Op::ScatterAdd:
      return std::make_unique<ScatterCall>(call, scatter_spec(call).value(), pool);
    case Op::Sort:
      return std::make_unique<SortCall>(sort_spec(call), pool, device);
    case Op::Scan:
      return std::make_unique<ScanCall>(scan_spec(call), pool, device);
    case Op::Decompose:
      return std::make_unique<DecomposeCall>(call, pool, device);
    default:
      return std::make_unique<ConvCall>(conv_spec(call), pool);
  }
}

int64_t cpu_workspace_bytes(std::span<const LibraryCall* const> calls, const ThreadPool& pool) {
  std::set<std::string> seen;
  int64_t bytes = 0;
  for (const LibraryCall* call : calls) {
    const Op op = call->node.op();
    if (op != Op::Sort && op != Op::Decompose) continue;
    const UOp& x = call->node.src(0);
    std::string key =
        fmt::format("{} {}{}", describe(*call->node), name(x.dtype()), to_string(x.shape()));
    for (const UOp& other : call->also) key += describe(*other);
    if (!seen.insert(std::move(key)).second) continue;
    bytes += op == Op::Sort ? sort_scratch_bytes(sort_spec(*call), pool.threads())
                            : decompose_scratch_bytes(decompose_spec(*call),
                                                      decompose_factors(*call), pool.threads());
  }
  return bytes;
}

}  // namespace tinyshard
