// The kind of a random program: its types, sizes, length and the kinds of ops that it is made
// of, so that each kind of composition comes up often somewhere instead of everything seldom
// everywhere.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "tests/fuzz/program.h"

namespace fuzz {

// Choices by a seed: the same seed, the same choices.
class Choices {
 public:
  explicit Choices(uint64_t seed) : random_(seed) {}
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return pick(1, 100) <= percent; }
  template <class List>
  const auto& one_of(const List& list) {
    return *(std::begin(list) + pick(0, int(std::size(list)) - 1));
  }
  template <class List>
  void shuffle(List& list) {
    std::ranges::shuffle(list, random_);
  }

 private:
  std::mt19937_64 random_;
};

enum class Sizes : uint8_t { Small, Tails, Large };

// Sizes around those of vectors and tiles.
inline constexpr int64_t kTails[] = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 129};

// Which functions of draw.h a step comes from.
enum class Kind : uint8_t {
  Unary,
  Binary,
  Comparison,
  Types,
  Making,
  Movement,
  Joining,
  Reduction,
  Identity,
  Norm,
  Scan,
  Ordering,
  Product,
  Indexing,
  Selection,
  Pooling,
  Layer,
  Decomposition,
  Statement
};
inline constexpr int kKinds = int(Kind::Statement) + 1;

struct Profile {
  std::vector<Type> types;
  Style style = Style::Uniform;
  Sizes sizes = Sizes::Small;
  int64_t limit = 600;  // elements of a value
  int length = 10;
  int calls = 1;
  std::vector<int64_t> mesh;
  bool gradient = false;    // roots are differentiated
  bool stateful = false;    // some leaves live on between calls
  bool assigns = false;     // some leaves are written
  bool meets_sums = false;  // most operands are results of reductions over shards
  int weights[kKinds] = {};

  int& weight(Kind kind) { return weights[size_t(kind)]; }
};

Profile choose_profile(Choices& choices);

}  // namespace fuzz
