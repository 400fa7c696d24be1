// Child processes that run programs: a crash or a hang of one program ends its worker, not the
// search, and each worker has its own environment, which the library reads once.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/execute.h"

namespace fuzz {

// Environment variables that differ from the parent's: {{"TS_THREADS", "5"}}.
using Environment = std::vector<std::pair<std::string, std::string>>;

struct Reply {
  enum class Kind : uint8_t { Done, Error, Crash, Hang } kind = Kind::Done;
  std::string text;  // "InternalError: ...", "SIGSEGV"
  Results results;
  bool done() const { return kind == Kind::Done; }
};

class Worker {
 public:
  explicit Worker(Environment environment) : environment_(std::move(environment)) {}
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Starts the process where there is none, or where it has run many programs.
  Reply run(const Program& program, Way way, bool placed);

  static void set_deadline(double seconds);

 private:
  void start();
  std::string stop(bool kill);  // how it ended

  Environment environment_;
  int pid_ = -1, socket_ = -1, errors_ = -1;
  int programs_ = 0;
};

// Workers by their environment, kept while they are used.
class Workers {
 public:
  Reply run(const Program& program, Way way, bool placed, const Environment& environment);

 private:
  std::map<Environment, std::unique_ptr<Worker>> workers_;
};

// Serves as a worker process until its parent goes away.
int serve(int socket);

}  // namespace fuzz
