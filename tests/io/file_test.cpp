// Atomic files under every failure of the system below them, and the digest against known values.
#include <csignal>
#include <fcntl.h>
#include <random>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "io/atomic_file.h"
#include "io/checked.h"
#include "io/digest.h"
#include "tests/io/faults.h"
#include "tests/io/temp_folder.h"

namespace tinyshard::io {
namespace {

using test::get;
using test::message_of;
using test::names_in;
using test::put;
using test::TempFolder;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(AtomicFile, IsThereWholeOrNotAtAll) {
  const TempFolder folder;
  const auto path = folder / "a.txt";
  put(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
    EXPECT_EQ(get(path), "old");
    file.commit();
  }
  EXPECT_EQ(get(path), "new");
  {
    AtomicFile file(path);
    file.write("never");
  }
  EXPECT_EQ(get(path), "new");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a.txt"));
}

TEST(AtomicFile, WritesPiecesOfAllSizesInOrder) {
  const TempFolder folder;
  std::mt19937 random(1);
  std::string expected;
  AtomicFile file(folder / "a");
  for (int i = 0; i < 200; ++i) {
    std::string piece(random() % (i % 10 == 0 ? 600'000 : 3'000), '\0');
    for (char& c : piece) c = static_cast<char>(random());
    file.write(piece);
    expected += piece;
  }
  EXPECT_EQ(file.written(), expected.size());
  file.commit();
  EXPECT_TRUE(get(folder / "a") == expected);
}

TEST(AtomicFile, KeepsTheModeOfWhatItReplaces) {
  const TempFolder folder;
  put(folder / "secret", "x");
  ASSERT_EQ(::chmod((folder / "secret").c_str(), 0600), 0);
  write_file(folder / "secret", "y");
  struct stat info;
  ASSERT_EQ(::stat((folder / "secret").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(AtomicFile, RefusesToReplaceWhatIsNoFile) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0666), 0);
  EXPECT_THAT(message_of<IoError>([&] { AtomicFile file(folder / "fifo"); }),
              HasSubstr("not a regular file"));
  EXPECT_THAT(message_of<IoError>([&] { AtomicFile file(folder.path()); }),
              HasSubstr("Is a directory"));
  EXPECT_THAT(message_of<IoError>([&] { AtomicFile file("/dev/null"); }), HasSubstr("/dev/null"));
  EXPECT_THAT(message_of<IoError>([&] { AtomicFile file(folder / "no" / "a"); }),
              HasSubstr("No such file or directory"));
}

TEST(AtomicFile, CanBeTriedInAdvance) {
  const TempFolder folder;
  put(folder / "a", "old");
  check_writable(folder / "a");
  check_writable(folder / "b");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a"));
  EXPECT_EQ(get(folder / "a"), "old");
  EXPECT_THAT(message_of<IoError>([&] { check_writable(folder / "a" / "b"); }),
              HasSubstr("Not a directory"));
}

// Every call that a write makes fails once, each with a full disk and with an I/O error: the old
// file stands, no temporary is left, and the error names the path.
TEST(AtomicFile, EveryFailingCallLeavesTheOldFile) {
  const TempFolder folder;
  const auto path = folder / "a.bin";
  const std::string large(3 << 20, 'x');
  for (const std::string call : {"write", "fsync", "close", "rename"}) {
    for (int n = 1; n <= 8; ++n) {
      put(path, "old");
      test::fail_call(call, n, call == "write" ? ENOSPC : EIO);
      std::string text;
      {
        text = message_of<IoError>([&] {
          AtomicFile file(path);
          file.write("head");
          for (int i = 0; i < 3; ++i) file.write(std::string_view(large).substr(0, 1 << 20));
          file.write("tail");
          file.commit();
        });
      }
      if (!test::clear_faults()) {
        EXPECT_GT(n, 1) << call << " is never called";
        break;
      }
      // The second fsync is the folder's, after the rename: the new file is there, but may not
      // survive. The second close is the folder's, too, and says nothing about data.
      const bool renamed = n == 2 && call != "write";
      if (call == "close" && n == 2) {
        EXPECT_EQ(text, "");
      } else {
        EXPECT_THAT(text, HasSubstr(renamed ? folder.path().native() : path.native())) << call << n;
      }
      EXPECT_EQ(get(path), renamed ? "head" + large + "tail" : "old") << call << n;
      EXPECT_THAT(names_in(folder.path()), ElementsAre("a.bin")) << call << n;
    }
  }
}

TEST(AtomicFile, SaysHowMuchWasWritten) {
  const TempFolder folder;
  test::fail_call("write", 9, ENOSPC);  // of 128 KiB each
  const std::string text = message_of<IoError>([&] {
    AtomicFile file(folder / "a");
    const std::string block(1 << 20, 'x');
    file.write(block);
    file.write(block);
  });
  test::clear_faults();
  EXPECT_THAT(text,
              HasSubstr("No space left on device, 1048576 bytes written, 1048576 more to go"));
}

TEST(AtomicFile, IsOfNoUseAfterAFailure) {
  const TempFolder folder;
  AtomicFile file(folder / "a");
  test::fail_call("write", 1, EIO);
  EXPECT_THROW(file.write(std::string(1 << 20, 'x')), IoError);
  test::clear_faults();
  EXPECT_THROW(file.commit(), InternalError);
  EXPECT_THAT(names_in(folder.path()), ElementsAre());
}

TEST(AtomicFile, FileSizeLimit) {
  const TempFolder folder;
  put(folder / "a", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    // The limit's signal would end the process; how the program handles it stays its own business.
    const rlimit limit{100'000, 100'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file(folder / "a", std::string(200'000, 'x'));
    } catch (const IoError& error) {
      sigset_t blocked, pending;
      ::sigpending(&pending);
      ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
      if (::sigismember(&pending, SIGXFSZ) != 0 || ::sigismember(&blocked, SIGXFSZ) != 0)
        ::_exit(3);
      ::_exit(error.error_number() == EFBIG && error.path() == folder / "a" ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(get(folder / "a"), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a"));
}

TEST(Digest, KnownValues) {
  EXPECT_EQ(digest_of(""), 0xEF46DB3751D8E999u);
  EXPECT_EQ(digest_of("a"), 0xD24EC4F1A98C6E5Bu);
  EXPECT_EQ(digest_of("abc"), 0x44BC2CF5AD770999u);
  EXPECT_EQ(digest_of("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1u);
}

TEST(Digest, PiecesMakeTheWhole) {
  std::mt19937 random(2);
  std::vector<std::byte> bytes(1000);
  for (auto& b : bytes) b = static_cast<std::byte>(random());
  for (int trial = 0; trial < 500; ++trial) {
    const auto span = std::span<const std::byte>(bytes).first(random() % 300);
    Digest digest;
    for (size_t at = 0; at < span.size();) {
      const size_t n = std::min<size_t>(span.size() - at, random() % 50);
      digest.update(span.subspan(at, n));
      at += n;
    }
    EXPECT_EQ(digest.value(), digest_of(span));
  }
  uint64_t value;
  EXPECT_TRUE(parse_digest(digest_text(0x0123456789abcdef), value));
  EXPECT_EQ(value, 0x0123456789abcdefu);
  for (const char* bad :
       {"", "0123456789abcde", "0123456789abcdefa", "0123456789ABCDEF", "+123456789abcdef"}) {
    EXPECT_FALSE(parse_digest(bad, value)) << bad;
  }
}

TEST(Checked, NothingWraps) {
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(checked_bytes(Shape{}, 4), 4u);
  EXPECT_EQ(checked_bytes(Shape{2, 3}, 4), 24u);
  EXPECT_EQ(checked_bytes(Shape{0, 3}, 4), 0u);
  EXPECT_FALSE(checked_bytes(Shape{-1}, 4));
  EXPECT_FALSE(checked_bytes(Shape{int64_t{1} << 62, 4}, 4));
  EXPECT_FALSE(checked_bytes(Shape{0, int64_t{1} << 62, 4}, 4));  // its strides would wrap
  EXPECT_FALSE(checked_bytes(Shape{INT64_MAX}, 2));
  EXPECT_FALSE(checked_add(UINT64_MAX, 1));
}

}  // namespace
}  // namespace tinyshard::io
