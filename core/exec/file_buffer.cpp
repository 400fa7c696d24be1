#include "core/exec/file_buffer.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/exec/storage.h"

namespace tinyshard {
namespace {

constexpr int64_t kAlignment = 64;  // of what kernels work on

struct File {
  explicit File(const std::string& path) : path(path) {
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info{};
    if (fd < 0 || ::fstat(fd, &info) != 0) fail("cannot be opened");
    if (!S_ISREG(info.st_mode)) throw UserError(fmt::format("{} is not a regular file", path));
    size = info.st_size;
  }
  ~File() {
    if (fd >= 0) ::close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  [[noreturn]] void fail(const char* what) const {
    throw UserError(fmt::format("{} {}: {}", path, what, std::strerror(errno)));
  }

  const std::string& path;
  int fd = -1;
  int64_t size = 0;
};

std::shared_ptr<void> read_piece(const File& file, int64_t offset, size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, std::max<size_t>(bytes, kAlignment)) != 0)
    throw DeviceError(fmt::format("no memory for {} bytes of {}", bytes, file.path));
  std::shared_ptr<void> owner(memory, std::free);
  for (size_t done = 0; done < bytes;) {
    ssize_t n = ::pread(file.fd, static_cast<char*>(memory) + done, bytes - done,
                        offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) file.fail("cannot be read");
    if (n == 0) throw UserError(fmt::format("{} became shorter while it was read", file.path));
    done += static_cast<size_t>(n);
  }
  return owner;
}

// Memory at the file's byte `offset`, and what keeps it.
std::pair<void*, std::shared_ptr<void>> map_piece(const File& file, int64_t offset, size_t bytes) {
  if (offset % kAlignment != 0 || bytes == 0) {
    std::shared_ptr<void> owner = read_piece(file, offset, bytes);
    return {owner.get(), owner};
  }
  int64_t begin = offset / ::sysconf(_SC_PAGESIZE) * ::sysconf(_SC_PAGESIZE);
  size_t length = bytes + static_cast<size_t>(offset - begin);
  void* memory =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.fd, begin);
  if (memory == MAP_FAILED) file.fail("cannot be mapped");
  std::shared_ptr<void> owner(memory, [length](void* m) { ::munmap(m, length); });
  return {static_cast<char*>(memory) + (offset - begin), owner};
}

}  // namespace

UOp file_buffer(const std::string& path, DimSpan shape, DType dtype, int64_t offset) {
  File file(path);
  size_t bytes = static_cast<size_t>(product(shape)) * itemsize(dtype);
  if (offset < 0 || offset > file.size || bytes > static_cast<size_t>(file.size - offset)) {
    throw UserError(fmt::format("{} has {} bytes: {}{} from byte {} on needs {}", path, file.size,
                                name(dtype), to_string(shape), offset, bytes));
  }
  auto [memory, owner] = map_piece(file, offset, bytes);
  auto storage = std::make_shared<Storage>(Dims(shape.begin(), shape.end()), dtype,
                                           replicated(Mesh::single({.kind = "DISK"})));
  storage->adopt(memory, std::move(owner));
  return buffer_node(std::move(storage));
}

}  // namespace tinyshard
