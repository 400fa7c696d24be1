// A choice is one byte in a file, and is believed only if it is one of the candidates. It is then
// kept in memory, so that a file is read once in a process.
#include "core/exec/kept_choices.h"

#include "core/runtime/file_cache.h"

namespace tinyshard {

std::optional<int> KeptChoices::find(const std::string& key) {
  {
    const std::lock_guard lock(mutex_);
    if (auto found = known_.find(key); found != known_.end()) return found->second;
  }
  const auto bytes = file_cache::load(key, extension_);
  if (!bytes || bytes->size() != 1 || (*bytes)[0] < 0 || (*bytes)[0] >= count_) return std::nullopt;
  keep_here(key, (*bytes)[0]);
  return (*bytes)[0];
}

void KeptChoices::keep(const std::string& key, int choice) {
  const char byte = static_cast<char>(choice);
  file_cache::store(key, extension_, {&byte, 1});
  keep_here(key, choice);
}

void KeptChoices::keep_here(const std::string& key, int choice) {
  const std::lock_guard lock(mutex_);
  known_[key] = choice;
}

}  // namespace tinyshard
