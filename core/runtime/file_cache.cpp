// The files of the cache lie in one folder that stays open: everything is done by names in it. How
// old a file is tells how long nobody has used it (mtime, which a hit renews), so that no list of
// uses has to be kept, locked or repaired:
//
//   store k3    k1 2 h old, k2 1 day old, together beyond the limit     -> k2 goes, k1 and k3 stay
//
// Whether the limit is near is asked of a tally (cache_tally.h), to which each store adds its bytes. All
// files are listed only when it is lost or old, says that the limit is exceeded, or an eighth of the
// limit was stored since they were listed: a start costs the same in a folder of any size.
#include "core/runtime/file_cache.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <deque>
#include <dirent.h>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/options.h"
#include "core/runtime/cache_tally.h"

namespace tinyshard::file_cache {
namespace {

constexpr size_t kLargest = 64 << 20;  // guards against reading a foreign file

struct Header {                   // then the key, then the bytes
  uint64_t magic = 0x3143465354;  // "TSFC1"
  uint64_t key_size = 0, size = 0, digest = 0;
};

std::string file_name(std::string_view key, std::string_view extension) {
  return fmt::format("{:016x}{:016x}.{}", hash_text(key, 1), hash_text(key, 2), extension);
}

// A folder that was checked, and what this process knows of how full it is.
struct Checked {
  Fd fd;
  std::mutex mutex;
  int64_t unrecorded = 0;      // bytes that were stored while another process had the tally
  std::optional<Tally> tally;  // where the folder can hold none
};
using Folder = std::shared_ptr<Checked>;

bool writable_by_others(const struct stat& status) {
  // The group of the user's own number has no other member, where groups are given that way.
  const bool own_group = status.st_gid == ::geteuid() && ::getegid() == ::geteuid();
  return (status.st_mode & (own_group ? 002 : 022)) != 0;
}

bool trusted(uid_t owner) { return owner == 0 || owner == ::geteuid(); }

std::deque<std::string> parts_of(std::string_view path) {
  std::deque<std::string> parts;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) parts.emplace_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Goes from the root to `path` by descriptors, as the system would, and looks at each folder on the
// way, also on the ways of links: who may rename what lies in one of them could put another folder
// in place of ours. Such a folder is passed only if it has the sticky bit. Folders that are missing
// are made, for this user alone, if `create`. Null with `why` empty: it is not there.
Folder open_folder(const std::string& path, bool create, std::string& why) {
  constexpr int kMaxLinks = 40;  // as the system
  const auto fail = [&](std::string_view reason) {
    why = reason;
    return nullptr;
  };
  const auto fail_errno = [&] { return fail(std::strerror(errno)); };
  if (!path.starts_with('/')) return fail("is not an absolute path");
  std::string here = "/";
  Fd at(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct stat status;
  int links = 0;
  for (std::deque<std::string> rest = parts_of(path); !rest.empty();) {
    const std::string name = std::move(rest.front());
    rest.pop_front();
    if (here != "/") {  // whoever may write there may do anything
      if (::fstat(at.get(), &status) != 0) return fail_errno();
      if (!trusted(status.st_uid)) {
        return fail(fmt::format("lies below {}, which belongs to user {}", here, status.st_uid));
      }
      if (writable_by_others(status) && (status.st_mode & S_ISVTX) == 0) {
        return fail(fmt::format("lies below {}, which can be written by others (mode {:o})", here,
                                status.st_mode & 0777));
      }
    }
    if (::fstatat(at.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno != ENOENT) return fail_errno();
      if (!create) return nullptr;
      if (::mkdirat(at.get(), name.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno();
      if (::fstatat(at.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return fail_errno();
    }
    if (S_ISLNK(status.st_mode)) {
      std::string target(PATH_MAX, '\0');
      const ssize_t size = ::readlinkat(at.get(), name.c_str(), target.data(), target.size());
      if (size < 0) return fail_errno();
      if (!trusted(status.st_uid)) {
        return fail(fmt::format("lies below the link {} in {}, which belongs to user {}", name,
                                here, status.st_uid));
      }
      if (++links > kMaxLinks) return fail(std::strerror(ELOOP));
      target.resize(size_t(size));
      std::deque<std::string> parts = parts_of(target);
      rest.insert(rest.begin(), parts.begin(), parts.end());
      if (!target.starts_with('/')) continue;
      at = Fd(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
      here = "/";
      continue;
    }
    at = Fd(::openat(at.get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!at) return fail_errno();
    here += (here == "/" ? "" : "/") + name;
  }
  auto folder = std::make_shared<Checked>();
  folder->fd = Fd(::openat(at.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder->fd || ::fstat(folder->fd.get(), &status) != 0) return fail_errno();
  if (status.st_uid != ::geteuid()) return fail(fmt::format("belongs to user {}", status.st_uid));
  if ((status.st_mode & 022) != 0) {
    return fail(fmt::format("can be written by others (mode {:o})", status.st_mode & 0777));
  }
  return folder;
}

// The folder that the options name, or null. Who uses it keeps it open when another thread meets
// changed options.
Folder current_folder() {
  struct Known {
    std::mutex mutex;
    std::string path;  // empty: none is wanted
    Folder folder;
  };
  static Known& known = *new Known;  // devices load kernels until the very end of the process
  const std::string wanted = options().cache ? options().cache_dir : std::string();
  std::string why;
  Folder folder;
  {
    std::lock_guard lock(known.mutex);
    if (known.path != wanted) {
      known.folder = wanted.empty() ? nullptr : open_folder(wanted, true, why);
      known.path = wanted;
    }
    folder = known.folder;
  }
  if (!why.empty())  // said without the lock: where lines go is the program's
    log_line(fmt::format("compiled kernels are not kept on disk: {} {}", wanted, why));
  return folder;
}

// <32 hex digits>.<extension>, or the same with .<pid>.<number> while it is written.
enum class Kind { Foreign, File, Temporary };
Kind kind_of(std::string_view name) {
  constexpr size_t kHash = 32;
  if (name.size() < kHash + 2 || name[kHash] != '.' ||
      name.substr(0, kHash).find_first_not_of("0123456789abcdef") != name.npos)
    return Kind::Foreign;
  const auto dots = std::count(name.begin(), name.end(), '.');
  return dots == 1 ? Kind::File : dots == 3 ? Kind::Temporary : Kind::Foreign;
}

struct Entry {
  std::string name;
  timespec used{};
  int64_t bytes = 0;
  Kind kind = Kind::File;
};

// All files of ours in the folder, in no order.
std::vector<Entry> entries_of(const Checked& folder) {
  std::vector<Entry> entries;
  Fd fd(::openat(folder.fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return entries;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::fdopendir(fd.get()), &::closedir);
  if (!list) return entries;
  fd.release();
  while (const dirent* found = ::readdir(list.get())) {
    struct stat status;
    const Kind kind = kind_of(found->d_name);
    if (kind == Kind::Foreign ||
        ::fstatat(folder.fd.get(), found->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(status.st_mode))
      continue;
    entries.push_back({found->d_name, status.st_mtim, int64_t{status.st_size}, kind});
  }
  return entries;
}

bool before(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

// Removes the files that were not used for the longest time until the rest takes three quarters of
// the limit, and what dead processes left half written. Other processes may do the same, or read
// and store, at the same time: who has a file open reads it to its end, a file that was used since
// the list was made stays, and what is gone already is gone.
int64_t prune(const Checked& folder, int64_t limit) {
  constexpr time_t kHalfWritten = 3600;  // seconds after which nobody is writing it any more
  std::vector<Entry> entries = entries_of(folder);
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return before(a.used, b.used); });
  int64_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry.bytes;
  const int64_t target = bytes > limit ? limit / 4 * 3 : bytes;
  const time_t now = ::time(nullptr);
  for (const Entry& entry : entries) {
    const bool left_over = entry.kind == Kind::Temporary && entry.used.tv_sec + kHalfWritten < now;
    if (!left_over && (bytes <= target || entry.kind == Kind::Temporary)) continue;
    struct stat status;
    if (::fstatat(folder.fd.get(), entry.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
      if (before(entry.used, status.st_mtim)) continue;
      if (::unlinkat(folder.fd.get(), entry.name.c_str(), 0) != 0 && errno != ENOENT) continue;
    }
    bytes -= entry.bytes;
  }
  return bytes;
}

// Tells whether the files have to be counted. Processes that were killed before they added what
// they had stored make a tally too small, which an eighth of the limit or some days put right.
bool outdated(const std::optional<Tally>& tally, int64_t limit, int64_t now) {
  constexpr int64_t kDays = 7 * 24 * 3600;
  return !tally || tally->bytes < tally->stored || tally->bytes > limit || tally->stored < 0 ||
         tally->stored > limit / 8 || tally->counted > now || tally->counted + kDays < now;
}

// After `bytes` were stored. A process that finds the tally taken goes on, and adds its bytes the next
// time: who holds it may be removing files, or be stopped.
void keep_limit(Checked& folder, int64_t bytes) {
  const int64_t limit = options().cache_bytes;
  if (limit <= 0) return;
  std::lock_guard lock(folder.mutex);
  folder.unrecorded += bytes;
  TallyFile file(folder.fd.get());
  if (file.busy() && folder.unrecorded <= limit / 8) return;
  std::optional<Tally> tally = file.read();
  if (!tally) tally = folder.tally;
  if (tally) {
    tally->bytes += folder.unrecorded;
    tally->stored += folder.unrecorded;
  }
  folder.unrecorded = 0;
  const int64_t now = ::time(nullptr);
  if (outdated(tally, limit, now)) tally = Tally{prune(folder, limit), 0, now};
  if (file.write(*tally)) tally.reset();
  folder.tally = tally;
}

// Remembers that a file is in use. Once an hour is enough to tell what is not.
void refresh(int fd, const struct stat& status) {
  constexpr time_t kOften = 3600;
  if (status.st_mtim.tv_sec + kOften < ::time(nullptr)) (void)!::futimens(fd, nullptr);
}

Contents contents_of_folder(bool remove) {
  Contents contents{options().cache_dir, {}, 0, 0};
  if (contents.folder.empty()) {
    contents.why_not = "HOME is not set";
    return contents;
  }
  const Folder folder = open_folder(contents.folder, false, contents.why_not);
  if (!folder) return contents;
  for (const Entry& entry : entries_of(*folder)) {
    if (remove && ::unlinkat(folder->fd.get(), entry.name.c_str(), 0) != 0) {
      if (errno == ENOENT) continue;
      throw IoError("delete", std::filesystem::path(contents.folder) / entry.name, errno);
    }
    ++contents.files;
    contents.bytes += entry.bytes;
  }
  if (remove) ::unlinkat(folder->fd.get(), TallyFile::kName, 0);
  return contents;
}

}  // namespace

std::optional<std::string> load(std::string_view key, std::string_view extension) {
  Folder folder = current_folder();
  if (!folder) return std::nullopt;
  const std::string name = file_name(key, extension);
  // O_NONBLOCK: opening a FIFO without a writer returns, and is refused below.
  const OpenFile file{
      Fd(::openat(folder->fd.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK))};
  struct stat status;
  if (!file.fd || ::fstat(file.fd.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid() || size_t(status.st_size) > kLargest ||
      size_t(status.st_size) < sizeof(Header))
    return std::nullopt;
  std::string bytes(size_t(status.st_size), '\0');
  try {
    read_at(file, 0, std::as_writable_bytes(std::span(bytes)), name);
  } catch (const IoError&) {
    return std::nullopt;
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::string_view rest = std::string_view(bytes).substr(sizeof(header));
  if (header.magic != Header{}.magic || header.key_size != key.size() ||
      rest.size() - key.size() != header.size || !rest.starts_with(key) ||
      header.digest != hash_text(rest))
    return std::nullopt;
  refresh(file.fd.get(), status);
  return bytes.substr(sizeof(header) + key.size());
}

void store(std::string_view key, std::string_view extension, std::string_view bytes) {
  Folder folder = current_folder();
  if (!folder) return;
  static std::atomic<uint64_t> serial{0};
  std::string content(key);
  content.append(bytes);
  Header header{.key_size = key.size(), .size = bytes.size(), .digest = hash_text(content)};
  content.insert(0, reinterpret_cast<const char*>(&header), sizeof(header));
  std::string name = file_name(key, extension);
  std::string temporary = fmt::format("{}.{}.{}", name, ::getpid(), serial.fetch_add(1));
  Fd file(::openat(folder->fd.get(), temporary.c_str(),
                   O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return;
  bool written = true;
  try {
    write_all(file.get(), std::as_bytes(std::span(content)), name);
  } catch (const IoError&) {
    written = false;
  }
  if (!written || ::close(file.release()) != 0 ||
      ::renameat(folder->fd.get(), temporary.c_str(), folder->fd.get(), name.c_str()) != 0) {
    ::unlinkat(folder->fd.get(), temporary.c_str(), 0);
    return;
  }
  keep_limit(*folder, int64_t(content.size()));
}

Contents contents() { return contents_of_folder(false); }
Contents clear() { return contents_of_folder(true); }

}  // namespace tinyshard::file_cache
