// A row for each region: its name, what it is spelled as, the operands that go with it.
#include "devices/gpu/product_regions.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "core/base/error.h"
#include "core/ops/activations.h"
#include "devices/gpu/epilogues.h"
#include "devices/gpu/row_attention.h"
#include "devices/gpu/updates.h"

namespace tinyshard::gpu {
namespace {

using Operands = std::span<const UOp>;

// --- what they are spelled as --------------------------------------------------------------------

UOp spelled_bias(const UOp& sums, Operands c) {
  Dims row(sums.shape().size(), 1);
  row.back() = sums.shape().back();
  return binary(Op::Add, sums, expand(reshape(cast(c[0], sums.dtype()), row), sums.shape()));
}
UOp spelled_relu(const UOp& sums, Operands c) { return relu(spelled_bias(sums, c)); }
UOp spelled_gelu(const UOp& sums, Operands c) { return gelu(spelled_bias(sums, c)); }
UOp spelled_slope(const UOp& sums, Operands c) {
  return gelu_slope(cast(c[0], sums.dtype()), sums);
}
UOp spelled_update(const UOp& sums, Operands c) {
  const UOp old = cast(c[0], sums.dtype());
  if (c.size() == 1) return binary(Op::Add, sums, old);
  auto scaled = [&](const UOp& x, int64_t i) {
    const UOp factor = cast(shrink(c[1], Dims{i, i + 1}), x.dtype());
    return binary(Op::Mul, x, expand(reshape(factor, Dims(x.shape().size(), 1)), x.shape()));
  };
  return binary(Op::Add, scaled(sums, 0), scaled(old, 1));
}

// --- which operands go with them -----------------------------------------------------------------

bool is_of(const UOp& x, DType dtype, DimSpan shape) {
  return x.dtype() == dtype && std::ranges::equal(x.shape(), shape);
}
const char* needs_row(DType dtype, DimSpan shape, Operands c) {
  return c.size() == 1 && is_of(c[0], dtype, shape.last(1)) ? nullptr
                                                            : "one row of the result's type";
}
const char* needs_whole(DType dtype, DimSpan shape, Operands c) {
  return c.size() == 1 && is_of(c[0], dtype, shape) ? nullptr : "one operand like the result";
}
const char* needs_old_value(DType dtype, DimSpan shape, Operands c) {
  if (c.size() == 2 && !is_of(c[1], DType::F32, Dims{2})) return "two factors, in f32";
  return needs_whole(dtype, shape, c.first(c.size() == 2 ? 1 : c.size()));
}

// In the order of the enum, whose values are their numbers.
constexpr auto kRegions = std::to_array<ProductRegion>({
    {1, "bias", spelled_bias, needs_row},
    {2, "bias, ReLU", spelled_relu, needs_row},
    {3, "bias, GELU", spelled_gelu, needs_row},
    {4, "GELU's slope", spelled_slope, needs_whole},
    {5, "update", spelled_update, needs_old_value, true},
});

class ProductsProvider final : public LibraryProvider {
 public:
  bool keeps(const Composite& row) const override {
    return &row == &kRelu || &row == &kReluSlope || &row == &kGelu || &row == &kGeluSlope;
  }
  std::vector<Replacement> find(const RegionQuery& query) const override {
    std::vector<Replacement> found = find_epilogues(query);
    std::ranges::move(find_row_attention(query), std::back_inserter(found));
    return found;
  }
  std::vector<Replacement> find_in_place(const RegionQuery& query) const override {
    return find_updates(query);
  }
};

}  // namespace

const ProductRegion& product_region(Epilogue epilogue) {
  check_internal(epilogue != Epilogue::None, "a plain product has no region");
  return kRegions[size_t(epilogue) - 1];
}

std::optional<Epilogue> epilogue_of(const UOp& dot) {
  const ProductRegion* region = region_of(dot);
  if (!region) return Epilogue::None;
  for (const ProductRegion& known : kRegions) {
    if (region == &known) return Epilogue(known.number);
  }
  return std::nullopt;
}

UOp product_with(Epilogue epilogue, DType dtype, const UOp& a, const UOp& b, int64_t batch,
                 std::span<const UOp> operands) {
  if (epilogue == Epilogue::None) return UOp::make(Op::Dot, dtype, {a, b}, Dims{batch});
  return region_product(product_region(epilogue), dtype, a, b, batch, operands);
}

const LibraryProvider& products_provider() {
  static const ProductsProvider provider;
  return provider;
}

}  // namespace tinyshard::gpu
