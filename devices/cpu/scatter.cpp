#include "devices/cpu/scatter.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/dtype/half.h"
#include "devices/cpu/thread_pool.h"

namespace tinyshard {
namespace {

// How an element type is stored and summed. Integers wrap, as everywhere in tinyshard.
template <class T>
struct Plain {
  using Stored = T;
  using Sum = T;
  static Sum load(Stored v) { return v; }
  static Stored store(Sum v) { return v; }
  static Sum add(Sum a, Sum b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};
struct F16 {
  using Stored = uint16_t;
  using Sum = float;
  static Sum load(Stored v) { return f16_to_f32(v); }
  static Stored store(Sum v) { return f32_to_f16(v); }
  static Sum add(Sum a, Sum b) { return a + b; }
};
struct BF16 {
  using Stored = uint16_t;
  using Sum = float;
  static Sum load(Stored v) { return bf16_to_f32(v); }
  static Stored store(Sum v) { return f32_to_bf16(v); }
  static Sum add(Sum a, Sum b) { return a + b; }
};

// A part of the destination that one thread owns: some rows and columns of one outer index.
struct Part {
  int64_t outer, row_begin, row_end, col_begin, col_end;
};

template <class E, class Index>
void add_part(const ScatterSpec& s, const Part& p, const void* base_data, const void* index_data,
              const void* src_data, void* out_data) {
  using Stored = typename E::Stored;
  using Sum = typename E::Sum;
  constexpr bool kWidened = !std::is_same_v<Stored, Sum>;
  auto* base = static_cast<const Stored*>(base_data);
  auto* index = static_cast<const Index*>(index_data) + p.outer * s.index_outer;
  auto* src = static_cast<const Stored*>(src_data) + p.outer * s.rows_in * s.inner;
  auto* out = static_cast<Stored*>(out_data);
  const int64_t out_at = p.outer * s.rows_out * s.inner;

  // 16-bit sums need a wider place: columns are then done a few at a time in scratch.
  thread_local std::vector<Sum> wide;
  constexpr int64_t kWideBytes = 1 << 20;
  const int64_t rows = p.row_end - p.row_begin;
  int64_t step = p.col_end - p.col_begin;
  if (kWidened) {
    step = std::clamp<int64_t>(kWideBytes / static_cast<int64_t>(sizeof(Sum)) / rows, 1, step);
    if (static_cast<int64_t>(wide.size()) < rows * step)
      wide.resize(static_cast<size_t>(rows * step));
  }

  for (int64_t c0 = p.col_begin; c0 < p.col_end; c0 += step) {
    const int64_t cols = std::min(step, p.col_end - c0);
    // sums[row][col] for the rows of this part.
    Sum* sums;
    int64_t stride;
    if constexpr (kWidened) {
      sums = wide.data();
      stride = cols;
    } else {
      sums = out + out_at + p.row_begin * s.inner + c0;
      stride = s.inner;
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t from = out_at + (p.row_begin + r) * s.inner + c0;
      for (int64_t c = 0; c < cols; ++c)
        sums[r * stride + c] = base ? E::load(base[from + c]) : Sum(0);
    }
    for (int64_t r = 0; r < s.rows_in; ++r) {
      const Stored* row = src + r * s.inner + c0;
      if (s.index_inner == 0) {
        const int64_t to = static_cast<int64_t>(index[r * s.index_row]);
        if (to < p.row_begin || to >= p.row_end) continue;  // another part's, or nobody's
        Sum* sum = sums + (to - p.row_begin) * stride;
        for (int64_t c = 0; c < cols; ++c) sum[c] = E::add(sum[c], E::load(row[c]));
      } else {
        const Index* at = index + r * s.index_row + c0 * s.index_inner;
        for (int64_t c = 0; c < cols; ++c) {
          const int64_t to = static_cast<int64_t>(at[c * s.index_inner]);
          if (to < p.row_begin || to >= p.row_end) continue;
          Sum& sum = sums[(to - p.row_begin) * stride + c];
          sum = E::add(sum, E::load(row[c]));
        }
      }
    }
    if constexpr (kWidened)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
          out[out_at + (p.row_begin + r) * s.inner + c0 + c] = E::store(sums[r * stride + c]);
  }
}

using AddPart = void (*)(const ScatterSpec&, const Part&, const void*, const void*, const void*,
                         void*);

template <class E>
AddPart by_index(DType index) {
  return index == DType::I64 ? add_part<E, int64_t> : add_part<E, int32_t>;
}

AddPart choose(const ScatterSpec& s) {
  if (s.index_dtype != DType::I32 && s.index_dtype != DType::I64)
    throw UserError(
        fmt::format("scatter_add: an index is i32 or i64, not {}", name(s.index_dtype)));
  switch (s.dtype) {
    case DType::F64:
      return by_index<Plain<double>>(s.index_dtype);
    case DType::F32:
      return by_index<Plain<float>>(s.index_dtype);
    case DType::F16:
      return by_index<F16>(s.index_dtype);
    case DType::BF16:
      return by_index<BF16>(s.index_dtype);
    case DType::I8:
    case DType::U8:
      return by_index<Plain<uint8_t>>(s.index_dtype);
    case DType::I16:
    case DType::U16:
      return by_index<Plain<uint16_t>>(s.index_dtype);
    case DType::I32:
    case DType::U32:
      return by_index<Plain<uint32_t>>(s.index_dtype);
    case DType::I64:
    case DType::U64:
      return by_index<Plain<uint64_t>>(s.index_dtype);
    default:
      throw UserError(fmt::format("scatter_add: no sums of {}", name(s.dtype)));
  }
}

}  // namespace

void scatter_add(const ScatterSpec& s, const void* base, const void* index, const void* src,
                 void* out, ThreadPool& pool) {
  AddPart add = choose(s);
  if (s.outer <= 0 || s.inner <= 0 || s.rows_out <= 0) return;

  // Cut the outer dimension first, then columns (a cache line at least), then destination rows:
  // the last makes every part read all indices, and skewed indices load parts unevenly.
  const int64_t line = 64 / static_cast<int64_t>(itemsize(s.dtype));
  int64_t wanted = pool.threads();
  const int64_t work = s.outer * s.inner * (s.rows_in + s.rows_out);
  wanted = std::clamp<int64_t>(work / 16384, 1, wanted);
  auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  int64_t col_units = ceil_div(s.inner, line);
  int64_t col_parts = std::min(ceil_div(wanted, s.outer), col_units);
  int64_t row_parts = std::min(ceil_div(wanted, s.outer * col_parts), s.rows_out);
  int64_t parts = s.outer * col_parts * row_parts;
  auto body = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t row = i % row_parts, col = i / row_parts % col_parts;
      Part part{.outer = i / row_parts / col_parts,
                .row_begin = ThreadPool::part_begin(s.rows_out, row_parts, row),
                .row_end = ThreadPool::part_begin(s.rows_out, row_parts, row + 1),
                .col_begin = ThreadPool::part_begin(col_units, col_parts, col) * line,
                .col_end = std::min(s.inner,
                                    ThreadPool::part_begin(col_units, col_parts, col + 1) * line)};
      add(s, part, base, index, src, out);
    }
  };
  pool.parallel_for(parts, body, ceil_div(parts, wanted));
}

}  // namespace tinyshard
