// Bytes by key on disk: what is kept and found, damaged and foreign files, and folders that are not
// used, with the one line that says why.
#include "core/runtime/file_cache.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <latch>
#include <optional>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/log.h"
#include "core/base/options.h"
#include "core/runtime/cache_tally.h"
#include "tests/io/faults.h"
#include "tests/io/temp_folder.h"

namespace tinyshard {
namespace {

namespace fs = std::filesystem;

using test::get;
using test::names_in;
using test::put;
using testing::ElementsAre;
using testing::HasSubstr;

class FileCache : public testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](std::string_view line) { lines_.emplace_back(line); });
    use(base_ / "cache");
  }
  void TearDown() override {
    ::unsetenv("TS_CACHE_DIR");
    ::unsetenv("TS_CACHE_BYTES");
    ::setenv("TS_CACHE", "0", 1);
    reload_options();
    set_log_sink(nullptr);
  }

  void use(const fs::path& folder) {
    ::setenv("TS_CACHE_DIR", folder.c_str(), 1);
    ::setenv("TS_CACHE", "1", 1);
    reload_options();
  }

  void limit(int64_t bytes) {
    ::setenv("TS_CACHE_BYTES", std::to_string(bytes).c_str(), 1);
    reload_options();
  }

  // The files that were stored: all but the tally.
  std::vector<std::string> stored() {
    std::vector<std::string> names = names_in(base_ / "cache");
    std::erase(names, file_cache::TallyFile::kName);
    return names;
  }

  // The next use is as that of a process that starts.
  void start() {
    use(base_ / "other");
    file_cache::load("key", "x");
    use(base_ / "cache");
  }

  std::optional<file_cache::Tally> tally() {
    const Fd folder(::open((base_ / "cache").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return file_cache::TallyFile(folder.get()).read();
  }
  void set_tally(const file_cache::Tally& tally) {
    const Fd folder(::open((base_ / "cache").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    EXPECT_TRUE(file_cache::TallyFile(folder.get()).write(tally));
  }

  fs::path file_of(std::string_view key) {
    fs::path found;
    for (const std::string& name : stored()) {
      if (get(base_ / "cache" / name).find(key) != std::string::npos)
        found = base_ / "cache" / name;
    }
    EXPECT_FALSE(found.empty()) << key;
    return found;
  }

  static void set_age(const fs::path& file, int seconds) {
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }

  int64_t bytes_in(const fs::path& folder) {
    int64_t bytes = 0;
    for (const std::string& name : names_in(folder)) bytes += int64_t(fs::file_size(folder / name));
    return bytes;
  }

  // Uses `folder`, which cannot be used, several times; returns the line that says why.
  std::string refusal(const fs::path& folder) {
    use(folder);
    lines_.clear();
    for (int i = 0; i < 3; ++i) {
      file_cache::store("key", "x", "bytes");
      EXPECT_EQ(file_cache::load("key", "x"), std::nullopt);
    }
    EXPECT_EQ(lines_.size(), 1u) << folder;
    EXPECT_THAT(lines_, testing::Each(HasSubstr("are not kept on disk: " + folder.native())));
    return lines_.empty() ? "" : lines_[0];
  }

  test::TempFolder base_;
  std::vector<std::string> lines_;
};

TEST_F(FileCache, FindsWhatWasStored) {
  EXPECT_EQ(file_cache::load("key", "x"), std::nullopt);
  const std::string bytes("a\0b", 3);
  file_cache::store("key", "x", bytes);
  file_cache::store("key", "y", "");
  EXPECT_EQ(file_cache::load("key", "x"), bytes);
  EXPECT_EQ(file_cache::load("key", "y"), "");
  EXPECT_EQ(file_cache::load("key2", "x"), std::nullopt);
  EXPECT_EQ(file_cache::load("ke", "x"), std::nullopt);
  file_cache::store("key", "x", "later");
  EXPECT_EQ(file_cache::load("key", "x"), "later");
  EXPECT_EQ(stored().size(), 2u);  // no temporaries
  EXPECT_THAT(lines_, ElementsAre());
}

TEST_F(FileCache, FollowsTheOptions) {
  file_cache::store("key", "x", "first");
  use(base_ / "other");
  EXPECT_EQ(file_cache::load("key", "x"), std::nullopt);
  file_cache::store("key", "x", "second");
  use(base_ / "cache");
  EXPECT_EQ(file_cache::load("key", "x"), "first");
  ::setenv("TS_CACHE", "0", 1);
  reload_options();
  EXPECT_EQ(file_cache::load("key", "x"), std::nullopt);
  file_cache::store("key", "y", "third");
  use(base_ / "cache");
  EXPECT_EQ(file_cache::load("key", "y"), std::nullopt);
  EXPECT_THAT(lines_, ElementsAre());
}

TEST_F(FileCache, AnyBitMatters) {
  file_cache::store("key", "x", "some bytes");
  const fs::path file = base_ / "cache" / stored().at(0);
  const std::string whole = get(file);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] ^= 0x20;
    put(file, damaged);
    EXPECT_EQ(file_cache::load("key", "x"), std::nullopt) << "a flipped bit at " << at;
    put(file, whole.substr(0, at));
    EXPECT_EQ(file_cache::load("key", "x"), std::nullopt) << "cut to " << at;
  }
  put(file, whole + "tail");
  EXPECT_EQ(file_cache::load("key", "x"), std::nullopt);
  put(file, whole);
  EXPECT_EQ(file_cache::load("key", "x"), "some bytes");
}

TEST_F(FileCache, AnotherKeyUnderTheName) {
  file_cache::store("one", "x", "1");
  const std::string one = stored().at(0);
  file_cache::store("two", "x", "2");
  for (const std::string& name : stored()) {
    if (name != one) put(base_ / "cache" / one, get(base_ / "cache" / name));
  }
  EXPECT_EQ(file_cache::load("one", "x"), std::nullopt);
}

TEST_F(FileCache, AFullDiskLeavesWhatWasThere) {
  file_cache::store("key", "x", "old");
  for (const char* call : {"write", "close"}) {
    test::fail_call(call, 1, ENOSPC);
    file_cache::store("key", "x", "new");
    EXPECT_TRUE(test::clear_faults()) << call;
    EXPECT_EQ(file_cache::load("key", "x"), "old") << call;
    EXPECT_EQ(stored().size(), 1u) << call;
  }
}

TEST_F(FileCache, DoesNotFollowLinks) {
  file_cache::store("key", "x", "bytes");
  const fs::path file = base_ / "cache" / stored().at(0);
  fs::rename(file, base_ / "elsewhere");
  fs::create_symlink(base_ / "elsewhere", file);
  EXPECT_EQ(file_cache::load("key", "x"), std::nullopt);
  file_cache::store("key", "x", "again");  // replaces the link, not what it names
  EXPECT_EQ(file_cache::load("key", "x"), "again");
  EXPECT_FALSE(fs::is_symlink(file));
}

TEST_F(FileCache, TheFolderIsForThisUserAlone) {
  const mode_t old = ::umask(0);
  use(base_ / "a" / "b" / "c");
  file_cache::store("key", "x", "bytes");
  ::umask(old);
  for (const fs::path& path : {base_ / "a", base_ / "a" / "b", base_ / "a" / "b" / "c"}) {
    struct stat status;
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u) << path;
  }
}

