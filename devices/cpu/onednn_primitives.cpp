// A call is prepared once: its primitive, memories that have no data yet, and
// the size of its scratch. To run it sets pointers and executes, through the
// C interface, so that a run allocates nothing. The number of OpenMP threads
// belongs to the calling thread, is 1 during a call and restored behind it.
#if TINYSHARD_HAS_ONEDNN

#include "devices/cpu/onednn_primitives.h"

#include <cstdlib>
#include <dlfcn.h>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard::onednn {
namespace {

// Looked up at run time: a oneDNN built on another runtime than OpenMP needs nothing of this.
struct OpenMp {
  int (*get)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
};
const OpenMp& open_mp() {
  static const OpenMp functions;
  return functions;
}

}  // namespace

dnnl::engine& engine() {
  static auto& cpu = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return cpu;
}

SerialOpenMp::SerialOpenMp() {
  if (!open_mp().get || !open_mp().set) return;
  saved_ = open_mp().get();
  if (saved_ != 1) open_mp().set(1);
}

SerialOpenMp::~SerialOpenMp() {
  if (saved_ != 1) open_mp().set(saved_);
}

Arena& Arena::get() {
  static Arena& arena = *new Arena;
  return arena;
}

void Arena::Free::operator()(void* p) const { std::free(p); }

void Arena::reserve(size_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes <= size_) return;
  constexpr size_t kPage = 4096;
  bytes = (bytes + kPage - 1) / kPage * kPage;
  block_.reset();
  size_ = 0;
  block_.reset(std::aligned_alloc(kPage, bytes));
  if (!block_) throw DeviceError(fmt::format("no memory for {} bytes of library scratch", bytes));
  size_ = bytes;
}

memory make_memory(const memory::desc& desc) { return memory(desc, engine(), nullptr); }

void bind(const memory& m, const void* data, size_t byte_offset) {
  char* p = const_cast<char*>(static_cast<const char*>(data)) + byte_offset;
  if (dnnl_memory_set_data_handle(m.get(), p) != dnnl_success)
    throw DeviceError("oneDNN refused a buffer");
}

Call::Call(dnnl::primitive primitive, std::vector<std::pair<int, memory>> args,
           const memory::desc& scratch)
    : primitive_(std::move(primitive)), memories_(std::move(args)), bytes_(scratch.get_size()) {
  if (bytes_) memories_.emplace_back(DNNL_ARG_SCRATCHPAD, make_memory(scratch));
  for (auto& [arg, mem] : memories_) args_.push_back({arg, mem.get()});
}

void Call::operator()(const dnnl::stream& stream, void* scratch) const {
  if (bytes_) bind(memories_.back().second, scratch);
  auto status = dnnl_primitive_execute(primitive_.get(), stream.get(),
                                       static_cast<int>(args_.size()), args_.data());
  if (status != dnnl_success)
    throw DeviceError(
        fmt::format("oneDNN failed to run a primitive (status {})", static_cast<int>(status)));
}

dnnl::primitive_attr make_attr(Activation activation) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (activation != Activation::None) {
    bool relu = activation == Activation::Relu;
    auto algorithm = relu ? dnnl::algorithm::eltwise_relu : dnnl::algorithm::eltwise_gelu_tanh;
    dnnl::post_ops ops;
#if DNNL_VERSION_MAJOR >= 3
    ops.append_eltwise(algorithm, 0.f, 0.f);
#else
    ops.append_eltwise(1.f, algorithm, 0.f, 0.f);
#endif
    attr.set_post_ops(ops);
  }
  return attr;
}

}  // namespace tinyshard::onednn

#endif
