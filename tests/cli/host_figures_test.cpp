// Figures of processes and of the host, from folders that look like the kernel's.
#include "cli/host_figures.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "cli/gpu_temperatures.h"

namespace tinyshard::cli {
namespace {

class HostFigures : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / ("host." + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void put(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }

  std::filesystem::path folder_;
};

TEST_F(HostFigures, ResidentBytes) {
  EXPECT_GT(resident_bytes(getpid()).value(), 1 << 20);
  put("7/statm", "900 30 5 1 0 9 0\n");
  EXPECT_EQ(resident_bytes(7, folder_), 30 * sysconf(_SC_PAGESIZE));
  EXPECT_FALSE(resident_bytes(8, folder_).has_value());
  put("9/statm", "nonsense");
  EXPECT_FALSE(resident_bytes(9, folder_).has_value());
}

TEST_F(HostFigures, TheHottestSensorOfEachChip) {
  put("class/hwmon/hwmon0/name", "coretemp\n");
  put("class/hwmon/hwmon0/temp1_input", "41000\n");
  put("class/hwmon/hwmon0/temp2_input", "63500\n");
  put("class/hwmon/hwmon0/temp2_max", "100000\n");
  put("class/hwmon/hwmon1/name", "amdgpu\n");
  put("class/hwmon/hwmon1/temp1_input", "nonsense\n");
  put("class/hwmon/hwmon2/name", "nvme\n");
  put("class/hwmon/hwmon2/temp1_input", "-2000\n");
  const std::vector<Temperature> found = temperatures(folder_);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "coretemp");
  EXPECT_DOUBLE_EQ(found[0].celsius, 63.5);
  EXPECT_DOUBLE_EQ(found[1].celsius, -2);
  EXPECT_TRUE(temperatures(folder_ / "nowhere").empty());
}

// The driver numbers its GPUs; of one that does not tell nothing is shown.
TEST(GpuTemperatures, AsTheDriversLibraryTells) {
  const std::vector<Temperature> found = gpu_temperatures(NVML_DOUBLE);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "GPU 0");
  EXPECT_DOUBLE_EQ(found[0].celsius, 40);
  EXPECT_EQ(found[1].name, "GPU 2");
  EXPECT_DOUBLE_EQ(found[1].celsius, 42);
}

TEST_F(HostFigures, LogsThatAProcessHasOpen) {
  put("a.jsonl", "{}\n");
  put("b.txt", "\n");
  const std::ofstream log(folder_ / "a.jsonl", std::ios::app), other(folder_ / "b.txt");
  const auto found = open_logs(getpid());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].filename(), "a.jsonl");
}

TEST_F(HostFigures, LastLine) {
  const auto last = [&](const std::string& text) {
    put("log", text);
    return last_line(folder_ / "log");
  };
  EXPECT_EQ(last("{\"step\":1}\n{\"step\":2}\n{\"st"), "{\"step\":2}");
  EXPECT_EQ(last("one\n"), "one");
  EXPECT_EQ(last("cut"), "");
  EXPECT_EQ(last(""), "");
  EXPECT_EQ(last("\n"), "");
  EXPECT_EQ(last(std::string(100'000, 'x') + "\nshort\n"), "short");
  EXPECT_EQ(last(std::string(100'000, 'x') + "\n"), "");
  EXPECT_EQ(last_line(folder_), "");
  EXPECT_EQ(last_line("/dev/zero"), "");
}

}  // namespace
}  // namespace tinyshard::cli
