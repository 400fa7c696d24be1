// constant + sum of coefficient * atom: the form in which Index sums are computed. Atoms are
// numbers given by IndexAlgebra. Internal to core/rewrite.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

namespace tinyshard {

// A vector of plain data whose first N elements need no allocation.
template <class T, size_t N>
class SmallVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  SmallVector() = default;
  SmallVector(const SmallVector& other) { *this = other; }
  SmallVector(SmallVector&& other) noexcept { *this = std::move(other); }
  ~SmallVector() { drop(); }
  SmallVector& operator=(const SmallVector& other) {
    if (this == &other) return *this;
    size_ = 0;
    reserve(other.size_);
    std::memcpy(data_, other.data_, other.size_ * sizeof(T));
    size_ = other.size_;
    return *this;
  }
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this == &other) return *this;
    if (other.data_ == other.inline_) {
      std::memcpy(data_, other.inline_, other.size_ * sizeof(T));  // capacity is at least N
    } else {
      drop();
      data_ = other.data_;
      capacity_ = other.capacity_;
      other.data_ = other.inline_;
      other.capacity_ = N;
    }
    size_ = other.size_;
    other.size_ = 0;
    return *this;
  }

  void push_back(const T& value) {
    if (size_ == capacity_) {
      T copy = value;
      reserve(capacity_ * 2);
      data_[size_++] = copy;
      return;
    }
    data_[size_++] = value;
  }
  void erase(T* at) {
    std::memmove(at, at + 1, static_cast<size_t>(end() - at - 1) * sizeof(T));
    --size_;
  }
  void resize_down(size_t n) { size_ = static_cast<uint32_t>(n); }
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  void reserve(size_t n) {
    if (n <= capacity_) return;
    T* larger = new T[n];
    std::memcpy(larger, data_, size_ * sizeof(T));
    drop();
    data_ = larger;
    capacity_ = static_cast<uint32_t>(n);
  }
  void drop() {
    if (data_ != inline_) delete[] data_;
    data_ = inline_;
    capacity_ = N;
  }

  T inline_[N];
  T* data_ = inline_;
  uint32_t size_ = 0, capacity_ = N;
};

// Grows without moving its elements.
template <class T>
class StableVector {
 public:
  size_t size() const { return size_; }
  T& operator[](size_t i) { return chunks_[i / kChunk][i % kChunk]; }
  const T& operator[](size_t i) const { return chunks_[i / kChunk][i % kChunk]; }
  // A new element, as the default constructor makes it.
  T& add() {
    if (size_ == chunks_.size() * kChunk)
      chunks_.push_back(std::make_unique_for_overwrite<T[]>(kChunk));
    return (*this)[size_++];
  }
  void clear() {
    chunks_.clear();
    size_ = 0;
  }

 private:
  static constexpr size_t kChunk = 16;
  std::vector<std::unique_ptr<T[]>> chunks_;
  size_t size_ = 0;
};

// Thrown when a coefficient leaves 64 bits; the caller then leaves the expression as it is.
struct IndexOverflow {};

inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_add_overflow(a, b, &r)) throw IndexOverflow();
  return r;
}
inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_mul_overflow(a, b, &r)) throw IndexOverflow();
  return r;
}
// For a positive divisor.
inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
inline int64_t floor_mod(int64_t a, int64_t b) {
  int64_t r = a % b;
  return r < 0 ? r + b : r;
}
inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); }
inline uint64_t magnitude(int64_t a) {
  return a < 0 ? 0 - static_cast<uint64_t>(a) : static_cast<uint64_t>(a);
}

struct Term {
  int64_t coefficient;
  uint32_t atom;
  bool operator==(const Term&) const = default;
};

struct Linear {
  int64_t constant = 0;
  SmallVector<Term, 6> terms;  // each atom once, no zero coefficient, in canonical order

  Linear() = default;
  explicit Linear(int64_t value) : constant(value) {}
  bool is_constant() const { return terms.empty(); }
  int64_t coefficient(uint32_t atom) const {
    for (const Term& t : terms) {
      if (t.atom == atom) return t.coefficient;
    }
    return 0;
  }
  bool operator==(const Linear& other) const {
    return constant == other.constant && std::ranges::equal(terms, other.terms);
  }
};

inline int64_t gcd_of_coefficients(const Linear& x) {
  uint64_t g = 0;
  for (const Term& t : x.terms) {
    g = std::gcd(g, magnitude(t.coefficient));
    if (g == 1) break;
  }
  return static_cast<int64_t>(g);
}

}  // namespace tinyshard
