// A rank of a job that runs a captured data-parallel step again and again until a call fails, and
// prints what it was told; the devices are those of TS_DEVICES. Lines are those of fault_rank.cpp.
// A step has several collectives. Which one this rank began last
// is in FOLDER/<rank>, as run << 16 | item: a mapped file, which survives a kill.
//   step_rank FOLDER
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <optional>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include "core/base/observer.h"
#include "tests/fault/transport/rank.h"
#include "tinyshard/tinyshard.h"

using namespace tinyshard;
using namespace tinyshard::test;

namespace {

class LastBegun : public Observer {
 public:
  explicit LastBegun(const std::string& path) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void* memory =
        file < 0 || ftruncate(file, sizeof(uint64_t)) != 0
            ? MAP_FAILED
            : mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("cannot map " + path);
    last_ = static_cast<uint64_t*>(memory);
  }
  void begin(const ObservedEvent& event) override {
    if (event.kind == EventKind::Collective)
      std::atomic_ref(*last_).store(event.ticket.run << 16 | event.ticket.item);
  }
  void end(const ObservedEvent&) noexcept override {}

 private:
  uint64_t* last_;
};

int run(const std::string& folder) {
  constexpr int64_t kWidth = 1 << 20;
  const Mesh mesh = Mesh::world({{"data", -1}});
  Tensor weight = Tensor::ones({kWidth}).shard(mesh).contiguous().realize();
  Tensor rows =
      Tensor::ones({mesh.size(), kWidth}).shard(mesh, {{"data", Shard(0)}}).contiguous().realize();
  Jit step = [&](Tensor x) {
    Tensor sum = (x * weight).sum(0);
    Tensor largest = (x * sum).max(0);
    weight.assign(weight * 0.5 + largest * 0.25);
    return (x * largest).sum();
  };
  LastBegun last(folder + "/" + std::to_string(world().rank));
  std::optional<Observing> observing(last);
  Clock::time_point begun;
  auto one_step = [&] {
    begun = Clock::now();
    return step(rows).item<float>();
  };
  try {
    for (int i = 0; i < 3; ++i) one_step();
    print_line(std::to_string(world().rank) + " ready " + std::to_string(getpid()));
    for (;;) one_step();
  } catch (const CommError& error) {
    const double elapsed = milliseconds_since(begun);
    const auto at = Clock::now();
    observing.reset();
    double again = -1;
    try {
      one_step();
    } catch (const CommError&) {
      again = milliseconds_since(begun);
    }
    print_report(world().rank, error, elapsed, at, again);
    return 3;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : ".");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_rank: %s\n", error.what());
    return 5;
  }
}
