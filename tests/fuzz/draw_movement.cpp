// Steps that move elements: shapes, slices, parts put together.
#include <numeric>

#include "tests/fuzz/draw.h"

namespace fuzz {
namespace {

// Another shape of as many elements.
Shape factored(Draft& d, int64_t n) {
  Shape shape;
  for (int64_t f = 2; n > 1 && shape.size() < 4;) {
    while (n % f != 0) ++f;
    shape.push_back(f), n /= f;
    if (d.chance(30) && n > 1) {
      shape.back() *= n, n = 1;
    } else if (shape.size() > 1 && d.chance(50)) {
      int64_t last = shape.back();
      shape.pop_back(), shape.back() *= last;
    }
  }
  if (n > 1) shape.push_back(n);
  d.shuffle(shape);
  if (d.chance(15)) shape.insert(shape.begin() + d.pick(0, int(shape.size())), 1);
  return shape;
}

void pad(Draft& d, Step& s, int rank) {
  s.op = "pad", s.n = {d.chance(60) ? 0 : d.pick(1, 3)}, s.d = {d.chance(70) ? 0.0 : 1.0};
  bool shrinks = s.n[0] == 0 && d.chance(20);
  for (int i = 0; i < 2 * rank; ++i) s.n.push_back(d.chance(50) ? 0 : d.pick(shrinks ? -1 : 0, 3));
}

void slices(Draft& d, Step& s, int rank) {
  s.op = "slices";
  for (int i = 0; i < rank; ++i) {
    if (d.chance(40))
      s.n.insert(s.n.end(), {0, 1000000, 1});
    else if (d.chance(50))
      s.n.insert(s.n.end(), {d.pick(0, 2), 1000000, d.pick(1, 3)});
    else
      s.n.insert(s.n.end(), {1000000, -1000000, -d.pick(1, 2)});
  }
}

// "a b c -> (c a) b": letters for dims, in any order, two of them put together.
void rearrange(Draft& d, Step& s, int rank) {
  std::string letters = std::string("abcdefgh").substr(0, size_t(rank)), right = letters, left;
  for (char c : letters) left += (left.empty() ? "" : "_") + std::string(1, c);
  d.shuffle(right);
  int first = rank > 1 && d.chance(60) ? d.pick(0, rank - 2) : -2;
  std::string out;
  for (int i = 0; i < rank; ++i) {
    out += out.empty() ? "" : "_";
    out += (i == first ? "(" : "") + std::string(1, right[size_t(i)]) + (i == first + 1 ? ")" : "");
  }
  s.op = "rearrange", s.text = left + "_->_" + out;
}

// Splits a dim into several.
bool unflatten(Draft& d, Step& s, int64_t dim, int64_t n) {
  Shape parts = factored(d, n);
  if (parts.empty()) return false;
  s.op = "unflatten", s.n = {dim};
  s.n.insert(s.n.end(), parts.begin(), parts.end());
  return true;
}

// A part of a split into even or given sizes, or into so many.
void part(Draft& d, Step& s, int64_t dim, int64_t n) {
  int kind = d.pick(0, 2);
  if (kind == 0) {
    int64_t size = d.pick(1, int(n));
    s.op = "part", s.n = {size, dim, d.pick(0, int((n + size - 1) / size) - 1)};
  } else if (kind == 1) {
    int64_t chunks = d.pick(1, int(std::min<int64_t>(n, 5))), size = (n + chunks - 1) / chunks;
    s.op = "chunk", s.n = {chunks, dim, d.pick(0, int((n + size - 1) / size) - 1)};
  } else {
    int64_t first = d.pick(0, int(n));
    s.op = "part_of_sizes", s.n = {dim, d.pick(0, 1), first, n - first};
  }
}

}  // namespace

bool draw_movement(Draft& d, Step& s) {
  int x = d.with_dims(1);
  if (x < 0) return false;
  s.in = {x};
  const Shape shape = d.shape(x);
  int rank = int(shape.size());
  int64_t dim = d.axis(x), n = shape[size_t(dim)];
  switch (d.pick(0, 20)) {
    case 0:
      s.op = d.chance(80) ? "reshape" : "view", s.n = factored(d, count(shape));
      break;
    case 1:
      s.op = "permute", s.n.resize(shape.size());
      std::iota(s.n.begin(), s.n.end(), 0);
      d.shuffle(s.n);
      break;
    case 2:
      s.op = "T";
      break;
    case 3:
      s.op = "transpose", s.n = {dim, d.axis(x)};
      break;
    case 4:
      s.op = "expand";
      if (d.chance(60)) s.n = {d.pick(2, 4)};
      for (int64_t size : shape) s.n.push_back(size == 1 ? d.pick(1, 5) : size);
      break;
    case 5:
      s.op = "flip", s.n = {dim};
      break;
    case 6:
      s.op = "roll", s.n = {d.pick(-3, 5), dim};
      break;
    case 7:
      pad(d, s, rank);
      break;
    case 8:
      s.op = "shrink";
      for (int64_t size : shape) {
        int low = d.chance(50) ? 0 : d.pick(0, int(size) - 1);
        s.n.insert(s.n.end(), {low, low == 0 ? size : d.pick(low + 1, int(size))});
      }
      break;
    case 9:
      slices(d, s, rank);
      break;
    case 10:
      s.op = "pick", s.n = {dim, d.pick(-1, int(n) - 1)};
      break;
    case 11:
      s.op = "repeat";
      for (int i = 0; i < rank; ++i) s.n.push_back(d.pick(1, 2));
      break;
    case 12:
      s.op = "repeat_interleave", s.n = {d.pick(1, 3), dim};
      break;
    case 13:
      s.op = "unfold", s.n = {dim, d.pick(1, int(std::min<int64_t>(n, 4))), d.pick(1, 3)};
      break;
    case 14:
      if (rank < 2) return s.op = "diag", true;
      s.op = d.chance(50) ? "triu" : "tril", s.n = {d.pick(-2, 2)};
      if (d.chance(30)) s.op = "diagonal", s.n = {d.pick(-1, 1), 0, rank - 1};
      break;
    case 15:
      part(d, s, dim, n);
      break;
    case 16:
      rearrange(d, s, rank);
      break;
    case 17:
      return unflatten(d, s, dim, n);
    case 18:
      s.op = "flatten_dims", s.n = {dim, d.pick(int(dim), rank - 1)};
      break;
    case 19:
      s.op = n == 1 && d.chance(50) ? "squeeze" : "squeeze_all";
      if (s.op == "squeeze") s.n = {dim};
      if (d.chance(40)) s.op = "new_axis", s.n = {};
      break;
    default:
      s.op = d.chance(50) ? "unsqueeze" : "flatten";
      if (s.op == "unsqueeze") s.n = {d.pick(0, rank)};
  }
  return true;
}

bool draw_joining(Draft& d, Step& s) {
  int x = d.with_dims(1);
  if (x < 0) return false;
  s.in = {x};
  int64_t dim = d.axis(x);
  for (int tries = 0; tries < 8 && s.in.size() < 4; ++tries) {
    int y = d.any();
    if (y < 0 || d.at(y).rank() != d.at(x).rank()) continue;
    bool fits = true;
    for (int64_t i = 0; i < d.at(x).rank(); ++i)
      fits = fits && (i == dim || d.shape(y)[size_t(i)] == d.shape(x)[size_t(i)]);
    if (fits) s.in.push_back(y);
  }
  bool same = std::ranges::all_of(s.in, [&](int y) { return d.shape(y) == d.shape(x); });
  s.op = same && d.chance(35) ? "stack" : "cat";
  if (d.chance(25)) s.op += "_method";
  s.n = {dim};
  return true;
}

}  // namespace fuzz
