// Minimising: changes that make a program smaller are tried one after the other, those that keep
// the failure stay, until none of them helps or the time is over.
//
//   v2 = v0 * v1; v3 = v2.sum(0); v4 = v3.exp()      roots v4, v2
//   -> roots v4 -> v3 a leaf with the values that it has -> v4 = v3.exp()
#include "tests/fuzz/minimise.h"

#include <algorithm>
#include <chrono>
#include <functional>

namespace fuzz {
namespace {

// Calls f with each operand, root, target and feedback leaf that names a value.
void each_use(Program& p, const std::function<void(int&)>& f) {
  for (Step& step : p.steps) {
    for (int& in : step.in) f(in);
  }
  for (int& root : p.roots) f(root);
  for (int& target : p.targets) f(target);
}

// The program without the values that are not kept.
Program only(const Program& p, const std::vector<bool>& kept) {
  Program out = p;
  std::vector<int> number(size_t(p.values()), -1);
  int next = 0;
  out.leaves.clear(), out.steps.clear();
  for (int v = 0; v < p.values(); ++v) {
    if (!kept[size_t(v)]) continue;
    number[size_t(v)] = next++;
    if (p.is_leaf(v))
      out.leaves.push_back(p.leaves[size_t(v)]);
    else
      out.steps.push_back(p.step(v));
  }
  each_use(out, [&](int& v) { v = number[size_t(v)]; });
  std::erase_if(out.feedback, [&](Feedback& f) {
    f.leaf = number[size_t(f.leaf)];
    return f.leaf < 0;
  });
  return out;
}

// Value v as a leaf that holds what the interpreter says.
Program cut(const Program& p, int v, const Array& value) {
  Leaf leaf;
  leaf.type = value.type, leaf.shape = value.shape;
  leaf.style = Style::Given;
  leaf.given = to_bytes(value);
  if (!p.mesh.empty()) leaf.placement.assign(p.mesh.size(), -1);
  Program out = p;
  int me = int(p.leaves.size());
  each_use(out, [&](int& x) { x = x == v ? me : x + (x >= me); });
  out.leaves.push_back(leaf);
  return out;
}

class Search {
 public:
  Search(Minimal start, Workers& workers, double seconds)
      : best_(std::move(start)),
        workers_(workers),
        until_(std::chrono::steady_clock::now() +
               std::chrono::milliseconds(int64_t(1000 * seconds))) {}

  Minimal run() {
    for (bool smaller = true; smaller && !late();) {
      smaller = false;
      smaller = roots() || smaller;
      smaller = steps() || smaller;
      smaller = rest() || smaller;
      smaller = shapes() || smaller;
    }
    return best_;
  }

 private:
  bool late() const { return std::chrono::steady_clock::now() > until_; }

