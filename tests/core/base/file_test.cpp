// Reads, maps and what is said of files that cannot be had.
#include "core/base/file.h"

#include <sys/stat.h>

#include "tests/io/temp_folder.h"

namespace tinyshard {
namespace {

using test::get;
using test::message_of;
using test::put;
using test::TempFolder;
using testing::HasSubstr;

TEST(ReadFile, ErrorsNameThePath) {
  const TempFolder folder;
  const auto missing = folder / "missing";
  EXPECT_THAT(message_of<IoError>([&] { read_file(missing, 10); }),
              "cannot open " + missing.native() + ": No such file or directory");
  EXPECT_THAT(message_of<IoError>([&] { read_file(folder.path(), 10); }),
              HasSubstr("Is a directory"));
  put(folder / "large", "12345678901");
  EXPECT_THAT(message_of<IoError>([&] { read_file(folder / "large", 10); }),
              HasSubstr("it has 11 bytes, the limit is 10"));
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0666), 0);  // must not wait for a writer
  EXPECT_THAT(message_of<IoError>([&] { read_file(folder / "fifo", 10); }),
              HasSubstr("not a regular file"));
  EXPECT_EQ(read_file(folder / "large", 11), "12345678901");
  const OpenFile file = open_to_read(folder / "large");
  std::vector<std::byte> out(4);
  EXPECT_THAT(message_of<IoError>([&] { read_at(file, 9, out, folder / "large"); }),
              HasSubstr("2 of 4 bytes at offset 9"));
}

TEST(MappedFile, MapsAndMoves) {
  const TempFolder folder;
  put(folder / "a", "abc");
  put(folder / "empty", "");
  MappedFile a(folder / "a");
  MappedFile b = std::move(a);
  EXPECT_TRUE(a.bytes().empty());  // NOLINT(bugprone-use-after-move): a moved-from map is empty
  EXPECT_EQ(b.bytes().size(), 3u);
  EXPECT_EQ(b.bytes()[2], std::byte{'c'});
  b = MappedFile(folder / "empty");
  EXPECT_TRUE(b.bytes().empty());
}

TEST(MapToChange, LeavesTheFileAsItIs) {
  const TempFolder folder;
  const std::string text = std::string(5000, 'a') + std::string(5000, 'b');
  put(folder / "a", text);
  const OpenFile file = open_to_read(folder / "a");
  for (uint64_t offset : {0, 64, 4096, 4999, 9999}) {  // in pages and at their beginning
    const size_t size = text.size() - offset;
    std::shared_ptr<void> map = map_to_change(file, offset, size, folder / "a");
    auto* bytes = static_cast<char*>(map.get());
    EXPECT_TRUE(std::string_view(bytes, size) == std::string_view(text).substr(offset)) << offset;
    std::fill_n(bytes, size, 'c');
    std::shared_ptr<void> again = map_to_change(file, offset, size, folder / "a");
    EXPECT_EQ(static_cast<char*>(again.get())[0], text[offset]) << offset;
  }
  EXPECT_TRUE(get(folder / "a") == text);
}

TEST(MapToChange, GoesWithItsPointer) {
  const TempFolder folder;
  put(folder / "a", std::string(100'000, 'a'));
  const OpenFile file = open_to_read(folder / "a");
  const auto maps = [] {
    const std::string text = get("/proc/self/maps");
    size_t count = 0;
    for (size_t at = text.find("tinyshard-test"); at != std::string::npos;
         at = text.find("tinyshard-test", at + 1))
      ++count;
    return count;
  };
  std::shared_ptr<void> map = map_to_change(file, 5000, 90'000, folder / "a");
  EXPECT_EQ(maps(), 1u);
  map.reset();
  EXPECT_EQ(maps(), 0u);
}

TEST(MapToChange, ErrorsNameThePath) {
  const TempFolder folder;
  put(folder / "a", "abc");
  OpenFile file = open_to_read(folder / "a");
  file.fd = Fd();
  EXPECT_THAT(message_of<IoError>([&] { map_to_change(file, 1, 2, folder / "a"); }),
              HasSubstr((folder / "a").native() + ": Bad file descriptor, 2 bytes at offset 1"));
}

}  // namespace
}  // namespace tinyshard
