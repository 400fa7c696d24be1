// Kernels on disk: hits, damage, strangers' directories, other versions.
#include "core/codegen/disk_cache.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>

#include <gtest/gtest.h>

#include "core/base/options.h"
#include "core/codegen/key.h"
#include "core/runtime/file_cache.h"
#include "tests/core/codegen/harness.h"

namespace tinyshard::test {
namespace {

namespace fs = std::filesystem;

class DiskCache : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tinyshard-cache-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    base_ = pattern;
    use(base_ / "a" / "b");
    clear_codegen_cache();
  }
  void TearDown() override {
    ::unsetenv("TS_CACHE_DIR");
    ::setenv("TS_CACHE", "0", 1);
    reload_options();
    fs::remove_all(base_);
  }

  void use(const fs::path& path) {
    path_ = path;
    ::setenv("TS_CACHE_DIR", path.c_str(), 1);
    ::setenv("TS_CACHE", "1", 1);
    reload_options();
  }

  // Compiles and runs a kernel; returns whether it came from memory (m), disk (d) or the compiler
  // (c).
  char source_of(double factor = 2) {
    CodegenStatistics before = codegen_statistics();
    Kernel k("cached");
    int in = k.param(DType::F32, 100), out = k.param(DType::F32, 100);
    UOp i = k.loop(100);
    k.store(out, i, k.load(in, i) * real(factor));
    k.run();
    for (int64_t j = 0; j < 100; ++j)
      EXPECT_EQ(k.buffer(out).get(j).real, k.buffer(in).get(j).real * factor);
    CodegenStatistics after = codegen_statistics();
    if (after.compiled > before.compiled) return 'c';
    return after.disk_hits > before.disk_hits ? 'd' : 'm';
  }

  std::vector<fs::path> files() const {
    std::vector<fs::path> result;
    if (!fs::exists(path_)) return result;
    for (auto& entry : fs::directory_iterator(path_)) {
      if (entry.path().filename() != "tally") result.push_back(entry.path());
    }
    return result;
  }

  fs::path base_, path_;
};

