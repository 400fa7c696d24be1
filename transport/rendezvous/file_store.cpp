// A value is a file, written under another name and renamed: it is there whole or not at all. Keys
// become names by replacing what separates folders. Example: "address/0/3" is the file
// "address.0.3" of the folder.
#include "transport/rendezvous/file_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

class FileStore final : public Store {
 public:
  FileStore(const std::string& path, bool cleans) : path_(path), cleans_(cleans) {
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
      throw StoreError(fmt::format("the job's store {}: {}", path, std::strerror(errno)));
    folder_ = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    struct stat about{};
    if (folder_ < 0 || fstat(folder_, &about) != 0)
      throw StoreError(fmt::format("the job's store {}: {}", path, std::strerror(errno)));
    if (about.st_uid != geteuid() || (about.st_mode & 022) != 0) {
      close(folder_);
      throw UserError(fmt::format(
          "the job's store {} can be written by others: it needs a folder of your own, chmod 700",
          path));
    }
  }

  ~FileStore() override {
    for (const std::string& name : seen_) unlinkat(folder_, name.c_str(), 0);
    close(folder_);
    if (cleans_) rmdir(path_.c_str());
  }

  void set(const std::string& key, const std::string& value) override {
    const std::string name = name_of(key), draft = fmt::format(".{}.{}", name, getpid());
    const int fd = openat(folder_, draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const bool written =
        fd >= 0 && write(fd, value.data(), value.size()) == static_cast<ssize_t>(value.size());
    int problem = errno;
    if (fd >= 0) close(fd);
    // Unlike a rename, a link never replaces what another process has set.
    const bool placed = written && linkat(folder_, draft.c_str(), folder_, name.c_str(), 0) == 0;
    if (written && !placed) problem = errno;
    unlinkat(folder_, draft.c_str(), 0);
    std::string there;
    if (placed) {
      note(name);
    } else if (problem != EEXIST || !read_file(name, there) || there != value) {
      throw StoreError(
          fmt::format("the job's store {} takes no {}: {}", path_, name, std::strerror(problem)));
    }
  }

  bool get(const std::string& key, std::string& value) override {
    const std::string name = name_of(key);
    if (!read_file(name, value)) return false;
    note(name);
    return true;
  }

  std::string local_address() const override { return "127.0.0.1"; }

 private:
  void note(const std::string& name) {
    if (cleans_ && std::ranges::find(seen_, name) == seen_.end()) seen_.push_back(name);
  }

  static std::string name_of(std::string key) {
    std::ranges::replace(key, '/', '.');
    return key;
  }

  bool read_file(const std::string& name, std::string& value) const {
    const int fd = openat(folder_, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    value.resize(kLongestValue);
    const ssize_t bytes = read(fd, value.data(), value.size());
    close(fd);
    value.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
    return bytes >= 0;
  }

  std::string path_;
  int folder_ = -1;
  bool cleans_;
  std::vector<std::string> seen_;
};

}  // namespace

std::unique_ptr<Store> open_file_store(const std::string& folder, bool cleans) {
  return std::make_unique<FileStore>(folder, cleans);
}

}  // namespace tinyshard
