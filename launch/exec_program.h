// A program in place of this process, with an environment that is put together.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard {

// The environment of this process without the variables `dropped`, with the entries "NAME=value" of
// `added` in place of those of the same names.
std::vector<std::string> environment_with(const std::vector<std::string>& added,
                                          std::span<const std::string_view> dropped = {});

// Looks the program up in that environment's PATH, as execvp does. Unlike there, a file that the
// kernel takes for no program (ENOEXEC) is none: it may be of another machine, and is not given to a
// shell. Returns errno.
int exec_program(std::vector<std::string> words, std::vector<std::string> environment);

}  // namespace tinyshard
