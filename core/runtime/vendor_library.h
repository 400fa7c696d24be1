// A vendor's shared library, opened at run time: one build serves machines with and without it.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>

namespace tinyshard {

class VendorLibrary {
 public:
  // Tries each file name, first in the folders of TS_CUDA_PATH (separated by ':', also their lib,
  // lib64 and the nvidia/*/lib of Python's packages), then where the dynamic linker looks.
  VendorLibrary(std::string name, std::initializer_list<std::string_view> files);
  VendorLibrary(const VendorLibrary&) = delete;
  // Never closed: vendor libraries keep threads and handlers that outlive our use of them.

  bool found() const { return handle_ != nullptr; }
  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }  // of what was opened
  const std::string& why_not() const { return why_not_; }

  // Null when the library has none, which `why_not` then says.
  void* symbol(const char* name);
  template <class Function>
  bool resolve(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(symbol(name));
    return function != nullptr;
  }

 private:
  std::string name_, path_, why_not_;
  void* handle_ = nullptr;
};

}  // namespace tinyshard
