// The command that started this job, for messages that say how to go on or to try again.
// Reads the process table (/proc) and nothing else; safe at any time.
#pragma once
#include <span>
#include <string>

namespace tinyshard {

// The words that stand before the program: "mpirun --allow-run-as-root -n 2 ", with every flag that
// was given. Empty for a process without a launcher, and "mpirun -n 2 " alone where the launcher's
// process cannot be seen (it runs on another host, or started several programs).
std::string launcher_command();

// The words of `launcher` before those of `program`, with which it ends, quoted for a shell, each
// followed by a space. Empty when it does not end so.
std::string launcher_words(std::span<const std::string> launcher,
                           std::span<const std::string> program);

// A word as a shell reads it: itself, or in single quotes.
std::string shell_word(const std::string& word);

}  // namespace tinyshard
