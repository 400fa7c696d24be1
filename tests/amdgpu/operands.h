// How handlers read sources and write results: one value for each lane, with the modifiers of the instruction applied.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/amdgpu/half.h"
#include "tests/amdgpu/wave.h"

namespace amdgpu_emulator {

template <class T>
struct alignas(64) Values {
  T lane[kMaxLanes];
  T* begin() { return lane; }
};

// Raw bits of operand `k` in every lane, after the exchange of lanes and the selection of bytes.
void raw32(Wave& w, const Instruction& in, int k, std::uint32_t* out);
void raw64(Wave& w, const Instruction& in, int k, bool is_float, std::uint64_t* out);
void raw16(Wave& w, const Instruction& in, int k, std::uint16_t* out);

// Writes the lanes `w.enabled` and marks them as `w.defined` says.
void put32(Wave& w, const Instruction& in, int k, const std::uint32_t* values);
void put64(Wave& w, const Instruction& in, int k, const std::uint64_t* values);
void put16(Wave& w, const Instruction& in, int k, const std::uint16_t* values);
void put_register(Wave& w, int reg, const std::uint32_t* values);
// A bit for each lane into a pair of scalars (one in wave32); inactive lanes give 0.
void put_mask(Wave& w, const Operand& operand, std::uint64_t mask);
std::uint64_t get_mask(const Wave& w, const Operand& operand);

// Lanes in which register `word` of an operand was written.
std::uint64_t known_word(const Wave& w, const Operand& operand, int word);
// Marks lanes of one register of the result, other than `w.defined` did.
void mark_register(Wave& w, int reg, std::uint64_t known);

std::uint32_t read_scalar(const Wave& w, int index);
std::uint32_t scalar32(const Wave& w, const Operand& operand);
std::uint64_t scalar64(const Wave& w, const Operand& operand);
void put_scalar(Wave& w, int index, std::uint32_t value, std::uint32_t defined);

float flushed(float value);
double flushed(double value);
std::uint16_t flushed_half(std::uint16_t bits);

template <class T>
void read_source(Wave& w, const Instruction& in, int k, T* out) {
  const Operand& operand = in.operand[static_cast<std::size_t>(k)];
  if constexpr (std::is_same_v<T, Half>) {
    raw16(w, in, k, reinterpret_cast<std::uint16_t*>(out));
    for (int l = 0; l < w.lanes && (operand.absolute || operand.negate || w.flush16_64); ++l) {
      std::uint16_t bits = out[l].bits;
      bits = static_cast<std::uint16_t>(operand.absolute ? bits & 0x7fffU : bits);
      bits = static_cast<std::uint16_t>(operand.negate ? bits ^ 0x8000U : bits);
      out[l].bits = w.flush16_64 ? flushed_half(bits) : bits;
    }
  } else if constexpr (sizeof(T) == 2) {
    raw16(w, in, k, reinterpret_cast<std::uint16_t*>(out));
  } else if constexpr (sizeof(T) == 4) {
    raw32(w, in, k, reinterpret_cast<std::uint32_t*>(out));
  } else {
    raw64(w, in, k, std::is_floating_point_v<T>, reinterpret_cast<std::uint64_t*>(out));
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (operand.absolute || operand.negate) {
      for (int l = 0; l < w.lanes; ++l) {
        const T value = operand.absolute ? std::fabs(out[l]) : out[l];
        out[l] = operand.negate ? -value : value;
      }
    }
    if (sizeof(T) == 4 ? w.flush32 : w.flush16_64) {
      for (int l = 0; l < w.lanes; ++l) {
        out[l] = flushed(out[l]);
      }
    }
  }
}

template <class T>
T scaled_and_clamped(const Instruction& in, T value) {
  if (in.output_scale != 0) {
    value = std::ldexp(value, in.output_scale);
  }
  if (in.clamp) {
    value = value > T(0) ? (value < T(1) ? value : T(1)) : T(0);  // a NaN becomes 0
  }
  return value;
}

template <class T>
void write_result(Wave& w, const Instruction& in, int k, T* values) {
  if constexpr (std::is_same_v<T, Half>) {
    for (int l = 0; l < w.lanes && (in.output_scale != 0 || in.clamp); ++l) {
      values[l].bits =
          to_half(scaled_and_clamped(in, static_cast<double>(from_half(values[l].bits))));
    }
    for (int l = 0; l < w.lanes && w.flush16_64; ++l) {
      values[l].bits = flushed_half(values[l].bits);
    }
    put16(w, in, k, reinterpret_cast<std::uint16_t*>(values));
  } else if constexpr (sizeof(T) == 2) {
    put16(w, in, k, reinterpret_cast<std::uint16_t*>(values));
  } else {
    if constexpr (std::is_floating_point_v<T>) {
      for (int l = 0; l < w.lanes && (in.output_scale != 0 || in.clamp); ++l) {
        values[l] = scaled_and_clamped(in, values[l]);
      }
      for (int l = 0; l < w.lanes && (sizeof(T) == 4 ? w.flush32 : w.flush16_64); ++l) {
        values[l] = flushed(values[l]);
      }
    }
    if constexpr (sizeof(T) == 4) {
      put32(w, in, k, reinterpret_cast<std::uint32_t*>(values));
    } else {
      put64(w, in, k, reinterpret_cast<std::uint64_t*>(values));
    }
  }
}

// The handler of an instruction whose only result is F of its sources, lane by lane.
template <auto F, class Signature>
struct LaneByLane;

template <auto F, class R, class... A>
struct LaneByLane<F, R (*)(A...)> {
  static void run(Wave& w, const Instruction& in) { apply(w, in, std::index_sequence_for<A...>()); }

  template <std::size_t... I>
  static void apply(Wave& w, const Instruction& in, std::index_sequence<I...>) {
    std::tuple<Values<A>...> sources;
    (read_source<A>(w, in, source_at<sizeof...(A)>(in, static_cast<int>(I)),
                    std::get<I>(sources).lane),
     ...);
    Values<R> result;
    for (int l = 0; l < w.lanes; ++l) {
      result.lane[l] = F(std::get<I>(sources).lane[l]...);
    }
    write_result<R>(w, in, 0, result.lane);
  }

  // v_fmac and its like name the accumulator only as the result.
  template <std::size_t Sources>
  static int source_at(const Instruction& in, int i) {
    const int given = in.operands - 1;
    return static_cast<int>(Sources) > given && i == given ? 0 : i + 1;
  }
};

template <auto F>
constexpr Handler lane_by_lane() {
  return &LaneByLane<F, decltype(+F)>::run;
}

}  // namespace amdgpu_emulator
