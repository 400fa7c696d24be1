// A value is a file, written under another name and linked to its own: it is there whole or not at all,
// and replaces none. Example: "address/0/3" of generation 5f1c of a job is the file
// "0d2e91aa.5f1c.address.0.3" of the folder; the first number is a hash of the job's name and epoch.
#include "transport/rendezvous/file_store.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "launch/hosts.h"
#include "transport/tcp/socket.h"

namespace tinyshard {
namespace {

using tcp::Socket;  // a descriptor that no child keeps open, nor its lock

constexpr std::string_view kLeader = "leader", kLives = "lives";
constexpr std::chrono::seconds kLeaderEnds{10};  // a former one may be on its way out

std::string random_name() {
  std::array<std::byte, 8> bytes;
  fill_random(bytes);
  uint64_t number = 0;
  std::memcpy(&number, bytes.data(), sizeof(number));
  return fmt::format("{:016x}", number);
}

// Generations that this process has met in, by folder and job.
struct Met {
  std::mutex mutex;
  std::map<std::string, std::string> generations;
  std::map<std::string, Socket> lives;  // held open and locked for good
};
Met& met() {
  static auto& instance = *new Met;
  return instance;
}

enum class Lock : uint8_t { Got, OfOthers, Unknown };
Lock try_lock(int fd, int how) {
  if (flock(fd, how | LOCK_NB) == 0) return Lock::Got;
  return errno == EWOULDBLOCK ? Lock::OfOthers : Lock::Unknown;  // of a file system without locks
}

class FileStore final : public Store {
 public:
  FileStore(const JobFolder& folder, FolderRole role, bool cleans)
      : path_(folder.path),
        prefix_(fmt::format("{:08x}.", combine(hash_text(folder.job), folder.epoch) & 0xffffffff)),
        id_(fmt::format("{}\n{}\n{}", folder.path, folder.job, folder.epoch)),
        role_(role),
        cleans_(cleans) {
    if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) fail_to_open();
    folder_ = Socket(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    struct stat about{};
    if (!folder_ || fstat(folder_.fd(), &about) != 0) fail_to_open();
    if (about.st_uid != geteuid() || (about.st_mode & 022) != 0)
      throw UserError(fmt::format(
          "the job's store {} can be written by others: it needs a folder of your own, chmod 700",
          path_));
    {
      const std::lock_guard lock(met().mutex);
      const auto known = met().generations.find(id_);
      if (known != met().generations.end()) generation_ = known->second;
    }
    if (role_ == FolderRole::Reforms) {
      if (generation_.empty())
        throw StoreError(
            fmt::format("the job's store {}: this process has met no other there", path_));
      stay();
    }
    if (role_ == FolderRole::Leads) lead();
  }

  ~FileStore() override {
    for (const std::string& name : seen_) unlinkat(folder_.fd(), name.c_str(), 0);
    if (leader_) unlinkat(folder_.fd(), (prefix_ + std::string(kLeader)).c_str(), 0);
    leader_.reset();
    folder_.reset();
    if (cleans_) rmdir(path_.c_str());
  }

  void set(const std::string& key, const std::string& value) override {
    if (is_met()) return place(key, value);
    const auto [set, is_first] = pending_.emplace(key, value);
    if (!is_first && set->second != value) fail_to_take(key, EEXIST);
  }

  bool get(const std::string& key, std::string& value) override {
    if (!is_met()) return false;
    const std::string name = name_of(key);
    if (!read_file(name, value)) return false;
    note(name);
    return true;
  }

  std::string local_address() const override { return tcp::loopback(); }

 private:
  [[noreturn]] void fail_to_open() const {
    throw StoreError(fmt::format("the job's store {}: {}", path_, std::strerror(errno)));
  }
  [[noreturn]] void fail_to_take(const std::string& key, int problem) const {
    throw StoreError(
        fmt::format("the job's store {} takes no {}: {}", path_, key, std::strerror(problem)));
  }

  std::string name_of(std::string key) const {
    std::ranges::replace(key, '/', '.');
    return fmt::format("{}{}.{}", prefix_, generation_, key);
  }

  void note(const std::string& name) {
    if (cleans_ && std::ranges::find(seen_, name) == seen_.end()) seen_.push_back(name);
  }

  // Returns whether the generation is known. Values that were set before are then placed.
  bool is_met() {
    const bool leads = role_ == FolderRole::Leads;
    const bool known = leads ? leader_ || lead() : !generation_.empty() || find_leader();
    if (!known) return false;
    for (const auto& [key, value] : std::exchange(pending_, {})) place(key, value);
    return true;
  }

  void remember() {
    const std::lock_guard lock(met().mutex);
    met().generations[id_] = generation_;
  }

