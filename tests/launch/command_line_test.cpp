#include "launch/command_line.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tinyshard::command_line_test {
namespace {

using Words = std::vector<std::string>;

TEST(CommandLine, TheLaunchersFlagsStandBeforeTheProgram) {
  const Words program = {"./train_gpt", "--steps", "3"};
  const Words launcher = {"mpirun", "--allow-run-as-root", "-n", "2", "./train_gpt", "--steps",
                          "3"};
  EXPECT_EQ(launcher_words(launcher, program), "mpirun --allow-run-as-root -n 2 ");
}

TEST(CommandLine, AnotherParentIsNoLauncher) {
  const Words program = {"./train_gpt", "--steps", "3"};
  EXPECT_EQ(launcher_words(Words{"-bash"}, program), "");
  EXPECT_EQ(launcher_words(Words{"mpirun", "-n", "2", "./train_gpt", "--steps", "4"}, program), "");
  EXPECT_EQ(launcher_words(program, program), "");
  EXPECT_EQ(launcher_words(Words{"mpirun", "x"}, Words{}), "");
}

TEST(CommandLine, WordsAreQuotedForAShell) {
  EXPECT_EQ(shell_word("--corpus=a/b-1.txt"), "--corpus=a/b-1.txt");
  EXPECT_EQ(shell_word("my notes"), "'my notes'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("$HOME"), "'$HOME'");
  EXPECT_EQ(shell_word(""), "''");
}

// Alone and under mpirun, whose flags depend on the machine: what it prints must start it again.
TEST(CommandLine, OfThisProcess) {
  const std::string command = launcher_command();
  const char* ranks = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (ranks == nullptr) {
    EXPECT_EQ(command, "");
    return;
  }
  EXPECT_NE(command.find("--oversubscribe"), std::string::npos) << command;
  EXPECT_TRUE(command.ends_with(std::string(" -n ") + ranks + " ")) << command;
}

}  // namespace
}  // namespace tinyshard::command_line_test