TEST_F(FileCache, FoldersThatOthersCanWriteAreNotUsed) {
  fs::create_directory(base_ / "open");
  for (unsigned mode : {0777u, 0720u, 0702u}) {
    use(base_ / "cache");  // what is known of a folder lasts as long as the options name it
    file_cache::load("key", "x");
    ASSERT_EQ(::chmod((base_ / "open").c_str(), mode), 0);
    EXPECT_THAT(refusal(base_ / "open"), HasSubstr(mode == 0777 ? "others (mode 777)" : "others"));
    EXPECT_THAT(names_in(base_ / "open"), ElementsAre());
  }
  use(base_ / "cache");
  file_cache::load("key", "x");
  ASSERT_EQ(::chmod((base_ / "open").c_str(), 0755), 0);  // reading is no harm
  use(base_ / "open");
  lines_.clear();
  file_cache::store("key", "x", "bytes");
  EXPECT_EQ(file_cache::load("key", "x"), "bytes");
  EXPECT_THAT(lines_, ElementsAre());
}

TEST_F(FileCache, FoldersOfOthersAreNotUsed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  fs::create_directory(base_ / "theirs");
  ASSERT_EQ(::chown((base_ / "theirs").c_str(), 12345, 12345), 0);
  ASSERT_EQ(::chmod((base_ / "theirs").c_str(), 0700), 0);
  EXPECT_THAT(refusal(base_ / "theirs"), HasSubstr("belongs to user 12345"));
  EXPECT_THAT(names_in(base_ / "theirs"), ElementsAre());
}

