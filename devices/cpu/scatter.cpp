// The destination is cut into parts, one for each thread, so that no two of them write to one place and
// each place adds in the order of the rows:
//
//   index 2 0 2 1, two parts      rows 0 and 1 of the result: thread 0 reads all four, adds the 2nd and 4th
//                                 rows 2 and 3: thread 1 reads all four, adds the 1st and 3rd
#include "devices/cpu/scatter.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/dtype/half.h"
#include "core/uop/combine.h"
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
};
struct F16 {
  using Stored = uint16_t;
  using Sum = float;
  static Sum load(Stored v) { return f16_to_f32(v); }
  static Stored store(Sum v) { return f32_to_f16(v); }
};
struct BF16 {
  using Stored = uint16_t;
  using Sum = float;
  static Sum load(Stored v) { return bf16_to_f32(v); }
  static Stored store(Sum v) { return f32_to_bf16(v); }
};

// A part of the destination that one thread owns: some rows and columns of one outer index.
struct Part {
  int64_t outer, row_begin, row_end, col_begin, col_end;
};

// Calls visit(row, place) for each source row whose place lies in [0, rows) of the part, in order.
// With several parts no processor predicts whether a row is this one's: those that are get listed
// first, some hundred rows at a time, without a branch.
template <class Index, class Visit>
void for_own_rows(const ScatterSpec& s, const Part& p, const Index* index, const Visit& visit) {
  const auto rows = static_cast<uint64_t>(p.row_end - p.row_begin);
  auto place_of = [&](int64_t r) {
    return static_cast<uint64_t>(static_cast<int64_t>(index[r * s.index_row])) -
           static_cast<uint64_t>(p.row_begin);
  };
  if (p.row_end - p.row_begin == s.rows_out) {
    for (int64_t r = 0; r < s.rows_in; ++r) {
      if (const uint64_t to = place_of(r); to < rows) visit(r, static_cast<int64_t>(to));
    }
    return;
  }
  constexpr int64_t kListed = 512;
  std::array<uint64_t, kListed> own_places;
  std::array<int32_t, kListed> own_rows;  // from the first of these rows
  for (int64_t begin = 0; begin < s.rows_in; begin += kListed) {
    const auto count = static_cast<int32_t>(std::min(kListed, s.rows_in - begin));
    size_t own = 0;
    for (int32_t r = 0; r < count; ++r) {
      const uint64_t to = place_of(begin + r);
      own_places[own] = to;
      own_rows[own] = r;
      own += to < rows ? 1 : 0;
    }
    for (size_t i = 0; i < own; ++i)
      visit(begin + own_rows[i], static_cast<int64_t>(own_places[i]));
  }
}

// The same where each column has an index of its own: visit(row, place, column).
template <class Index, class Visit>
void for_own_elements(const ScatterSpec& s, const Part& p, const Index* index, int64_t cols,
                      const Visit& visit) {
  for (int64_t r = 0; r < s.rows_in; ++r) {
    const Index* at = index + r * s.index_row;
    for (int64_t c = 0; c < cols; ++c) {
      const auto to = static_cast<int64_t>(at[c * s.index_inner]);
      if (to < p.row_begin || to >= p.row_end) continue;  // another part's, or nobody's
      visit(r, to - p.row_begin, c);
    }
  }
}

template <class E, ReduceOp op, class Index>
void add_column(const ScatterSpec& s, const Part& p, const Index* index,
                const typename E::Stored* src, typename E::Sum* sums, int64_t stride) {
  for_own_rows(s, p, index, [&](int64_t row, int64_t place) {
    typename E::Sum& sum = sums[place * stride];
    sum = combined<op>(E::load(src[row * s.inner]), sum);
  });
}

// Adds several columns, which mostly share an index.
template <class E, ReduceOp op, class Index>
void add_columns(const ScatterSpec& s, const Part& p, const Index* index,
                 const typename E::Stored* src, int64_t cols, typename E::Sum* sums,
                 int64_t stride) {
  if (s.index_inner == 0) {
    for_own_rows(s, p, index, [&](int64_t row, int64_t place) {
      const typename E::Stored* from = src + row * s.inner;
      typename E::Sum* sum = sums + place * stride;
      for (int64_t c = 0; c < cols; ++c) sum[c] = combined<op>(E::load(from[c]), sum[c]);
    });
    return;
  }
  for_own_elements(s, p, index, cols, [&](int64_t row, int64_t place, int64_t col) {
    typename E::Sum& sum = sums[place * stride + col];
    sum = combined<op>(E::load(src[row * s.inner + col]), sum);
  });
}

