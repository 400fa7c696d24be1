// Values on the host: waited for, or on their way.
#include <cstring>
#include <span>
#include <type_traits>

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

template <class From, class Made, class To>
void convert(std::span<const std::byte> bytes, std::vector<To>& out, Made (*made)(From)) {
  out.reserve(bytes.size() / sizeof(From));
  for (size_t at = 0; at < bytes.size(); at += sizeof(From)) {
    From from;
    std::memcpy(&from, bytes.data() + at, sizeof(From));
    out.push_back(static_cast<To>(made(from)));
  }
}
template <class From>
From itself(From from) {
  return from;
}
template <DType type>
float of_float8(uint8_t code) {
  return float8_to_f32(float8_format(type), code);
}

template <class To>
std::vector<To> convert(std::span<const std::byte> bytes, DType dtype) {
  std::vector<To> out;
  switch (dtype) {
    case DType::Bool:
    case DType::U8:
      convert(bytes, out, itself<uint8_t>);
      break;
    case DType::I8:
      convert(bytes, out, itself<int8_t>);
      break;
    case DType::I16:
      convert(bytes, out, itself<int16_t>);
      break;
    case DType::U16:
      convert(bytes, out, itself<uint16_t>);
      break;
    case DType::I32:
      convert(bytes, out, itself<int32_t>);
      break;
    case DType::U32:
      convert(bytes, out, itself<uint32_t>);
      break;
    case DType::I64:
      convert(bytes, out, itself<int64_t>);
      break;
    case DType::U64:
      convert(bytes, out, itself<uint64_t>);
      break;
    case DType::F32:
      convert(bytes, out, itself<float>);
      break;
    case DType::F64:
      convert(bytes, out, itself<double>);
      break;
    case DType::F16:
      convert(bytes, out, f16_to_f32);
      break;
    case DType::BF16:
      convert(bytes, out, bf16_to_f32);
      break;
    case DType::F8E4M3FN:
      convert(bytes, out, of_float8<DType::F8E4M3FN>);
      break;
    case DType::F8E5M2:
      convert(bytes, out, of_float8<DType::F8E5M2>);
      break;
    case DType::F8E4M3FNUZ:
      convert(bytes, out, of_float8<DType::F8E4M3FNUZ>);
      break;
    case DType::F8E5M2FNUZ:
      convert(bytes, out, of_float8<DType::F8E5M2FNUZ>);
      break;
    case DType::Index:
      throw InternalError("no tensor has elements of the type of indices");
  }
  return out;
}

// Tells whether elements of that type are numbers E as they lie in memory.
template <class E>
bool lies_as(DType dtype) {
  if (std::is_same_v<E, float>) return dtype == DType::F32;
  if (std::is_same_v<E, double>) return dtype == DType::F64;
  if (std::is_same_v<E, bool> || !std::is_integral_v<E>) return false;
  return (std::is_signed_v<E> ? is_signed_int(dtype) : is_unsigned_int(dtype)) &&
         itemsize(dtype) == sizeof(E);
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
  check_given(*this);
  if constexpr (!std::is_same_v<E, bool>) {  // whose vector has no elements in memory
    if (lies_as<E>(dtype())) {
      std::vector<E> all(static_cast<size_t>(numel()));
      tinyshard::read(*state_, std::as_writable_bytes(std::span(all)));
      return all;
    }
  }
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
  std::vector<E> all;
  read().wait_for([&](std::span<const std::byte> bytes) { all = convert<E>(bytes, dtype_); });
  return all;
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
