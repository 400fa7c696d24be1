// Shared parts of the oneDNN adapter. Internal to onednn*.cpp, which alone see oneDNN's headers.
//
// Thread policy. Debian's oneDNN runs on libgomp, whose team would spin beside our pool's. So
// oneDNN runs single-threaded inside the chunks of our pool, and we split the work: the minibatch
// (or channels) of a convolution, the batch, rows or columns of a product. On two cores,
// convolutions were 5 to 20 % faster this way than with a libgomp team of two, large products
// equal; and each library call between kernels of our pool was 9 us cheaper.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dnnl.hpp>

#include "core/base/signals.h"
#include "devices/cpu/library.h"

namespace tinyshard::onednn {

using dnnl::memory;
using Dims = memory::dims;

dnnl::engine& engine();

// Makes OpenMP regions started by this thread single-threaded while it lives.
class SerialOpenMp {
 public:
  SerialOpenMp();
  ~SerialOpenMp();
  SerialOpenMp(const SerialOpenMp&) = delete;
  SerialOpenMp& operator=(const SerialOpenMp&) = delete;

 private:
  int saved_ = 1;
};

// Scratch memory of all programs: one block as large as the largest of them, since runs do not
// overlap. It stays warm in the caches from one program to the next.
class Arena {
 public:
  static Arena& get();
  std::mutex& mutex() { return mutex_; }
  char* data() { return static_cast<char*>(block_.get()); }  // under mutex()
  void reserve(size_t bytes);                                // waits for a run in progress

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::mutex mutex_;
  std::unique_ptr<void, Free> block_;
  size_t size_ = 0;
};

// Held by a run. It has the arena, and signals wait: kernels of oneDNN (2.6: of products of f32) keep
// values further below the stack pointer than the 128 bytes that a signal's handler leaves alone, and
// would go on with what the handler wrote there.
class Undisturbed {
 private:
  std::lock_guard<std::mutex> lock_{Arena::get().mutex()};
  HeldSignals signals_;
};

// Offsets into the arena, given out while a program is planned.
class ArenaPlan {
 public:
  size_t take(size_t bytes) {
    constexpr size_t kAlign = 64;
    size_t at = size_;
    size_ += (bytes + kAlign - 1) / kAlign * kAlign;
    return at;
  }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
};

// Memories have no buffer until they are bound to one, at each run.
memory make_memory(const memory::desc& desc);
void bind(const memory& m, const void* data, size_t byte_offset = 0);

// A primitive with its argument list built once: running it allocates nothing on our side.
class Call {
 public:
  Call() = default;
  Call(dnnl::primitive primitive, std::vector<std::pair<int, memory>> args,
       const memory::desc& scratch);
  explicit operator bool() const { return !args_.empty(); }
  size_t scratch_bytes() const { return bytes_; }
  void operator()(const dnnl::stream& stream, void* scratch) const;

 private:
  dnnl::primitive primitive_;
  std::vector<std::pair<int, memory>> memories_;
  std::vector<dnnl_exec_arg_t> args_;
  size_t bytes_ = 0;
};

// Caller-provided scratch, and the activation as a post-operation.
dnnl::primitive_attr make_attr(Activation activation);

// Moves `desc` to oneDNN's first implementation that is not a plain loop; false if there is none.
// Those loops are a hundred times slower than its kernels: a generated kernel is better.
template <class Desc>
bool choose(Desc& desc) {
  while (std::string_view(desc.impl_info_str()).starts_with("ref"))
    if (!desc.next_impl()) return false;
  return true;
}

inline bool refuse(std::string* why, std::string reason) {
  if (why) *why = std::move(reason);
  return false;
}

// The parts: onednn_matmul.cpp, onednn_conv.cpp.
bool check_matmul(const MatmulSpec& spec, std::string* why);
bool check_conv(const ConvSpec& spec, std::string* why);  // the spec makes sense
bool has_conv_kernel(const ConvSpec& spec);               // and oneDNN has a kernel for it
std::shared_ptr<const MatmulProgram> make_matmul(const MatmulSpec& spec, int threads);
std::shared_ptr<const ConvProgram> make_conv(const ConvSpec& spec, int threads);

}  // namespace tinyshard::onednn
