// Rows are sorted by radix, from the least significant byte up, as words of 32 bits of key above 32
// bits of place. A byte that all keys share costs nothing. The last step writes places alone:
//
//   keys                 5  3  5  1
//   words, key:place     5:0  3:1  5:2  1:3
//   sorted               1:3  3:1  5:0  5:2
//   order                3  1  0  2
//
// Keys of 64 bits are sorted by their upper halves; then each run of equal upper halves is sorted
// by the lower ones. Runs are short where keys differ much, and where all upper halves are equal
// the lower ones are all there is to sort. Short rows are sorted as words by comparisons: words
// differ, so any algorithm gives the stable order.
//
// The k smallest of many are selected: a buffer takes the words below a bound, and each time it is
// full it keeps its k smallest, whose largest is the next bound. The buffer holds several times k
// words, so the work is linear for any order of the keys.
//
// Long rows are cut into a part per thread, each of which counts and moves its own words; many rows
// are shared among the threads instead.
#include "devices/cpu/sort.h"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>

#include "core/base/error.h"
#include "devices/cpu/thread_pool.h"

namespace tinyshard {
namespace {

constexpr int kBuckets = 256;
constexpr int64_t kCompared = 64;           // rows up to here are sorted by comparisons
constexpr int64_t kSharedRow = 1 << 16;     // longer rows are cut into parts
constexpr int64_t kShare = 1 << 13;         // elements that are worth a thread
constexpr int64_t kSelectedFraction = 4;    // up to n / 4 places are selected
constexpr int64_t kBufferedAtLeast = 1024;  // words in a selection's buffer

template <class Key>
using Word = std::conditional_t<sizeof(Key) == 8, unsigned __int128, uint64_t>;

template <class Key>
Word<Key> word_of(Key key, int64_t place) {
  return Word<Key>(key) << 32 | uint64_t(place);
}

using Counts = std::array<uint32_t, kBuckets>;

int bucket(uint32_t key, int digit) { return int(key >> (8 * digit) & 0xff); }

// Parts of [0, n), worked on by the pool or, with one part, by the caller.
struct Team {
  ThreadPool* pool = nullptr;
  int parts = 1;

  template <class Body>
  void each(int64_t n, const Body& body) const {  // body(part, begin, end)
    if (parts == 1) return body(0, 0, n);
    struct Context {
      const Body* body;
      int64_t n;
      int parts;
    } context{&body, n, parts};
    auto call = [](void* ctx, int part, int) {
      auto& c = *static_cast<Context*>(ctx);
      (*c.body)(part, ThreadPool::part_begin(c.n, c.parts, part),
                ThreadPool::part_begin(c.n, c.parts, part + 1));
    };
    pool->run(parts, call, &context);
  }
};

// The memory of one worker, or of one team.
struct Scratch {
  uint64_t *words, *other;  // n each
  Counts* counts;           // of each part
};

// The first k places of the result.
struct Order {
  int32_t* places;
  int64_t k;
  void operator()(int64_t i, uint64_t word) const {
    if (i < k) places[i] = int32_t(word);
  }
};

// Does a step of the radix sort: moves each `word(i)` to where `store(i, word)` puts it, by one
// byte of its upper half.
template <class Source, class Store>
void move_words(const Team& team, int64_t n, int digit, Counts* counts, const Source& word,
                const Store& store) {
  team.each(n, [&](int part, int64_t begin, int64_t end) {
    Counts& mine = counts[part];
    mine.fill(0);
    for (int64_t i = begin; i < end; ++i) ++mine[size_t(bucket(uint32_t(word(i) >> 32), digit))];
  });
  uint32_t before = 0;
  for (size_t b = 0; b < kBuckets; ++b) {
    for (int part = 0; part < team.parts; ++part) {
      uint32_t count = counts[part][b];
      counts[part][b] = before;
      before += count;
    }
  }
  team.each(n, [&](int part, int64_t begin, int64_t end) {
    Counts& place = counts[part];
    for (int64_t i = begin; i < end; ++i) {
      uint64_t w = word(i);
      store(place[size_t(bucket(uint32_t(w >> 32), digit))]++, w);
    }
  });
}

// The bytes in which the upper halves of the words differ, lowest first.
template <class Source>
std::pair<std::array<int, 4>, int> differing_bytes(const Team& team, int64_t n, Counts* counts,
                                                   const Source& word) {
  team.each(n, [&](int part, int64_t begin, int64_t end) {
    uint32_t first = uint32_t(word(0) >> 32), differ = 0;
    for (int64_t i = begin; i < end; ++i) differ |= uint32_t(word(i) >> 32) ^ first;
    counts[part][0] = differ;
  });
  uint32_t differ = 0;
  for (int part = 0; part < team.parts; ++part) differ |= counts[part][0];
  std::array<int, 4> digits{};
  int count = 0;
  for (int digit = 0; digit < 4; ++digit) {
    if (bucket(differ, digit) != 0) digits[size_t(count++)] = digit;
  }
  return {digits, count};
}

// Sorts the words that `first` gives by their upper halves; `first` may read s.words. What comes
// last goes to `last(i, word)`.
template <class First, class Last>
void radix_sort(const Team& team, int64_t n, const Scratch& s, const First& first,
                const Last& last) {
  auto [digits, count] = differing_bytes(team, n, s.counts, first);
  if (count == 0) {
    return team.each(n, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) last(i, first(i));
    });
  }
  uint64_t *from = s.words, *to = s.other;
  auto stored = [&](int64_t i) { return from[i]; };
  auto store = [&](int64_t i, uint64_t word) { to[i] = word; };
  for (int step = 0; step < count; ++step) {
    bool is_first = step == 0, is_last = step == count - 1;
    int digit = digits[size_t(step)];
    if (is_first && is_last)
      move_words(team, n, digit, s.counts, first, last);
    else if (is_first)
      move_words(team, n, digit, s.counts, first, store);
    else if (is_last)
      move_words(team, n, digit, s.counts, stored, last);
    else
      move_words(team, n, digit, s.counts, stored, store);
    std::swap(from, to);
  }
}

