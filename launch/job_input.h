// The launcher's standard input, which goes to rank 0.
#pragma once
#include <cstddef>
#include <optional>
#include <string>

namespace tinyshard {

// Reads no more than rank 0 has room for, and at a terminal only while the launcher is in its
// foreground: who reads from behind is stopped.
class JobInput {
 public:
  int fd() const;  // to wait for; -1: nothing is to be read now
  // Reads what has come; nothing where it is at its end, which is told once.
  std::optional<std::string> read();
  void note_taken(int bytes);  // by rank 0; -1: it takes no more

 private:
  size_t room_ = 64 << 10;
  bool over_ = false;
};

}  // namespace tinyshard
