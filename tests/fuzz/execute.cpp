// Programs on the library, and the text of their expressions.
#include "tests/fuzz/execute.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tests/fuzz/calls.h"
#include "tests/fuzz/views.h"

namespace fuzz {
namespace {

using namespace tinyshard;

DType dtype(Type type) { return dtype_from_name(name(type)); }
std::string axis_name(size_t axis) { return std::string(1, char('a' + axis)); }

struct Trouble {};  // thrown by a trace

Tensor from_array(const Array& a) { return Tensor(to_bytes(a), a.shape, dtype(a.type)); }

class Execution {
 public:
  Execution(const Program& program, Way way, bool placed)
      : p_(program),
        way_(way),
        placed_(placed && !program.mesh.empty()),
        written_(std::ranges::any_of(program.steps, writes)) {
    if (placed_) {
      std::vector<MeshAxis> axes;
      for (size_t i = 0; i < p_.mesh.size(); ++i) axes.push_back({axis_name(i), p_.mesh[i]});
      std::vector<DeviceRef> devices;
      int64_t n = count(p_.mesh);
      for (int i = 0; i < n; ++i) devices.push_back({.index = i});
      mesh_ = Mesh(axes, devices);
    }
    for (const Leaf& leaf : p_.leaves) {
      leaves_.push_back(leaf.role == Role::Variable ? Tensor() : made(leaf, 0));
      if (leaf.role == Role::State) leaves_.back().realize();
      if (leaf.role == Role::Parameter) leaves_.back().is_param_();  // computed when it is needed
    }
    for (size_t i = 0; i < p_.leaves.size(); ++i) {
      if (p_.leaves[i].role == Role::Argument) arguments_.push_back(i);
      if (p_.leaves[i].role == Role::Variable) variables_.push_back(i);
    }
  }

  Results run() {
    Results results;
    Jit none = [this] { return traced({}, nullptr); };
    Jit one = [this](Tensor a) { return traced({a}, nullptr); };
    Jit two = [this](Tensor a, Tensor b) { return traced({a, b}, nullptr); };
    Jit three = [this](Tensor a, Tensor b, Tensor c) { return traced({a, b, c}, nullptr); };
    Jit zero_v = [this](Variable v) { return traced({}, &v); };
    Jit one_v = [this](Tensor a, Variable v) { return traced({a}, &v); };
    Jit two_v = [this](Tensor a, Tensor b, Variable v) { return traced({a, b}, &v); };
    Jit three_v = [this](Tensor a, Tensor b, Tensor c, Variable v) {
      return traced({a, b, c}, &v);
    };
    std::optional<Variable> variable;
    if (!variables_.empty()) variable.emplace("v", 0, p_.leaves[variables_[0]].limit - 1);
    Tensors outputs;
    for (int call = 0; call < p_.calls; ++call) {
      Tensors a;
      for (size_t leaf : arguments_) a.push_back(made(p_.leaves[leaf], call));
      for (const Feedback& f : p_.feedback) {
        for (size_t i = 0; call > 0 && i < arguments_.size(); ++i) {
          if (int(arguments_[i]) == f.leaf) a[i] = fed(outputs.at(size_t(f.root)), f);
        }
      }
      std::optional<Variable> v;
      if (variable) v = variable->bind(elements(p_.leaves[variables_[0]], call).at[0].n);
      auto step = [&]() -> Tensors {
        if (!captures()) return traced(a, v ? &*v : nullptr);
        if (!v) {
          return a.empty()       ? none()
                 : a.size() == 1 ? one(a[0])
                 : a.size() == 2 ? two(a[0], a[1])
                                 : three(a[0], a[1], a[2]);
        }
        return a.empty()       ? zero_v(*v)
               : a.size() == 1 ? one_v(a[0], *v)
               : a.size() == 2 ? two_v(a[0], a[1], *v)
                               : three_v(a[0], a[1], a[2], *v);
      };
      outputs = way_ == Way::Troubled ? troubled(step, call) : step();
      a.clear();
      results.push_back(read(outputs, call + 1 == p_.calls));
    }
    return results;
  }

 private:
  bool captures() const { return way_ == Way::Captured || way_ == Way::Troubled; }