  bool try_program(Program candidate) {
    if (late()) return false;
    try {
      candidate = pruned(candidate);
      if (to_text(candidate) == to_text(best_.program)) return false;
      auto found = Judge(candidate, workers_)(best_.finding.check);
      if (!found || found->kind != best_.finding.kind) return false;
      if (found->kind.ends_with("Error") && found->signature() != best_.finding.signature())
        return false;
      best_ = {candidate, *found};
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  bool roots() {
    bool any = false;
    if (best_.finding.root >= 0 && best_.program.roots.size() > 1) {
      Program p = best_.program;
      p.roots = {p.roots[size_t(best_.finding.root)]};
      p.feedback.clear();
      any = try_program(p);
    }
    for (size_t i = best_.program.roots.size(); i-- > 0 && best_.program.roots.size() > 1;) {
      if (i >= best_.program.roots.size()) continue;
      Program p = best_.program;
      p.roots.erase(p.roots.begin() + int64_t(i));
      std::erase_if(p.feedback, [&](Feedback& f) {
        if (f.root > int(i)) return --f.root, false;
        return f.root == int(i);
      });
      any = try_program(p) || any;
    }
    for (size_t i = best_.program.targets.size(); i-- > 0 && best_.program.targets.size() > 1;) {
      if (i >= best_.program.targets.size()) continue;
      Program p = best_.program;
      p.targets.erase(p.targets.begin() + int64_t(i));
      any = try_program(p) || any;
    }
    return any;
  }

  bool steps() {
    bool any = false;
    // From the end: roots move up first, then the way down gets shorter.
    for (int v = best_.program.values() - 1; v >= int(best_.program.leaves.size()); --v) {
      if (late()) break;
      if (v >= best_.program.values()) continue;
      const Program& p = best_.program;
      const Step& step = p.step(v);
      if (is_statement(step)) {
        std::vector<bool> kept(size_t(p.values()), true);
        kept[size_t(v)] = false;
        Program without = p;
        each_use(without, [&](int& x) { x = x == v ? step.in[0] : x; });
        any = try_program(only(without, kept)) || any;
        continue;
      }
      bool done = false;
      for (int in : step.in) {
        Program shorter = best_.program;
        each_use(shorter, [&](int& x) { x = x == v ? in : x; });
        if ((done = try_program(shorter))) break;
      }
      if (done) {
        any = true;
        continue;
      }
      try {
        Run run = interpret(best_.program);
        if (best_.program.calls == 1)
          any = try_program(cut(best_.program, v, run.values[size_t(v)])) || any;
      } catch (const std::exception&) {
      }
    }
    return any;
  }

  // Calls, meshes, placements, roles, styles.
  bool rest() {
    bool any = false;
    auto with = [&](const std::function<void(Program&)>& change) {
      Program p = best_.program;
      change(p);
      any = try_program(p) || any;
    };
    if (best_.program.calls > 1) with([](Program& p) { p.calls = 1; });
    if (best_.program.calls > 2) with([](Program& p) { p.calls = 2; });
    if (!best_.program.feedback.empty()) with([](Program& p) { p.feedback.clear(); });
    if (!best_.program.mesh.empty() && !best_.finding.check.placed) {
      with([](Program& p) {
        p.mesh.clear();
        for (Leaf& leaf : p.leaves) leaf.placement.clear();
      });
    }
    for (size_t i = 0; i < best_.program.leaves.size(); ++i) {
      // Over several calls, what is written lives on as a state does.
      bool written = std::ranges::any_of(best_.program.steps, [&](const Step& step) {
        return writes(step) && step.in[0] == int(i);
      });
      with([i, written](Program& p) {
        Role& role = p.leaves[i].role;
        if (role != Role::Variable && (p.calls == 1 || !written)) role = Role::Constant;
      });
      if (best_.program.leaves[i].style == Style::Same ||
          best_.program.leaves[i].style == Style::Range)
        with([i](Program& p) { p.leaves[i].style = Style::Uniform; });
      for (size_t d = 0; d < best_.program.leaves[i].placement.size(); ++d)
        with([i, d](Program& p) { p.leaves[i].placement[d] = -1; });
    }
    return any;
  }

  // Sizes of leaves that fit at once: every dim of one size becomes another. Steps that name sizes
  // follow in their arguments where these are equal.
  bool shapes() {
    bool any = false;
    std::vector<int64_t> sizes;
    for (const Leaf& leaf : best_.program.leaves)
      sizes.insert(sizes.end(), leaf.shape.begin(), leaf.shape.end());
    std::ranges::sort(sizes, std::greater());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    for (int64_t size : sizes) {
      for (int64_t to : {int64_t(1), int64_t(2), int64_t(3), size / 4, size / 2, size - 1}) {
        if (to < 1 || to >= size || late()) continue;
        Program p = best_.program;
        bool given = false;
        for (Leaf& leaf : p.leaves) {
          Shape before = leaf.shape;
          for (int64_t& d : leaf.shape) d = d == size ? to : d;
          if (leaf.shape == before) continue;
          given = given || leaf.style == Style::Given;
          if (leaf.style == Style::Given) leaf.given = shrunk(leaf, before);
        }
        for (Step& step : p.steps) {
          if (step.op == "reshape" || step.op == "expand" || step.op == "shrink" ||
              step.op == "topk_values" || step.op == "sort_values" || step.op == "sort_order") {
            for (int64_t& n : step.n) n = n == size ? to : n;
          }
        }
        if (try_program(p)) {
          any = true;
          break;
        }
      }
    }
    return any;
  }

  // The first elements along each dim.
  static std::vector<std::byte> shrunk(const Leaf& leaf, const Shape& before) {
    Array all = from_bytes(leaf.type, before, leaf.given), out(leaf.type, leaf.shape);
    each_place(leaf.shape,
               [&](const Shape& place, size_t at) { out.at[at] = all.at[linear(place, before)]; });
    return to_bytes(out);
  }

  Minimal best_;
  Workers& workers_;
  std::chrono::steady_clock::time_point until_;
};

}  // namespace

Program pruned(const Program& p) {
  std::vector<bool> kept(size_t(p.values()), false);
  for (int root : p.roots) kept[size_t(root)] = true;
  for (int target : p.targets) kept[size_t(target)] = true;
  for (const Feedback& f : p.feedback) kept[size_t(f.leaf)] = true;
  // A statement stays with its target; what it writes may be read by an earlier number.
  for (bool more = true; more;) {
    more = false;
    for (int v = p.values() - 1; v >= int(p.leaves.size()); --v) {
      const Step& step = p.step(v);
      if (is_statement(step) && !kept[size_t(v)] && kept[size_t(step.in[0])])
        kept[size_t(v)] = more = true;
      if (!kept[size_t(v)]) continue;
      for (int in : step.in) {
        if (!kept[size_t(in)]) kept[size_t(in)] = more = true;
      }
    }
  }
  return only(p, kept);
}

Minimal minimise(const Program& program, const Finding& finding, Workers& workers, double seconds) {
  return Search({program, finding}, workers, seconds).run();
}

}  // namespace fuzz
