// Corpora, IDX arrays and token files: real ones where they are there, small ones, and malformed
// ones.
#include "io/dataset.h"

#include <cstring>
#include <random>
#include <sys/wait.h>

#include <zlib.h>

#include "io/corpus.h"
#include "tests/io/temp_folder.h"
#include "tests/test_data.h"

namespace tinyshard::io::dataset_test {
namespace {

namespace fs = std::filesystem;
using test::get;
using test::message_of;
using test::put;
using test::TempFolder;
using testing::ElementsAre;
using testing::HasSubstr;

fs::path data_folder() { return test::test_data() / "data"; }

TEST(Corpus, AFileIsTakenAsItIs) {
  const TempFolder folder;
  const std::string text("a\0b\n", 4);
  put(folder / "a.bin", text);
  const Corpus corpus = read_corpus(folder / "a.bin");
  EXPECT_EQ(corpus.text, text);
  EXPECT_THAT(corpus.files, ElementsAre(folder / "a.bin"));
  EXPECT_FALSE(corpus.truncated);
}

TEST(Corpus, AFolderIsReadInTheOrderOfPaths) {
  const TempFolder folder;
  fs::create_directories(folder / "b" / "c");
  fs::create_directories(folder / ".git");
  put(folder / "z.txt", "z");
  put(folder / "b" / "c" / "1", "1");
  put(folder / "b" / "a.txt", "ba");
  put(folder / "A.txt", "A");
  put(folder / "empty", "");
  put(folder / "picture", std::string("PNG\0", 4));
  put(folder / ".hidden", "hidden");
  put(folder / ".git" / "config", "git");
  fs::create_directory_symlink(folder.path(), folder / "loop");
  fs::create_symlink(folder / "nowhere", folder / "broken");
  const Corpus corpus = read_corpus(folder.path());
  EXPECT_EQ(corpus.text, "Aba1z");
  EXPECT_THAT(corpus.files, ElementsAre(folder / "A.txt", folder / "b" / "a.txt",
                                        folder / "b" / "c" / "1", folder / "z.txt"));
  EXPECT_FALSE(corpus.truncated);
}

TEST(Corpus, StopsAtTheLimit) {
  const TempFolder folder;
  put(folder / "a", "aaaa");
  put(folder / "b", "bbbb");
  const auto text = [&](uint64_t most) {
    const Corpus corpus = read_corpus(folder.path(), {.max_bytes = most});
    return corpus.text + (corpus.truncated ? "..." : "");
  };
  EXPECT_EQ(text(8), "aaaabbbb");
  EXPECT_EQ(text(7), "aaaabbb...");
  EXPECT_EQ(text(4), "aaaa...");
  EXPECT_EQ(text(1), "a...");
  EXPECT_THROW(text(0), UserError);
}

TEST(Corpus, ErrorsNameThePath) {
  const TempFolder folder;
  EXPECT_EQ(message_of<IoError>([&] { read_corpus(folder / "none"); }),
            "cannot read corpus " + (folder / "none").native() + ": No such file or directory");
  put(folder / "empty", "");
  EXPECT_EQ(message_of<UserError>([&] { read_corpus(folder / "empty"); }),
            "corpus " + (folder / "empty").native() + " is empty");
  EXPECT_THAT(message_of<UserError>([&] { read_corpus(folder.path()); }),
              HasSubstr("holds no text (1 files below it)"));
  EXPECT_THAT(message_of<UserError>([&] { default_corpus(folder.path()); }),
              HasSubstr(folder.path().native()));
}

TEST(Corpus, UnreadableFilesAreErrors) {
  const TempFolder folder;
  put(folder / "a", "a");
  fs::permissions(folder / "a", fs::perms::none);
  fs::permissions(folder.path(), fs::perms(0755));
  const pid_t child = ::fork();
  if (child == 0) {  // root reads everything: try as somebody else
    if (::geteuid() == 0 && ::seteuid(65534) != 0) ::_exit(77);
    for (const fs::path& path : {folder / "a", folder.path()}) {
      const std::string text = message_of<IoError>([&] { read_corpus(path); });
      if (text != "cannot open " + (folder / "a").native() + ": Permission denied") ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "cannot become another user";
  EXPECT_EQ(status, 0);
}

TEST(Corpus, TheDefaultIsTheStandardLibrary) {
  if (!fs::exists("/usr/include/c++")) GTEST_SKIP() << "no C++ headers in /usr/include/c++";
  const Corpus corpus = read_corpus(default_corpus(), {.max_bytes = 4 << 20});
  EXPECT_GT(corpus.text.size(), 1u << 20);
  EXPECT_THAT(corpus.text, HasSubstr("std::"));
}

TEST(Corpus, TheNewestStandardLibraryCounts) {
  const TempFolder folder;
  for (const char* version : {"9", "12", "10.2.0", "14"}) fs::create_directories(folder / version);
  for (const char* version : {"9", "12", "10.2.0"}) put(folder / version / "vector", "v");
  EXPECT_EQ(default_corpus(folder.path()), folder / "12");
}

std::string big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

std::string gzipped(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST(Idx, ReadsPlainAndGzip) {
  const TempFolder folder;
  const std::string idx = std::string("\0\0\x0b\x02", 4) + big_endian(2) + big_endian(3) +
                          std::string("\1\2\0\3\xff\xff\0\0\0\4\0\5", 12);
  put(folder / "a", idx);
  put(folder / "a.gz", gzipped(idx));
  for (const char* name : {"a", "a.gz"}) {
    const IdxArray array = read_idx(folder / name);
    EXPECT_EQ(array.dtype, DType::I16);
    EXPECT_THAT(array.shape, ElementsAre(2, 3));
    std::vector<int16_t> values(6);
    ASSERT_EQ(array.bytes.size(), 12u);
    std::memcpy(values.data(), array.bytes.data(), 12);
    EXPECT_THAT(values, ElementsAre(258, 3, -1, 0, 4, 5));
  }
  put(folder / "float",
      std::string("\0\0\x0d\x01", 4) + big_endian(1) + std::string("\x3f\x80\0\0", 4));
  float one;
  std::memcpy(&one, read_idx(folder / "float").bytes.data(), 4);
  EXPECT_EQ(one, 1.0f);
}

TEST(Idx, ReadsMnist) {
  const fs::path images = data_folder() / "t10k-images-idx3-ubyte.gz",
                 labels = data_folder() / "t10k-labels-idx1-ubyte.gz";
  if (!fs::exists(images)) {
    GTEST_SKIP() << "no MNIST in " << data_folder()
                 << " (TINYSHARD_TEST_DATA names another folder)";
  }
  const IdxArray x = read_idx(images), y = read_idx(labels);
  EXPECT_EQ(x.dtype, DType::U8);
  EXPECT_THAT(x.shape, ElementsAre(10000, 28, 28));
  EXPECT_EQ(x.bytes.size(), 7'840'000u);
  EXPECT_THAT(y.shape, ElementsAre(10000));
  EXPECT_EQ(y.bytes[0], std::byte{7});  // the first digit of the test set is a seven
}

TEST(Idx, MalformedIsRefused) {
  const TempFolder folder;
  const auto error = [&](const std::string& bytes) {
    put(folder / "x", bytes);
    return message_of<FormatError>([&] { read_idx(folder / "x"); });
  };
  const std::string head = std::string("\0\0\x08\x01", 4);
  const std::string good = head + big_endian(3) + "abc";
  EXPECT_EQ(error(good), "");
  EXPECT_THAT(error(""), HasSubstr("ends inside of its 4-byte magic"));
  EXPECT_THAT(error("ab"), HasSubstr((folder / "x").native()));
  EXPECT_THAT(error("PK\3\4...."), HasSubstr("begins with 50 4b 03 04"));
  EXPECT_THAT(error(std::string("\0\0\x0a\x01", 4) + big_endian(0)),
              HasSubstr("begins with 00 00 0a 01"));
  EXPECT_THAT(error(head + std::string(2, '\0')), HasSubstr("ends inside of its 1 dimensions"));
  EXPECT_THAT(error(std::string("\0\0\x08\xff", 4)), HasSubstr("255 dimensions"));
  EXPECT_THAT(error(head + big_endian(4) + "abc"),
              HasSubstr("4 elements of u8 are more than its 11 bytes can hold"));
  EXPECT_THAT(error(good + "d"), HasSubstr("bytes follow its 3 elements"));
  const std::string huge = std::string("\0\0\x0e\x04", 4) + big_endian(~0u) + big_endian(~0u) +
                           big_endian(~0u) + big_endian(~0u);
  EXPECT_THAT(error(huge), HasSubstr("more than its 20 bytes can hold"));
  // Compressed: nothing huge is allocated for a claim that the compressed bytes cannot keep.
  EXPECT_THAT(error(gzipped(huge)), HasSubstr("can hold"));
  EXPECT_THAT(error(gzipped(head + big_endian(4) + "abc")),
              HasSubstr("4 elements of u8 take 4 bytes, 3 are there"));
  EXPECT_THAT(error(gzipped(good + "d")), HasSubstr("bytes follow"));
  const std::string packed = gzipped(good);
  EXPECT_THAT(error(packed + "x"), HasSubstr("1 bytes follow the gzip data"));
  for (size_t cut = 2; cut < packed.size(); ++cut) {
    EXPECT_NE(error(packed.substr(0, cut)), "") << cut;
  }
}

TEST(Idx, DamagedGzipIsNoticed) {
  const TempFolder folder;
  std::string raw = std::string("\0\0\x08\x01", 4) + big_endian(4000);
  std::mt19937 random(4);
  for (int i = 0; i < 4000; ++i) raw += static_cast<char>('a' + random() % 7);
  const std::string packed = gzipped(raw);
  int harmless = 0, noticed = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::string bytes = packed;
    const size_t at =
        10 + random() % (bytes.size() - 10);  // behind the header, whose time and name mean nothing
    bytes[at] ^= static_cast<char>(1 << random() % 8);
    put(folder / "x", bytes);
    // A few bits of a deflate stream mean nothing (padding): then the data must be right.
    try {
      const IdxArray array = read_idx(folder / "x");
      EXPECT_EQ(std::memcmp(array.bytes.data(), raw.data() + 8, 4000), 0) << "byte " << at;
      ++harmless;
    } catch (const FormatError&) {
      ++noticed;
    }
  }
  EXPECT_LT(harmless, 20);
  EXPECT_EQ(harmless + noticed, 2000);
}

TEST(Cifar, ReadsAndRefuses) {
  const TempFolder folder;
  const auto image = [](char label, char first) {
    return std::string(1, label) + first + std::string(3071, '\x7f');
  };
  const auto error = [&](const std::string& bytes) {
    put(folder / "c.bin", bytes);
    return message_of<FormatError>([&] { read_cifar10(folder / "c.bin"); });
  };
  EXPECT_EQ(error(image(9, 'a') + image(0, 'b')), "");
  const CifarBatch batch = read_cifar10(folder / "c.bin");
  EXPECT_THAT(batch.labels, ElementsAre(std::byte{9}, std::byte{0}));
  ASSERT_EQ(batch.images.size(), 2u * 3072);
  EXPECT_EQ(batch.images[0], std::byte{'a'});
  EXPECT_EQ(batch.images[3072], std::byte{'b'});
  EXPECT_EQ(batch.images[3073], std::byte{0x7f});
  EXPECT_THAT(error(""), HasSubstr("its 0 bytes are no whole number of images"));
  EXPECT_THAT(error(image(1, 'a') + "x"), HasSubstr("its 3074 bytes are no whole number"));
  EXPECT_THAT(error(image(1, 'a') + image(10, 'a')), HasSubstr("image 1 has the label 10, of 10"));
}

TEST(TokenFile, ReadsAndRefuses) {
  const TempFolder folder;
  const auto file = [&](std::vector<int32_t> start, size_t header_ints,
                        const std::vector<uint16_t>& tokens) {
    start.resize(header_ints);
    std::string bytes(reinterpret_cast<const char*>(start.data()), start.size() * 4);
    bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2);
    put(folder / "t.bin", bytes);
    return message_of<FormatError>([&] { TokenFile read(folder / "t.bin"); });
  };
  EXPECT_EQ(file({20240520, 1, 3}, 256, {5, 65535, 0}), "");
  const TokenFile tokens(folder / "t.bin");
  EXPECT_THAT(tokens.tokens(), ElementsAre(5, 65535, 0));
  EXPECT_EQ(file({20240520, 1, 0}, 256, {}), "");
  EXPECT_THAT(file({20240520, 1, 0}, 255, {}),
              HasSubstr("it has 1020 bytes, its header takes 1024"));
  EXPECT_EQ(file({}, 0, {7, 8}), "");  // without a header
  EXPECT_THAT(TokenFile(folder / "t.bin").tokens(), ElementsAre(7, 8));
  EXPECT_EQ(file({20240521, 1, 0}, 256, {}), "");
  EXPECT_EQ(TokenFile(folder / "t.bin").tokens().size(), 512u);
  put(folder / "t.bin", "abc");
  EXPECT_THAT(message_of<FormatError>([&] { TokenFile read(folder / "t.bin"); }),
              HasSubstr("no header, and 3 bytes are no whole number"));
  EXPECT_THAT(file({20240520, 2, 0}, 256, {}), HasSubstr("version is 2"));
  EXPECT_THAT(file({20240520, 1, 4}, 256, {1, 2, 3}),
              HasSubstr("announces 4 tokens and has 6 bytes"));
  EXPECT_THAT(file({20240520, 1, -1}, 256, {1, 2, 3}), HasSubstr("announces -1 tokens"));
  EXPECT_THAT(file({20240520, 1, INT32_MIN}, 256, {}), HasSubstr("announces -2147483648 tokens"));
}

}  // namespace
}  // namespace tinyshard::io::dataset_test