  // A call after one that failed; of programs with gradients two, which add up.
  template <class Call>
  Tensors troubled(const Call& step, int call) {
    if (call == 0) {
      fails_at_ = int(p_.steps.size() / 2);
      try {
        step();
      } catch (const Trouble&) {
      }
      fails_at_ = -1;
    }
    const TrainingMode mode(call % 2 == 1);
    Tensors outputs = step();
    if (p_.targets.empty()) return outputs;
    outputs = step();
    for (size_t k = 0; k < p_.targets.size(); ++k) {
      const int target = p_.targets[k];
      const Tensor sum = is_parameter(target) ? leaves_[size_t(target)].grad() : Tensor();
      if (sum.defined()) outputs[p_.roots.size() + k] = sum * 0.5;
    }
    return outputs;
  }

  bool is_parameter(int v) const {
    return p_.is_leaf(v) && p_.leaves[size_t(v)].role == Role::Parameter;
  }

  Tensor made(const Leaf& leaf, int call) const {
    Array values = elements(leaf, call);
    Tensor x;
    if (leaf.style == Style::Same) {
      Element e = same_element(leaf);
      Scalar number = is_float(leaf.type) ? Scalar(e.v) : Scalar(e.n);
      x = Tensor::full(leaf.shape, number, dtype(leaf.type));
    } else if (leaf.style == Style::Range) {
      x = Tensor::arange(count(leaf.shape), dtype(leaf.type)).reshape(leaf.shape);
    } else {
      x = from_array(values);
    }
    return placed_ && !leaf.placement.empty() ? sharded(x, leaf.placement) : x;
  }

  // A captured step wants its arguments where they were at first. A state that is a root would be
  // the argument itself, and the argument change where the state is written.
  Tensor fed(const Tensor& root, const Feedback& feedback) const {
    const std::vector<int64_t>& placement = p_.leaves[size_t(feedback.leaf)].placement;
    Tensor x = fed_as_copy(p_, feedback) ? root.clone() : root;
    return placed_ && !placement.empty() ? sharded(x, placement) : x;
  }

  Tensor sharded(const Tensor& x, const std::vector<int64_t>& placement) const {
    std::vector<AxisPlacement> where;
    for (size_t i = 0; i < placement.size(); ++i) {
      where.emplace_back(axis_name(i), placement[i] < 0 ? Replicate : Shard(int(placement[i])));
    }
    return x.shard(*mesh_, where);
  }

  // Makes a call: the program's steps on its leaves.
  Tensors traced(const Tensors& arguments, const Variable* variable) {
    Tensors values = leaves_;
    for (size_t i = 0; i < arguments.size(); ++i) values[arguments_[i]] = arguments[i];
    if (variable) values[variables_[0]] = variable->tensor();
    std::vector<size_t> at;
    for (size_t i = 0; i < values.size(); ++i) at.push_back(i);
    if (way_ == Way::Troubled) static_cast<void>(is_training());
    for (const Step& step : p_.steps) {
      size_t me = values.size();
      if (int(me - leaves_.size()) == fails_at_) {
        kept_ = values;
        throw Trouble();
      }
      if (step.op == "free") {
        size_t target = at[size_t(step.in[0])];
        values[target] = Tensor();
        if (p_.calls == 1 && way_ != Way::Troubled && target < leaves_.size())
          leaves_[target] = Tensor();
        values.emplace_back(), at.push_back(target);
        continue;
      }
      Tensors operands;
      for (int in : step.in) operands.push_back(values[at[size_t(in)]]);
      if (is_statement(step)) {
        bool reads = step.op == "realize";
        if (!reads || can_realize()) calls().at(step.op).run(step, operands);
        if (way_ == Way::Steps) operands[0].realize();
        values.emplace_back(), at.push_back(at[size_t(step.in[0])]);
        continue;
      }
      Tensor out = operands.empty() ? Tensor() : operands[0];
      if (!is_placement(step))
        out = calls().at(step.op).run(step, operands);
      else if (placed_)
        out = step.op == "shard" ? sharded(out, step.n) : out.shard_like(operands[1]);
      // Another name of a stored value would see what is assigned to it later.
      for (const Tensor& x : operands) {
        if (written_ && x.uop() == out.uop()) out = x.clone();
      }
      if (way_ == Way::Steps) out = out.contiguous().realize();
      if (way_ == Way::Barriers) out = out.contiguous();
      values.push_back(out), at.push_back(me);
    }
    Tensors outputs;
    for (int root : p_.roots) outputs.push_back(values[at[size_t(root)]]);
    if (!p_.targets.empty()) {
      Tensor weighted = loss(outputs);
      if (way_ == Way::Disturbed) {
        weighted = weighted + (Tensor::rand({}) > 2).cast(weighted.dtype());  // 0, and drawn
        disturb(values);
      }
      for (const Tensor& g : gradients(weighted, values, at)) outputs.push_back(g);
    }
    return outputs;
  }

