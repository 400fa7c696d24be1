// Names that stand for one tensor may all have values, which then
// have to be equal: bits are compared, as NaN is not equal to itself,
// and files in windows of 4 MiB, without making tensors of them.
#include "core/nn/state_dict.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/exec/file_buffer.h"
#include "core/nn/file_bytes_internal.h"
#include "core/nn/match_names.h"
#include "core/nn/write_over.h"
#include "core/tensor/map_file.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"

namespace tinyshard::nn {

namespace {

// Gives the bit pattern of each element, so that NaN equals itself.
Tensor as_bits(const Tensor& x) {
  if (x.dtype() == DType::Bool) return x;
  constexpr DType kBits[] = {DType::U8, DType::U16, DType::U32, DType::U64};
  return x.bitcast(kBits[std::countr_zero(itemsize(x.dtype()))]);
}

bool equal_in_files(const FileRegion& a, const FileRegion& b, size_t bytes) {
  constexpr size_t kWindow = 4 << 20;
  std::vector<std::byte> one(std::min(bytes, kWindow)), other(one.size());
  for (size_t at = 0; at < bytes; at += kWindow) {
    const size_t count = std::min(kWindow, bytes - at);
    read_at(*a.file, a.offset + at, std::span(one).first(count), a.path);
    read_at(*b.file, b.offset + at, std::span(other).first(count), b.path);
    if (std::memcmp(one.data(), other.data(), count) != 0) return false;
  }
  return true;
}

// Tells if two values of one tensor are the same in its type.
bool same_values(const Tensor& a, const Tensor& b, const Tensor& into) {
  if (a.state() == b.state()) return true;
  const FileRegion *in_file = region_of(a.state()->value), *in_other = region_of(b.state()->value);
  if (in_file && in_other && a.dtype() == b.dtype())
    return equal_in_files(*in_file, *in_other,
                          static_cast<size_t>(a.numel()) * itemsize(a.dtype()));
  const Tensor one = as_bits(a.shard_like(into).cast(into.dtype())),
               other = as_bits(b.shard_like(into).cast(into.dtype()));
  return (one == other).all().item<bool>();
}

}  // namespace

LoadReport load(const StateDict& into, const StateDict& from, const LoadOptions& options,
                Caller caller) {
  Call call("load_state_dict", caller);
  check_no_capture();
  std::map<std::string, FoundValue> found;
  for (const auto& [name, tensor] : from)
    found.emplace(name, FoundValue{tensor.shape(), tensor.state()->kept_for});
  NameMatch match = match_names(into, found, options);
  for (const auto& [name, value] : match.source) check_not_refused(from.at(value));
  for (const auto& [one, other] : match.twice) {
    const auto is_one = [&](const auto& named) { return named.second == one; };
    const Tensor& tensor = into.at(std::ranges::find_if(match.source, is_one)->first);
    if (!same_values(from.at(one), from.at(other), tensor)) fail_of_tied(one, other);
  }
  std::vector<std::pair<Tensor, Tensor>> pairs;
  for (const auto& [name, value] : match.source) pairs.emplace_back(into.at(name), from.at(value));
  write_over(pairs, options.progress);
  return std::move(match.report);
}

namespace {

void check_whole(const io::Metadata& metadata, const std::string& path) {
  if (io::holds_parts(metadata))
    fail(
        fmt::format("{} belongs to a checkpoint and holds parts of tensors, not whole ones; "
                    "nn::load_checkpoint puts them together",
                    path));
}

Tensor tensor_of(const io::TensorEntry& entry, const SharedFile& file, const std::string& path) {
  if (entry.other_type.empty())
    return load_from(file, path, Ints(entry.shape), entry.dtype, entry.offset);
  return refused(Ints(entry.shape),
                 fmt::format("tensor {} of {} has element type {}, which is not supported",
                             io::in_quotes(entry.name), path, io::in_quotes(entry.other_type)));
}

StateDict safetensors_in(const FileBytes& from) {
  const io::SafetensorsHeader header = io::parse_safetensors(from.bytes, from.name);
  check_whole(header.metadata, from.name);
  StateDict dict;
  for (const io::TensorEntry& entry : header.tensors)
    dict.emplace(entry.name, tensor_of(entry, from.file, from.name));
  return dict;
}

}  // namespace

StateDict safe_load(const std::filesystem::path& path, Caller caller) {
  Call call("safe_load", caller);
  const io::SafetensorsSet set(path);
  StateDict dict;
  for (const io::SafetensorsFile& part : set.files()) {
    check_whole(part.metadata(), part.path().native());
    const SharedFile file = open_to_share(part.path());
    for (const io::TensorEntry& entry : part.tensors()) {
      if (set.find(entry.name) != &entry) continue;  // an index may leave tensors out
      dict.emplace(entry.name, tensor_of(entry, file, part.path().native()));
    }
  }
  return dict;
}
StateDict safe_load(std::span<const std::byte> bytes, Caller caller) {
  Call call("safe_load", caller);
  return safetensors_in(FileBytes(bytes));
}
StateDict safe_load(const Tensor& bytes, Caller caller) {
  Call call("safe_load", caller);
  return safetensors_in(FileBytes(bytes));
}

std::map<std::string, std::string> safe_load_metadata(const std::filesystem::path& path,
                                                      Caller caller) {
  Call call("safe_load_metadata", caller);
  return io::SafetensorsSet(path).metadata();
}

}  // namespace tinyshard::nn
