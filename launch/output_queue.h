// Text for stdout and stderr that a thread writes: a reader that does not read (a pager, Ctrl-S) keeps
// the thread waiting, and not who prints.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace tinyshard {

class OutputQueue {
 public:
  OutputQueue();
  ~OutputQueue();  // what is not written by then is lost
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  // In the order of the calls. A stream that takes no more, as its reader has gone or its disk is full,
  // loses its text.
  void write(int fd, std::string text);
  // Tells that more waits than a megabyte: who can should wait, too.
  bool is_full() const;
  // A stream that takes no more, and why, as of errno; each is told once. There is one when
  // failures() is readable.
  struct Failure {
    int fd, error;
    std::string text() const;  // for the user
  };
  int failures() const;
  std::optional<Failure> next_failure();
  // Until all is written, at most so long. What then waits for stderr overtakes what waits for stdout,
  // as far as stderr takes it.
  bool drain(std::chrono::milliseconds most);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tinyshard
