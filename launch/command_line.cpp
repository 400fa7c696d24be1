// The parent's command line ends with this process's own; the words before that are the launcher's:
//
//   parent: mpirun -n 2 ./train --fast    this process: ./train --fast    "mpirun -n 2 "
#include "launch/command_line.h"

#include <algorithm>
#include <fstream>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "launch/environment.h"

namespace tinyshard {
namespace {

std::vector<std::string> words_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

}  // namespace

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=,.:/@%^";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (char c : word) c == '\'' ? quoted += "'\\''" : quoted += c;
  return quoted + "'";
}

std::string launcher_words(std::span<const std::string> launcher,
                           std::span<const std::string> program) {
  if (program.empty() || launcher.size() <= program.size()) return {};
  const auto before = launcher.first(launcher.size() - program.size());
  if (!std::ranges::equal(launcher.subspan(before.size()), program)) return {};
  std::string text;
  for (const std::string& word : before) text += shell_word(word) + " ";
  return text;
}

std::string launcher_command() {
  const LaunchEnvironment launch = read_launch_environment();
  if (launch.launcher == Launcher::None) return {};
  std::string seen = launcher_words(words_of(std::to_string(getppid())), words_of("self"));
  if (!seen.empty()) return seen;
  if (launch.launcher == Launcher::Rank) return {};  // torchrun and the like have no form in common
  return fmt::format("{} -n {} ", name(launch.launcher), launch.size);
}

}  // namespace tinyshard
