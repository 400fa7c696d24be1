// Runs an example as a user would and gives back what it printed. Needs a shell.
#pragma once
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/wait.h>

namespace tinyshard::test {

struct Outcome {
  int code = 0;  // exit status, 128 + signal
  std::string out, err;
};

inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline Outcome run_program(const std::string& command, const std::filesystem::path& folder) {
  Outcome outcome;
  std::filesystem::path err = folder / "stderr.txt", out = folder / "stdout.txt";
  std::string line = "cd '" + folder.string() + "' && " + command + " >'" + out.string() + "' 2>'" +
                     err.string() + "' </dev/null";
  int status = std::system(line.c_str());
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = file_text(out);
  outcome.err = file_text(err);
  return outcome;
}

// A folder of its own for one test, gone afterwards.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tinyshard-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tinyshard::test
