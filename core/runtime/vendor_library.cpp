// The folders of the maker (TS_CUDA_PATH, TS_HIP_PATH) come first, each also with its lib folders as packages lay them out,
// and the linker's own search last. Reasons for failing are kept, not thrown: the first of them is
// what a user needs to hear if nothing was found.
#include "core/runtime/vendor_library.h"

#include <dlfcn.h>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

namespace tinyshard {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> places_of(std::string_view text) {
  std::vector<fs::path> list;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find(':', begin), text.size());
    fs::path folder = text.substr(begin, end - begin);
    begin = end + 1;
    if (folder.empty()) continue;
    list.insert(list.end(), {folder, folder / "lib64", folder / "lib"});
    std::error_code error;
    for (const fs::path& root : {folder, folder / "nvidia"}) {
      for (const auto& entry : fs::directory_iterator(root, error)) {
        if (fs::is_directory(entry.path() / "lib", error)) list.push_back(entry.path() / "lib");
      }
    }
  }
  return list;
}

}  // namespace

VendorLibrary::VendorLibrary(std::string_view folders,
                             std::initializer_list<std::string_view> files) {
  std::vector<fs::path> places = places_of(folders);
  places.emplace_back();  // the linker's own
  std::string first_error;
  for (const fs::path& place : places) {
    for (std::string_view file : files) {
      fs::path path = place / file;
      std::error_code error;
      if (!place.empty() && !fs::exists(path, error)) continue;
      handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_) {
        path_ = path.string();
        return;
      }
      const char* reason = ::dlerror();
      if (first_error.empty()) first_error = reason ? reason : path.string();
    }
  }
  why_not_ = first_error;
}

void* VendorLibrary::symbol(const char* name) {
  if (!handle_) return nullptr;
  void* found = ::dlsym(handle_, name);
  if (!found) refuse(fmt::format("{} has no function {}: too old", path_, name));
  return found;
}

void* VendorLibrary::symbol_if_there(const char* name) {
  return handle_ ? ::dlsym(handle_, name) : nullptr;
}

void VendorLibrary::refuse(std::string why) {
  if (why_not_.empty()) why_not_ = std::move(why);
}

}  // namespace tinyshard