TEST_F(FileCache, AFileInPlaceOfTheFolder) {
  put(base_ / "file", "x");
  EXPECT_THAT(refusal(base_ / "file"), HasSubstr("Not a directory"));
  EXPECT_THAT(refusal(base_ / "file" / "below"), HasSubstr("Not a directory"));
}

// Who may write to a folder above could put another one in place of ours.
TEST_F(FileCache, FoldersAboveAreChecked) {
  const fs::path open = base_ / "open", inner = open / "mine" / "cache";
  fs::create_directories(inner);
  fs::permissions(open / "mine", fs::perms::owner_all);
  fs::permissions(inner, fs::perms::owner_all);
  for (unsigned mode : {0777u, 0707u, 0702u}) {
    use(base_ / "cache");
    file_cache::load("key", "x");
    ASSERT_EQ(::chmod(open.c_str(), mode), 0);
    EXPECT_THAT(refusal(inner), HasSubstr(fmt::format("lies below {}, which can be written by "
                                                      "others (mode {:o})",
                                                      open.native(), mode)));
    EXPECT_THAT(names_in(inner), ElementsAre());
    EXPECT_THAT(refusal(open / "new"), HasSubstr("lies below " + open.native()));
    EXPECT_FALSE(fs::exists(open / "new"));
    // The folder that a link leads to may be fine, but not the one where the link lies.
    if (mode == 0777) fs::create_directory_symlink(base_ / "cache", open / "link");
    EXPECT_THAT(refusal(open / "link"), HasSubstr("lies below " + open.native()));
  }
  fs::create_directory_symlink(inner, base_ / "into");
  EXPECT_THAT(refusal(base_ / "into"), HasSubstr("lies below " + open.native()));
  // With the sticky bit, as /tmp has it, others cannot rename what is ours.
  ASSERT_EQ(::chmod(open.c_str(), 01777), 0);
  for (const fs::path& good :
       {inner, base_ / "into", open / "link", inner / ".." / "." / "cache"}) {
    use(good);
    lines_.clear();
    file_cache::store("key", "x", good.native());
    EXPECT_EQ(file_cache::load("key", "x"), good.native());
    EXPECT_THAT(lines_, ElementsAre());
  }
}

TEST_F(FileCache, FoldersAboveOfOthersAndLinksOfOthersAreNotPassed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  fs::create_directories(base_ / "theirs" / "mine");
  ASSERT_EQ(::chown((base_ / "theirs").c_str(), 12345, 12345), 0);
  ASSERT_EQ(::chmod((base_ / "theirs").c_str(), 0755), 0);
  EXPECT_THAT(
      refusal(base_ / "theirs" / "mine"),
      HasSubstr("lies below " + (base_ / "theirs").native() + ", which belongs to user 12345"));
  fs::create_directory_symlink(base_ / "cache", base_ / "link");
  ASSERT_EQ(::lchown((base_ / "link").c_str(), 12345, 12345), 0);
  EXPECT_THAT(refusal(base_ / "link"), HasSubstr("which belongs to user 12345"));
}

TEST_F(FileCache, LinksThatGoInACircle) {
  fs::create_symlink(base_ / "b", base_ / "a");
  fs::create_symlink("a", base_ / "b");
  EXPECT_THAT(refusal(base_ / "a"), HasSubstr("Too many levels of symbolic links"));
}

// A folder below whatever folder the program happens to be started in may be a stranger's.
TEST_F(FileCache, RelativeFoldersAreNotUsed) {
  const fs::path before = fs::current_path();
  fs::current_path(base_.path());
  for (const char* name : {"relative", "./relative", "."}) {
    EXPECT_THAT(refusal(name), HasSubstr("is not an absolute path"));
  }
  ::unsetenv("TS_CACHE_DIR");
  const char* set = std::getenv("XDG_CACHE_HOME");
  const std::string old = set != nullptr ? set : "";
  ::setenv("XDG_CACHE_HOME", ".", 1);
  reload_options();
  lines_.clear();
  file_cache::store("key", "x", "bytes");
  EXPECT_EQ(file_cache::load("key", "x"), std::nullopt);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("./tinyshard is not an absolute path")));
  set != nullptr ? ::setenv("XDG_CACHE_HOME", old.c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
  EXPECT_THAT(names_in(base_.path()), ElementsAre());
  fs::current_path(before);
}

