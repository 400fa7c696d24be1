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

}  // namespace

std::vector<std::vector<int>> hazards(std::span<const std::vector<Access>> steps) {
  std::map<uint64_t, Touched> memories;
  std::vector<std::vector<int>> result(steps.size());
  // Bit b of row s: step s comes after step b.
  const size_t words = (steps.size() + 63) / 64;
  std::vector<std::vector<uint64_t>> reaches(steps.size(), std::vector<uint64_t>(words));
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
    auto& reached = reaches[s];
    for (int t : after) {
      if (t == int(s) || (reached[size_t(t) / 64] >> (t % 64) & 1)) continue;
      result[s].push_back(t);
      reached[size_t(t) / 64] |= uint64_t{1} << (t % 64);
      for (size_t w = 0; w < words; ++w) reached[w] |= reaches[size_t(t)][w];
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
