#include "core/codegen/disk_cache.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "codegen_fingerprint.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/options.h"

namespace tinyshard::codegen {
namespace {

constexpr uint32_t kMagic = 0x434b5354;  // "TSKC"
constexpr uint32_t kFormat = 2;
constexpr size_t kLargest =
    64 << 20;  // no kernel comes near; guards against reading a foreign file

std::string file_name(const std::string& key) {
  return fmt::format("{:016x}{:016x}.kernel", hash_text(key, 1), hash_text(key, 2));
}

class Writer {
 public:
  void raw(const void* data, size_t size) { bytes.append(static_cast<const char*>(data), size); }
  template <class T>
  void number(T value) {
    raw(&value, sizeof(value));
  }
  void text(std::string_view text) {
    number(uint64_t{text.size()});
    raw(text.data(), text.size());
  }
  std::string bytes;
};

// Every read checks what is left; after a failure all results are empty and ok is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T number() {
    T value{};
    std::string_view bytes = take(sizeof(T));
    if (ok) bytes.copy(reinterpret_cast<char*>(&value), sizeof(T));
    return value;
  }
  std::string_view text() { return take(number<uint64_t>()); }
  bool at_end() const { return rest_.empty(); }
  bool ok = true;

 private:
  std::string_view take(uint64_t size) {
    ok = ok && size <= rest_.size();
    if (!ok) return {};
    std::string_view head = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return head;
  }
  std::string_view rest_;
};

std::string encode(const std::string& key, const CompiledKernel& kernel) {
  Writer out;
  out.number(kMagic);
  out.number(kFormat);
  out.text(kCodegenFingerprint);
  out.text(key);
  out.text(kernel.name);
  out.text(kernel.code.entry);
  out.number(kernel.code.work_items);
  out.number(kernel.code.min_items);
  out.number(kernel.code.block);
  out.number(kernel.code.shared_bytes);
  out.number(kernel.code.coordinates);
  out.number(kernel.cost_ns);
  out.number(kernel.bytes_moved);
  out.text({kernel.code.bytes.data(), kernel.code.bytes.size()});
  out.number(hash_text(out.bytes));
  return std::move(out.bytes);
}

std::shared_ptr<const CompiledKernel> decode(std::string_view bytes, const std::string& key) {
  if (bytes.size() < sizeof(uint64_t)) return nullptr;
  uint64_t digest;
  std::memcpy(&digest, bytes.data() + bytes.size() - sizeof(digest), sizeof(digest));
  bytes.remove_suffix(sizeof(digest));
  if (digest != hash_text(bytes)) return nullptr;
  Reader in(bytes);
  if (in.number<uint32_t>() != kMagic || in.number<uint32_t>() != kFormat) return nullptr;
  if (in.text() != kCodegenFingerprint || in.text() != key) return nullptr;
  auto kernel = std::make_shared<CompiledKernel>();
  kernel->name = in.text();
  kernel->code.entry = in.text();
  kernel->code.work_items = in.number<int64_t>();
  kernel->code.min_items = in.number<int64_t>();
  kernel->code.block = in.number<int>();
  kernel->code.shared_bytes = in.number<int>();
  kernel->code.coordinates = in.number<int>();
  kernel->cost_ns = in.number<double>();
  kernel->bytes_moved = in.number<int64_t>();
  std::string_view image = in.text();
  kernel->code.bytes.assign(image.begin(), image.end());
  return in.ok && in.at_end() ? kernel : nullptr;
}

// Creates `path` and what is missing above it, for this user alone.
bool make_directories(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) return false;
    if (end == std::string::npos) return true;
  }
}

}  // namespace

DiskCache& DiskCache::get() {
  static DiskCache* cache = new DiskCache;
  return *cache;
}

int DiskCache::directory() {
  std::lock_guard lock(mutex_);
  std::string wanted = options().cache ? options().cache_dir : std::string();
  if (checked_ && wanted == path_) return folder_;
  if (folder_ >= 0) ::close(folder_);
  folder_ = -1;
  checked_ = true;
  path_ = wanted;
  if (wanted.empty()) return -1;
  auto refuse = [&](const std::string& why) {
    log_line(fmt::format("compiled kernels are not kept on disk: {} {}", wanted, why));
    return -1;
  };
  if (!make_directories(wanted)) return refuse(std::strerror(errno));
  int folder = ::open(wanted.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return refuse(std::strerror(errno));
  struct stat status;
  std::string why;
  if (::fstat(folder, &status) != 0) {
    why = std::strerror(errno);
  } else if (status.st_uid != ::geteuid()) {
    why = fmt::format("belongs to user {}", status.st_uid);
  } else if (status.st_mode & 022) {
    why = fmt::format("can be written by others (mode {:o})", status.st_mode & 0777);
  }
  if (!why.empty()) {
    ::close(folder);
    return refuse(why);
  }
  return folder_ = folder;
}

std::shared_ptr<const CompiledKernel> DiskCache::load(const std::string& key) {
  int folder = directory();
  if (folder < 0) return nullptr;
  int file = ::openat(folder, file_name(key).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return nullptr;
  struct stat status;
  std::string bytes;
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid() &&
      static_cast<uint64_t>(status.st_size) <= kLargest) {
    bytes.resize(static_cast<size_t>(status.st_size));
    size_t done = 0;
    while (done < bytes.size()) {
      ssize_t n = ::read(file, bytes.data() + done, bytes.size() - done);
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    bytes.resize(done);
  }
  ::close(file);
  return decode(bytes, key);
}

void DiskCache::store(const std::string& key, const CompiledKernel& kernel) {
  int folder = directory();
  if (folder < 0) return;
  static std::atomic<uint64_t> serial{0};
  std::string name = file_name(key), bytes = encode(key, kernel);
  std::string temporary = fmt::format("{}.{}.{}", name, ::getpid(), serial.fetch_add(1));
  int file = ::openat(folder, temporary.c_str(),
                      O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return;  // a full or read-only disk costs time later, not correctness now
  size_t done = 0;
  while (done < bytes.size()) {
    ssize_t n = ::write(file, bytes.data() + done, bytes.size() - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  bool closed = ::close(file) == 0;
  if (done != bytes.size() || !closed ||
      ::renameat(folder, temporary.c_str(), folder, name.c_str()) != 0) {
    ::unlinkat(folder, temporary.c_str(), 0);
  }
}

}  // namespace tinyshard::codegen