// The same with the result in memory: returns where, s.words or s.other.
template <class First>
uint64_t* radix_sort_words(const Team& team, int64_t n, const Scratch& s, const First& first) {
  auto [digits, count] = differing_bytes(team, n, s.counts, first);
  uint64_t *from = s.words, *to = s.other;
  auto stored = [&](int64_t i) { return from[i]; };
  auto store = [&](int64_t i, uint64_t word) { to[i] = word; };
  for (int step = 0; step < std::max(count, 1); ++step) {
    int digit = digits[size_t(step)];
    if (step == 0)
      move_words(team, n, digit, s.counts, first, store);
    else
      move_words(team, n, digit, s.counts, stored, store);
    std::swap(from, to);
  }
  return from;
}

template <class Key>
void sort_by_comparing(const Key* keys, int64_t n, int64_t k, int32_t* order) {
  std::array<Word<Key>, kCompared> words;
  for (int64_t i = 0; i < n; ++i) words[size_t(i)] = word_of(keys[i], i);
  std::sort(words.begin(), words.begin() + n);
  for (int64_t i = 0; i < k; ++i) order[i] = int32_t(words[size_t(i)]);
}

// The order of keys of 64 bits.
class LongKeys {
 public:
  LongKeys(const Team& team, const uint64_t* keys, int64_t n, const Order& order, const Scratch& s)
      : team_(team), keys_(keys), n_(n), order_(order), s_(s) {}

  void sort() {
    auto upper = [&](int64_t i) { return (keys_[i] >> 32 << 32) | uint64_t(i); };
    if (differing_bytes(team_, n_, s_.counts, upper).second == 0) {
      auto lower = [&](int64_t i) { return keys_[i] << 32 | uint64_t(i); };
      return radix_sort(team_, n_, s_, lower, order_);
    }
    words_ = radix_sort_words(team_, n_, s_, upper);
    other_ = words_ == s_.words ? s_.other : s_.words;
    // Each part has the runs that begin in it: first all parts look, then they write.
    team_.each(n_, [&](int part, int64_t begin, int64_t) {
      while (begin > 0 && begin < n_ && same_run(begin - 1, begin)) ++begin;
      s_.counts[part][0] = uint32_t(begin);
    });
    team_.each(n_, [&](int part, int64_t, int64_t) {
      int64_t end = part + 1 < team_.parts ? s_.counts[part + 1][0] : n_;
      sort_runs(s_.counts[part][0], end);
    });
    if (team_.parts > 1) sort_long_runs();
  }

 private:
  // Compares the keys themselves: a run that was sorted has other words, but the same places.
  bool same_run(int64_t a, int64_t b) const {
    return keys_[uint32_t(words_[a])] >> 32 == keys_[uint32_t(words_[b])] >> 32;
  }

