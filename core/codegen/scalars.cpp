// The kernels that differ in their constants alone are a family, by the hash of what is left
// without them. The first kernel of a family is compiled with its constants inside. When a second
// one has others, the family's kernels take them as arguments from then on.
#include "core/codegen/scalars.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/base/hash.h"
#include "core/codegen/key.h"
#include "core/dtype/half.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

// Tells whether the code generator treats the number like any other. It asks for 0, 1 and -1, as
// where a mask makes a term 0, and for infinities and NaN.
bool is_ordinary(const UOp& constant) {
  if (is_int(constant.dtype()) && constant.dtype() != DType::Index) {
    const int64_t value = const_as_int(constant);
    return value != 0 && value != 1 && value != -1;
  }
  if (!is_float(constant.dtype())) return false;
  const double value = rounded_to(constant.dtype(), const_as_double(constant));
  return std::isnormal(value) && std::abs(value) != 1;
}

bool is_power_of_two(const UOp& constant) {
  int exponent = 0;
  return is_float(constant.dtype()) &&
         std::abs(std::frexp(const_as_double(constant), &exponent)) == 0.5;
}

std::vector<UOp> possible_scalars(const KernelSource& kernel, const Target& target) {
  const std::vector<UOp> nodes = toposort(std::span(&kernel.sink, 1));
  // A divisor or a width of a shift that is known makes other code. Where division has an error, one
  // by a power of two, which becomes a product, has none.
  NodeMap<bool> chooses_code(nodes.size());
  for (const UOp& x : nodes) {
    const bool divides = x.op() == Op::IDiv || x.op() == Op::Mod;
    if ((divides || x.op() == Op::Shl || x.op() == Op::Shr) && is_const(x.src(1)))
      chooses_code[x.src(1)] = true;
    if (x.op() == Op::Cast && x.dtype() == DType::Index && is_const(x.src(0)))
      chooses_code[x.src(0)] = true;
    if (x.op() != Op::Div || target.division_ulps == 0) continue;
    for (const UOp& s : x->src()) {
      if (is_const(s) && is_power_of_two(s)) chooses_code[s] = true;
    }
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
    case DType::F32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    case DType::F64:
      return std::bit_cast<int64_t>(value);
    default:
      return f64_to_narrow(constant.dtype(), value);
  }
}

// Kernels that are equal but for their ordinary constants.
struct Family {
  explicit Family(std::vector<int64_t> first) : values(std::move(first)) {}
  std::vector<int64_t> values;  // in the first of them
  bool changes = false;         // some other one has had others
};

}  // namespace

// All constants become scalars at once: another one may change later, and would be another kernel.
void choose_scalars(KernelSource& kernel, const Target& target, int first) {
  kernel.scalars = {first, possible_scalars(kernel, target)};
  if (kernel.scalars.constants.empty()) return;
  const uint64_t family_name = hash_text(codegen::kernel_key(kernel, target));
  const std::vector<int64_t> values = scalar_values(kernel);
  static auto& families = *new std::unordered_map<uint64_t, Family>;  // outlives static users
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  // Two kernels with one hash may share a family: each is still called with its own values.
  Family& family = families.try_emplace(family_name, values).first->second;
  family.changes = family.changes || family.values != values;
  if (!family.changes) kernel.scalars.constants.clear();
}

std::vector<int64_t> scalar_values(const KernelSource& kernel) {
  std::vector<int64_t> values;
  for (const UOp& constant : kernel.scalars.constants) values.push_back(bits_of(constant));
  return values;
}

}  // namespace tinyshard
