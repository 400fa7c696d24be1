// Power loss: the system calls of a save are recorded, and the disk is rebuilt as it may look after
// a loss of power at any moment. What was not synced may be there, or not, or in part, in any
// combination. In all of these states the newest checkpoint must load, and must be one that was
// committed, bit for bit.
//
// The program's own open, write, pwrite, fsync, rename, mkdir, remove and close stand before those of the C
// library.
#include <algorithm>
#include <cstdarg>
#include <fcntl.h>
#include <map>
#include <memory>
#include <random>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io/checkpoint.h"
#include "tests/io/temp_folder.h"

namespace {

namespace fs = std::filesystem;

struct Node {
  bool folder = false;
  std::map<std::string, Node*> entries;
  std::string data;
};

struct Operation {
  enum Kind { Link, Write, Rename, Remove, Sync } kind;
  Node* node;              // linked, written, renamed, synced
  Node* folder = nullptr;  // of the entry
  std::string name, data;
  Node* to_folder = nullptr;  // Rename
  std::string to_name;
  int64_t at = -1;  // Write: where in the file; behind what is there
};

// Follows the calls below `root` and keeps the tree as the program sees it.
struct Recorder {
  fs::path root;
  std::vector<std::unique_ptr<Node>> nodes;
  Node* top = nullptr;
  std::map<int, Node*> open_files;
  std::vector<Operation> log;
  bool on = false;

  Node* make(bool folder) {
    nodes.push_back(std::make_unique<Node>());
    nodes.back()->folder = folder;
    return nodes.back().get();
  }
  bool follows(const fs::path& path) const {
    return on && (path == root || path.native().starts_with(root.native() + "/"));
  }
  Node* find(const fs::path& path) const {
    Node* node = top;
    const fs::path inside = path.lexically_relative(root);
    if (inside == ".") return node;
    for (const fs::path& part : inside) {
      const auto it = node->entries.find(part.native());
      if (it == node->entries.end()) return nullptr;
      node = it->second;
    }
    return node;
  }
  void link(const fs::path& path, bool folder) {
    Node* parent = find(path.parent_path());
    Node* node = make(folder);
    parent->entries[path.filename()] = node;
    log.push_back({Operation::Link, node, parent, path.filename(), {}, nullptr, {}});
  }
  // The tree that is on the disk already.
  Node* load(const fs::path& path) {
    Node* node = make(fs::is_directory(path));
    if (!node->folder) {
      node->data = tinyshard::test::get(path);
    } else {
      for (const auto& entry : fs::directory_iterator(path)) {
        node->entries[entry.path().filename()] = load(entry.path());
      }
    }
    return node;
  }
};
Recorder recorder;

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  const bool follow = recorder.follows(path);
  const bool made = follow && (flags & O_CREAT) != 0 && recorder.find(path) == nullptr;
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if (fd >= 0 && follow) {
    if (made) recorder.link(path, false);
    recorder.open_files[fd] = recorder.find(path);
  }
  return fd;
}

ssize_t write(int fd, const void* data, size_t size) {
  const ssize_t done = syscall(SYS_write, fd, data, size);
  const auto it = recorder.open_files.find(fd);
  if (recorder.on && it != recorder.open_files.end() && done > 0) {
    const std::string text(static_cast<const char*>(data), static_cast<size_t>(done));
    recorder.log.push_back({Operation::Write, it->second, nullptr, {}, text, nullptr, {}});
  }
  return done;
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  const ssize_t done = syscall(SYS_pwrite64, fd, data, size, offset);
  const auto it = recorder.open_files.find(fd);
  if (recorder.on && it != recorder.open_files.end() && done > 0) {
    const std::string text(static_cast<const char*>(data), static_cast<size_t>(done));
    recorder.log.push_back({Operation::Write, it->second, nullptr, {}, text, nullptr, {}, offset});
  }
  return done;
}

int fsync(int fd) {
  const auto it = recorder.open_files.find(fd);
  if (recorder.on && it != recorder.open_files.end())
    recorder.log.push_back({Operation::Sync, it->second, nullptr, {}, {}, nullptr, {}});
  return static_cast<int>(syscall(SYS_fsync, fd));
}

int close(int fd) {
  recorder.open_files.erase(fd);
  return static_cast<int>(syscall(SYS_close, fd));
}

int rename(const char* from, const char* to) noexcept {
  const int result = static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0u));
  if (result == 0 && recorder.follows(from)) {
    Node* node = recorder.find(from);
    Node *folder = recorder.find(fs::path(from).parent_path()),
         *to_folder = recorder.find(fs::path(to).parent_path());
    const std::string name = fs::path(from).filename(), to_name = fs::path(to).filename();
    folder->entries.erase(name);
    to_folder->entries[to_name] = node;
    recorder.log.push_back({Operation::Rename, node, folder, name, {}, to_folder, to_name});
  }
  return result;
}

int mkdir(const char* path, mode_t mode) noexcept {
  const int result = static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  if (result == 0 && recorder.follows(path)) recorder.link(path, true);
  return result;
}

int remove(const char* path) noexcept {
  int result = static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
  if (result != 0 && errno == EISDIR) {
    result = static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
  }
  if (result == 0 && recorder.follows(path)) {
    Node* folder = recorder.find(fs::path(path).parent_path());
    const std::string name = fs::path(path).filename();
    recorder.log.push_back(
        {Operation::Remove, folder->entries.at(name), folder, name, {}, nullptr, {}});
    folder->entries.erase(name);
  }
  return result;
}

}  // extern "C"

