#include "core/codegen/scalars.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <unordered_map>

#include "core/base/hash.h"
#include "core/codegen/key.h"
#include "core/dtype/half.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

// A number that no rule of arithmetic singles out.
bool is_ordinary(const UOp& constant) {
  if (is_int(constant.dtype()) && constant.dtype() != DType::Index) {
    const auto bits = static_cast<uint64_t>(const_as_int(constant));
    const uint64_t size = is_signed_int(constant.dtype()) && bits >> 63 != 0 ? 0 - bits : bits;
    return size != 0 && !std::has_single_bit(size) && bits + 1 != 0;
  }
  if (!is_float(constant.dtype())) return false;
  int exponent = 0;
  const double value = rounded_to(constant.dtype(), const_as_double(constant));
  return std::isnormal(value) && std::abs(std::frexp(value, &exponent)) != 0.5;
}

std::vector<UOp> possible_scalars(const KernelSource& kernel) {
  const std::vector<UOp> nodes = toposort(std::span(&kernel.sink, 1));
  // A divisor or a width of a shift that is known makes other code.
  NodeMap<bool> chooses_code(nodes.size());
  for (const UOp& x : nodes) {
    const bool divides = x.op() == Op::IDiv || x.op() == Op::Mod;
    if ((divides || x.op() == Op::Shl || x.op() == Op::Shr) && is_const(x.src(1)))
      chooses_code[x.src(1)] = true;
  }
  std::vector<UOp> constants;
  for (const UOp& x : nodes) {
    if (is_const(x) && is_ordinary(x) && !chooses_code.contains(x)) constants.push_back(x);
  }
  return constants;
}

int64_t bits_of(const UOp& constant) {
  if (is_int(constant.dtype())) return const_as_int(constant);
  const double value = const_as_double(constant);
  switch (constant.dtype()) {
    case DType::F16:
      return f64_to_f16(value);
    case DType::BF16:
      return f64_to_bf16(value);
    case DType::F32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    default:
      return std::bit_cast<int64_t>(value);
  }
}

// Kernels that are equal but for their ordinary constants.
struct Family {
  std::vector<int64_t> values;  // in the first of them
  std::vector<bool> changes;    // which have had another value since
};

}  // namespace

void choose_scalars(KernelSource& kernel, const Target& target, int first) {
  kernel.scalars = {first, possible_scalars(kernel)};
  if (kernel.scalars.constants.empty()) return;
  const uint64_t family_name = hash_text(codegen::kernel_key(kernel, target));
  const std::vector<int64_t> values = scalar_values(kernel);
  static auto& families = *new std::unordered_map<uint64_t, Family>;  // outlives static users
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  auto [found, is_new] =
      families.try_emplace(family_name, values, std::vector<bool>(values.size()));
  Family& family = found->second;
  std::vector<UOp> chosen;
  // Of two kernels with one hash each has the right values, whichever constants it is called with.
  for (size_t i = 0; i < std::min(values.size(), family.values.size()); ++i) {
    if (values[i] != family.values[i]) family.changes[i] = true;
    if (family.changes[i]) chosen.push_back(kernel.scalars.constants[i]);
  }
  kernel.scalars.constants = std::move(chosen);
}

std::vector<int64_t> scalar_values(const KernelSource& kernel) {
  std::vector<int64_t> values;
  for (const UOp& constant : kernel.scalars.constants) values.push_back(bits_of(constant));
  return values;
}

}  // namespace tinyshard
