// Compiled kernels on disk, a file each, named by a hash of the kernel's key. A file holds the
// whole key, what compiled it, and a digest: anything that does not match is as if it were not
// there.
//
// The directory is the user's alone: it is created with mode 0700 and used only while it belongs to
// this user and nobody else can write to it; otherwise kernels stay in memory, after one line of
// log. Files appear under their name complete or not at all. Threads and processes may share a
// directory.
#pragma once
#include <memory>
#include <mutex>
#include <string>

#include "core/codegen/kernel.h"

namespace tinyshard::codegen {

class DiskCache {
 public:
  // The cache of options().cache_dir; checks the directory when it is first used and when the
  // option changed.
  static DiskCache& get();

  std::shared_ptr<const CompiledKernel> load(const std::string& key);
  void store(const std::string& key, const CompiledKernel& kernel);

 private:
  // A descriptor of the directory, or -1 when there is no usable one.
  int directory();

  std::mutex mutex_;
  std::string path_;
  int folder_ = -1;
  bool checked_ = false;
};

}  // namespace tinyshard::codegen
