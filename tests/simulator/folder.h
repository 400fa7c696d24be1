// A folder for the checkpoints of a simulated job.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/error.h"

namespace simulator {

// A folder of its own, in memory where there is such a file system; removed with all in it.
struct Folder {
  Folder() {
    std::filesystem::path root = "/dev/shm";
    if (::access(root.c_str(), W_OK) != 0) root = std::filesystem::temp_directory_path();
    std::string name = (root / "tinyshard-simulator-XXXXXX").native();
    if (::mkdtemp(name.data()) == nullptr)
      throw tinyshard::UserError(fmt::format("{}: no folder can be made there", root.native()));
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path path;
};

}  // namespace simulator
