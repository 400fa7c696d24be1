// The program is searched in the PATH of the new environment, which execvp would not look at. A
// file that may not be executed ends the search only if no later folder has another.
#include "launch/exec_program.h"

#include <algorithm>
#include <cerrno>
#include <unistd.h>

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace tinyshard {
namespace {

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

}  // namespace

std::vector<std::string> environment_with(const std::vector<std::string>& added,
                                          std::span<const std::string_view> dropped) {
  std::vector<std::string> list;
  const auto replaced = [&](std::string_view name) {
    return std::ranges::find(dropped, name) != dropped.end() ||
           std::ranges::find(added, name, name_of) != added.end();
  };
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (!replaced(name_of(*entry))) list.emplace_back(*entry);
  }
  for (size_t i = 0; i < added.size(); ++i) {  // the last one of a name counts
    const auto behind = std::ranges::subrange(added.begin() + int64_t(i) + 1, added.end());
    if (std::ranges::find(behind, name_of(added[i]), name_of) == behind.end())
      list.push_back(added[i]);
  }
  return list;
}

int exec_program(std::vector<std::string> words, std::vector<std::string> environment) {
  const std::vector<char*> arguments = pointers(words), variables = pointers(environment);
  const std::string& name = words.front();
  if (name.find('/') != std::string::npos) {
    execve(name.c_str(), arguments.data(), variables.data());
    return errno;
  }
  if (name.empty()) return ENOENT;
  std::string_view path = "/usr/local/bin:/bin:/usr/bin";
  for (const std::string& entry : environment) {
    if (name_of(entry) == "PATH" && entry.size() > 5) path = std::string_view(entry).substr(5);
  }
  int why = ENOENT;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string folder(path.substr(begin, end - begin));
    execve((folder.empty() ? name : folder + "/" + name).c_str(), arguments.data(),
           variables.data());
    if (errno == EACCES) {
      why = EACCES;  // there may be another one
    } else if (errno != ENOENT && errno != ENOTDIR) {
      return errno;
    }
    begin = end + 1;
  }
  return why;
}

}  // namespace tinyshard
