// The image is checked against its header before anything of it is mapped, and pages are never
// writable and executable at once. Checked kernels get one more buffer, in which they note the
// first access out of range; they run to their end, and the launch then throws.
#include "devices/cpu/program.h"

#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/options.h"
#include "core/runtime/image.h"

namespace tinyshard {

CpuProgram::CpuProgram(const ObjectCode& code, ThreadPool& pool)
    : name_(code.entry),
      work_items_(code.work_items),
      min_items_(std::max<int64_t>(1, code.min_items)),
      checked_buffers_(code.checked_buffers),
      pool_(pool) {
  ImageHeader header;
  bool whole = code.bytes.size() >= sizeof(header);
  if (whole) std::memcpy(&header, code.bytes.data(), sizeof(header));
  size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  if (!whole || header.magic != ImageHeader::kMagic ||
      header.size != code.bytes.size() - sizeof(header) || header.entry >= header.size ||
      header.alignment > page) {
    throw DeviceError(
        fmt::format("kernel {} is not an image for this CPU ({} bytes)", name_, code.bytes.size()));
  }
  bytes_ = (header.size + page - 1) / page * page;
  // Written first, then executable and never writable again.
  memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory_ == MAP_FAILED) {
    throw DeviceError(
        fmt::format("no memory for kernel {} ({} bytes): {}", name_, bytes_, std::strerror(errno)));
  }
  std::memcpy(memory_, code.bytes.data() + sizeof(header), header.size);
  if (::mprotect(memory_, bytes_, PROT_READ | PROT_EXEC) != 0) {
    int error = errno;
    ::munmap(memory_, bytes_);
    throw DeviceError(
        fmt::format("kernel {} cannot be made executable: {}", name_, std::strerror(error)));
  }
  char* begin = static_cast<char*>(memory_);
  __builtin___clear_cache(begin, begin + header.size);
  entry_ = reinterpret_cast<Entry>(begin + header.entry);
  // For profilers, which see an address without a name.
  if (options().debug >= 4)
    log_line(fmt::format("loaded {} at {} size {}", name_, memory_, bytes_));
}

CpuProgram::~CpuProgram() { ::munmap(memory_, bytes_); }

template <class Work>
void CpuProgram::checking(void* const* buffers, Work&& work) const {
  if (checked_buffers_ < 0) return work(buffers);
  AccessFault fault;
  thread_local std::vector<void*> more;  // a launch allocates nothing
  more.assign(buffers, buffers + checked_buffers_);
  more.push_back(&fault);
  work(more.data());
  if (fault.found == 0) return;
  throw InternalError(fmt::format("kernel {} {} element {} of its parameter {}, which has {}",
                                  name_, fault.stores != 0 ? "stores" : "loads", fault.element,
                                  fault.param, fault.numel));
}

void CpuProgram::launch(void* const* buffers, const int64_t* coordinates) {
  checking(buffers, [&](void* const* all) {
    pool_.parallel_for(
        work_items_, [&](int64_t begin, int64_t end, int) { entry_(all, coordinates, begin, end); },
        min_items_);
  });
}

void CpuProgram::run(void* const* buffers, const int64_t* coordinates, int64_t begin,
                     int64_t end) const {
  checking(buffers, [&](void* const* all) { entry_(all, coordinates, begin, end); });
}

std::string CpuProgram::describe() const {
  return fmt::format("{} ({} work items)", name_, work_items_);
}

}  // namespace tinyshard
