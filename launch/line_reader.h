// Lines of a pipe, as they come.
#pragma once
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>
#include <unistd.h>

namespace tinyshard {

struct LineReader {
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kLongestPart = 64 << 10;  // of a line that is handed on in parts

  int fd = -1;
  char kind = ' ';
  std::string begun;             // the beginning of a line
  Clock::time_point since = {};  // when that came

  // Reads once. Calls take(line) for each line that is complete. False at the end, or where nothing
  // can be read any more.
  template <class Take>
  bool read(Take&& take) {
    std::array<char, 1 << 16> buffer;
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0) return errno == EINTR || errno == EAGAIN;
    std::string_view rest(buffer.data(), size_t(n));
    for (size_t end; (end = rest.find('\n')) != std::string_view::npos;
         rest.remove_prefix(end + 1)) {
      begun.append(rest.substr(0, end));
      take(std::string_view(begun));
      begun.clear();
    }
    if (begun.empty() && !rest.empty()) since = Clock::now();
    begun.append(rest);
    return n > 0;
  }
};

}  // namespace tinyshard
