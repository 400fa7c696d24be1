// Draws of sizes and numbers. They depend on the seed alone, also with another standard library.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <random>
#include <vector>

#include "core/uop/uop.h"

namespace tinyshard::sweep {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  int64_t below(int64_t n) { return int64_t(random_() % uint64_t(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int64_t percent) { return below(100) < percent; }
  template <class T>
  T pick(const std::vector<T>& of) {
    return of[size_t(below(int64_t(of.size())))];
  }
  template <class T>
  T pick(std::initializer_list<T> of) {
    return pick(std::vector<T>(of));
  }
  template <class T>
  void shuffle(std::vector<T>& list) {
    for (size_t i = list.size(); i > 1; --i)
      std::swap(list[i - 1], list[size_t(below(int64_t(i)))]);
  }

  // About so many elements: dims of unlike sizes, powers of two and odd ones, and short ones too.
  Dims shape(int64_t elements, int64_t dims) {
    Dims sizes;
    for (int64_t left = dims; left > 1; --left) {
      const double even = std::pow(double(elements), 1.0 / double(left));
      int64_t size = std::max<int64_t>(1, int64_t(even * pick({0.05, 0.3, 0.7, 1.0, 1.0, 2.0})));
      if (chance(40))
        while ((size & (size - 1)) != 0) size &= size - 1;
      sizes.push_back(std::min(size, elements));
      elements = std::max<int64_t>(1, elements / sizes.back());
    }
    sizes.push_back(elements);
    shuffle(sizes);
    return sizes;
  }
  Dims shape(int64_t elements) { return shape(elements, pick<int64_t>({1, 2, 2, 3, 3, 4})); }

  Dims order(int64_t n) {
    Dims places(static_cast<size_t>(n));
    std::iota(places.begin(), places.end(), 0);
    shuffle(places);
    return places;
  }
  // Some of n axes, in rising order; seldom all.
  Dims axes(int64_t n) {
    Dims some = order(n);
    some.resize(size_t(n > 1 && chance(85) ? between(1, n - 1) : n));
    std::ranges::sort(some);
    return some;
  }
  int64_t axis(int64_t n) { return chance(50) ? n - 1 : below(n); }

 private:
  std::mt19937_64 random_;
};

}  // namespace tinyshard::sweep
