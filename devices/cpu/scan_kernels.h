// The scans of one chunk of a line, or of a chunk of several columns side by side: what devices/cpu/scan.cpp
// gives to threads. A kind has a Carry, the total of all chunks before, and
//
//   inside(chunk, totals)    writes the totals of the chunk alone, and what each column comes to
//   apply(chunk, carries)    puts what came before under them
//   join(carry, total)       the carry of the next chunk
#pragma once
#include <cstdint>
#include <limits>
#include <type_traits>

namespace tinyshard::scans {

constexpr int64_t kMostColumns = 256;  // of a chunk

// Elements at x[row * step + column], and results there of out. `begin` is the place of the first row.
template <class T, class Out>
struct Chunk {
  const T* x;
  Out* out;
  int64_t rows, columns, step, begin;
};

template <class T>
struct WideOf {
  using Type = T;
};
template <>
struct WideOf<float> {
  using Type = double;
};

struct Add {
  static constexpr int kIdentity = 0;
  template <class T>
  static T of(T a, T b) {
    return a + b;
  }
};
struct Multiply {
  static constexpr int kIdentity = 1;
  template <class T>
  static T of(T a, T b) {
    return a * b;
  }
};

// --- sums and products ---------------------------------------------------------------------------

template <class T>
struct Lanes {
  static constexpr int kCount = 16 / sizeof(T);
  using Vector __attribute__((vector_size(16))) = T;
  static Vector load(const T* p) {
    Vector v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static void store(T* p, Vector v) { __builtin_memcpy(p, &v, sizeof v); }
  static Vector all(T x) { return Vector{} + x; }
  static Vector reversed(Vector v) {
    if constexpr (kCount == 4)
      return __builtin_shufflevector(v, v, 3, 2, 1, 0);
    else
      return __builtin_shufflevector(v, v, 1, 0);
  }
  static Vector last(Vector v) {
    if constexpr (kCount == 4)
      return __builtin_shufflevector(v, v, 3, 3, 3, 3);
    else
      return __builtin_shufflevector(v, v, 1, 1);
  }
  // Scans the lanes: the second of two halves comes after all of the first, so that a sum of what is
  // not negative never falls.
  template <class Op>
  static Vector scan(Vector v) {
    const Vector none = all(T(Op::kIdentity));
    if constexpr (kCount == 4) {
      v = Op::of(__builtin_shufflevector(none, v, 0, 4, 0, 6), v);
      return Op::of(__builtin_shufflevector(none, v, 0, 0, 5, 5), v);
    } else {
      return Op::of(__builtin_shufflevector(none, v, 0, 2), v);
    }
  }
};

// Floats are added up in blocks, these in a chunk, and chunks in a wider type: no sum has many
// roundings. Each level starts where the one below ended, so it never falls either:
//
//   carry + (blocks before + (elements before + element))
template <class Op, class T, bool reverse>
struct Totals {
  using Element = T;
  using Out = T;
  using Carry = typename WideOf<T>::Type;
  static constexpr bool kAppliesAlways = false, kWholeColumns = false;
  static constexpr int64_t kBlock = 256, kColumnBlock = 128, kColumns = kMostColumns;

  static Carry start() { return Carry(Op::kIdentity); }
  static Carry join(Carry before, Carry total) { return Op::of(before, total); }

  static void inside(const Chunk<T, T>& c, Carry* totals) {
    if (c.columns == 1 && (c.step == 1 || c.step == -1)) {
      totals[0] = Carry(inside_row(c.x, c.out, c.rows));
      return;
    }
    T before[kMostColumns], sums[kMostColumns];
    for (int64_t j = 0; j < c.columns; ++j) before[j] = sums[j] = T(Op::kIdentity);
    for (int64_t row = 0; row < c.rows; ++row) {
      const T* x = c.x + row * c.step;
      T* __restrict out = c.out + row * c.step;
      if (row % kColumnBlock == 0) {
        for (int64_t j = 0; j < c.columns; ++j) {
          before[j] = Op::of(before[j], sums[j]);
          sums[j] = T(Op::kIdentity);
        }
      }
      for (int64_t j = 0; j < c.columns; ++j) {
        sums[j] = Op::of(sums[j], x[j]);
        out[j] = Op::of(before[j], sums[j]);
      }
    }
    for (int64_t j = 0; j < c.columns; ++j) totals[j] = Carry(Op::of(before[j], sums[j]));
  }

  static void apply(const Chunk<T, T>& c, const Carry* carries) {
    if (c.columns == 1 && (c.step == 1 || c.step == -1)) {
      T* out = reverse ? c.out - (c.rows - 1) : c.out;
      const Carry carry = carries[0];
      for (int64_t i = 0; i < c.rows; ++i) out[i] = T(Op::of(carry, Carry(out[i])));
      return;
    }
    for (int64_t row = 0; row < c.rows; ++row) {
      T* __restrict out = c.out + row * c.step;
      for (int64_t j = 0; j < c.columns; ++j) out[j] = T(Op::of(carries[j], Carry(out[j])));
    }
  }

 private:
  using L = Lanes<T>;

