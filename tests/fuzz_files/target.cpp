// A libFuzzer program for each reader of files (FUZZ_FILES_TARGET names it): whatever the bytes
// are, the reader returns or throws a UserError, leaves no trace, and never holds more than twice
// the bytes and 1 MiB. See scripts/fuzz_files.sh.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sanitizer/allocator_interface.h>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "io/chat_template.h"
#include "io/checkpoint_internal.h"
#include "io/digest.h"
#include "io/gguf.h"
#include "io/npy.h"
#include "io/safetensors_internal.h"
#include "io/tokenizer.h"
#include "io/torch_file.h"

namespace {

using Bytes = std::span<const std::byte>;

// --- what a reader holds ---

std::atomic<int64_t> held{0}, most{0};
std::atomic<bool> counts{false};

void on_malloc(const volatile void* memory, size_t) {
  if (!counts) return;
  const auto size =
      static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(memory)));
  const int64_t now = held += size;
  if (now > most) most = now;
}
void on_free(const volatile void* memory) {
  if (counts && memory != nullptr)
    held -= static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(memory)));
}

// --- the readers ---

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Target {
  std::string_view name;
  void (*read)(Bytes);
  bool bounded = true;  // its memory is held to the bound
};

const Target kTargets[] = {
    {"safetensors", [](Bytes bytes) { tinyshard::io::parse_safetensors(bytes, "file"); }},
    {"index", [](Bytes bytes) { tinyshard::io::parse_index(text_of(bytes), "file"); }},
    {"torch",
     [](Bytes bytes) {
       tinyshard::io::TorchFile out;
       tinyshard::io::parse_torch(bytes, "file", out);
     }},
    {"gguf", [](Bytes bytes) { tinyshard::io::parse_gguf(bytes, "file"); }},
    {"npy", [](Bytes bytes) { tinyshard::io::parse_npy(bytes, "file"); }},
    {"npz", [](Bytes bytes) { tinyshard::io::parse_npz(bytes, "file"); }},
    // The readers of vocabularies keep tables of them, which take more than the text does.
    {"tokenizer",
     [](Bytes bytes) {
       const auto tokenizer = tinyshard::Tokenizer::parse(text_of(bytes), "file");
       const auto ids = tokenizer.encode("It's 12 <|end|>\n \xc3\xa9 \xff");
       tokenizer.decode(ids);
     },
     false},
    {"chat_template",
     [](Bytes bytes) {
       const auto chat = tinyshard::ChatTemplate::parse(text_of(bytes), "file");
       chat({{"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hi"}});
     },
     false},
    // A manifest is ours and begins with its digest; it gets the right one here, or none of the
    // rest would ever be read. It is read as a tree.
    {"manifest", [](Bytes bytes) { tinyshard::io::parse_manifest(text_of(bytes), "file"); }, false},
    {"manifest_signed",
     [](Bytes bytes) {
       const std::string rest = "\",\n" + std::string(text_of(bytes));
       tinyshard::io::parse_manifest(tinyshard::io::signed_manifest(rest), "file");
     },
     false},
};

const Target& target() {
  for (const Target& t : kTargets) {
    if (t.name == FUZZ_FILES_TARGET) return t;
  }
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Target& reader = target();
  held = 0, most = 0, counts = true;
  try {
    reader.read(std::as_bytes(std::span(data, size)));
  } catch (const tinyshard::UserError&) {  // InternalError is our fault
  }
  counts = false;
  const auto bound = static_cast<int64_t>(2 * size + (1 << 20));
  if (reader.bounded && most > bound) {
    fmt::print(stderr, "{} bytes held for a file of {}, the bound is {}\n", most.load(), size,
               bound);
    std::abort();
  }
  return 0;
}
