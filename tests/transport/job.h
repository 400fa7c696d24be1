// A job to run communicator tests in: threads as ranks, or, under mpirun, this process as one rank
// of the real one. `run` gives every rank its world communicator; assertions and exceptions of all
// ranks reach the test.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/runtime/communicator.h"
#include "launch/environment.h"
#include "transport/world.h"

namespace tinyshard::test {

// Which rank holds how many participants: {2, 2} is two ranks of two devices.
using Layout = std::vector<int>;

inline bool under_mpirun() { return read_launch_environment().size > 1; }

inline CommOptions test_options() {
  CommOptions options;
  options.timeout = std::chrono::seconds(60);
  return options;
}

using Body = std::function<void(Communicator&)>;

inline void run_thread_rank(InprocWorld& world, int rank, int locals, const CommOptions& options,
                            const Body& body) {
  try {
    auto communicator = world.connect(rank, locals, options);
    body(*communicator);
    if (!communicator->failed()) communicator->barrier().wait();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.what();
  }
}

inline void run(const Layout& layout, const CommOptions& options, const Body& body) {
  if (under_mpirun()) {
    const int rank = read_launch_environment().rank;
    auto communicator = connect_world(layout.at(static_cast<size_t>(rank)), options);
    body(*communicator);
    communicator->barrier().wait();
    return;
  }
  InprocWorld world(static_cast<int>(layout.size()));
  std::vector<std::thread> threads;
  for (int rank = 1; rank < static_cast<int>(layout.size()); ++rank) {
    threads.emplace_back([&, rank] {
      run_thread_rank(world, rank, layout[static_cast<size_t>(rank)], options, body);
    });
  }
  run_thread_rank(world, 0, layout[0], options, body);
  for (std::thread& thread : threads) thread.join();
}

// Returns the text of the error that `call` throws on this rank.
template <class Error, class Call>
std::string expect_throw(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace tinyshard::test