  // Does what programs may do between a loss and its gradient: half of the values are read, one of
  // them through something that waits for a state which is then written, and numbers are drawn.
  void disturb(const Tensors& values) const {
    Tensor state = Tensor::zeros({}).contiguous().realize();
    Tensor waiting = state;
    for (size_t v = 0; v < values.size(); ++v) {
      if (!values[v].defined()) continue;
      if (values[v].numel() > 0) waiting = waiting + values[v].sum().cast(DType::F32);
      if (!is_disturbed(p_, int(v))) continue;
      (void)Tensor::rand({2, 3}).data();
      (void)values[v].data();
    }
    state.assign(state + 1).realize();
    (void)waiting.data();
  }

  // Takes gradients of parameters by backward(), those of all other targets by gradient().
  Tensors gradients(const Tensor& loss, const Tensors& values,
                    const std::vector<size_t>& at) const {
    Tensors targets, out;
    for (int target : p_.targets) {
      if (!is_parameter(target)) targets.push_back(values[at[size_t(target)]]);
    }
    Tensors found = targets.empty() ? Tensors() : loss.gradient(targets);
    if (targets.size() < p_.targets.size()) {
      for (const Tensor& x : leaves_) {
        if (way_ != Way::Troubled && x.defined() && x.is_param()) x.set_grad(Tensor());
      }
      loss.backward();
    }
    size_t next = 0;
    for (int target : p_.targets) {
      if (is_parameter(target)) {
        const Tensor& parameter = leaves_[size_t(target)];
        out.push_back(parameter.grad().defined() ? parameter.grad() : parameter.zeros_like());
      } else {
        out.push_back(found[next++]);
      }
    }
    return out;
  }

  bool can_realize() const { return !captures() && p_.targets.empty(); }

  static Tensor loss(const Tensors& roots) {
    Tensor out;
    for (size_t k = 0; k < roots.size(); ++k) {
      Array w =
          loss_weights(type_named(tinyshard::name(roots[k].dtype())), roots[k].shape(), int(k));
      Tensor term = (roots[k] * from_array(w)).sum();
      out = out.defined() ? out + term : term;
    }
    return out;
  }

  std::vector<Result> read(const Tensors& outputs, bool last) {
    Tensors all = outputs;
    for (size_t i = 0; last && i < p_.leaves.size(); ++i) {
      if (p_.leaves[i].role == Role::State && leaves_[i].defined()) all.push_back(leaves_[i]);
    }
    if (way_ != Way::Apart && !captures()) Tensor::realize(all);
    std::vector<Result> out;
    for (const Tensor& x : all)
      out.push_back({std::string(tinyshard::name(x.dtype())), x.shape(), x.data()});
    return out;
  }