namespace tinyshard::io::power_loss_test {
namespace {

using test::bytes_of;
using test::TempFolder;

std::vector<int32_t> values_of(int64_t step) {
  std::vector<int32_t> values(700);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int32_t>(1000 * step + static_cast<int64_t>(i));
  }
  return values;
}

void save(const fs::path& root, int64_t step) {
  const auto values = values_of(step);
  CheckpointWriter writer(root, step, {.keep = 1});
  writer.add({"x", DType::I32, {7, 100}, bytes_of(values)});
  writer.commit();
}

// The tree after the first `count` operations and a loss of power. Synced operations are there; of
// the others, each is by chance. The names of a folder are synced with the folder, the data of a
// file with the file.
class Disk {
 public:
  Disk(const Node* before, const std::vector<Operation>& log, size_t count, std::mt19937& random) {
    top_ = copy(before);
    for (size_t i = 0; i < count; ++i) {
      const Operation& op = log[i];
      if (op.kind == Operation::Sync) continue;
      const bool kept = random() % 2 == 0;
      switch (op.kind) {
        case Operation::Link:
          if (synced(log, i, count, op.folder) || kept) {
            at(op.folder)->entries[op.name] = at(op.node);
          }
          break;
        case Operation::Write:
          write(op, synced(log, i, count, op.node), random);
          break;
        case Operation::Rename: {
          // Both names are in one folder in all that we do.
          if (!synced(log, i, count, op.folder) && !kept) break;
          at(op.folder)->entries.erase(op.name);
          at(op.to_folder)->entries[op.to_name] = at(op.node);
          break;
        }
        case Operation::Remove:
          if (synced(log, i, count, op.folder) || kept) at(op.folder)->entries.erase(op.name);
          break;
        case Operation::Sync:
          break;
      }
    }
  }

  void put_at(const fs::path& path) const { put_at(top_, path); }

 private:
  static bool synced(const std::vector<Operation>& log, size_t from, size_t count,
                     const Node* node) {
    for (size_t i = from; i < count; ++i) {
      if (log[i].kind == Operation::Sync && log[i].node == node) return true;
    }
    return false;
  }
  Node* at(const Node* original) {
    auto& made = copies_[original];
    if (!made) {
      made = std::make_unique<Node>();
      made->folder = original->folder;
    }
    return made.get();
  }
  Node* copy(const Node* original) {
    Node* node = at(original);
    node->data = original->data;
    for (const auto& [name, entry] : original->entries) node->entries[name] = copy(entry);
    return node;
  }
  void write(const Operation& op, bool whole, std::mt19937& random) {
    Node* file = at(op.node);
    std::string data = op.data;
    if (!whole) {
      switch (random() % 4) {
        case 0:
          return;  // lost
        case 1:
          data.resize(random() % (data.size() + 1));
          break;  // in part
        case 2:
          data.assign(data.size(), '\0');
          break;  // length there, content not
        default:
          break;  // there
      }
    }
    if (op.at >= 0) {
      const auto end = static_cast<size_t>(op.at) + data.size();
      file->data.resize(std::max(file->data.size(), end), '\0');
      file->data.replace(static_cast<size_t>(op.at), data.size(), data);
    } else {
      file->data += data;
    }
  }
  static void put_at(const Node* node, const fs::path& path) {
    if (!node->folder) {
      test::put(path, node->data);
      return;
    }
    fs::create_directory(path);
    for (const auto& [name, entry] : node->entries) put_at(entry, path / name);
  }

  std::map<const Node*, std::unique_ptr<Node>> copies_;
  Node* top_;
};

TEST(PowerLoss, EveryStateHoldsACommittedCheckpoint) {
  const TempFolder folder;
  recorder.root = folder / "root";
  save(recorder.root, 1);
  save(recorder.root, 2);
  // The tree after step 2 is on the disk for good. The recorder changes its nodes as it follows:
  // kept aside.
  recorder.top = recorder.load(recorder.root);
  std::map<Node*, Node> at_start;
  for (const auto& node : recorder.nodes) at_start[node.get()] = *node;

  recorder.on = true;
  save(recorder.root, 3);
  const size_t first_end = recorder.log.size();
  save(recorder.root, 4);
  recorder.on = false;
  const std::vector<Operation> log = recorder.log;
  for (auto& [node, content] : at_start) *node = content;
  std::map<Operation::Kind, int> kinds;
  for (const Operation& op : log) ++kinds[op.kind];
  ASSERT_EQ(kinds.size(), 5u) << "a kind of call is not recorded";

  std::mt19937 random(7);
  std::map<int64_t, int> seen;
  constexpr int kStates = 4000;
  const TempFolder disks;
  for (int trial = 0; trial < kStates; ++trial) {
    const size_t count = random() % (log.size() + 1);
    const fs::path disk = disks / std::to_string(trial);
    Disk(recorder.top, log, count, random).put_at(disk);
    const auto latest = Checkpoint::latest(disk, {.check_all = true});
    if (!latest) FAIL() << "after " << count << " of " << log.size() << " operations";
    std::vector<int32_t> x(700);
    latest->read("x", std::as_writable_bytes(std::span(x)));
    ASSERT_EQ(x, values_of(latest->step()));
    ASSERT_GE(latest->step(), count >= first_end ? 3 : 2);
    if (count == log.size()) {
      ASSERT_EQ(latest->step(), 4);
    }
    ++seen[latest->step()];
    fs::remove_all(disk);
  }
  for (int64_t step : {2, 3, 4}) EXPECT_GT(seen[step], kStates / 20) << "step " << step;
}

}  // namespace
}  // namespace tinyshard::io::power_loss_test
