// A bit for each descriptor, so that the handler in the child takes no lock and no memory: another
// thread may have held either when the process was forked.
#include "core/base/own_descriptors.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

namespace tinyshard {
namespace {

constexpr size_t kMost = size_t{1} << 20;  // descriptors of a process, as Linux has it by default
std::array<std::atomic<uint64_t>, kMost / 64> owned;

bool is_counted(int fd) { return fd >= 0 && static_cast<size_t>(fd) < kMost; }
std::atomic<uint64_t>& word_of(int fd) { return owned[static_cast<size_t>(fd) / 64]; }
uint64_t bit_of(int fd) { return uint64_t{1} << (fd % 64); }

void leave_all_to_parent() {
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (size_t word = 0; word < owned.size(); ++word) {
    for (uint64_t bits = owned[word].exchange(0); bits != 0; bits &= bits - 1) {
      const int fd = static_cast<int>(word * 64) + std::countr_zero(bits);
      if (nothing >= 0) {
        dup3(nothing, fd, O_CLOEXEC);
      } else {
        close(fd);
      }
    }
  }
  if (nothing >= 0) close(nothing);
}

}  // namespace

void keep_from_children(int fd) {
  static const bool handles = pthread_atfork(nullptr, nullptr, leave_all_to_parent) == 0;
  static_cast<void>(handles);
  if (is_counted(fd)) word_of(fd).fetch_or(bit_of(fd));
}

void share_with_children(int fd) {
  if (is_counted(fd)) word_of(fd).fetch_and(~bit_of(fd));
}

}  // namespace tinyshard
