// Rules of operations that move elements: each says which element of the operand comes where.
#include <algorithm>
#include <numeric>

#include "tests/fuzz/interpreter.h"

namespace fuzz {
namespace {

// The element of x at a place, or `otherwise` outside of it.
template <class F>
Array moved(const Array& x, const Shape& shape, const F& from, const Element& otherwise = {}) {
  Array out(x.type, shape);
  each_place(shape, [&](const Shape& place, size_t at) {
    Shape source = from(place);
    bool inside = true;
    for (size_t i = 0; i < x.shape.size(); ++i)
      inside = inside && source[i] >= 0 && source[i] < x.shape[i];
    out.at[at] = inside ? x.at[linear(source, x.shape)] : otherwise;
  });
  return out;
}

Array reshaped(const Array& x, const Shape& shape) {
  for (int64_t d : shape) need(d >= 0, "size");
  need(count(shape) == count(x.shape), "reshape");
  Array out = x;
  out.shape = shape;
  return out;
}

Array permuted(const Array& x, const Shape& order) {
  Shape sorted = order, shape;
  std::ranges::sort(sorted);
  for (int64_t i = 0; i < int64_t(sorted.size()); ++i) need(sorted[size_t(i)] == i, "order");
  need(int64_t(order.size()) == x.rank(), "order");
  for (int64_t axis : order) shape.push_back(x.shape[size_t(axis)]);
  return moved(x, shape, [&](const Shape& place) {
    Shape from(place.size());
    for (size_t i = 0; i < place.size(); ++i) from[size_t(order[i])] = place[i];
    return from;
  });
}

Array pad(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  int64_t mode = step.n.at(0);
  need(int64_t(step.n.size()) == 1 + 2 * x.rank(), "padding");
  Shape shape = x.shape;
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t low = step.n[1 + 2 * i], high = step.n[2 + 2 * i], n = shape[i];
    int64_t limit = mode == 1 ? n - 1 : mode == 3 ? n : 1000;
    need((mode == 0 || (low >= 0 && high >= 0)) && low <= limit && high <= limit, "padding");
    need(n + std::min<int64_t>(low, 0) + std::min<int64_t>(high, 0) >= 0, "padding");
    need(mode == 0 || n > 0, "padding of nothing");
    shape[i] += low + high;
  }
  Element value;
  value.v = rounded(x.type, step.d.at(0)), value.n = wrapped(x.type, int64_t(step.d.at(0)));
  return moved(
      x, shape,
      [&](const Shape& place) {
        Shape from = place;
        for (size_t i = 0; i < from.size(); ++i) {
          int64_t n = x.shape[i], at = place[i] - step.n[1 + 2 * i];
          if (mode == 1) at = at < 0 ? -at : at >= n ? 2 * (n - 1) - at : at;
          if (mode == 2) at = std::clamp<int64_t>(at, 0, n - 1);
          if (mode == 3) at = (at + n) % n;
          from[i] = at;
        }
        return from;
      },
      value);
}

// Python's slices: start, stop and step per dim.
Array slices(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  need(int64_t(step.n.size()) == 3 * x.rank(), "slices");
  Shape shape, starts;
  for (size_t i = 0; i < x.shape.size(); ++i) {
    int64_t n = x.shape[i], start = step.n[3 * i], stop = step.n[3 * i + 1], by = step.n[3 * i + 2];
    need(by != 0, "step");
    auto inside = [&](int64_t at) {
      at = at < 0 ? at + n : at;
      return by > 0 ? std::clamp<int64_t>(at, 0, n) : std::clamp<int64_t>(at, -1, n - 1);
    };
    int64_t first = inside(start), last = inside(stop);
    int64_t length = by > 0 ? (last - first + by - 1) / by : (first - last - by - 1) / -by;
    shape.push_back(std::max<int64_t>(0, length));
    starts.push_back(first);
  }
  return moved(x, shape, [&](const Shape& place) {
    Shape from = place;
    for (size_t i = 0; i < from.size(); ++i) from[i] = starts[i] + place[i] * step.n[3 * i + 2];
    return from;
  });
}

Array joined(const std::vector<Array>& parts, int64_t axis) {
  need(!parts.empty(), "parts");
  axis = resolved(axis, parts[0].rank());
  Type type = parts[0].type;
  Shape shape = parts[0].shape;
  for (size_t i = 1; i < parts.size(); ++i) {
    type = promoted(type, parts[i].type);
    need(parts[i].rank() == parts[0].rank(), "rank");
    for (size_t d = 0; d < shape.size(); ++d)
      need(int64_t(d) == axis || parts[i].shape[d] == parts[0].shape[d], "shapes");
    shape[size_t(axis)] += parts[i].shape[size_t(axis)];
  }
  Array out(type, shape);
  int64_t before = 0;
  for (const Array& each : parts) {
    Array part = converted(each, type);
    each_place(part.shape, [&](const Shape& place, size_t at) {
      Shape to = place;
      to[size_t(axis)] += before;
      out.at[linear(to, shape)] = part.at[at];
    });
    before += part.shape[size_t(axis)];
  }
  return out;
}

// "a_b_c_->_(c_a)_b": letters for the dims of x, in another order, some of them put together.
Array rearranged(const Array& x, const std::string& text) {
  size_t arrow = text.find("_->_");
  need(arrow != std::string::npos, "formula");
  std::string left, right = text.substr(arrow + 4);
  for (char c : text.substr(0, arrow)) {
    if (c != '_') left += c;
  }
  need(int64_t(left.size()) == x.rank(), "formula");
  Shape order, shape;
  bool open = false, grown = false;
  for (char c : right) {
    if (c == '(' || c == ')') open = c == '(', grown = false;
    if (c < 'a' || c > 'z') continue;
    order.push_back(int64_t(left.find(c)));
    int64_t n = x.shape[size_t(order.back())];
    if (grown)
      shape.back() *= n;
    else
      shape.push_back(n);
    grown = open;
  }
  return reshaped(permuted(x, order), shape);
}

Shape with(Shape shape, int64_t axis, int64_t size) {
  shape[size_t(axis)] = size;
  return shape;
}
Shape inserted(Shape shape, int64_t axis, int64_t size) {
  shape.insert(shape.begin() + axis, size);
  return shape;
}

}  // namespace