  const Program& p_;
  Way way_;
  bool placed_, written_;
  std::optional<Mesh> mesh_;
  Tensors leaves_, kept_;  // kept: of a trace that failed
  int fails_at_ = -1;      // the number of a step
  std::vector<size_t> arguments_, variables_;
};

std::string real_text(double d) {
  if (std::isnan(d)) return "NAN";
  if (std::isinf(d)) return d < 0 ? "-INFINITY" : "INFINITY";
  std::string text = fmt::format("{}", d);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string list_text(const std::vector<int64_t>& n, size_t first) {
  return fmt::format("{{{}}}",
                     fmt::join(n.begin() + int64_t(std::min(first, n.size())), n.end(), ", "));
}

}  // namespace

Results execute(const Program& program, Way way, bool placed) {
  return Execution(program, way, placed).run();
}

bool is_disturbed(const Program& program, int v) { return (v + program.values()) % 2 == 0; }

bool can_execute(const std::string& op) {
  return op == "shard" || op == "shard_like" || op == "free" || calls().contains(op);
}

std::string expression(const Step& s, const std::vector<std::string>& names) {
  if (s.op == "free") return names.at(0) + " = Tensor()";
  if (s.op == "shard") {
    std::string where;
    for (size_t i = 0; i < s.n.size(); ++i) {
      where += (i ? ", " : "") + (s.n[i] < 0
                                      ? fmt::format("{{\"{}\", Replicate}}", axis_name(i))
                                      : fmt::format("{{\"{}\", Shard({})}}", axis_name(i), s.n[i]));
    }
    return fmt::format("{}.shard(mesh, {{{}}})", names.at(0), where);
  }
  if (s.op == "shard_like") return fmt::format("{}.shard_like({})", names.at(0), names.at(1));
  std::string number = s.d.empty()              ? ""
                       : !s.n.empty() && s.n[0] ? fmt::format("{}", int64_t(s.d[0]))
                                                : real_text(s.d[0]);
  const OpCall& call = calls().at(s.op);
  bool swapped = !call.swapped.empty() && s.n.size() > 1 && s.n[1];
  const std::string& text = swapped ? call.swapped : call.text;
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string_view rest = std::string_view(text).substr(i);
    auto digit = [&](size_t at) { return size_t(rest[at] - '0'); };
    if (rest.starts_with("$*")) {
      out += fmt::format("{{{}}}", fmt::join(names, ", ")), i += 1;
    } else if (rest.starts_with("$-")) {
      out += fmt::format("{{{}}}", fmt::join(names.begin() + 1, names.end(), ", ")), i += 1;
    } else if (rest[0] == '?' && rest.size() > 1 && std::isdigit(rest[1])) {
      out += digit(1) < names.size() ? names[digit(1)] : "{}", i += 1;
    } else if (rest.starts_with("#value")) {
      out += number, i += 5;
    } else if (rest.starts_with("#ignored")) {
      out += s.n.size() > 1 && s.n[1] ? std::to_string(s.n[2]) : "-1", i += 7;
    } else if (rest.starts_with("#label")) {
      out += s.n[1] ? std::to_string(s.n[2]) : "{}", i += 5;
    } else if (rest.starts_with("#some{")) {
      out += s.n.size() == digit(6) + 1 ? std::to_string(s.n.back()) : list_text(s.n, digit(6));
      i += 7;
    } else if (rest[0] == '$') {
      out += digit(1) < names.size() ? names[digit(1)] : number, i += 1;
    } else if (rest.starts_with("#{")) {
      out += list_text(s.n, digit(2)), i += 3;
    } else if (rest.starts_with("#axes{")) {
      out += s.n.size() <= digit(6) ? "{}" : "Axes(Dims" + list_text(s.n, digit(6)) + ")", i += 7;
    } else if (rest.starts_with("#pairs{")) {
      std::string list;
      for (size_t k = digit(7); k + 1 < s.n.size(); k += 2)
        list += fmt::format("{}{{{}, {}}}", list.empty() ? "" : ", ", s.n[k], s.n[k + 1]);
      out += "{" + list + "}", i += 8;
    } else if (rest.starts_with("#views")) {
      out += views_text(s, names.size() > 2 ? names[2] : number), i += 5;
    } else if (rest.starts_with("#slices")) {
      std::string list;
      for (size_t k = 0; k + 2 < s.n.size(); k += 3) {
        auto end = [](int64_t at) { return at == -1000 ? std::string("{}") : std::to_string(at); };
        list += fmt::format("{}Slice({}, {}, {})", k ? ", " : "", end(s.n[k]), end(s.n[k + 1]),
                            s.n[k + 2]);
      }
      out += "{" + list + "}", i += 6;
    } else if (rest.starts_with("#before")) {
      out += "{";
      for (int64_t k = 0; k < s.n[digit(7)]; ++k) out += "Slice(), ";
      i += 7;
    } else if (rest.starts_with("#opt")) {
      out += s.n[0] ? "{}" : std::to_string(s.n.at(digit(4))), i += 4;
    } else if (rest.starts_with("#b")) {
      out += s.n.at(digit(2)) ? "true" : "false", i += 2;
    } else if (rest[0] == '#') {
      out += std::to_string(s.n.at(digit(1))), i += 1;
    } else if (rest[0] == '%' && rest.size() > 1 && std::isdigit(rest[1])) {
      out += real_text(s.d.at(digit(1))), i += 1;
    } else if (rest[0] == '@') {
      // Step::text has no blanks; the type of that name is a word of the language.
      for (char c : s.text == "bool" ? "boolean" : s.text) out += c == '_' ? ' ' : c;
    } else {
      out += rest[0];
    }
  }
  return out;
}

}  // namespace fuzz
