// GGUF tensors as lazy tensors. A quantised one is its blocks, u8 [blocks, bytes], and the ops that
// compute its elements from them, so that a device that is given the tensor reads the blocks only:
//
//   Q4_0, 32 elements in 18 bytes:  f16 scale, 16 bytes of two elements each
//   element j of a block = scale * ((byte[j % 16] >> 4 * (j / 16) & 15) - 8)
//
// Bytes that hold several elements are shifted by a short list of shifts, which gives them a dim:
// [blocks, 1, 16] >> [[0], [4]] is [blocks, 2, 16], in the order of the elements.
#include "core/nn/gguf_formats.h"

#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/nn/gguf_grids.h"

namespace tinyshard::nn {
namespace {

// The values of the 4 bits of IQ4_NL and IQ4_XS, and of MXFP4 (there doubled).
const std::vector<float> kNonlinear = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};
const std::vector<float> kE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

Tensor shifts(int64_t count, int64_t by, const Dims& shape) {
  return (Tensor::arange(count, DType::I32) * by).reshape(shape);
}
// Element i of the last dim.
Tensor last(const Tensor& x, int64_t i) {
  Pairs bounds;
  for (const int64_t size : x.shape()) bounds.emplace_back(0, size);
  bounds.back() = {i, i + 1};
  Dims shape = x.shape();
  shape.pop_back();
  return x.shrink(bounds).reshape(shape);
}
// Bits of f16 as f32.
Tensor as_f16(const Tensor& bits) {
  return bits.cast(DType::U16).bitcast(DType::F16).cast(DType::F32);
}

class Blocks {
 public:
  explicit Blocks(const Tensor& bytes) : bytes_(bytes), count_(bytes.shape(0)) {}

  // Bytes [from, from + the product of shape) of each block, as i32 [blocks, shape...].
  Tensor ints(int64_t from, const Dims& shape) const { return raw(from, shape).cast(DType::I32); }
  Tensor signed_ints(int64_t from, const Dims& shape) const {
    return raw(from, shape).bitcast(DType::I8).cast(DType::I32);
  }
  Tensor u16(int64_t from) const {  // [blocks, 1]
    return ints(from, {1}) | ints(from + 1, {1}) << 8;
  }
  Tensor f16(int64_t from) const { return as_f16(u16(from)); }  // as f32 [blocks, 1]
  // A factor per block, for elements of `rank` dims.
  Tensor factor(int64_t from, size_t rank) const {
    Dims shape(rank + 1, 1);
    shape[0] = count_;
    return f16(from).reshape(shape);
  }
  // Numbers of 16 bits, as i32 [blocks, shape...].
  Tensor u16s(int64_t from, const Dims& shape) const {
    Dims pairs = shape;
    pairs.push_back(2);
    const Tensor bytes = ints(from, pairs);
    return last(bytes, 0) | last(bytes, 1) << 8;
  }
  int64_t count() const { return count_; }

 private:
  Tensor raw(int64_t from, const Dims& shape) const {
    Dims all{count_};
    all.insert(all.end(), shape.begin(), shape.end());
    return bytes_.shrink({{0, count_}, {from, from + product(shape)}}).reshape(all);
  }