TEST_F(FileCache, DoesNotWaitForPipes) {
  file_cache::store("key", "x", "bytes");
  const fs::path file = file_of("key");
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  ::alarm(20);  // ends a test that would wait for ever
  EXPECT_EQ(file_cache::load("key", "x"), std::nullopt);
  ::alarm(0);
  file_cache::store("key", "x", "again");
  EXPECT_EQ(file_cache::load("key", "x"), "again");
}

TEST_F(FileCache, WhatWasNotUsedForTheLongestTimeGoes) {
  const std::string bytes(1000, 'b');
  limit(5000);
  for (const char* key : {"first", "second", "third", "fourth"}) file_cache::store(key, "x", bytes);
  put(base_ / "cache" / "notes.txt", std::string(10'000, 'n'));  // somebody's own file
  int age = 40'000;
  for (const char* key : {"first", "second", "third", "fourth"})
    set_age(file_of(key), age -= 5'000);
  EXPECT_EQ(file_cache::load("first", "x"), bytes);  // the oldest, but in use
  file_cache::store("fifth", "x", bytes);
  EXPECT_EQ(file_cache::load("first", "x"), bytes);
  EXPECT_EQ(file_cache::load("second", "x"), std::nullopt);
  EXPECT_EQ(file_cache::load("third", "x"), std::nullopt);
  EXPECT_EQ(file_cache::load("fourth", "x"), bytes);
  EXPECT_EQ(file_cache::load("fifth", "x"), bytes);
  EXPECT_TRUE(fs::exists(base_ / "cache" / "notes.txt"));
  // A file that a process left half written counts, and goes once nobody can be writing it.
  const fs::path old = file_of("first").native() + ".123.0",
                 young = file_of("first").native() + ".123.1";
  put(old, "half");
  put(young, "half");
  set_age(old, 7'200);
  for (int i = 0; i < 20; ++i) file_cache::store("more " + std::to_string(i), "x", bytes);
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(young));
  EXPECT_LE(file_cache::contents().bytes, 5000);
  limit(0);
  for (int i = 0; i < 20; ++i) file_cache::store("more " + std::to_string(i), "x", bytes);
  EXPECT_GT(file_cache::contents().bytes, 20'000);
  EXPECT_THAT(lines_, ElementsAre());
}

TEST_F(FileCache, ProcessesShareTheLimit) {
  constexpr int kProcesses = 4, kKeys = 60;
  constexpr int64_t kLimit = 20'000;
  limit(kLimit);
  const auto bytes_of = [](int key) { return std::string(500, 'a') + std::to_string(key); };
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    for (int i = 0; i < 400; ++i) {
      const int key = (i * 7 + p * 13) % kKeys;
      const auto found = file_cache::load(std::to_string(key), "x");
      if (found && *found != bytes_of(key)) ::_exit(1);
      if (!found) file_cache::store(std::to_string(key), "x", bytes_of(key));
    }
    ::_exit(0);
  }
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  // Each counts anew after an eighth of the limit.
  EXPECT_LE(bytes_in(base_ / "cache"), kLimit + kProcesses * (kLimit / 8 + 600));
  EXPECT_GT(bytes_in(base_ / "cache"), kLimit / 4);
  for (const std::string& name : stored()) {
    EXPECT_EQ(std::count(name.begin(), name.end(), '.'), 1) << name << ": a temporary is left";
  }
}

// Other processes may have stored any number of files before.
TEST_F(FileCache, AStartDoesNotListTheFolder) {
  const auto listed_by = [](const auto& work) {
    test::fail_call("readdir", INT_MAX, 0);
    work();
    test::clear_faults();
    return test::calls_of("readdir");
  };
  file_cache::store("key", "x", "bytes");
  for (int i = 0; i < 200; ++i) put(base_ / "cache" / fmt::format("{:032x}.x", i), "another's");
  for (int i = 0; i < 5; ++i) {
    start();
    EXPECT_EQ(listed_by([&] { file_cache::store(std::to_string(i), "x", "bytes"); }), 0) << i;
  }
  fs::remove(base_ / "cache" / "tally");
  EXPECT_GT(listed_by([] { file_cache::store("more", "x", "bytes"); }), 200);
  EXPECT_EQ(tally()->bytes,
            bytes_in(base_ / "cache") - int64_t(fs::file_size(base_ / "cache" / "tally")));
  limit(0);
  start();
  EXPECT_EQ(listed_by([] { file_cache::store("last", "x", "bytes"); }), 0);
}

TEST_F(FileCache, StartsShareOneTally) {
  const std::string bytes(1000, 'b');
  limit(20'000);
  for (int i = 0; i < 100; ++i) {
    start();
    file_cache::store(std::to_string(i), "x", bytes);
    EXPECT_LE(file_cache::contents().bytes, 20'000) << i;
  }
  EXPECT_GT(file_cache::contents().bytes, 13'000);
  EXPECT_EQ(tally()->bytes, file_cache::contents().bytes);
  file_cache::clear();
  EXPECT_THAT(names_in(base_ / "cache"), ElementsAre());
}

TEST_F(FileCache, AWrongTallyIsPutRight) {
  const std::string bytes(1000, 'b');
  constexpr int64_t kLimit = 20'000;
  limit(kLimit);
  const auto now = int64_t{::time(nullptr)};
  int stores = 0;
  const auto store = [&] {
    start();
    file_cache::store(std::to_string(stores++), "x", bytes);
  };
  // Processes were killed before they added anything.
  for (int i = 0; i < 40; ++i) {
    store();
    set_tally({0, 0, now});
  }
  EXPECT_GT(file_cache::contents().bytes, 2 * kLimit);
  for (int i = 0; i < 4; ++i) store();  // an eighth of the limit
  EXPECT_LE(file_cache::contents().bytes, kLimit);
  // Whatever it says, one store later it is true.
  for (const file_cache::Tally wrong : std::vector<file_cache::Tally>{{1 << 30, 0, now},
                                                                      {-5, 0, now},
                                                                      {10, 0, now - 30 * 24 * 3600},
                                                                      {10, 0, now + 9999},
                                                                      {10, 11, now}}) {
    set_tally(wrong);
    store();
    EXPECT_EQ(tally()->bytes, file_cache::contents().bytes) << wrong.bytes << ' ' << wrong.counted;
  }
}

TEST_F(FileCache, AnythingMayStandInPlaceOfTheTally) {
  const std::string bytes(1000, 'b');
  const fs::path place = base_ / "cache" / "tally";
  limit(20'000);
  int key = 0;
  const auto check = [&](std::string_view what) {
    ::alarm(20);
    for (int i = 0; i < 40; ++i) {
      file_cache::store(std::to_string(key), "x", bytes);
      EXPECT_EQ(file_cache::load(std::to_string(key++), "x"), bytes) << what;
      EXPECT_LE(file_cache::contents().bytes, 20'000) << what;
    }
    ::alarm(0);
    EXPECT_GT(file_cache::contents().bytes, 12'000) << what;
  };
  check("nothing");
  const std::string whole = get(place);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] ^= 0x20;
    put(place, damaged);
    EXPECT_EQ(tally(), std::nullopt) << at;
  }
  for (const std::string& text : {std::string(), whole.substr(0, 20), std::string(5000, 'g')}) {
    put(place, text);
    check("other bytes");
    EXPECT_NE(tally(), std::nullopt);
  }
  fs::remove(place);
  ASSERT_EQ(::mkfifo(place.c_str(), 0600), 0);
  check("a FIFO");
  EXPECT_TRUE(fs::is_regular_file(place));
  fs::remove(place);
  put(base_ / "elsewhere", "mine");
  fs::create_symlink(base_ / "elsewhere", place);
  check("a link");
  EXPECT_EQ(get(base_ / "elsewhere"), "mine");
  fs::remove(place);
  fs::create_directory(place);  // nothing can take its place: each process counts for itself
  check("a folder");
  EXPECT_TRUE(fs::is_directory(place));
  EXPECT_THAT(lines_, ElementsAre());
}

// It may be removing files for a second, or be stopped for ever.
TEST_F(FileCache, NobodyWaitsForWhoHasTheTally) {
  const std::string bytes(1000, 'b');
  limit(40'000);
  file_cache::store("first", "x", bytes);
  const int64_t each = file_cache::contents().bytes;
  {
    const Fd held(::open((base_ / "cache" / "tally").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
    ::alarm(20);
    for (int i = 0; i < 3; ++i) file_cache::store("held " + std::to_string(i), "x", bytes);
    ::alarm(0);
  }
  EXPECT_EQ(tally()->bytes, each);
  file_cache::store("last", "x", bytes);  // adds what it could not add before
  EXPECT_GE(tally()->bytes, 5 * each);
  const Fd held(::open((base_ / "cache" / "tally").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  for (int i = 0; i < 100; ++i) file_cache::store("more " + std::to_string(i), "x", bytes);
  EXPECT_LE(file_cache::contents().bytes, 40'000 + 40'000 / 8 + each);
}

// A process that is killed has no lock any more, wherever it was.
TEST_F(FileCache, KilledProcessesLeaveTheTallyInOrder) {
  const std::string bytes(1000, 'b');
  limit(20'000);
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int n = 0;; ++n) file_cache::store(fmt::format("{} {}", i, n % 9), "x", bytes);
    }
    ::usleep(useconds_t(2000 + 300 * i));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  for (int i = 0; i < 4; ++i) file_cache::store(std::to_string(i), "x", bytes);
  EXPECT_NE(tally(), std::nullopt);
  EXPECT_LE(bytes_in(base_ / "cache"), 20'000 + 20'000 / 8 + 20 * 1100);
  for (int i = 0; i < 40; ++i) file_cache::store(std::to_string(i), "x", bytes);
  EXPECT_LE(file_cache::contents().bytes, 20'000 + 20'000 / 8);
}

TEST_F(FileCache, CountsAndClearsItsOwnFiles) {
  EXPECT_EQ(file_cache::contents().files, 0);
  EXPECT_FALSE(fs::exists(base_ / "cache"));  // looking makes no folder
  file_cache::store("one", "x", "1");
  file_cache::store("two", "y", "22");
  put(base_ / "cache" / "notes.txt", "mine");
  put(base_ / "cache" / std::string(40, 'a'), "mine");
  const file_cache::Contents before = file_cache::clear();
  EXPECT_EQ(before.folder, (base_ / "cache").native());
  EXPECT_EQ(before.files, 2);
  EXPECT_GT(before.bytes, 9);
  EXPECT_THAT(names_in(base_ / "cache"), ElementsAre(std::string(40, 'a'), "notes.txt"));
  EXPECT_EQ(file_cache::contents().files, 0);
  EXPECT_EQ(file_cache::load("one", "x"), std::nullopt);
  use("relative");
  EXPECT_EQ(file_cache::contents().why_not, "is not an absolute path");
}

// A folder that is put in its place later was not checked.
TEST_F(FileCache, StaysInTheFolderThatWasChecked) {
  file_cache::store("key", "x", "bytes");
  fs::rename(base_ / "cache", base_ / "moved");
  fs::create_directory(base_ / "cache");
  file_cache::store("key", "y", "more");
  EXPECT_EQ(file_cache::load("key", "x"), "bytes");
  EXPECT_THAT(names_in(base_ / "cache"), ElementsAre());
  EXPECT_EQ(names_in(base_ / "moved").size(), 3u);
}

void use_from_threads() {
  constexpr int kThreads = 4;
  std::latch all_here(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &all_here] {
      all_here.arrive_and_wait();
      for (int i = 0; i < 50; ++i) {
        const std::string key = std::to_string((i + t) % 7);
        file_cache::store(key, "x", "of " + key);
        auto bytes = file_cache::load(key, "x");
        EXPECT_EQ(bytes.value_or("of " + key), "of " + key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(FileCache, ThreadsShareIt) {
  use_from_threads();
  EXPECT_EQ(stored().size(), 7u);
  for (int key = 0; key < 7; ++key) EXPECT_TRUE(file_cache::load(std::to_string(key), "x")) << key;
}

TEST_F(FileCache, OneLineForAllThreads) {
  fs::create_directory(base_ / "open");
  fs::permissions(base_ / "open", fs::perms::all);
  for (int round = 0; round < 20; ++round) {
    lines_.clear();
    use(base_ / "cache");
    file_cache::load("key", "x");
    use(base_ / "open");
    use_from_threads();
    ASSERT_THAT(lines_, ElementsAre(HasSubstr("can be written by others")));
  }
}

// The program's sink may itself come back here.
TEST_F(FileCache, TheLineIsSaidOutsideOfTheLock) {
  put(base_ / "file", "x");
  use(base_ / "file");
  int lines = 0;
  set_log_sink([&](std::string_view) {
    ++lines;
    file_cache::store("key", "x", "bytes");
  });
  file_cache::load("key", "x");
  EXPECT_EQ(lines, 1);
}

}  // namespace
}  // namespace tinyshard