// Sets sums to the values that they begin with. A part of whole rows is one run.
template <class E, ReduceOp op>
void start(const typename E::Stored* base, int64_t base_stride, typename E::Sum* sums,
           int64_t stride, int64_t rows, int64_t cols) {
  if (stride == cols && base_stride == cols) cols *= rows, rows = 1;
  for (int64_t r = 0; r < rows; ++r) {
    typename E::Sum* to = sums + r * stride;
    const typename E::Stored* from = base ? base + r * base_stride : nullptr;
    if (!from) {
      std::fill(to, to + cols, start_of<op, typename E::Sum>());
    } else if constexpr (std::is_same_v<typename E::Stored, typename E::Sum>) {
      if (from != to) std::copy(from, from + cols, to);
    } else {
      for (int64_t c = 0; c < cols; ++c) to[c] = E::load(from[c]);
    }
  }
}

// Numbers the rows that an index names, in the order in which they come first. Its table is open:
// a row lies at the first free place from that of its hash on.
class NamedRows {
 public:
  // For at most `entries` of them.
  void begin(int64_t entries) {
    shift_ = 63 - std::bit_width(static_cast<uint64_t>(entries));
    places_.assign(size_t{1} << (64 - shift_), 0);
    rows_.clear();
  }
  size_t number_of(int64_t row) {
    const size_t mask = places_.size() - 1;
    size_t at = static_cast<size_t>((static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15U) >> shift_);
    while (places_[at] != 0 && rows_[places_[at] - 1] != row) at = (at + 1) & mask;
    if (places_[at] == 0) {
      rows_.push_back(row);
      places_[at] = static_cast<uint32_t>(rows_.size());
    }
    return places_[at] - 1;
  }
  std::span<const int64_t> rows() const { return rows_; }

 private:
  int shift_ = 63;
  std::vector<uint32_t> places_;  // numbers, from one
  std::vector<int64_t> rows_;
};

// Adds few rows to a part with many, in a wider type: the rows that are named have sums, the others
// stay as they are.
template <class E, ReduceOp op, class Index>
void add_named_rows(const ScatterSpec& s, const Part& p, const Index* index,
                    const typename E::Stored* src, typename E::Stored* out) {
  thread_local NamedRows named;
  thread_local std::vector<typename E::Sum> sums;
  const auto cols = static_cast<size_t>(p.col_end - p.col_begin);
  named.begin(s.rows_in);
  sums.clear();
  for_own_rows(s, p, index, [&](int64_t row, int64_t place) {
    const size_t at = named.number_of(place) * cols;
    const typename E::Stored* from = src + row * s.inner;
    if (at == sums.size()) {
      const typename E::Stored* old = out + place * s.inner;
      for (size_t c = 0; c < cols; ++c) sums.push_back(E::load(old[c]));
    }
    for (size_t c = 0; c < cols; ++c) sums[at + c] = combined<op>(E::load(from[c]), sums[at + c]);
  });
  const typename E::Sum* sum = sums.data();
  for (const int64_t place : named.rows()) {
    for (size_t c = 0; c < cols; ++c) out[place * s.inner + int64_t(c)] = E::store(*sum++);
  }
}

template <class E, ReduceOp op, class Index>
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
  if constexpr (kWidened && op == ReduceOp::Sum) {
    if (s.rows_in < rows && (s.index_inner == 0 || step == 1)) {
      const int64_t from = out_at + p.row_begin * s.inner + p.col_begin;
      start<Plain<Stored>, op>(base ? base + from : nullptr, s.inner, out + from, s.inner, rows,
                               step);
      add_named_rows<E, op>(s, p, index + p.col_begin * s.index_inner, src + p.col_begin,
                            out + from);
      return;
    }
  }
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
    const int64_t from = out_at + p.row_begin * s.inner + c0;
    start<E, op>(base ? base + from : nullptr, s.inner, sums, stride, rows, cols);
    if (cols == 1)
      add_column<E, op>(s, p, index + c0 * s.index_inner, src + c0, sums, stride);
    else
      add_columns<E, op>(s, p, index + c0 * s.index_inner, src + c0, cols, sums, stride);
    if constexpr (kWidened)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
          out[out_at + (p.row_begin + r) * s.inner + c0 + c] = E::store(sums[r * stride + c]);
  }
}