  // A row in reverse begins at its end.
  static T inside_row(const T* x, T* out, int64_t n) {
    constexpr int64_t kStep = reverse ? -1 : 1;
    constexpr int64_t kFirst = reverse ? 1 - L::kCount : 0;
    T before = T(Op::kIdentity);
    for (int64_t i = 0; i < n;) {
      const int64_t end = n - i < kBlock ? n : i + kBlock;
      auto sums = L::all(T(Op::kIdentity));
      const auto base = L::all(before);
      for (; i + L::kCount <= end; i += L::kCount) {
        auto v = L::load(x + kStep * i + kFirst);
        if constexpr (reverse) v = L::reversed(v);
        v = Op::of(sums, L::template scan<Op>(v));
        sums = L::last(v);
        v = Op::of(base, v);
        if constexpr (reverse) v = L::reversed(v);
        L::store(out + kStep * i + kFirst, v);
      }
      T sum = sums[0];
      for (; i < end; ++i) {
        sum = Op::of(sum, x[kStep * i]);
        out[kStep * i] = Op::of(before, sum);
      }
      before = Op::of(before, sum);
    }
    return before;
  }
};

// --- maxima and minima ---------------------------------------------------------------------------

// The running maximum or minimum, or its places. Of equal elements it is the first; NaN, once reached, stays.
// It changes seldom, so some elements at a time are looked at whether any is better.
template <class T, bool least, bool places>
struct Best {
  using Element = T;
  using Out = std::conditional_t<places, int32_t, T>;
  struct Carry {
    T value;
    int32_t place;
  };
  static constexpr bool kAppliesAlways = false, kWholeColumns = true;
  static constexpr int64_t kColumns = kMostColumns;

  static Carry start() {
    using Limits = std::numeric_limits<T>;
    if constexpr (Limits::has_infinity)
      return {least ? Limits::infinity() : -Limits::infinity(), 0};
    else
      return {least ? Limits::max() : Limits::lowest(), 0};
  }
  static bool better(T before, T own) {
    const bool found = least ? own < before : before < own;
    if constexpr (Limits::has_quiet_NaN)
      return found | ((own != own) & (before == before));
    else
      return found;
  }
  static Carry join(const Carry& before, const Carry& total) {
    return better(before.value, total.value) ? total : before;
  }

  static void inside(const Chunk<T, Out>& c, Carry* totals) {
    if (c.columns == 1 && c.step == 1) {
      totals[0] = inside_row(c);
      return;
    }
    T best[kMostColumns];
    int32_t place[kMostColumns];
    for (int64_t j = 0; j < c.columns; ++j) best[j] = c.x[j], place[j] = int32_t(c.begin);
    for (int64_t row = 0; row < c.rows; ++row) {
      const T* x = c.x + row * c.step;
      Out* __restrict out = c.out + row * c.step;
      const auto here = int32_t(c.begin + row);
      for (int64_t j = 0; j < c.columns; ++j) {
        const bool now = better(best[j], x[j]);
        best[j] = now ? x[j] : best[j];
        if constexpr (places) {
          place[j] = now ? here : place[j];
          out[j] = place[j];
        } else {
          out[j] = best[j];
        }
      }
    }
    for (int64_t j = 0; j < c.columns; ++j) totals[j] = {best[j], place[j]};
  }

  // Columns are never cut into chunks. Of a row the elements from the first on that is better than
  // what came before stay as they are.
  static void apply(const Chunk<T, Out>& c, const Carry* carries) {
    const Carry carry = carries[0];
    int64_t low = 0, high = c.rows;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (better(carry.value, value_at(c, middle)))
        high = middle;
      else
        low = middle + 1;
    }
    for (int64_t i = 0; i < low; ++i) c.out[i] = result(carry);
  }

 private:
  using Limits = std::numeric_limits<T>;
  static constexpr int64_t kLooked = 64 / sizeof(T);

  // Looks at kLooked elements. `before` is a number.
  static bool any_better(T before, const T* x) {
    using L = Lanes<T>;
    const auto all = L::all(before);
    auto equal_or_worse = least ? L::load(x) >= all : L::load(x) <= all;
    for (int64_t k = L::kCount; k < kLooked; k += L::kCount)
      equal_or_worse &= least ? L::load(x + k) >= all : L::load(x + k) <= all;
    int64_t halves[2];
    static_assert(sizeof halves == sizeof equal_or_worse);
    __builtin_memcpy(halves, &equal_or_worse, sizeof halves);
    return (halves[0] & halves[1]) != -1;
  }

  static Out result(const Carry& best) {
    if constexpr (places)
      return best.place;
    else
      return best.value;
  }
  static T value_at(const Chunk<T, Out>& c, int64_t i) {
    if constexpr (places)
      return c.x[c.out[i] - c.begin];
    else
      return c.out[i];
  }

  static Carry inside_row(const Chunk<T, Out>& c) {
    Carry best{c.x[0], int32_t(c.begin)};
    int64_t i = 0;
    auto one = [&] {
      const bool now = better(best.value, c.x[i]);
      best.value = now ? c.x[i] : best.value;
      best.place = now ? int32_t(c.begin + i) : best.place;
      c.out[i] = result(best);
      ++i;
    };
    while (i + kLooked <= c.rows && best.value == best.value) {
      if (any_better(best.value, c.x + i)) {
        for (int64_t k = 0; k < kLooked; ++k) one();
      } else {
        for (int64_t k = 0; k < kLooked; ++k) c.out[i + k] = result(best);
        i += kLooked;
      }
    }
    while (i < c.rows) one();
    return best;
  }
};

}  // namespace tinyshard::scans
