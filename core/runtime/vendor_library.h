// A vendor's shared library, opened at run time: one build serves machines with and without it. A
// class that holds the functions of one derives from it and resolves them when it is made.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace tinyshard {

class VendorLibrary {
 public:
  // Tries each file name, first in the maker's folders (separated by ':', also their lib, lib64 and
  // the */lib and nvidia/*/lib of Python's packages), then where the dynamic linker looks.
  VendorLibrary(std::string_view folders, std::initializer_list<std::string_view> files);
  VendorLibrary(const VendorLibrary&) = delete;
  // Never closed: vendor libraries keep threads and handlers that outlive our use of them.

  // There, with every function that was asked for.
  bool found() const { return handle_ != nullptr && why_not_.empty(); }
  const std::string& path() const { return path_; }  // of what was opened
  const std::string& why_not() const { return why_not_; }

  // Without the function, the library counts as not found.
  template <class Function>
  void resolve(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(symbol(name));
  }
  // Null where the library has none.
  template <class Function>
  void resolve_if_there(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(symbol_if_there(name));
  }
  // Calls it not found, for this reason; the first one stays.
  void refuse(std::string why);

 protected:
  ~VendorLibrary() = default;

 private:
  void* symbol(const char* name);
  void* symbol_if_there(const char* name);

  std::string path_, why_not_;
  void* handle_ = nullptr;
};

}  // namespace tinyshard
