// Products of small matrices by a whole wave: MFMA of one block on gfx9, WMMA on gfx11. Sums run along k in order, each
// product fused with its sum.
#include <cmath>
#include <cstdint>
#include <string>

#include "tests/amdgpu/operands.h"
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {
namespace {

using U16 = std::uint16_t;
using U32 = std::uint32_t;
using U64 = std::uint64_t;

enum class Element : std::uint8_t { F16, Bf16, F32, F64, I8 };

constexpr int packed(Element element, int m, int k) {
  return static_cast<int>(element) | m << 8 | k << 16;
}

U32 word(const Wave& w, const Operand& operand, int reg, int lane) {
  if (operand.kind != Kind::Vector) {
    return scalar32(w, operand);
  }
  return w.v[static_cast<std::size_t>(operand.index + reg)][static_cast<std::size_t>(lane)];
}

U64 double_word(const Wave& w, const Operand& operand, int reg, int lane) {
  if (operand.kind != Kind::Vector) {
    return operand.bits_f64;
  }
  return word(w, operand, 2 * reg, lane) | static_cast<U64>(word(w, operand, 2 * reg + 1, lane))
                                               << 32;
}

double element_of(const Wave& w, const Operand& operand, Element element, int number, int lane) {
  switch (element) {
    case Element::F16:
      return static_cast<double>(
          from_half(static_cast<U16>(word(w, operand, number / 2, lane) >> (number % 2 * 16))));
    case Element::Bf16:
      return static_cast<double>(
          from_bf16(static_cast<U16>(word(w, operand, number / 2, lane) >> (number % 2 * 16))));
    case Element::F32:
      return static_cast<double>(std::bit_cast<float>(word(w, operand, number, lane)));
    case Element::F64:
      return std::bit_cast<double>(double_word(w, operand, number, lane));
    case Element::I8:
      return static_cast<std::int8_t>(word(w, operand, number / 4, lane) >> (number % 4 * 8));
  }
  return 0;
}

void all_lanes_need_all(Wave& w) {
  if (w.defined != ~0ULL) {
    w.defined = (w.defined & w.all_lanes()) == w.all_lanes() ? ~0ULL : 0;
  }
  w.enabled = w.all_lanes();
}

// Row of the result that register `r` of `lane` holds.
int row_of(int m, bool is_double, int r, int lane) {
  if (m == 32) {
    return 8 * (r / 4) + 4 * (lane / 32) + r % 4;
  }
  return is_double ? 4 * r + lane / 16 : 4 * (lane / 16) + r;
}

void mfma(Wave& w, const Instruction& in) {
  const auto element = static_cast<Element>(in.data & 255);
  const int m = in.data >> 8 & 255;
  const int depth = in.data >> 16;
  const int per_lane = depth * m / 64;
  const bool is_double = element == Element::F64;
  all_lanes_need_all(w);
  double a[32][64];
  double b[64][32];
  for (int lane = 0; lane < 64; ++lane) {
    for (int j = 0; j < per_lane; ++j) {
      const int k = lane / m * per_lane + j;
      a[lane % m][k] = element_of(w, in.operand[1], element, j, lane);
      b[k][lane % m] = element_of(w, in.operand[2], element, j, lane);
    }
  }
  const int results = m * m / 64;
  Values<U32> out[32];
  for (int r = 0; r < results; ++r) {
    for (int lane = 0; lane < 64; ++lane) {
      const int row = row_of(m, is_double, r, lane);
      if (is_double) {
        double sum = std::bit_cast<double>(double_word(w, in.operand[3], r, lane));
        for (int k = 0; k < depth; ++k) {
          sum = std::fma(a[row][k], b[k][lane % m], sum);
        }
        out[2 * r].lane[lane] = static_cast<U32>(std::bit_cast<U64>(sum));
        out[2 * r + 1].lane[lane] = static_cast<U32>(std::bit_cast<U64>(sum) >> 32);
      } else if (element == Element::I8) {
        U32 sum = word(w, in.operand[3], r, lane);
        for (int k = 0; k < depth; ++k) {
          sum += static_cast<U32>(static_cast<int>(a[row][k] * b[k][lane % m]));
        }
        out[r].lane[lane] = sum;
      } else {
        float sum = std::bit_cast<float>(word(w, in.operand[3], r, lane));
        for (int k = 0; k < depth; ++k) {
          sum = std::fma(static_cast<float>(a[row][k]), static_cast<float>(b[k][lane % m]), sum);
        }
        out[r].lane[lane] = std::bit_cast<U32>(sum);
      }
    }
  }
  for (int r = 0; r < results * (is_double ? 2 : 1); ++r) {
    put_register(w, in.operand[0].index + r, out[r].lane);
  }
}

// Lanes 16 to 31 repeat the sources of lanes 0 to 15.
void wmma(Wave& w, const Instruction& in) {
  const auto element = static_cast<Element>(in.data & 255);
  all_lanes_need_all(w);
  Values<U32> out[8];
  for (int r = 0; r < 8; ++r) {
    for (int lane = 0; lane < 32; ++lane) {
      const int row = 2 * r + lane / 16;
      float sum = std::bit_cast<float>(word(w, in.operand[3], r, lane));
      for (int k = 0; k < 16; ++k) {
        sum =
            std::fma(static_cast<float>(element_of(w, in.operand[1], element, k, row)),
                     static_cast<float>(element_of(w, in.operand[2], element, k, lane % 16)), sum);
      }
      out[r].lane[lane] = std::bit_cast<U32>(sum);
    }
  }
  for (int r = 0; r < 8; ++r) {
    put_register(w, in.operand[0].index + r, out[r].lane);
  }
}

}  // namespace

void add_matrix(Table& rows) {
  const auto add = [&](const char* name, Element element, int m, int k) {
    rows[std::string("v_mfma_") + name] = {mfma, 1, Effect::Generic, packed(element, m, k)};
  };
  add("f32_32x32x8_f16", Element::F16, 32, 8);
  add("f32_16x16x16_f16", Element::F16, 16, 16);
  add("f32_32x32x8_bf16", Element::Bf16, 32, 8);
  add("f32_16x16x16_bf16", Element::Bf16, 16, 16);
  add("f32_32x32x8_bf16_1k", Element::Bf16, 32, 8);
  add("f32_16x16x16_bf16_1k", Element::Bf16, 16, 16);
  add("f32_32x32x2_f32", Element::F32, 32, 2);
  add("f32_16x16x4_f32", Element::F32, 16, 4);
  add("f64_16x16x4_f64", Element::F64, 16, 4);
  add("i32_32x32x16_i8", Element::I8, 32, 16);
  add("i32_16x16x32_i8", Element::I8, 16, 32);
  rows["v_wmma_f32_16x16x16_f16"] = {wmma, 1, Effect::Generic, packed(Element::F16, 16, 16)};
  rows["v_wmma_f32_16x16x16_bf16"] = {wmma, 1, Effect::Generic, packed(Element::Bf16, 16, 16)};
}

}  // namespace amdgpu_emulator
