// Messages between two ranks over sockets of the loopback, with TS_SECURE and without, in turn, so that
// both meet the same load of the machine: there and back for small ones, one way for large ones.
//   secure_bench [most bytes]
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/measure.h"
#include "launch/secret.h"
#include "transport/rendezvous/tcp_store.h"
#include "transport/tcp/tcp_channel.h"

using namespace tinyshard;

namespace {

using Clock = std::chrono::steady_clock;

// Two threads as ranks, of which the second sends back what comes, or a byte of it.
class Two {
 public:
  explicit Two(bool encrypts) {
    secret_.set_encrypts(encrypts);
    store_ = std::make_unique<StoreServer>("127.0.0.1:0", secret_, 0);
    std::thread other([&] { ends_[1] = join(1); });
    ends_[0] = join(0);
    other.join();
  }

  double time(size_t bytes, size_t back) {
    out_.resize(bytes, std::byte{1});
    in_.resize(bytes);
    std::thread other([&] {
      move(*ends_[1], ends_[1]->receive(0, 1, in_.data(), bytes));
      move(*ends_[1], ends_[1]->send(0, 2, in_.data(), back));
      move(*ends_[1], ends_[1]->receive(0, 1, in_.data(), bytes));
      move(*ends_[1], ends_[1]->send(0, 2, in_.data(), back));
    });
    double took = 0;
    for (int i = 0; i < 2; ++i) {  // the first one waits for the thread
      const auto begun = Clock::now();
      move(*ends_[0], ends_[0]->send(1, 1, out_.data(), bytes));
      move(*ends_[0], ends_[0]->receive(1, 2, out_.data(), back));
      took = bench::us_since(begun);
    }
    other.join();
    return took;
  }

 private:
  std::unique_ptr<Channel> join(int rank) const {
    LaunchEnvironment launch;
    launch.launcher = Launcher::Own;
    launch.rank = launch.local_rank = rank;
    launch.size = launch.local_size = 2;
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    const auto store = connect_store(store_->address(), secret_, 0, rank, deadline);
    return meet_by_tcp(launch, secret_, *store, 0, false, std::chrono::seconds(20));
  }
  static void move(Channel& channel, Channel::Transfer transfer) {
    while (!channel.test(transfer)) std::this_thread::yield();
  }

  Secret secret_ = Secret::random();
  std::unique_ptr<StoreServer> store_;
  std::unique_ptr<Channel> ends_[2];
  std::vector<std::byte> out_, in_;
};

void compare(size_t most) {
  Two open(false), secure(true);
  for (size_t bytes = 64; bytes <= most; bytes *= 16) {
    std::vector<double> us[2];
    const size_t back = bytes <= 64 << 10 ? bytes : 1;
    for (int round = 0; round < 200; ++round) {
      us[0].push_back(open.time(bytes, back));
      us[1].push_back(secure.time(bytes, back));
    }
    for (const bool encrypts : {false, true})
      bench::print_row(fmt::format("{} bytes{}{}", bytes, back == bytes ? " and back" : "",
                                   encrypts ? ", TS_SECURE=1" : ""),
                       us[encrypts], back == bytes ? 0 : double(bytes) * 1e-9, "GB/s");
  }
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  size_t most = 16 << 20;
  CLI::App app("Messages between two ranks over sockets, encrypted and not.");
  app.option_defaults()->always_capture_default();
  app.add_option("most", most, "Bytes of the largest one");
  return bench::run_main("secure_bench", app, argc, argv, [&] { compare(most); });
}
