// Values on the host: waited for, or on their way.
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/dtype/half.h"
#include "core/exec/late_read.h"
#include "core/exec/state.h"
#include "core/tensor/host_copy.h"
#include "core/tensor/tensor.h"

namespace tinyshard {
namespace {

void check_given(const Tensor& x) {
  if (!x.defined()) fail("a tensor that was never given a value");
}

template <class From, class To>
std::vector<To> convert(std::span<const std::byte> bytes) {
  std::vector<From> from(bytes.size() / sizeof(From));
  if (!from.empty()) std::memcpy(from.data(), bytes.data(), bytes.size());
  return std::vector<To>(from.begin(), from.end());
}

template <class To>
std::vector<To> convert(std::span<const std::byte> bytes, DType dtype) {
  switch (dtype) {
    case DType::Bool:
    case DType::U8:
      return convert<uint8_t, To>(bytes);
    case DType::I8:
      return convert<int8_t, To>(bytes);
    case DType::I16:
      return convert<int16_t, To>(bytes);
    case DType::U16:
      return convert<uint16_t, To>(bytes);
    case DType::I32:
      return convert<int32_t, To>(bytes);
    case DType::U32:
      return convert<uint32_t, To>(bytes);
    case DType::I64:
      return convert<int64_t, To>(bytes);
    case DType::U64:
      return convert<uint64_t, To>(bytes);
    case DType::F32:
      return convert<float, To>(bytes);
    case DType::F64:
      return convert<double, To>(bytes);
    default:
      break;
  }
  std::vector<To> out;
  for (uint16_t bits : convert<uint16_t, uint16_t>(bytes)) {
    out.push_back(static_cast<To>(dtype == DType::F16 ? f16_to_f32(bits) : bf16_to_f32(bits)));
  }
  return out;
}

}  // namespace

std::vector<std::byte> Tensor::data(Caller caller) const {
  Call call("data", caller);
  check_given(*this);
  return tinyshard::read(*state_);
}

template <Number E>
std::vector<E> Tensor::to_vector(Caller caller) const {
  Call call("to_vector", caller);
  return convert<E>(data(), dtype());
}

template <Number E>
E Tensor::item(Caller caller) const {
  Call call("item", caller);
  if (numel() != 1) fail(fmt::format("{} has {} elements, not one", describe(), numel()));
  return convert<E>(data(), dtype())[0];
}

HostCopy Tensor::copy_to_host(Caller caller) const {
  Call call("copy_to_host", caller);
  check_given(*this);
  return {begin_read(*state_), dtype()};
}

const LateRead& HostCopy::read() const {
  if (!read_) fail("a copy that was never begun: Tensor::copy_to_host() begins one");
  return *read_;
}

bool HostCopy::ready(Caller caller) const {
  Call call("ready", caller);
  return read().arrived();
}

std::vector<std::byte> HostCopy::data(Caller caller) const {
  Call call("data", caller);
  return read().wait();
}

template <Number E>
std::vector<E> HostCopy::to_vector(Caller caller) const {
  Call call("to_vector", caller);
  return convert<E>(read().wait(), dtype_);
}

template <Number E>
E HostCopy::item(Caller caller) const {
  Call call("item", caller);
  const std::vector<E> all = to_vector<E>();
  if (all.size() != 1) fail(fmt::format("the tensor has {} elements, not one", all.size()));
  return all[0];
}

#define TINYSHARD_READ_AS(E)                                  \
  template E Tensor::item<E>(Caller) const;                   \
  template std::vector<E> Tensor::to_vector<E>(Caller) const; \
  template E HostCopy::item<E>(Caller) const;                 \
  template std::vector<E> HostCopy::to_vector<E>(Caller) const;

TINYSHARD_READ_AS(bool)
TINYSHARD_READ_AS(signed char)
TINYSHARD_READ_AS(unsigned char)
TINYSHARD_READ_AS(short)
TINYSHARD_READ_AS(unsigned short)
TINYSHARD_READ_AS(int)
TINYSHARD_READ_AS(unsigned int)
TINYSHARD_READ_AS(long)
TINYSHARD_READ_AS(unsigned long)
TINYSHARD_READ_AS(long long)
TINYSHARD_READ_AS(unsigned long long)
TINYSHARD_READ_AS(float)
TINYSHARD_READ_AS(double)
#undef TINYSHARD_READ_AS

}  // namespace tinyshard
