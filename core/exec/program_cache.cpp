// A kernel that is asked for again is found by its address, a library call by its text. When the bytes
// of all exceed the limit, the least recently used go, but for those that a plan still holds.
#include "core/exec/program_cache.h"

#include <set>

#include <fmt/format.h>

#include "core/base/options.h"
#include "core/exec/context.h"
#include "core/uop/uop.h"

namespace tinyshard {
namespace {

// The bytes that a program takes beside its code.
constexpr size_t kOfProgram = 4096;
// A guess for calls of libraries, which do not say what they keep.
constexpr size_t kOfCall = 32768;

std::string name_of_kernel(const CompiledKernel& kernel) {
  return fmt::format("kernel at {}", static_cast<const void*>(&kernel));
}

std::string text_of(const LibraryCall& call) {
  std::string key = describe(*call.node);
  for (const UOp& x : call.also) key += " + " + describe(*x);
  for (const UOp& s : call.node->src()) {
    key += fmt::format(" {}{}", name(s.dtype()), tinyshard::to_string(s.shape()));
  }
  auto add = [&](char mark, const std::vector<StridedView>& views) {
    for (const StridedView& view : views) {
      key += fmt::format(" {}{} {} {}", mark, view.offset, tinyshard::to_string(view.shape),
                         tinyshard::to_string(view.strides));
    }
  };
  add('@', call.operands);
  add('>', call.results);
  return key;
}

}  // namespace

template <class Load>
std::shared_ptr<Program> ProgramCache::find_or_load(Key key, size_t bytes, const Load& load) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Loaded> entry = loaded_.find(key);
  if (!entry) {
    entry = std::make_shared<Loaded>(load());
    bytes += key.second.size();
    loaded_.add(std::move(key), entry, bytes);
    trim();
  }
  return {entry, entry->program.get()};
}

std::shared_ptr<Program> ProgramCache::of(Device& device,
                                          const std::shared_ptr<const CompiledKernel>& kernel) {
  return find_or_load({&device, name_of_kernel(*kernel)}, kernel->code.bytes.size() + kOfProgram,
                      [&] { return Loaded{kernel, device.load(kernel->code), &device}; });
}

std::shared_ptr<Program> ProgramCache::of(Device& device, const LibraryCall& call) {
  return find_or_load({&device, text_of(call)}, kOfCall, [&] {
    Loaded loaded{nullptr, device.library(call), &device};
    Context::libraries_were_used();
    return loaded;
  });
}

bool ProgramCache::has(Device& device, const CompiledKernel& kernel) {
  const std::lock_guard lock(mutex_);
  return loaded_.contains({&device, name_of_kernel(kernel)});
}

void ProgramCache::trim() {
  const auto limit = size_t(options().kernel_bytes);
  if (limit == 0 || !loaded_.is_full(limit)) return;
  const auto gone = loaded_.trim(limit);
  // Programs that were launched last may still run.
  std::set<Device*> devices;
  for (const auto& entry : gone) devices.insert(entry->device);
  for (Device* device : devices) device->synchronize();
}

}  // namespace tinyshard
