// Reports of a listening socket on connections that it did not let in: the first of each reason is
// told at once in one line, those that follow within a minute are counted and told with the next
// line or, if none comes, when the socket closes. So a million strangers are a handful of lines.
// One thread at a time.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace tinyshard::tcp {

class Refusals {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kQuiet{60};

  // `tell` gets the lines.
  explicit Refusals(std::function<void(std::string_view line)> tell) : tell_(std::move(tell)) {}

  // `where` listens, `who` came: "127.0.0.1:4711", "rank 3 at 10.0.0.3:4711".
  void note(std::string_view where, std::string_view who, std::string_view reason,
            Clock::time_point now);
  void close(std::string_view where);

 private:
  struct Told {
    Clock::time_point at;
    uint64_t since = 0;  // refused after that line
  };
  std::function<void(std::string_view)> tell_;
  std::map<std::string, Told, std::less<>> told_;  // by reason, of which there are a dozen
};

}  // namespace tinyshard::tcp