  Tensor bytes_;
  int64_t count_;
};

Tensor nibbles(const Tensor& bytes, const Dims& shape) { return bytes >> shifts(2, 4, shape) & 15; }
Tensor floats(const Tensor& x) { return x.cast(DType::F32); }
Tensor looked_up(const std::vector<float>& table, const Tensor& index) {
  return Tensor(table)[index];
}

// --- blocks of 32 ---

// The fifth bits of 32 elements, from four bytes: [blocks, 2, 16] of 0 and 16.
Tensor fifth_bits(const Blocks& b, int64_t from) {
  const Tensor bits = b.ints(from, {4, 1}) >> shifts(8, 1, {1, 8}) & 1;
  return bits.reshape({b.count(), 2, 16}) << 4;
}

Tensor q4_0(const Blocks& b) {
  return b.factor(0, 2) * floats(nibbles(b.ints(2, {1, 16}), {2, 1}) - 8);
}
Tensor q4_1(const Blocks& b) {
  return b.factor(0, 2) * floats(nibbles(b.ints(4, {1, 16}), {2, 1})) + b.factor(2, 2);
}
Tensor q5_0(const Blocks& b) {
  return b.factor(0, 2) * floats((nibbles(b.ints(6, {1, 16}), {2, 1}) | fifth_bits(b, 2)) - 16);
}
Tensor q5_1(const Blocks& b) {
  return b.factor(0, 2) * floats(nibbles(b.ints(8, {1, 16}), {2, 1}) | fifth_bits(b, 4)) +
         b.factor(2, 2);
}
Tensor q8_0(const Blocks& b) { return b.factor(0, 1) * floats(b.signed_ints(2, {32})); }
Tensor iq4_nl(const Blocks& b) {
  return b.factor(0, 2) * looked_up(kNonlinear, nibbles(b.ints(2, {1, 16}), {2, 1}));
}
Tensor mxfp4(const Blocks& b) {
  // The scale is 2 to the power of (byte - 128), the halves of the table's doubled values.
  const Tensor e = b.ints(0, {1, 1});
  const Tensor bits =
      (e < 2).where(Tensor::full({}, 0x200000, DType::I32) << e.minimum(1), (e - 1) << 23);
  return bits.bitcast(DType::F32) * looked_up(kE2m1, nibbles(b.ints(1, {1, 16}), {2, 1}));
}

// --- blocks of 256 ---

// Eight scales and eight minima of 6 bits each, packed in 12 bytes.
std::pair<Tensor, Tensor> packed_scales(const Blocks& b, int64_t from) {
  const Tensor first = b.ints(from, {4}), second = b.ints(from + 4, {4}),
               third = b.ints(from + 8, {4});
  const Tensor scale = cat({first & 63, (third & 15) | first >> 6 << 4}, 1);
  const Tensor least = cat({second & 63, third >> 4 | second >> 6 << 4}, 1);
  const Dims shape{b.count(), 4, 2, 1};
  return {floats(scale).reshape(shape), floats(least).reshape(shape)};
}

Tensor q2_k(const Blocks& b) {
  const Tensor scales = b.ints(0, {2, 4, 2, 1});
  const Tensor q =
      (b.ints(16, {2, 1, 32}) >> shifts(4, 2, {4, 1}) & 3).reshape({b.count(), 2, 4, 2, 16});
  return b.factor(80, 4) * floats(scales & 15) * floats(q) - b.factor(82, 4) * floats(scales >> 4);
}
Tensor q3_k(const Blocks& b) {
  const Tensor low = b.ints(96, {1, 8}) >> shifts(2, 4, {2, 1}) & 15;   // [blocks, 2, 8]
  const Tensor high = b.ints(104, {1, 4}) >> shifts(4, 2, {4, 1}) & 3;  // [blocks, 4, 4]
  const Dims per_part{b.count(), 2, 4, 2, 1};
  const Tensor scales = low.reshape({b.count(), 16}) | high.reshape({b.count(), 16}) << 4;
  const Tensor q = b.ints(32, {2, 1, 32}) >> shifts(4, 2, {4, 1}) & 3;
  const Tensor bit = b.ints(0, {1, 1, 32}) >> shifts(8, 1, {2, 4, 1}) & 1;
  const Tensor value = (q + (bit << 2) - 4).reshape({b.count(), 2, 4, 2, 16});
  return b.factor(108, 4) * floats(scales.reshape(per_part) - 32) * floats(value);
}
Tensor q4_k(const Blocks& b) {
  const auto [scale, least] = packed_scales(b, 4);
  const Tensor q = nibbles(b.ints(16, {4, 1, 32}), {2, 1});
  return b.factor(0, 3) * scale * floats(q) - b.factor(2, 3) * least;
}
Tensor q5_k(const Blocks& b) {
  const auto [scale, least] = packed_scales(b, 4);
  const Tensor fifth = (b.ints(16, {1, 1, 32}) >> shifts(8, 1, {4, 2, 1}) & 1) << 4;
  const Tensor q = nibbles(b.ints(48, {4, 1, 32}), {2, 1}) | fifth;
  return b.factor(0, 3) * scale * floats(q) - b.factor(2, 3) * least;
}
Tensor q6_k(const Blocks& b) {
  // 32 elements of 128 each come from the low and the high halves of two rows of 32 bytes.
  const Tensor low = nibbles(b.ints(0, {2, 1, 2, 32}), {2, 1, 1}).reshape({b.count(), 2, 4, 32});
  const Tensor high = b.ints(128, {2, 1, 32}) >> shifts(4, 2, {4, 1}) & 3;
  const Tensor q = ((low | high << 4) - 32).reshape({b.count(), 2, 4, 2, 16});
  return b.factor(208, 4) * floats(b.signed_ints(192, {2, 4, 2, 1})) * floats(q);
}
Tensor iq4_xs(const Blocks& b) {
  const Tensor low = (b.ints(4, {4, 1}) >> shifts(2, 4, {1, 2}) & 15).reshape({b.count(), 8});
  const Tensor high = b.u16(2) >> shifts(8, 2, {8}) & 3;
  const Tensor scale = floats((low | high << 4) - 32).reshape({b.count(), 8, 1, 1});
  return b.factor(0, 3) * scale * looked_up(kNonlinear, nibbles(b.ints(8, {8, 1, 16}), {2, 1}));
}

// --- grids ---
//
// A number picks a point of a grid, whose elements are picked by bits of the grid's own:
//
//   IQ2_XS, 8 elements in 16 bits: 9 bits of number, 7 bits of signs; the eighth sign makes their
//   count even. IQ1: 11 bits of number, the elements are -1, 0 or 1, moved by an eighth.

// The bits of the elements of these points: one dim more, as wide as a point.
Tensor points(const GgufGrid& grid, const Tensor& number) {
  const Tensor picked = Tensor(grid.numbers())[number].unsqueeze(-1);
  return picked >> shifts(grid.width, grid.bits, {grid.width}) & ((1 << grid.bits) - 1);
}
Tensor points_iq2(const GgufGrid& grid, const Tensor& number) {  // 8, 25 and 43
  const Tensor v = points(grid, number);
  return floats(v * 17 + (v >> 1) + 8);
}
Tensor points_iq3_xxs(const Tensor& number) {  // 4, 12 and so on to 52, and 62
  const Tensor v = points(kGridIq3Xxs, number);
  return floats(v * 8 + 4 + (v == 7).cast(DType::I32) * 2);
}
// 1 or -1 for each of eight bits: one dim more.
Tensor signs_of(const Tensor& bits) {
  return floats(1 - (bits.unsqueeze(-1) >> shifts(8, 1, {8}) & 1) * 2);
}
// Returns the signs that seven bits stand for; the eighth is their parity.
Tensor signs_of_seven(const Tensor& bits) {
  Tensor parity = bits ^ bits >> 4;
  parity = parity ^ parity >> 2;
  parity = (parity ^ parity >> 1) & 1;
  return signs_of(bits | parity << 7);
}

// 32 elements have four numbers of 8 bits, four signs of 7 bits, a scale of 4 bits. The words of 32
// bits are taken by halves, for they have no sign.
struct SignsAndScale {
  Tensor signs, scale;
};
SignsAndScale signs_and_scale(const Tensor& low, const Tensor& high) {  // [blocks, 8]
  const Tensor word = low | high << 16;
  const Tensor seven = word.unsqueeze(-1) >> shifts(4, 7, {4}) & 127;
  return {signs_of_seven(seven), floats(high >> 12) + 0.5f};
}

Tensor iq2_xxs(const Blocks& b) {
  const Tensor words = b.u16s(2, {8, 4});
  const auto [signs, scale] = signs_and_scale(last(words, 2), last(words, 3));
  const Tensor number = b.ints(2, {8, 8}).shrink({{0, b.count()}, {0, 8}, {0, 4}});
  const Tensor factor = (b.factor(0, 1) * scale * 0.25f).reshape({b.count(), 8, 1, 1});
  return factor * points_iq2(kGridIq2Xxs, number) * signs;
}
Tensor iq2_xs(const Blocks& b) {
  const Tensor q = b.u16s(2, {16, 2});
  const Tensor scale = nibbles(b.ints(66, {8, 1}), {2}).reshape({b.count(), 16});
  const Tensor factor = (b.factor(0, 1) * (floats(scale) + 0.5f) * 0.25f);
  return factor.reshape({b.count(), 16, 1, 1}) * points_iq2(kGridIq2Xs, q & 511) *
         signs_of_seven(q >> 9);
}
Tensor iq2_s(const Blocks& b) {
  const Tensor high = b.ints(66, {8, 1}) >> shifts(4, 2, {4}) & 3;
  const Tensor number = b.ints(2, {8, 4}) | high << 8;
  const Tensor scale = nibbles(b.ints(74, {8, 1}), {2}).reshape({b.count(), 16});
  const Tensor factor = (b.factor(0, 1) * (floats(scale) + 0.5f) * 0.25f);
  return factor.reshape({b.count(), 16, 1, 1}) *
         points_iq2(kGridIq2S, number.reshape({b.count(), 16, 2})) * signs_of(b.ints(34, {16, 2}));
}
Tensor iq3_xxs(const Blocks& b) {
  const Tensor words = b.u16s(66, {8, 2});
  const auto [signs, scale] = signs_and_scale(last(words, 0), last(words, 1));
  const Tensor factor = (b.factor(0, 1) * scale * 0.5f).reshape({b.count(), 8, 1, 1});
  return factor * points_iq3_xxs(b.ints(2, {8, 4, 2})).reshape({b.count(), 8, 4, 8}) * signs;
}
Tensor iq3_s(const Blocks& b) {
  const Tensor high = (b.ints(66, {8, 1}) >> shifts(8, 1, {8}) & 1) << 8;
  const Tensor number = (b.ints(2, {8, 8}) | high).reshape({b.count(), 8, 4, 2});
  const Tensor point = floats(points(kGridIq3S, number) * 2 + 1).reshape({b.count(), 8, 4, 8});
  const Tensor scale = nibbles(b.ints(106, {4, 1}), {2}).reshape({b.count(), 8});
  const Tensor factor = b.factor(0, 1) * floats(scale * 2 + 1);
  return factor.reshape({b.count(), 8, 1, 1}) * point * signs_of(b.ints(74, {8, 4}));
}

Tensor points_iq1(const Tensor& number, const Tensor& is_down) {
  return floats(points(kGridIq1, number) - 1) +
         is_down.where(Tensor::full({}, -0.125f), Tensor::full({}, 0.125f));
}
Tensor iq1_s(const Blocks& b) {
  const Tensor high = b.u16s(34, {8, 1});
  const Tensor number = b.ints(2, {8, 4}) | (high >> shifts(4, 3, {4}) & 7) << 8;
  const Tensor factor = b.factor(0, 2) * floats((high >> 12 & 7) * 2 + 1);
  return factor.reshape({b.count(), 8, 1, 1}) *
         points_iq1(number, (high >= 0x8000).reshape({b.count(), 8, 1, 1}));
}
Tensor iq1_m(const Blocks& b) {
  const Tensor words = b.u16s(48, {4, 1});
  // The scale of the block is in the upper four bits of each, the last has its highest.
  const Tensor bits = (words >> 12).reshape({b.count(), 4}) << shifts(4, 4, {4});
  const Tensor d = as_f16(last(bits, 0) | last(bits, 1) | last(bits, 2) | last(bits, 3));
  const Tensor scale = (words >> shifts(4, 3, {4}) & 7).reshape({b.count(), 16});
  const Tensor high = nibbles(b.ints(32, {16, 1}), {2});
  const Tensor number = b.ints(0, {16, 2}) | (high & 7) << 8;
  return (d.reshape({b.count(), 1}) * floats(scale * 2 + 1)).reshape({b.count(), 16, 1, 1}) *
         points_iq1(number, (high >= 8).unsqueeze(-1));
}

// --- others ---

// Bytes of five elements of three values, or of four: the byte times 3^i is a fraction of 256 whose
// first digit of base 3 is element i.
Tensor base3(const Tensor& bytes, int64_t digits) {
  static constexpr int kPowers[] = {1, 3, 9, 27, 81};
  std::vector<int32_t> powers(kPowers, kPowers + digits);
  return ((bytes * Tensor(powers).reshape({digits, 1}) & 255) * 3 >> 8) - 1;
}
Tensor tq1_0(const Blocks& b) {
  auto flat = [&](const Tensor& x) { return x.reshape({b.count(), -1}); };
  const Tensor all = cat({flat(base3(b.ints(0, {1, 32}), 5)), flat(base3(b.ints(32, {1, 16}), 5)),
                          flat(base3(b.ints(48, {1, 4}), 4))},
                         1);
  return b.factor(52, 1) * floats(all);
}
Tensor tq2_0(const Blocks& b) {
  return b.factor(64, 3) * floats((b.ints(0, {2, 1, 32}) >> shifts(4, 2, {4, 1}) & 3) - 1);
}
Tensor q8_1(const Blocks& b) { return b.factor(0, 1) * floats(b.signed_ints(4, {32})); }
Tensor q8_k(const Blocks& b) {
  const Tensor d = (b.u16(0) | b.u16(2) << 16).bitcast(DType::F32);
  return d * floats(b.signed_ints(4, {256}));
}
Tensor nvfp4(const Blocks& b) {
  // Four scales in e4m3 whose sign does not count, with NaN for 0; halved, as the table's values are
  // doubled. Subnormals have no leading one.
  const Tensor code = b.ints(0, {4, 1, 1});
  const Tensor exponent = code >> 3 & 15, fraction = code & 7;
  const Tensor normal = ((exponent + 119) << 23 | fraction << 20).bitcast(DType::F32);
  const Tensor scale = (exponent == 0).where(floats(fraction) * 0x1p-10f, normal);
  const Tensor q = nibbles(b.ints(4, {4, 1, 8}), {2, 1});
  return (code == 127).where(Tensor::full({}, 0.0f), scale) * looked_up(kE2m1, q);
}

struct Format {
  std::string_view name;
  Tensor (*values)(const Blocks&);
};
constexpr Format kFormats[] = {
    {"Q4_0", q4_0},       {"Q4_1", q4_1},     {"Q5_0", q5_0},   {"Q5_1", q5_1},
    {"Q8_0", q8_0},       {"Q8_1", q8_1},     {"Q2_K", q2_k},   {"Q3_K", q3_k},
    {"Q4_K", q4_k},       {"Q5_K", q5_k},     {"Q6_K", q6_k},   {"Q8_K", q8_k},
    {"IQ2_XXS", iq2_xxs}, {"IQ2_XS", iq2_xs}, {"IQ2_S", iq2_s}, {"IQ3_XXS", iq3_xxs},
    {"IQ3_S", iq3_s},     {"IQ1_S", iq1_s},   {"IQ1_M", iq1_m}, {"IQ4_NL", iq4_nl},
    {"IQ4_XS", iq4_xs},   {"TQ1_0", tq1_0},   {"TQ2_0", tq2_0}, {"MXFP4", mxfp4},
    {"NVFP4", nvfp4},
};

}  // namespace

Tensor gguf_values(std::string_view type, const Tensor& blocks) {
  for (const Format& format : kFormats) {
    if (format.name == type) return format.values(Blocks(blocks));
  }
  throw InternalError("no values for ggml type " + std::string(type));
}

}  // namespace tinyshard::nn
