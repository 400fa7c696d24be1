// Fields are written one behind the other, without names: a file of another version of the
// generator is recognised by the fingerprint in front and is no kernel. The reader believes no
// length that exceeds what is left, and a file with bytes to spare is refused.
#include "core/codegen/disk_cache.h"

#include <string_view>
#include <utility>

#include "codegen_fingerprint.h"
#include "core/runtime/file_cache.h"

namespace tinyshard::codegen {
namespace {

constexpr std::string_view kFile = "kernel";

class Writer {
 public:
  void raw(const void* data, size_t size) { bytes.append(static_cast<const char*>(data), size); }
  template <class T>
  void number(T value) {
    raw(&value, sizeof(value));
  }
  void text(std::string_view text) {
    number(uint64_t{text.size()});
    raw(text.data(), text.size());
  }
  std::string bytes;
};

// Every read checks what is left; after a failure all results are empty and ok is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T number() {
    T value{};
    std::string_view bytes = take(sizeof(T));
    if (ok) bytes.copy(reinterpret_cast<char*>(&value), sizeof(T));
    return value;
  }
  std::string_view text() { return take(number<uint64_t>()); }
  bool at_end() const { return rest_.empty(); }
  bool ok = true;

 private:
  std::string_view take(uint64_t size) {
    ok = ok && size <= rest_.size();
    if (!ok) return {};
    std::string_view head = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return head;
  }
  std::string_view rest_;
};

// The fingerprint stands in the file, not in its key: a new version replaces the files of the old.
std::string encode(const CompiledKernel& kernel) {
  Writer out;
  out.text(kCodegenFingerprint);
  out.text(kernel.name);
  out.text(kernel.code.entry);
  out.number(kernel.code.work_items);
  out.number(kernel.code.min_items);
  out.number(kernel.code.block);
  out.number(kernel.code.shared_bytes);
  out.number(kernel.code.coordinates);
  out.number(kernel.code.waits_itself);
  out.number(kernel.code.checked_buffers);
  out.number(kernel.cost_ns);
  out.number(kernel.bytes_moved);
  out.text({kernel.code.bytes.data(), kernel.code.bytes.size()});
  return std::move(out.bytes);
}

std::shared_ptr<const CompiledKernel> decode(std::string_view bytes) {
  Reader in(bytes);
  if (in.text() != kCodegenFingerprint) return nullptr;
  auto kernel = std::make_shared<CompiledKernel>();
  kernel->name = in.text();
  kernel->code.entry = in.text();
  kernel->code.work_items = in.number<int64_t>();
  kernel->code.min_items = in.number<int64_t>();
  kernel->code.block = in.number<int>();
  kernel->code.shared_bytes = in.number<int>();
  kernel->code.coordinates = in.number<int>();
  kernel->code.waits_itself = in.number<char>() != 0;
  kernel->code.checked_buffers = in.number<int>();
  kernel->cost_ns = in.number<double>();
  kernel->bytes_moved = in.number<int64_t>();
  std::string_view image = in.text();
  kernel->code.bytes.assign(image.begin(), image.end());
  return in.ok && in.at_end() ? kernel : nullptr;
}

}  // namespace

std::shared_ptr<const CompiledKernel> load_kernel(const std::string& key) {
  auto bytes = file_cache::load(key, kFile);
  return bytes ? decode(*bytes) : nullptr;
}

void store_kernel(const std::string& key, const CompiledKernel& kernel) {
  file_cache::store(key, kFile, encode(kernel));
}

}  // namespace tinyshard::codegen