TEST_F(DiskCache, RemembersAcrossProcesses) {
  EXPECT_EQ(source_of(), 'c');
  EXPECT_EQ(source_of(), 'm');
  clear_codegen_cache();
  EXPECT_EQ(source_of(), 'd');
  EXPECT_EQ(source_of(4), 'c');
  EXPECT_EQ(files().size(), 2u);
  struct stat status;
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(DiskCache, DamagedFilesAreCompiledAgain) {
  source_of();
  ASSERT_EQ(files().size(), 1u);
  fs::path file = files()[0];
  auto size = static_cast<int64_t>(fs::file_size(file));
  for (int64_t at : {int64_t{0}, int64_t{9}, int64_t{100}, size / 2, size - 1}) {
    {
      std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
      f.seekg(at);
      char c = static_cast<char>(f.get() ^ 0x20);
      f.seekp(at);
      f.put(c);
    }
    clear_codegen_cache();
    EXPECT_EQ(source_of(), 'c') << "a flipped bit at " << at;
    clear_codegen_cache();
    EXPECT_EQ(source_of(), 'd');
  }
  for (int64_t length : {int64_t{0}, int64_t{5}, size / 2, size - 1}) {
    fs::resize_file(file, static_cast<uint64_t>(length));
    clear_codegen_cache();
    EXPECT_EQ(source_of(), 'c') << "cut to " << length;
  }
  {
    std::ofstream(file, std::ios::app) << "tail";
  }
  clear_codegen_cache();
  EXPECT_EQ(source_of(), 'c');
}

TEST_F(DiskCache, AnotherKernelUnderTheName) {
  source_of(2);
  fs::path two = files()[0];
  source_of(4);
  for (const fs::path& file : files()) {
    if (file != two) fs::copy_file(file, two, fs::copy_options::overwrite_existing);
  }
  clear_codegen_cache();
  EXPECT_EQ(source_of(2), 'c');  // source_of checks the values
}

TEST_F(DiskCache, NothingOfAKernelIsLost) {
  CompiledKernel kernel{.name = "kernel",
                        .code = {.entry = "entry",
                                 .bytes = {'p', 't', 'x', '\0'},
                                 .work_items = int64_t{1} << 40,
                                 .min_items = 3,
                                 .block = 256,
                                 .shared_bytes = 1024,
                                 .coordinates = 2,
                                 .waits_itself = true},
                        .cost_ns = 0.5,
                        .bytes_moved = 7};
  codegen::store_kernel("key", kernel);
  auto loaded = codegen::load_kernel("key");
  ASSERT_NE(loaded, nullptr);
  EXPECT_EQ(loaded->name, kernel.name);
  EXPECT_TRUE(loaded->code == kernel.code);
  EXPECT_EQ(loaded->cost_ns, kernel.cost_ns);
  EXPECT_EQ(loaded->bytes_moved, kernel.bytes_moved);
}

// Files that are whole but hold something else: what another version wrote, or the middle of it.
TEST_F(DiskCache, WhatDoesNotDecodeIsCompiledAgain) {
  auto compile = [](double addend) {
    Kernel k;
    int in = k.param(DType::F32, 10), out = k.param(DType::F32, 10);
    UOp i = k.loop(10);
    k.store(out, i, k.load(in, i) + real(addend));
    k.compile();
    return codegen::kernel_key(k.source(), machine().target());
  };
  std::string key = compile(1);
  const std::string whole = file_cache::load(key, "kernel").value();
  std::vector<std::string> others{whole + "x"};
  for (size_t size : {size_t{0}, size_t{3}, size_t{60}, whole.size() / 2, whole.size() - 1})
    others.push_back(whole.substr(0, size));
  others.push_back(whole);
  others.back()[12] ^= 1;  // the version, behind its length
  for (size_t n = 0; n < others.size(); ++n) {
    file_cache::store(key, "kernel", others[n]);
    clear_codegen_cache();
    CodegenStatistics before = codegen_statistics();
    compile(1);
    EXPECT_EQ(codegen_statistics().compiled, before.compiled + 1) << n;
    EXPECT_EQ(file_cache::load(key, "kernel"), whole) << n;
  }
}

TEST_F(DiskCache, DirectoriesThatOthersCanWriteAreNotUsed) {
  fs::create_directories(base_ / "open");
  fs::permissions(base_ / "open", fs::perms::all);
  use(base_ / "open");
  clear_codegen_cache();
  EXPECT_EQ(source_of(), 'c');
  clear_codegen_cache();
  EXPECT_EQ(source_of(), 'c');
  EXPECT_TRUE(files().empty());
}

TEST_F(DiskCache, AFileInPlaceOfTheDirectory) {
  {
    std::ofstream(base_ / "file") << "x";
  }
  use(base_ / "file");
  clear_codegen_cache();
  EXPECT_EQ(source_of(), 'c');
  use(base_ / "file" / "below");
  clear_codegen_cache();
  EXPECT_EQ(source_of(), 'c');
}

TEST_F(DiskCache, SwitchedOff) {
  ::setenv("TS_CACHE", "0", 1);
  reload_options();
  clear_codegen_cache();
  EXPECT_EQ(source_of(), 'c');
  clear_codegen_cache();
  EXPECT_EQ(source_of(), 'c');
  EXPECT_TRUE(files().empty());
}

TEST_F(DiskCache, KeysKnowStructureAndNotNames) {
  auto make = [](const std::string& name, int64_t n, double factor, int64_t unused_ranges) {
    Kernel k(name);
    for (int64_t i = 0; i < unused_ranges; ++i) k.fold_range(2);
    int in = k.param(DType::F32, n), out = k.param(DType::F32, n);
    UOp i = k.loop(n);
    k.store(out, i, k.load(in, i) + real(factor));
    return k.compile();
  };
  auto first = make("first", 10, 1, 0);
  EXPECT_EQ(first, make("second", 10, 1, 3));
  EXPECT_NE(first, make("first", 11, 1, 0));
  EXPECT_NE(first, make("first", 10, 2, 0));
}

}  // namespace
}  // namespace tinyshard::test
