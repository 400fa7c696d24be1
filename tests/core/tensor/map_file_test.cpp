// Files as tensors: mapped, divided over devices, computed with, and what is said of bad ones.
#include "core/tensor/map_file.h"

#include <filesystem>
#include <fstream>
#include <numeric>
#include <unistd.h>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/tensor/jit.h"

namespace tinyshard::map_file_test {
namespace {

class MapFile : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() /
            ("tinyshard_map_file_" + std::to_string(::getpid()));
    std::vector<float> values(1024);
    std::iota(values.begin(), values.end(), 0.f);
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string message(const Ints& shape, int64_t offset, const std::string& path) {
    try {
      map_file(path, shape, DType::F32, offset);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path path_;
};

TEST_F(MapFile, IsReadWhenItIsUsed) {
  Tensor x = map_file(path_, {32, 32}, DType::F32);
  EXPECT_EQ(x.sharding().mesh.devices()[0].kind, "DISK");
  EXPECT_EQ(x.sum().item<float>(), 1023 * 1024 / 2);
  EXPECT_EQ((x * 2)[1][3].item<float>(), 70);
  EXPECT_EQ(x.to("CPU:0").to_vector<float>()[1023], 1023);
  EXPECT_EQ(map_file(path_, {0, 4}, DType::F32, 128).numel(), 0);
  EXPECT_EQ(map_file(path_, {0, 4}, DType::F32).to_vector<float>().size(), 0u);
}

TEST_F(MapFile, BeginsAnywhere) {
  EXPECT_EQ(map_file(path_, {4}, DType::F32, 256).to_vector<int>(),
            (std::vector<int>{64, 65, 66, 67}));
  EXPECT_EQ(map_file(path_, {2}, DType::F32, 4 * 101).to_vector<int>(),
            (std::vector<int>{101, 102}));
  Tensor odd = map_file(path_, {1000}, DType::F32, 4 * 5);  // kernels want it aligned
  EXPECT_EQ((odd * 2 + 1).to_vector<float>()[999], 2 * 1004 + 1);
  EXPECT_EQ(odd.sum().item<float>(), 1004 * 1005 / 2 - 10);
}

TEST_F(MapFile, IsDividedOverDevices) {
  Tensor whole = map_file(path_, {32, 32}, DType::F32);
  Tensor parts = whole.shard({"CPU:0", "CPU:1", "CPU:2"}, 0);
  EXPECT_EQ((parts + 1).to_vector<float>(), (whole + 1).to_vector<float>());
}

TEST_F(MapFile, MeetsOtherTensorsWhereTheyAre) {
  const Tensor w = map_file(path_, {32, 32}, DType::F32), x = w.to("CPU").realize();
  const Tensor row = Tensor::arange(32).cast(DType::F32).realize(), places{31, 0, 2};
  const auto same = [](const Tensor& a, const Tensor& b) {
    EXPECT_EQ(a.to_vector<float>(), b.to_vector<float>());
    EXPECT_EQ(a.sharding().mesh.to_string(), b.sharding().mesh.to_string());
  };
  same(w + row, x + row);
  same(row * w, row * x);
  same((w * 2 + 1) * row, (x * 2 + 1) * row);
  same(w[places], x[places]);
  same(w.embedding(places), x.embedding(places));
  same(w.matmul(row), x.matmul(row));
  same(w.cat({x}, 1), x.cat({x}, 1));
  same((row > 3).where(w, row), (row > 3).where(x, row));
  same(w + row.to("CPU:1"), x.to("CPU:1") + row.to("CPU:1"));
  EXPECT_EQ((w * row).sum().gradient({row})[0].to_vector<float>(), x.sum(0).to_vector<float>());
  Tensor y = x.contiguous();
  y.assign(w + x).realize();
  same(y, x * 2);
  Jit step = [&](const Tensor& t) { return (w * t).sum(1); };
  for (int i = 1; i < 4; ++i) same(step((row * i).realize()), (x * row * i).sum(1));
}

TEST_F(MapFile, KeepsTheFileWhenItIsWritten) {
  Tensor x = map_file(path_, {1024}, DType::F32);
  x.assign(x + 1);
  EXPECT_EQ(x.to_vector<float>()[7], 8);
  EXPECT_EQ(map_file(path_, {1024}, DType::F32).to_vector<float>()[7], 7);
}

TEST_F(MapFile, MistakesNameTheFile) {
  std::string text = message({33, 32}, 0, path_);
  EXPECT_NE(text.find(path_), std::string::npos) << text;
  EXPECT_NE(text.find("4096 bytes"), std::string::npos) << text;
  EXPECT_NE(text.find("4224"), std::string::npos) << text;
  EXPECT_NE(message({1}, 4096, path_).find("from byte 4096"), std::string::npos);
  EXPECT_NE(message({1}, -4, path_), "");
  EXPECT_NE(message({1}, 0, "/nowhere/w.bin").find("No such file"), std::string::npos);
  EXPECT_NE(message({1}, 0, "/tmp").find("Is a directory"), std::string::npos);
  EXPECT_NE(message({1}, 0, "/dev/null").find("not a regular file"), std::string::npos);
}

}  // namespace
}  // namespace tinyshard::map_file_test
