// Choices that were made by timing candidates, by what was chosen for: found again by this process,
// and by later ones in the folder of compiled kernels (core/runtime/file_cache.h). Any thread.
#pragma once
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace tinyshard {

class KeptChoices {
 public:
  // Keeps choices of `count` candidates each, in files with this extension, a literal.
  KeptChoices(std::string_view extension, int count) : extension_(extension), count_(count) {}

  std::optional<int> find(const std::string& key);
  void keep(const std::string& key, int choice);
  // Keeps a choice that no timing made, in this process alone.
  void keep_here(const std::string& key, int choice);

 private:
  std::string_view extension_;
  int count_;  // fits a byte, as which a file holds its choice
  std::mutex mutex_;
  std::unordered_map<std::string, int> known_;
};

}  // namespace tinyshard
