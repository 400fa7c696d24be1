// The file is Linux's memfd: it has a descriptor like any other file, no name, and goes with its last user.
#include "core/base/memory_file.h"

#include <cerrno>
#include <sys/mman.h>

namespace tinyshard {

OpenFile memory_file(std::span<const std::byte> bytes) {
  OpenFile file{Fd(::memfd_create("tinyshard", MFD_CLOEXEC)), bytes.size()};
  if (!file.fd) throw IoError("cannot make a file in memory", {}, errno);
  write_all(file.fd.get(), bytes, "a file in memory");
  return file;
}

}  // namespace tinyshard