  // Longer runs are left to all threads.
  bool is_long(int64_t n) const { return team_.parts > 1 && n > kSharedRow; }

  // Sorts each run in [begin, end). No run crosses these borders.
  void sort_runs(int64_t begin, int64_t end) {
    Counts counts;
    while (begin < end) {
      uint64_t upper = words_[begin] >> 32;
      int64_t next = begin + 1;
      while (next < end && words_[next] >> 32 == upper) ++next;
      int64_t n = next - begin;
      if (n == 1) {
        order_(begin, words_[begin]);
      } else if (!is_long(n)) {
        take_lower(begin, next);
        uint64_t* sorted = words_ + begin;
        if (n <= kCompared) {
          std::sort(sorted, sorted + n);
        } else {
          sorted = radix_sort_words(Team{}, n, Scratch{sorted, other_ + begin, &counts},
                                    [&](int64_t i) { return words_[begin + i]; });
        }
        for (int64_t i = 0; i < n; ++i) order_(begin + i, sorted[i]);
        // The places of the run stay in it, for those who ask which run an element is of.
        if (sorted != words_ + begin) std::copy(sorted, sorted + n, words_ + begin);
      }
      begin = next;
    }
  }

  // A long run holds one of the places in question.
  void sort_long_runs() {
    int64_t done = 0;
    for (int64_t place = 0; place < n_; place += kSharedRow) {
      if (place < done) continue;
      int64_t begin = place, end = place + 1;
      while (begin > done && same_run(begin - 1, place)) --begin;
      while (end < n_ && same_run(end, place)) ++end;
      done = end;
      if (!is_long(end - begin)) continue;
      team_.each(end - begin,
                 [&](int, int64_t from, int64_t to) { take_lower(begin + from, begin + to); });
      radix_sort(
          team_, end - begin, Scratch{words_ + begin, other_ + begin, s_.counts},
          [&](int64_t i) { return words_[begin + i]; },
          [&](int64_t i, uint64_t word) { order_(begin + i, word); });
    }
  }

  void take_lower(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      uint64_t place = uint32_t(words_[i]);
      words_[i] = keys_[place] << 32 | place;
    }
  }

  const Team& team_;
  const uint64_t* keys_;
  int64_t n_;
  const Order& order_;
  const Scratch& s_;
  uint64_t *words_ = nullptr, *other_ = nullptr;  // sorted by the upper halves; as much memory
};

template <class Key>
void sort_by_radix(const Team& team, const Key* keys, int64_t n, const Order& order,
                   const Scratch& s) {
  if constexpr (sizeof(Key) == 8)
    LongKeys(team, keys, n, order, s).sort();
  else
    radix_sort(team, n, s, [&](int64_t i) { return word_of(keys[i], i); }, order);
}

int64_t buffered(int64_t k) { return std::max(4 * k, kBufferedAtLeast); }

// Moves the k smallest words of [begin, end), which holds at least k, to the front of the buffer.
template <class Key>
void select(const Key* keys, int64_t begin, int64_t end, int64_t k, Word<Key>* buffer) {
  const int64_t capacity = buffered(k);
  int64_t count = std::min(end - begin, capacity);
  for (int64_t i = 0; i < count; ++i) buffer[i] = word_of(keys[begin + i], begin + i);
  Word<Key> bound{};
  auto keep = [&] {
    if (count > k) std::nth_element(buffer, buffer + k - 1, buffer + count);
    count = k;
    bound = buffer[k - 1];
  };
  keep();
  for (int64_t i = begin + std::min(end - begin, capacity); i < end; ++i) {
    Word<Key> word = word_of(keys[i], i);
    if (word >= bound) continue;
    buffer[count++] = word;
    if (count == capacity) keep();
  }
  keep();
}

template <class Key>
void write_sorted(Word<Key>* words, int64_t k, int32_t* order) {
  std::sort(words, words + k);
  for (int64_t i = 0; i < k; ++i) order[i] = int32_t(words[i]);
}

bool selects(const SortSpec& s) { return s.n > kCompared && s.k <= s.n / kSelectedFraction; }

// True if each thread gets some of the rows, false if it gets a part of each row.
bool shares_rows(const SortSpec& s, int threads) { return s.rows >= threads || s.n < kSharedRow; }

