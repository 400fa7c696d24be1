// The lock is flock's, which ends with the process that holds it. What is written carries a digest, so
// that a process that is killed while it writes leaves a file that counts as damaged:
//
//   magic, bytes, stored, counted, digest of these     40 bytes at the begin of the file
#include "core/runtime/cache_tally.h"

#include <cerrno>
#include <fcntl.h>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/hash.h"

namespace tinyshard::file_cache {
namespace {

struct Record {
  uint64_t magic = 0x315954435354;  // "TSCTY1"
  Tally tally;
  uint64_t digest = 0;

  uint64_t right_digest() const {
    return hash_text({reinterpret_cast<const char*>(this), offsetof(Record, digest)});
  }
};
static_assert(sizeof(Record) == 40);

// O_NONBLOCK: opening a FIFO does not wait for its other end.
Fd open_tally(int folder) {
  Fd fd(::openat(folder, TallyFile::kName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                 0600));
  struct stat status;
  const bool ours = fd && ::fstat(fd.get(), &status) == 0 && S_ISREG(status.st_mode) &&
                    status.st_uid == ::geteuid();
  return ours ? std::move(fd) : Fd();
}

}  // namespace

TallyFile::TallyFile(int folder) : fd_(open_tally(folder)) {
  if (!fd_ && ::unlinkat(folder, kName, 0) == 0) fd_ = open_tally(folder);
  if (fd_ && ::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    busy_ = errno == EWOULDBLOCK;
    fd_ = Fd();  // a file system without locks has no tally
  }
}

std::optional<Tally> TallyFile::read() const {
  Record record;
  if (!fd_ || ::pread(fd_.get(), &record, sizeof(record), 0) != ssize_t{sizeof(record)} ||
      record.magic != Record{}.magic || record.digest != record.right_digest())
    return std::nullopt;
  return record.tally;
}

bool TallyFile::write(const Tally& tally) {
  Record record{.tally = tally};
  record.digest = record.right_digest();
  return fd_ && ::pwrite(fd_.get(), &record, sizeof(record), 0) == ssize_t{sizeof(record)};
}

}  // namespace tinyshard::file_cache