// Copies each row to its place, so that the last one of those that meet stays. Word is an unsigned
// integer as large as an element.
template <class Word, class Index>
void write_part(const ScatterSpec& s, const Part& p, const void* base_data, const void* index_data,
                const void* src_data, void* out_data) {
  const int64_t cols = p.col_end - p.col_begin,
                from = (p.outer * s.rows_out + p.row_begin) * s.inner + p.col_begin;
  auto* index =
      static_cast<const Index*>(index_data) + p.outer * s.index_outer + p.col_begin * s.index_inner;
  auto* src = static_cast<const Word*>(src_data) + p.outer * s.rows_in * s.inner + p.col_begin;
  auto* out = static_cast<Word*>(out_data) + from;
  auto* base = base_data ? static_cast<const Word*>(base_data) + from : nullptr;
  start<Plain<Word>, ReduceOp::Sum>(base, s.inner, out, s.inner, p.row_end - p.row_begin, cols);
  if (cols == 1) {
    for_own_rows(s, p, index,
                 [&](int64_t row, int64_t place) { out[place * s.inner] = src[row * s.inner]; });
  } else if (s.index_inner == 0) {
    for_own_rows(s, p, index, [&](int64_t row, int64_t place) {
      std::copy_n(src + row * s.inner, cols, out + place * s.inner);
    });
  } else {
    for_own_elements(s, p, index, cols, [&](int64_t row, int64_t place, int64_t col) {
      out[place * s.inner + col] = src[row * s.inner + col];
    });
  }
}

using AddPart = void (*)(const ScatterSpec&, const Part&, const void*, const void*, const void*,
                         void*);

template <class E, ReduceOp op>
AddPart by_index(DType index) {
  return index == DType::I64 ? add_part<E, op, int64_t> : add_part<E, op, int32_t>;
}

template <class E>
AddPart by_op(const ScatterSpec& s) {
  const auto parts =
      by_reduction([&]<ReduceOp op>() -> AddPart { return by_index<E, op>(s.index_dtype); });
  return parts[static_cast<size_t>(s.op)];
}

template <class Word>
AddPart writing(DType index) {
  return index == DType::I64 ? write_part<Word, int64_t> : write_part<Word, int32_t>;
}

AddPart choose_writing(const ScatterSpec& s) {
  switch (itemsize(s.dtype)) {
    case 1:
      return writing<uint8_t>(s.index_dtype);
    case 2:
      return writing<uint16_t>(s.index_dtype);
    case 4:
      return writing<uint32_t>(s.index_dtype);
    default:
      return writing<uint64_t>(s.index_dtype);
  }
}

// Null for types without such a reduction.
AddPart choose(const ScatterSpec& s) {
  if (s.index_dtype != DType::I32 && s.index_dtype != DType::I64) return nullptr;
  if (s.writes) return choose_writing(s);
  switch (s.dtype) {
    case DType::F64:
      return by_op<Plain<double>>(s);
    case DType::F32:
      return by_op<Plain<float>>(s);
    case DType::F16:
      return by_op<F16>(s);
    case DType::BF16:
      return by_op<BF16>(s);
    case DType::I8:
      return by_op<Plain<int8_t>>(s);
    case DType::I16:
      return by_op<Plain<int16_t>>(s);
    case DType::I32:
      return by_op<Plain<int32_t>>(s);
    case DType::I64:
      return by_op<Plain<int64_t>>(s);
    case DType::U8:
      return by_op<Plain<uint8_t>>(s);
    case DType::U16:
      return by_op<Plain<uint16_t>>(s);
    case DType::U32:
      return by_op<Plain<uint32_t>>(s);
    case DType::U64:
      return by_op<Plain<uint64_t>>(s);
    case DType::Bool:
      return s.op == ReduceOp::Sum ? nullptr : by_op<Plain<bool>>(s);
    default:
      return nullptr;
  }
}

}  // namespace

bool scatter_supports(const ScatterSpec& s) { return choose(s) != nullptr; }

void scatter_add(const ScatterSpec& s, const void* base, const void* index, const void* src,
                 void* out, ThreadPool& pool) {
  AddPart add = choose(s);
  if (!add) {
    throw UserError(fmt::format("scatter_add: no {} of {} by an index of {}", name(s.op),
                                name(s.dtype), name(s.index_dtype)));
  }
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
