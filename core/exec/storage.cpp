// Memory of a storage: allocated on all of its devices when it is first asked for, or adopted from
// whoever maps a file. Memory of a file may begin at any byte, which copies do not mind; what kernels
// touch is copied once to where they want it (memory()).
#include "core/exec/storage.h"

#include <atomic>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/content_hash.h"
#include "core/base/error.h"
#include "core/base/observer.h"
#include "core/base/origin.h"
#include "core/exec/context.h"

namespace tinyshard {
namespace {

// Observers hear of memory that came, or below 0 bytes has gone.
void tell_memory(const Storage& storage, int64_t bytes) {
  observe([&] {
    return ObservedEvent{.kind = EventKind::Allocation,
                         .name = storage.label.empty() ? std::string(name(storage.dtype())) +
                                                             to_string(storage.shape())
                                                       : storage.label,
                         .bytes = bytes};
  });
}

}  // namespace

Storage::Storage(Dims shape, DType dtype, Sharding sharding)
    : Placed(std::move(sharding)),
      shape_(std::move(shape)),
      local_shape_(this->sharding.local_shape(shape_)),
      dtype_(dtype) {}

Storage::~Storage() {
  const Context::Use use;
  leave_runtime();
  release();
}

void Storage::release() noexcept {
  const bool frees = !owner_ && Context::is_ours();
  for (size_t i = 0; frees && i < memory_.size(); ++i) devices_[i]->free(memory_[i], local_bytes());
  if (frees && !memory_.empty()) tell_memory(*this, -int64_t(local_bytes() * memory_.size()));
  memory_.clear();
  devices_.clear();
  owner_.reset();
  aligned_ = true;
}

void Storage::check_usable() const {
  if (is_lost()) {
    throw UserError(fmt::format(
        "a value {}{} on {} is lost: it was computed before Runtime::shutdown(), which gave its "
        "memory back",
        name(dtype_), to_string(shape_), sharding.mesh.to_string()));
  }
  if (!refusal.empty()) throw UserError(refusal);
  Context::check_is_ours();
}

size_t Storage::local_bytes() const { return size_t(product(local_shape_)) * itemsize(dtype_); }

// Values written to devices of several ranks have to be the same on all of them.
void Storage::wrote(std::span<const std::byte> data) {
  Context& context = Context::get();
  if (context.ranks() == 1) return;
  written_ = sample_hash(data);
  given_.clear();
  if (Ledger* ledger = context.ledgers().of(sharding.mesh)) {
    const Origin& from = origin_of(origin_of_call());
    give({{ledger, written_, GivenValue::Kind::Host,
           fmt::format("{}{}{}{}{}{}", label, label.empty() ? "" : ", ", name(dtype_),
                       to_string(shape_), from.op.empty() ? "" : " of " + from.op,
                       from.line == 0 ? "" : " (" + from.source() + ")")}});
  }
}

void Storage::give(std::vector<Given> more) {
  for (Given& given : more) given_.push_back(std::move(given));
}

// Looks at less of memory that is a file's: nothing else may have read it yet.
uint64_t Storage::content_hash() {
  if (written_ != 0) return written_;
  constexpr size_t kOfFile = size_t{16} << 10;
  const void* data = devices()[0]->host_pointer(memory_to_copy()[0]);
  if (data == nullptr) return 0;
  const std::span bytes(static_cast<const std::byte*>(data), local_bytes());
  return owner_ ? sample_hash(bytes, kOfFile) : sample_hash(bytes);
}

std::span<Device* const> Storage::devices() {
  check_usable();
  if (devices_.empty()) {
    Context& context = Context::get();
    for (int p : context.local_positions(sharding.mesh))
      devices_.push_back(&context.device(sharding.mesh.devices()[p]));
    join_runtime();
  }
  return devices_;
}

std::span<void* const> Storage::memory() {
  check_usable();
  if (memory_.empty() && make_) {
    std::shared_ptr<void> made = make_();
    adopt(made.get(), made);
  }
  if (memory_.empty()) {
    for (Device* device : devices()) memory_.push_back(device->allocate(local_bytes()));
    tell_memory(*this, int64_t(local_bytes() * memory_.size()));
  }
  if (!aligned_) {
    Device& device = *devices()[0];
    const bool suits = device.target().memory_alignment == 1 &&
                       reinterpret_cast<uintptr_t>(memory_[0]) % itemsize(dtype_) == 0;
    if (suits) return memory_;
    void* copy = device.allocate(local_bytes());
    device.copy_in(copy, memory_[0], local_bytes());
    memory_ = {copy};
    owner_.reset();
    aligned_ = true;
  }
  return memory_;
}

std::span<void* const> Storage::memory_to_copy() {
  if (aligned_) return memory();
  check_usable();
  return memory_;
}

void need_device_of(const Mesh& mesh) {
  if (!Context::get().local_positions(mesh).empty()) return;
  fail(fmt::format("this process holds no device of {}: its values are elsewhere",
                   mesh.to_string()));
}

UOp buffer_node(std::shared_ptr<Storage> storage) {
  static std::atomic<int64_t> next{1};
  Dims arg{next.fetch_add(1)};
  arg.insert(arg.end(), storage->shape().begin(), storage->shape().end());
  DType dtype = storage->dtype();
  std::shared_ptr<const Placed> placed =
      std::move(storage);  // readers below the engine see a Placed
  return UOp::make(Op::Buffer, dtype, {}, arg, placed);
}

}  // namespace tinyshard
