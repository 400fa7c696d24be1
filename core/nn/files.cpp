// From the tables of io/ to lazy tensors: views of torch's storages, arrays in NumPy's orders.
#include "core/nn/files.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/log.h"
#include "core/nn/file_bytes_internal.h"
#include "core/tensor/map_file.h"
#include "io/atomic_file.h"
#include "io/npy.h"
#include "io/torch_file.h"

namespace tinyshard::nn {
namespace {

// Bytes of a file, or ones that were inflated from it.
Tensor elements(const SharedFile& file, const std::string& path,
                const std::shared_ptr<const std::vector<std::byte>>& bytes, const Ints& shape,
                DType dtype, uint64_t offset) {
  if (!bytes) return load_from(file, path, shape, dtype, offset);
  const auto size = static_cast<size_t>(product(shape.values)) * itemsize(dtype);
  return Tensor(std::span(*bytes).subspan(static_cast<size_t>(offset), size), shape, dtype);
}

// The view of `flat` with these strides. A permutation of rows without gaps, repeated or not, is
// moved; for all others each element's place is computed:
//
//   shape [3, 2], strides [1, 3]   dims in the order of their strides: [2, 3], then permuted
//   shape [2, 2], strides [1, 1]   flat[[[0, 1], [1, 2]]]
Tensor strided(const Tensor& flat, const Dims& shape, const Dims& strides) {
  const size_t rank = shape.size();
  std::vector<size_t> order(rank);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  Dims stored, back(rank);
  int64_t expected = flat.numel();
  bool dense = true;
  for (size_t i = 0; i < rank; ++i) {
    const size_t dim = order[i];
    back[dim] = static_cast<int64_t>(i);
    const bool repeated = strides[dim] == 0 || shape[dim] == 1;
    stored.push_back(repeated ? 1 : shape[dim]);
    if (repeated) continue;
    dense = dense && strides[dim] * shape[dim] == expected;
    expected = strides[dim];
  }
  if (dense && product(stored) == flat.numel())
    return flat.reshape(stored).permute(back).expand(shape);
  Tensor place = Tensor::full(Dims(rank, 1), 0, DType::I64);
  for (size_t i = 0; i < rank; ++i) {
    Dims along(rank, 1);
    along[i] = shape[i];
    place = place + Tensor::arange(shape[i], DType::I64).reshape(along) * strides[i];
  }
  return flat[place.expand(shape)];
}

// Reverses each `size` bytes.
void turn_around(std::span<std::byte> bytes, size_t size) {
  for (size_t at = 0; size > 1 && at < bytes.size(); at += size)
    std::ranges::reverse(bytes.subspan(at, size));
}

// Elements from byte `offset` of a deflated member on, inflated when they are used; of another
// machine each `swapped` bytes are turned around.
Tensor packed_elements(const SharedFile& file, const std::string& path,
                       const std::shared_ptr<const io::PackedMember>& member, const Ints& shape,
                       DType dtype, uint64_t offset, size_t swapped = 1) {
  return load_later(shape, dtype, [=](std::span<std::byte> out) {
    std::vector<std::byte> stored(static_cast<size_t>(member->stored));
    read_at(*file, member->offset, stored, path);
    io::inflate_part(stored, *member, path, offset, out);
    turn_around(out, swapped);
  });
}

Tensor tensor_of(const io::TorchTensor& view, const SharedFile& file, const std::string& path) {
  const Dims shape(view.shape.begin(), view.shape.end());
  if (!view.refusal.empty()) return refused(shape, view.refusal);
  if (view.elements == 0) return Tensor::zeros(shape, view.dtype);
  const auto count = static_cast<int64_t>(view.elements);
  const Tensor flat =
      view.packed ? packed_elements(file, path, view.packed, {count}, view.dtype, view.offset)
                  : elements(file, path, view.bytes, {count}, view.dtype, view.offset);
  const Tensor out = strided(flat, shape, Dims(view.strides.begin(), view.strides.end()));
  return view.negative ? -out : out;
}

Tensor tensor_of(const io::NpyArray& array, const SharedFile& file, const std::string& path) {
  Dims shape(array.shape.begin(), array.shape.end());
  if (array.fortran_order) std::reverse(shape.begin(), shape.end());
  Tensor out;
  if (product(shape) == 0) {
    out = Tensor::zeros(shape, array.dtype);
  } else if (array.packed) {
    const size_t swapped = array.big_endian ? itemsize(array.dtype) : 1;
    out = packed_elements(file, path, array.packed, shape, array.dtype, array.offset, swapped);
  } else if (array.big_endian) {  // of another machine: turned around here
    const size_t size = itemsize(array.dtype), bytes = size * static_cast<size_t>(product(shape));
    std::vector<std::byte> swapped(bytes);
    if (array.bytes) {
      std::copy_n(array.bytes->begin() + static_cast<ptrdiff_t>(array.offset), bytes,
                  swapped.begin());
    } else {
      read_at(*file, array.offset, swapped, path);
    }
    turn_around(swapped, size);
    out = Tensor(std::span<const std::byte>(swapped), shape, array.dtype);
  } else {
    out = elements(file, path, array.bytes, shape, array.dtype, array.offset);
  }
  if (!array.fortran_order) return out;
  Dims order(shape.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(order.size() - 1 - i);
  return out.permute(order);
}

}  // namespace

namespace {

StateDict torch_tensors(const FileBytes& from, io::ValueMap* other) {
  io::TorchFile found;
  io::parse_torch(from.bytes, from.name, found);
  StateDict out;
  for (const auto& [name, view] : found.tensors)
    out.emplace(name, tensor_of(view, from.file, from.name));
  for (const std::string& object : found.left_out)
    log_line(fmt::format("torch_load: {} is left out: {} is no tensor and no plain value",
                         from.name, object));
  if (other) *other = std::move(found.other);
  return out;
}

Tensor npy_tensor(const FileBytes& from) {
  return tensor_of(io::parse_npy(from.bytes, from.name), from.file, from.name);
}

StateDict npz_tensors(const FileBytes& from) {
  StateDict out;
  for (const auto& [name, array] : io::parse_npz(from.bytes, from.name))
    out.emplace(name, tensor_of(array, from.file, from.name));
  return out;
}

}  // namespace

StateDict torch_load(const std::filesystem::path& path, io::ValueMap& other, Caller caller) {
  Call call("torch_load", caller);
  return torch_tensors(FileBytes(path), &other);
}
StateDict torch_load(std::span<const std::byte> bytes, io::ValueMap& other, Caller caller) {
  Call call("torch_load", caller);
  return torch_tensors(FileBytes(bytes), &other);
}
StateDict torch_load(const Tensor& bytes, io::ValueMap& other, Caller caller) {
  Call call("torch_load", caller);
  return torch_tensors(FileBytes(bytes), &other);
}
StateDict torch_load(const std::filesystem::path& path, Caller caller) {
  Call call("torch_load", caller);
  return torch_tensors(FileBytes(path), nullptr);
}
StateDict torch_load(std::span<const std::byte> bytes, Caller caller) {
  Call call("torch_load", caller);
  return torch_tensors(FileBytes(bytes), nullptr);
}
StateDict torch_load(const Tensor& bytes, Caller caller) {
  Call call("torch_load", caller);
  return torch_tensors(FileBytes(bytes), nullptr);
}

Tensor npy_load(const std::filesystem::path& path, Caller caller) {
  Call call("npy_load", caller);
  return npy_tensor(FileBytes(path));
}
Tensor npy_load(std::span<const std::byte> bytes, Caller caller) {
  Call call("npy_load", caller);
  return npy_tensor(FileBytes(bytes));
}
Tensor npy_load(const Tensor& bytes, Caller caller) {
  Call call("npy_load", caller);
  return npy_tensor(FileBytes(bytes));
}

StateDict npz_load(const std::filesystem::path& path, Caller caller) {
  Call call("npz_load", caller);
  return npz_tensors(FileBytes(path));
}
StateDict npz_load(std::span<const std::byte> bytes, Caller caller) {
  Call call("npz_load", caller);
  return npz_tensors(FileBytes(bytes));
}
StateDict npz_load(const Tensor& bytes, Caller caller) {
  Call call("npz_load", caller);
  return npz_tensors(FileBytes(bytes));
}

void npy_save(const Tensor& tensor, const std::filesystem::path& path, Caller caller) {
  Call call("npy_save", caller);
  const std::string header = io::npy_header(tensor.dtype(), tensor.shape());
  const std::vector<std::byte> data = tensor.data();
  if (world().rank != 0) return;
  io::AtomicFile file(path);
  file.write(std::as_bytes(std::span(header)));
  file.write(data);
  file.commit();
}

}  // namespace tinyshard::nn