void add_movement_rules(std::map<std::string, Rule>& rules) {
  rules["reshape"] = [](const Step& s, const Operands& in) { return reshaped(*in[0], s.n); };
  rules["permute"] = [](const Step& s, const Operands& in) { return permuted(*in[0], s.n); };
  rules["expand"] = [](const Step& s, const Operands& in) { return expanded(*in[0], s.n); };
  rules["pad"] = pad;
  rules["slices"] = slices;
  rules["shrink"] = [](const Step& s, const Operands& in) {
    const Array& x = *in[0];
    need(int64_t(s.n.size()) == 2 * x.rank(), "bounds");
    Shape shape;
    for (size_t i = 0; i < x.shape.size(); ++i) {
      need(s.n[2 * i] >= 0 && s.n[2 * i] <= s.n[2 * i + 1] && s.n[2 * i + 1] <= x.shape[i],
           "bounds");
      shape.push_back(s.n[2 * i + 1] - s.n[2 * i]);
    }
    return moved(x, shape, [&](Shape place) {
      for (size_t i = 0; i < place.size(); ++i) place[i] += s.n[2 * i];
      return place;
    });
  };
  rules["pick"] = [](const Step& s, const Operands& in) {
    const Array& x = *in[0];
    int64_t axis = resolved(s.n.at(0), x.rank()), at = s.n.at(1), n = x.shape[size_t(axis)];
    need(at >= -n && at < n, "index");
    Shape shape = x.shape;
    shape.erase(shape.begin() + axis);
    return moved(x, shape,
                 [&](const Shape& place) { return inserted(place, axis, at < 0 ? at + n : at); });
  };
  rules["part"] = [](const Step& s, const Operands& in) {
    const Array& x = *in[0];
    int64_t size = s.n.at(0), axis = resolved(s.n.at(1), x.rank()), k = s.n.at(2);
    int64_t n = x.shape[size_t(axis)];
    need(size > 0 && k >= 0 && k * size < n, "part");
    Shape shape = with(x.shape, axis, std::min(size, n - k * size));
    return moved(x, shape, [&](Shape place) {
      place[size_t(axis)] += k * size;
      return place;
    });
  };
  rules["chunk"] = [](const Step& s, const Operands& in) {
    Step part = s;
    int64_t n = in[0]->shape[size_t(resolved(s.n.at(1), in[0]->rank()))], chunks = s.n.at(0);
    need(chunks > 0, "chunks");
    part.op = "part", part.n[0] = (n + chunks - 1) / chunks;
    return interpret(part, in);
  };
  rules["part_of_sizes"] = [](const Step& s, const Operands& in) {
    const Array& x = *in[0];
    int64_t axis = resolved(s.n.at(0), x.rank()), k = s.n.at(1), before = k == 0 ? 0 : s.n.at(2);
    need(s.n.at(2) >= 0 && s.n.at(3) >= 0 && s.n[2] + s.n[3] == x.shape[size_t(axis)], "sizes");
    return moved(x, with(x.shape, axis, s.n[size_t(2 + k)]), [&](Shape place) {
      place[size_t(axis)] += before;
      return place;
    });
  };
  rules["flip"] = [](const Step& s, const Operands& in) {
    const Array& x = *in[0];
    std::vector<bool> turned(x.shape.size(), false);
    for (int64_t axis : s.n) {
      axis = resolved(axis, x.rank());
      need(!turned[size_t(axis)], "axis twice");
      turned[size_t(axis)] = true;
    }
    return moved(x, x.shape, [&](Shape place) {
      for (size_t i = 0; i < place.size(); ++i)
        place[i] = turned[i] ? x.shape[i] - 1 - place[i] : place[i];
      return place;
    });
  };
  rules["roll"] = [](const Step& s, const Operands& in) {
    const Array& x = *in[0];
    int64_t axis = resolved(s.n.at(1), x.rank()), n = x.shape[size_t(axis)];
    return moved(x, x.shape, [&](Shape place) {
      int64_t& at = place[size_t(axis)];
      at = ((at - s.n.at(0)) % n + n) % n;
      return place;
    });
  };
  rules["transpose"] = [](const Step& s, const Operands& in) {
    Shape order(in[0]->shape.size());
    std::iota(order.begin(), order.end(), 0);
    std::swap(order[size_t(resolved(s.n.at(0), in[0]->rank()))],
              order[size_t(resolved(s.n.at(1), in[0]->rank()))]);
    return permuted(*in[0], order);
  };
  rules["T"] = [](const Step&, const Operands& in) {
    Shape order(in[0]->shape.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = int64_t(order.size() - 1 - i);
    return permuted(*in[0], order);
  };
  rules["unsqueeze"] = [](const Step& s, const Operands& in) {
    int64_t axis = s.n.at(0), rank = in[0]->rank();
    need(axis >= 0 && axis <= rank, "axis");
    return reshaped(*in[0], inserted(in[0]->shape, axis, 1));
  };
  rules["squeeze"] = [](const Step& s, const Operands& in) {
    Shape shape = in[0]->shape;
    int64_t axis = resolved(s.n.at(0), in[0]->rank());
    need(shape[size_t(axis)] == 1, "squeeze");
    shape.erase(shape.begin() + axis);
    return reshaped(*in[0], shape);
  };
  rules["flatten"] = [](const Step&, const Operands& in) {
    return reshaped(*in[0], {count(in[0]->shape)});
  };
  rules["view"] = rules["reshape"];
  rules["rearrange"] = [](const Step& s, const Operands& in) { return rearranged(*in[0], s.text); };
  rules["squeeze_all"] = [](const Step&, const Operands& in) {
    Shape shape;
    for (int64_t n : in[0]->shape) {
      if (n != 1) shape.push_back(n);
    }
    return reshaped(*in[0], shape);
  };
  rules["new_axis"] = [](const Step&, const Operands& in) {
    return reshaped(*in[0], inserted(in[0]->shape, in[0]->rank(), 1));
  };
  rules["unflatten"] = [](const Step& s, const Operands& in) {
    int64_t axis = resolved(s.n.at(0), in[0]->rank());
    Shape shape = in[0]->shape, parts(s.n.begin() + 1, s.n.end());
    need(count(parts) == shape[size_t(axis)], "sizes");
    shape.erase(shape.begin() + axis);
    shape.insert(shape.begin() + axis, parts.begin(), parts.end());
    return reshaped(*in[0], shape);
  };
  rules["flatten_dims"] = [](const Step& s, const Operands& in) {
    int64_t first = s.n.at(0), last = s.n.at(1);
    Shape shape = in[0]->shape;
    need(first >= 0 && first <= last && last < in[0]->rank(), "dims");
    int64_t n = count(Shape(shape.begin() + first, shape.begin() + last + 1));
    shape.erase(shape.begin() + first, shape.begin() + last + 1);
    return reshaped(*in[0], inserted(shape, first, n));
  };
  rules["diag"] = [](const Step&, const Operands& in) {
    need(in[0]->rank() == 1, "a list");
    int64_t n = in[0]->shape[0];
    return moved(*in[0], {n, n},
                 [](const Shape& place) { return Shape{place[0] == place[1] ? place[0] : -1}; });
  };
  rules["cat"] = [](const Step& s, const Operands& in) {
    std::vector<Array> parts;
    for (const Array* x : in) parts.push_back(*x);
    return joined(parts, s.n.at(0));
  };
  rules["cat_method"] = rules["cat"];
  rules["stack"] = [](const Step& s, const Operands& in) {
    std::vector<Array> parts;
    need(s.n.at(0) >= 0 && s.n.at(0) <= in[0]->rank(), "axis");
    for (const Array* x : in) parts.push_back(reshaped(*x, inserted(x->shape, s.n.at(0), 1)));
    return joined(parts, s.n.at(0));
  };
  rules["stack_method"] = rules["stack"];
  rules["repeat"] = [](const Step& s, const Operands& in) {
    const Array& x = *in[0];
    need(s.n.size() == x.shape.size(), "repeats");
    Shape shape;
    for (size_t i = 0; i < s.n.size(); ++i) {
      need(s.n[i] > 0, "repeats");
      shape.push_back(x.shape[i] * s.n[i]);
    }
    return moved(x, shape, [&](Shape place) {
      for (size_t i = 0; i < place.size(); ++i) place[i] %= x.shape[i];
      return place;
    });
  };
  rules["repeat_interleave"] = [](const Step& s, const Operands& in) {
    const Array& x = *in[0];
    int64_t times = s.n.at(0), axis = resolved(s.n.at(1), x.rank());
    need(times > 0, "repeats");
    return moved(x, with(x.shape, axis, x.shape[size_t(axis)] * times), [&](Shape place) {
      place[size_t(axis)] /= times;
      return place;
    });
  };
  rules["unfold"] = [](const Step& s, const Operands& in) {
    const Array& x = *in[0];
    int64_t axis = resolved(s.n.at(0), x.rank()), size = s.n.at(1), by = s.n.at(2);
    int64_t n = x.shape[size_t(axis)];
    need(size > 0 && by > 0 && size <= n, "windows");
    Shape shape = with(x.shape, axis, (n - size) / by + 1);
    shape.push_back(size);
    return moved(x, shape, [&](const Shape& place) {
      Shape from(place.begin(), place.end() - 1);
      from[size_t(axis)] = place[size_t(axis)] * by + place.back();
      return from;
    });
  };
  rules["diagonal"] = [](const Step& s, const Operands& in) {
    const Array& x = *in[0];
    int64_t offset = s.n.at(0), a = resolved(s.n.at(1), x.rank()),
            b = resolved(s.n.at(2), x.rank());
    need(a != b, "two dims");
    int64_t rows = x.shape[size_t(a)] - std::max<int64_t>(0, -offset),
            columns = x.shape[size_t(b)] - std::max<int64_t>(0, offset);
    Shape shape;
    for (int64_t i = 0; i < x.rank(); ++i) {
      if (i != a && i != b) shape.push_back(x.shape[size_t(i)]);
    }
    shape.push_back(std::max<int64_t>(0, std::min(rows, columns)));
    return moved(x, shape, [&](const Shape& place) {
      Shape from(x.shape.size());
      size_t next = 0;
      for (int64_t i = 0; i < x.rank(); ++i) {
        if (i != a && i != b) from[size_t(i)] = place[next++];
      }
      from[size_t(a)] = place.back() + std::max<int64_t>(0, -offset);
      from[size_t(b)] = place.back() + std::max<int64_t>(0, offset);
      return from;
    });
  };
  for (const char* op : {"triu", "tril"}) {
    rules[op] = [](const Step& s, const Operands& in) {
      need(in[0]->rank() >= 2, "two dims");
      Array out = *in[0];
      bool upper = s.op == "triu";
      each_place(out.shape, [&](const Shape& place, size_t at) {
        int64_t row = place[place.size() - 2], column = place.back(), k = s.n.at(0);
        if (upper ? row + k > column : column > row + k) out.at[at] = {};
      });
      return out;
    };
  }
}

}  // namespace fuzz
