// A map from addresses to who wrote a piece of memory last, and who has read it since, gives the
// order: a reader comes after the writer, a writer after all readers. An edge that others imply is
// left out. A step is urgent if the longest chain through it is nearly the longest of all.
//
//   0 writes a, 1 reads a, 2 reads a, 3 writes a    1 after 0, 2 after 0, 3 after 1 and 2, not 0
#include "core/schedule/hazards.h"

#include <algorithm>
#include <map>

namespace tinyshard {
namespace {

// Remembers which step touched each byte of one memory last.
class Touched {
 public:
  void read(int step, int64_t begin, int64_t end, std::vector<int>& after) {
    cut(begin);
    cut(end);
    for (auto piece = pieces_.lower_bound(begin); piece->first < end; ++piece) {
      if (piece->second.writer >= 0) after.push_back(piece->second.writer);
      piece->second.readers.push_back(step);
    }
  }

  void write(int step, int64_t begin, int64_t end, std::vector<int>& after) {
    cut(begin);
    cut(end);
    auto first = pieces_.lower_bound(begin), last = pieces_.lower_bound(end);
    for (auto piece = first; piece != last; ++piece) {
      const Piece& p = piece->second;
      // Readers came after the writer.
      if (p.readers.empty() && p.writer >= 0) after.push_back(p.writer);
      after.insert(after.end(), p.readers.begin(), p.readers.end());
    }
    pieces_.erase(first, last);
    pieces_[begin] = {step, {}};
  }

 private:
  struct Piece {  // up to where the next one begins
    int writer = -1;
    std::vector<int> readers;
  };

  void cut(int64_t at) {
    auto next = pieces_.lower_bound(at);
    if (next != pieces_.end() && next->first == at) return;
    pieces_[at] = next == pieces_.begin() ? Piece() : std::prev(next)->second;
  }

  std::map<int64_t, Piece> pieces_;
};

// Knows which of the last 8192 steps before it each step comes after, so that memory grows with the
// number of steps and not with its square. What lies further back counts as not known.
class KnownOrder {
 public:
  explicit KnownOrder(size_t steps) : rows_(steps) {}

  bool has(size_t step, size_t earlier) const {
    const size_t first = first_word(step);
    if (rows_[step].empty() || earlier / 64 < first) return false;
    return rows_[step][earlier / 64 - first] >> (earlier % 64) & 1;
  }

  // The step comes after an earlier one, and after all that this one comes after.
  void add(size_t step, size_t earlier) {
    const size_t first = first_word(step);
    std::vector<uint64_t>& row = rows_[step];
    row.resize(step / 64 - first + 1);
    if (earlier / 64 < first) return;
    row[earlier / 64 - first] |= uint64_t{1} << (earlier % 64);
    const std::vector<uint64_t>& known = rows_[earlier];
    const size_t offset = first - first_word(earlier);
    for (size_t w = offset; w < known.size(); ++w) row[w - offset] |= known[w];
  }

 private:
  static constexpr size_t kWords = 8192 / 64;

  // Bit b of word w of a row stands for step 64 (first_word(step) + w) + b.
  static size_t first_word(size_t step) { return std::max(step / 64, kWords) - kWords; }

  std::vector<std::vector<uint64_t>> rows_;
};

}  // namespace

std::vector<std::vector<int>> hazards(std::span<const std::vector<Access>> steps) {
  std::map<uint64_t, Touched> memories;
  std::vector<std::vector<int>> result(steps.size());
  KnownOrder order(steps.size());
  std::vector<int> after;
  for (size_t s = 0; s < steps.size(); ++s) {
    after.clear();
    // A step reads what it reads before it writes.
    for (bool written : {false, true}) {
      for (const Access& a : steps[s]) {
        if (a.written != written || a.begin >= a.end) continue;
        Touched& memory = memories[a.memory];
        if (written)
          memory.write(int(s), a.begin, a.end, after);
        else
          memory.read(int(s), a.begin, a.end, after);
      }
    }
    std::ranges::sort(after, std::greater());
    for (int t : after) {
      if (t == int(s) || order.has(s, size_t(t))) continue;
      result[s].push_back(t);
      order.add(s, size_t(t));
    }
    std::ranges::reverse(result[s]);
  }
  return result;
}

std::vector<bool> urgent_steps(std::span<const std::vector<int>> after) {
  constexpr int kSlack = 8;  // part of the longest chain that an urgent step may wait for
  std::vector<int> length(after.size(), 1);  // of the longest chain that ends with a step
  std::vector<int> rest(after.size(), 0);    // of the longest one that comes after it
  int longest = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    for (int earlier : after[i]) length[i] = std::max(length[i], length[size_t(earlier)] + 1);
    longest = std::max(longest, length[i]);
  }
  for (size_t i = after.size(); i-- > 0;) {
    for (int earlier : after[i])
      rest[size_t(earlier)] = std::max(rest[size_t(earlier)], rest[i] + 1);
  }
  std::vector<bool> urgent(after.size());
  for (size_t i = 0; i < after.size(); ++i)
    urgent[i] = kSlack * (longest - length[i] - rest[i]) <= longest;
  return urgent;
}

}  // namespace tinyshard
