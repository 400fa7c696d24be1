#include "core/runtime/file_cache.h"

#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/hash.h"
#include "core/base/options.h"

namespace tinyshard::file_cache {
namespace {

constexpr size_t kLargest = 64 << 20;  // guards against reading a foreign file

struct Descriptor {
  int value = -1;
  explicit Descriptor(int v) : value(v) {}
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
  Descriptor(const Descriptor&) = delete;
};

struct Header {                   // then the key, then the bytes
  uint64_t magic = 0x3143465354;  // "TSFC1"
  uint64_t key_size = 0, size = 0, digest = 0;
};

std::string file_name(std::string_view key, std::string_view extension) {
  return fmt::format("{:016x}{:016x}.{}", hash_text(key, 1), hash_text(key, 2), extension);
}

// The folder, made for this user alone; -1 when it is not ours alone.
int open_folder() {
  if (!options().cache || options().cache_dir.empty()) return -1;
  const std::string& path = options().cache_dir;
  std::error_code error;
  std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return -1;
  int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct stat status;
  if (folder >= 0 && (::fstat(folder, &status) != 0 || status.st_uid != ::geteuid() ||
                      (status.st_mode & 022) != 0)) {
    ::close(folder);
    return -1;
  }
  return folder;
}

}  // namespace

std::optional<std::string> load(std::string_view key, std::string_view extension) {
  Descriptor folder(open_folder());
  if (folder.value < 0) return std::nullopt;
  Descriptor file(
      ::openat(folder.value, file_name(key, extension).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat status;
  if (file.value < 0 || ::fstat(file.value, &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid() || size_t(status.st_size) > kLargest ||
      size_t(status.st_size) < sizeof(Header))
    return std::nullopt;
  std::string bytes(size_t(status.st_size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    ssize_t n = ::read(file.value, bytes.data() + done, bytes.size() - done);
    if (n <= 0) return std::nullopt;
    done += size_t(n);
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::string_view rest = std::string_view(bytes).substr(sizeof(header));
  if (header.magic != Header{}.magic || header.key_size != key.size() ||
      rest.size() - key.size() != header.size || !rest.starts_with(key) ||
      header.digest != hash_text(rest))
    return std::nullopt;
  return bytes.substr(sizeof(header) + key.size());
}

void store(std::string_view key, std::string_view extension, std::string_view bytes) {
  Descriptor folder(open_folder());
  if (folder.value < 0) return;
  static std::atomic<uint64_t> serial{0};
  std::string content(key);
  content.append(bytes);
  Header header{.key_size = key.size(), .size = bytes.size(), .digest = hash_text(content)};
  content.insert(0, reinterpret_cast<const char*>(&header), sizeof(header));
  std::string name = file_name(key, extension);
  std::string temporary = fmt::format("{}.{}.{}", name, ::getpid(), serial.fetch_add(1));
  size_t done = 0;
  {
    Descriptor file(::openat(folder.value, temporary.c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file.value < 0) return;
    while (done < content.size()) {
      ssize_t n = ::write(file.value, content.data() + done, content.size() - done);
      if (n <= 0) break;
      done += size_t(n);
    }
  }
  if (done != content.size() ||
      ::renameat(folder.value, temporary.c_str(), folder.value, name.c_str()) != 0)
    ::unlinkat(folder.value, temporary.c_str(), 0);
}

}  // namespace tinyshard::file_cache
