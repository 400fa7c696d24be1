// Figures that `tinyshard doctor` finds out about the devices, the disks and the sums of a job, and which of its ranks is
// slower than its neighbours.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard::cli {

// Rates of one rank, in GB/s, GFLOP/s and microseconds; 0 where there is nothing to measure. Plain bytes, which
// ranks of one version send each other.
struct Figures {
  std::array<char, 32> device = {};
  std::array<char, 64> disk_error = {};
  double memory = 0;   // copied within the device, read and written
  double product = 0;  // large products, of bf16 on GPUs and of f32 elsewhere
  double to_device = 0,
         from_device = 0;  // through locked pages; of devices with a memory of their own
  double disk_write = 0, disk_read = 0;
  double small_sum_us = 0;  // all-reduce of 8 KB
  double large_sum = 0;     // all-reduce of 256 MB: its bytes by its time
  int64_t errors = 0;       // that drivers have counted on the host
};

struct Measure {
  std::string_view name, unit;
  double Figures::* value;
  bool more_is_better;
};
std::span<const Measure> measures();

// How fast plans take a device to be, where a profile of such a device says so; 0: not known.
struct Expected {
  double memory = 0, product = 0;
};

// Which rank is slower than others with a device of the same kind: by less than 0.7 of their median,
// with the figure and theirs. `names`: of each rank, "rank 1 on node02".
std::vector<std::string> odd_ones(std::span<const Figures> all, std::span<const std::string> names);

}  // namespace tinyshard::cli
