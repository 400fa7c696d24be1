// Example: rank 0 draws "\r 10 %" and "\r 20 %" without a line's end, and rank 1 prints "hello":
//   [0] \r[0]  10 %\r[0]  20 %
//   [1] hello
// A return goes back to the beginning of the line, where the number of the rank is drawn again.
#include "launch/job_output.h"

#include <array>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace tinyshard {
namespace {

bool lead_to_one_place() {
  struct stat out{}, errors{};
  return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &errors) == 0 &&
         out.st_dev == errors.st_dev && out.st_ino == errors.st_ino;
}

}  // namespace

JobOutput::JobOutput(OutputQueue& queue, bool prefix, bool color)
    : queue_(queue), prefix_(prefix), color_(color), same_place_(lead_to_one_place()) {}

std::string JobOutput::prefix_of(int rank) const {
  if (!prefix_) return {};
  constexpr std::array kColors = {36, 33, 35, 32, 34, 31};
  if (!color_) return fmt::format("[{}] ", rank);
  return fmt::format("\033[{}m[{}]\033[0m ", kColors[size_t(rank) % kColors.size()], rank);
}

void JobOutput::print(int rank, std::string_view text, bool error, bool line_ends) {
  const int fd = error ? STDERR_FILENO : STDOUT_FILENO;
  Unfinished& unfinished = unfinished_of(fd);
  // Without numbers, bytes of a rank stay as they are, on whichever stream they come.
  const bool goes_on = unfinished.rank == rank && (unfinished.fd == fd || !prefix_);
  if (!goes_on) end_unfinished(fd);
  std::string shown = goes_on ? "" : prefix_of(rank);
  for (size_t i = 0; i < text.size(); ++i) {
    shown += text[i];
    const bool draws_again = prefix_ && text[i] == '\r' && (i + 1 < text.size() || !line_ends);
    if (draws_again) shown += prefix_of(rank);
  }
  if (line_ends) shown += '\n';
  unfinished = line_ends ? Unfinished{} : Unfinished{rank, fd};
  queue_.write(fd, std::move(shown));
}

void JobOutput::end_unfinished(int fd) {
  Unfinished& unfinished = unfinished_of(fd);
  if (unfinished.rank >= 0) queue_.write(unfinished.fd, "\n");
  unfinished = {};
}

void JobOutput::end_rank(int rank) {
  for (int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    if (unfinished_of(fd).rank == rank) end_unfinished(fd);
  }
}

void JobOutput::say(const std::string& text) {
  end_unfinished(STDERR_FILENO);
  queue_.write(STDERR_FILENO, fmt::format("tinyshard run: {}\n", text));
}

}  // namespace tinyshard
