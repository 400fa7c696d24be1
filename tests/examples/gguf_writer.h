// GGUF files, version 3, for tests: what llama.cpp's converter writes, of tensors in f32.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard::test {

class GgufWriter {
 public:
  void text(const std::string& key, std::string_view value) {
    begin(key, 8);
    add_text(kv_, value);
  }
  void whole(const std::string& key, uint32_t value) {
    begin(key, 4);
    add(kv_, value);
  }
  void real(const std::string& key, float value) {
    begin(key, 6);
    add(kv_, value);
  }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    begin(key, 9);
    add(kv_, uint32_t{8});
    add(kv_, uint64_t{values.size()});
    for (const std::string& value : values) add_text(kv_, value);
  }
  void wholes(const std::string& key, const std::vector<int32_t>& values) {
    begin(key, 9);
    add(kv_, uint32_t{5});
    add(kv_, uint64_t{values.size()});
    for (const int32_t value : values) add(kv_, value);
  }
  // `type` is the number of a type of ggml, 0 for f32; the bytes are those of `values` anyway.
  void tensor(const std::string& name, const std::vector<int64_t>& shape,
              const std::vector<float>& values, uint32_t type = 0) {
    ++tensors_;
    add_text(table_, name);
    add(table_, uint32_t(shape.size()));
    for (size_t i = shape.size(); i-- > 0;) add(table_, shape[i]);  // innermost first
    add(table_, type);
    add(table_, uint64_t{data_.size()});
    for (const float value : values) add(data_, value);
    data_.resize((data_.size() + 31) / 32 * 32);
  }
  void write(const std::filesystem::path& path) const {
    std::string all = "GGUF";
    add(all, uint32_t{3});
    add(all, tensors_);
    add(all, keys_);
    all += kv_ + table_;
    all.resize((all.size() + 31) / 32 * 32);
    std::ofstream(path, std::ios::binary) << all << data_;
  }

 private:
  template <class T>
  static void add(std::string& to, T value) {
    static_assert(std::endian::native == std::endian::little);
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    to.append(bytes, sizeof value);
  }
  static void add_text(std::string& to, std::string_view value) {
    add(to, uint64_t{value.size()});
    to += value;
  }
  void begin(const std::string& key, uint32_t type) {
    ++keys_;
    add_text(kv_, key);
    add(kv_, type);
  }

  uint64_t keys_ = 0, tensors_ = 0;
  std::string kv_, table_, data_;
};

}  // namespace tinyshard::test