// Returns how many workers there are. They have some rows each, or a part of each row.
int workers(const SortSpec& s, int threads) {
  int64_t useful =
      shares_rows(s, threads) ? std::max<int64_t>(1, s.rows * s.n / kShare) : s.n / kSharedRow * 2;
  return int(std::min(int64_t(threads), useful));
}

int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Bytes of one worker's buffer of a selection, or of one sort.
int64_t selection_bytes(const SortSpec& s) {
  return whole_lines(buffered(s.k) * (itemsize(s.key) == 8 ? 16 : 8));
}
int64_t sort_bytes(const SortSpec& s, int parts) {
  return whole_lines(2 * s.n * 8 + parts * int64_t(sizeof(Counts)));
}

template <class Key>
void run(const SortSpec& s, const Key* keys, int32_t* order, char* scratch, ThreadPool& pool) {
  const int team = workers(s, pool.threads());
  auto sort_one = [&](int64_t row, const Team& members, char* memory) {
    auto* words = reinterpret_cast<uint64_t*>(memory);
    Scratch mine{words, words + s.n, reinterpret_cast<Counts*>(words + 2 * s.n)};
    sort_by_radix(members, keys + row * s.n, s.n, Order{order + row * s.k, s.k}, mine);
  };
  if (shares_rows(s, pool.threads())) {
    Team{&pool, int(std::min<int64_t>(team, s.rows))}.each(
        s.rows, [&](int part, int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            const Key* mine = keys + row * s.n;
            if (s.n <= kCompared) {
              sort_by_comparing(mine, s.n, s.k, order + row * s.k);
            } else if (selects(s)) {
              auto* buffer = reinterpret_cast<Word<Key>*>(scratch + part * selection_bytes(s));
              select(mine, 0, s.n, s.k, buffer);
              write_sorted<Key>(buffer, s.k, order + row * s.k);
            } else {
              sort_one(row, Team{}, scratch + part * sort_bytes(s, 1));
            }
          }
        });
    return;
  }
  for (int64_t row = 0; row < s.rows; ++row) {
    Team members{&pool, team};
    if (!selects(s)) {
      sort_one(row, members, scratch);
      continue;
    }
    auto buffer = [&](int part) {
      return reinterpret_cast<Word<Key>*>(scratch + part * selection_bytes(s));
    };
    // Each part's k smallest, then those of all of them, in the first part's buffer.
    auto kept = [&](int64_t size) { return std::min(size, s.k); };
    members.each(s.n, [&](int part, int64_t begin, int64_t end) {
      select(keys + row * s.n, begin, end, kept(end - begin), buffer(part));
    });
    Word<Key>* all = buffer(0);
    int64_t count = 0;
    for (int part = 0; part < team; ++part) {
      int64_t size =
          ThreadPool::part_begin(s.n, team, part + 1) - ThreadPool::part_begin(s.n, team, part);
      if (part > 0) std::copy(buffer(part), buffer(part) + kept(size), all + count);
      count += kept(size);
      if (count <= s.k) continue;
      std::nth_element(all, all + s.k - 1, all + count);
      count = s.k;
    }
    write_sorted<Key>(all, s.k, order + row * s.k);
  }
}

}  // namespace

bool sort_supports(const SortSpec& s) {
  return is_unsigned_int(s.key) && s.n <= INT32_MAX && s.k <= s.n;
}

int64_t sort_scratch_bytes(const SortSpec& s, int threads) {
  if (s.n <= kCompared) return 0;
  int count = workers(s, threads);
  if (selects(s)) return count * selection_bytes(s);
  return shares_rows(s, threads) ? count * sort_bytes(s, 1) : sort_bytes(s, count);
}

void sort_rows(const SortSpec& s, const void* keys, int32_t* order, void* scratch,
               ThreadPool& pool) {
  check_internal(sort_supports(s), "a sort of unsigned keys");
  if (s.rows <= 0 || s.k <= 0) return;
  auto* memory = static_cast<char*>(scratch);
  switch (s.key) {
    case DType::U8:
      return run(s, static_cast<const uint8_t*>(keys), order, memory, pool);
    case DType::U16:
      return run(s, static_cast<const uint16_t*>(keys), order, memory, pool);
    case DType::U32:
      return run(s, static_cast<const uint32_t*>(keys), order, memory, pool);
    default:
      return run(s, static_cast<const uint64_t*>(keys), order, memory, pool);
  }
}

}  // namespace tinyshard
