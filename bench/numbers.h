// Device memory full of normal random numbers: zeros would flatter a product, and hide mistakes.
#pragma once
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "core/dtype/half.h"
#include "core/runtime/device.h"

namespace tinyshard::bench {

class Numbers {
 public:
  // F32 or BF16. The numbers repeat after an odd number of bytes.
  Numbers(Device& device, int64_t count, DType dtype)
      : device_(device), bytes_(size_t(count) * itemsize(dtype)) {
    const std::vector<char>& some = dtype == DType::F32 ? drawn<float>() : drawn<uint16_t>();
    memory_ = static_cast<char*>(device.allocate(bytes_));
    for (size_t done = 0, more = 0; done < bytes_; done += more) {
      more = std::min(done, bytes_ - done);
      if (done > 0 && device.copy_from(memory_ + done, device, memory_, more)) continue;
      more = std::min(some.size(), bytes_ - done);
      device.copy_in(memory_ + done, some.data(), more);
    }
  }
  ~Numbers() { device_.free(memory_, bytes_); }
  Numbers(const Numbers&) = delete;
  void* get() const { return memory_; }

 private:
  template <class T>
  static const std::vector<char>& drawn() {
    static const std::vector<char> numbers = [] {
      constexpr size_t kCount = 999983;
      std::vector<char> bytes(kCount * sizeof(T));
      std::mt19937 random(1);
      std::normal_distribution<float> normal;
      for (size_t i = 0; i < kCount; ++i) {
        float x = normal(random);
        T value;
        if constexpr (sizeof(T) == sizeof(float)) {
          value = x;
        } else {
          value = f32_to_bf16(x);
        }
        std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
      }
      return bytes;
    }();
    return numbers;
  }

  Device& device_;
  size_t bytes_;
  char* memory_;
};

}  // namespace tinyshard::bench