  // Puts a locked file with the generation in the place where the others look. False while another
  // process has one there.
  bool lead() {
    const std::string name = prefix_ + std::string(kLeader);
    if (generation_.empty()) generation_ = random_name();
    const std::string draft = draft_of(name);
    Socket own(openat(folder_.fd(), draft.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!own || !write_text(own, fmt::format("{} {} {}", generation_, own_host_name(), getpid())))
      fail_to_open();
    static_cast<void>(try_lock(own.fd(), LOCK_EX));
    bool placed = linkat(folder_.fd(), draft.c_str(), folder_.fd(), name.c_str(), 0) == 0;
    if (!placed) {
      // Who has the lock of a former one may replace it, if it is still the one that lies there.
      const Socket former(openat(folder_.fd(), name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
      struct stat mine{}, there{};
      placed = former && try_lock(former.fd(), LOCK_EX) != Lock::OfOthers &&
               fstat(former.fd(), &mine) == 0 &&
               fstatat(folder_.fd(), name.c_str(), &there, 0) == 0 && mine.st_ino == there.st_ino &&
               renameat(folder_.fd(), draft.c_str(), folder_.fd(), name.c_str()) == 0;
    }
    unlinkat(folder_.fd(), draft.c_str(), 0);
    if (!placed) {
      std::string text;
      if (std::chrono::steady_clock::now() - begun_ < kLeaderEnds || !read_file(name, text))
        return false;
      std::string host, pid;
      if (const size_t at = text.find(' '); at != std::string::npos) {
        const size_t next = text.find(' ', at + 1);
        host = text.substr(at + 1, next - at - 1);
        if (next != std::string::npos) pid = text.substr(next + 1);
      }
      throw StoreError(
          fmt::format("another job meets in {}: its rank 0 is process {} on {}. Give each "
                      "job a folder or a name, TS_JOB",
                      path_, pid, host));
    }
    leader_ = std::move(own);
    remember();
    remove_former();
    return true;
  }

  bool find_leader() {
    const std::string name = prefix_ + std::string(kLeader);
    const Socket file(openat(folder_.fd(), name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!file || try_lock(file.fd(), LOCK_SH) == Lock::Got) return false;  // nobody has it
    std::array<char, 256> text{};
    const ssize_t bytes = read(file.fd(), text.data(), text.size());
    const std::string_view content(text.data(), bytes > 0 ? size_t(bytes) : 0);
    if (content.find(' ') == std::string_view::npos) return false;
    generation_ = content.substr(0, content.find(' '));
    remember();
    return true;
  }

  // A job that goes on without some of its ranks shows that it lives: its values stay.
  void stay() {
    const std::lock_guard lock(met().mutex);
    Socket& lives = met().lives[id_ + generation_];
    if (lives) return;
    lives = Socket(openat(folder_.fd(), name_of(std::string(kLives)).c_str(),
                          O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (lives) static_cast<void>(try_lock(lives.fd(), LOCK_SH));
  }

  // Removes the files of jobs of this name that have ended, drafts included.
  void remove_former() {
    std::set<std::string> living{generation_, std::string(kLeader)}, ended;
    std::vector<std::pair<std::string, std::string>> files;  // and their generations
    DIR* list = fdopendir(openat(folder_.fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (list == nullptr) return;
    while (const dirent* entry = readdir(list)) {
      std::string_view name = entry->d_name;
      const bool is_draft = name.starts_with('.');
      if (is_draft) name.remove_prefix(1);
      if (!name.starts_with(prefix_)) continue;
      name.remove_prefix(prefix_.size());
      files.emplace_back(entry->d_name, name.substr(0, name.find('.')));
    }
    closedir(list);
    for (const auto& [name, generation] : files) {
      // The drafts of those that wanted to lead are locked, too.
      if (generation == kLeader && name.starts_with('.') && !is_held(name))
        unlinkat(folder_.fd(), name.c_str(), 0);
      if (living.contains(generation)) continue;
      if (!ended.contains(generation) && lives(generation)) {
        living.insert(generation);
        continue;
      }
      ended.insert(generation);
      unlinkat(folder_.fd(), name.c_str(), 0);
    }
  }

  bool lives(const std::string& generation) const {
    return is_held(fmt::format("{}{}.{}", prefix_, generation, kLives));
  }

  bool is_held(const std::string& name) const {
    const Socket file(openat(folder_.fd(), name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    return file && try_lock(file.fd(), LOCK_EX) != Lock::Got;
  }

  // Unlike those of processes of two containers, which may have the same number, drafts have a name of
  // their own.
  static std::string draft_of(const std::string& name) {
    return fmt::format(".{}.{}", name, random_name());
  }

  static bool write_text(const Socket& file, const std::string& text) {
    return write(file.fd(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }

  void place(const std::string& key, const std::string& value) {
    const std::string name = name_of(key), draft = draft_of(name);
    bool written = false, placed = false;
    int problem = 0;
    {
      const Socket file(
          openat(folder_.fd(), draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
      written = file && write_text(file, value);
      problem = errno;
      if (!file) fail_to_take(key, problem);
    }
    // Unlike a rename, a link never replaces what another process has set.
    if (written) {
      placed = linkat(folder_.fd(), draft.c_str(), folder_.fd(), name.c_str(), 0) == 0;
      problem = errno;
    }
    unlinkat(folder_.fd(), draft.c_str(), 0);
    std::string there;
    if (placed) {
      note(name);
    } else if (problem != EEXIST || !read_file(name, there) || there != value) {
      fail_to_take(key, problem);
    }
  }

  bool read_file(const std::string& name, std::string& value) const {
    const Socket file(openat(folder_.fd(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file) return false;
    value.resize(kLongestValue);
    const ssize_t bytes = read(file.fd(), value.data(), value.size());
    value.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
    return bytes >= 0;
  }

  const std::string path_, prefix_, id_;
  const FolderRole role_;
  const bool cleans_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  Socket folder_, leader_;
  std::string generation_;  // empty while it is not known
  std::map<std::string, std::string> pending_;
  std::vector<std::string> seen_;
};

}  // namespace

std::unique_ptr<Store> open_file_store(const JobFolder& folder, FolderRole role, bool cleans) {
  return std::make_unique<FileStore>(folder, role, cleans);
}

}  // namespace tinyshard
