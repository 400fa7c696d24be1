// Programs as C++.
#include "tests/fuzz/print.h"

#include <cmath>

#include <fmt/format.h>

#include "tests/fuzz/execute.h"

namespace fuzz {
namespace {

std::string value_name(int v) { return fmt::format("v{}", v); }

std::string_view c_type(Type type) {
  static constexpr std::string_view kNames[] = {
      "bool",     "int8_t",   "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t",
      "uint32_t", "uint64_t", "float",   "float",   "float",   "double"};
  return kNames[size_t(type)];
}

std::string number_text(Type type, const Element& e) {
  if (!is_float(type))
    return type == Type::U64 ? fmt::format("{}u", uint64_t(e.n)) : fmt::format("{}", e.n);
  if (std::isnan(e.v)) return "NAN";
  if (std::isinf(e.v)) return e.v < 0 ? "-INFINITY" : "INFINITY";
  return type == Type::F64 ? fmt::format("{}", e.v) : fmt::format("{}", float(e.v));
}

std::string leaf_text(const Leaf& leaf, int call, bool placed) {
  Array values = elements(leaf, call);
  std::string shape = fmt::format("{{{}}}", fmt::join(leaf.shape, ", ")), out;
  std::string type =
      fmt::format("dtypes::{}", leaf.type == Type::Bool ? "boolean" : name(leaf.type));
  if (leaf.style == Style::Same) {
    out = fmt::format("Tensor::full({}, {}, {})", shape, number_text(leaf.type, same_element(leaf)),
                      type);
  } else if (leaf.style == Style::Range) {
    out = fmt::format("Tensor::arange({}, {}).reshape({})", values.at.size(), type, shape);
  } else {
    std::string list;
    for (const Element& e : values.at) {
      if (list.size() > 4000) {
        list += ", /* and so on: fuzz --replay prints the same */";
        break;
      }
      list += (list.empty() ? "" : ", ") + number_text(leaf.type, e);
    }
    out = fmt::format("Tensor(std::vector<{}>{{{}}}, {})", c_type(leaf.type), list, shape);
    if (is_half(leaf.type)) out += fmt::format(".cast({})", type);
  }
  if (placed && !leaf.placement.empty()) {
    Step shard;
    shard.op = "shard", shard.n = leaf.placement;
    out = expression(shard, {out});
  }
  return out;
}

}  // namespace

std::string to_cpp(const Program& p, const Finding& finding) {
  bool placed = finding.check.placed && !p.mesh.empty();
  bool captured = finding.check.way == Way::Captured || finding.check.way == Way::Troubled;
  std::string out = fmt::format("// {}\n", finding.check.to_string());
  out += "// " + finding.kind + ": " + finding.text.substr(0, finding.text.find('\n')) + "\n";
  out += "#include <cmath>\n#include <tinyshard/tinyshard.h>\nusing namespace tinyshard;\n";
  out += "int main() {\n";
  if (placed) {
    out += "  Runtime::configure({.devices = {\"CPU\"}, .devices_per_rank = 4});\n  Mesh mesh({";
    for (size_t i = 0; i < p.mesh.size(); ++i)
      out += fmt::format("{}{{\"{}\", {}}}", i ? ", " : "", char('a' + i), p.mesh[i]);
    out += "});\n";
  }
  std::string parameters, first;
  for (int i = 0; i < int(p.leaves.size()); ++i) {
    const Leaf& leaf = p.leaves[size_t(i)];
    if (leaf.role == Role::Variable) {
      out += fmt::format("  Variable n{}(\"v\", 0, {});\n", i, leaf.limit - 1);
      continue;
    }
    if (leaf.role == Role::Argument) continue;
    out += fmt::format("  Tensor {} = {}{};\n", value_name(i), leaf_text(leaf, 0, placed),
                       leaf.role == Role::State       ? ".realize()"
                       : leaf.role == Role::Parameter ? ".is_param_()"
                                                      : "");
  }
  auto add_parameter = [&](int i, bool variable) {
    parameters += fmt::format("{}{} {}", parameters.empty() ? "" : ", ",
                              variable ? "Variable" : "Tensor", value_name(i));
  };
  for (int i = 0; i < int(p.leaves.size()); ++i) {
    if (p.leaves[size_t(i)].role == Role::Argument) add_parameter(i, false);
  }
  for (int i = 0; i < int(p.leaves.size()); ++i) {
    if (p.leaves[size_t(i)].role == Role::Variable) add_parameter(i, true);
  }
  out += fmt::format("  {} step = [&]({}) {{\n", captured ? "Jit" : "auto", parameters);
  std::vector<std::string> names;
  for (int v = 0; v < int(p.leaves.size()); ++v) names.push_back(value_name(v));
  for (int v = int(p.leaves.size()); v < p.values(); ++v) {
    const Step& step = p.step(v);
    std::vector<std::string> operands;
    for (int in : step.in) operands.push_back(names[size_t(in)]);
    if (is_placement(step) && !placed) {
      names.push_back(operands[0]);
      continue;
    }
    std::string text = expression(step, operands);
    if (is_statement(step)) {
      out += fmt::format("    {};\n", text);
      names.push_back(operands[0]);
      continue;
    }
    if (finding.check.way == Way::Steps) text += ".contiguous().realize()";
    if (finding.check.way == Way::Barriers) text += ".contiguous()";
    out += fmt::format("    Tensor {} = {};\n", value_name(v), text);
    names.push_back(value_name(v));
  }
  std::string roots;
  for (int root : p.roots) roots += (roots.empty() ? "" : ", ") + names[size_t(root)];
  if (!p.targets.empty()) {
    std::string targets, parameters, loss;
    for (int target : p.targets) {
      const bool parameter = p.is_leaf(target) && p.leaves[size_t(target)].role == Role::Parameter;
      std::string& list = parameter ? parameters : targets;
      list += (list.empty() ? "" : ", ") + names[size_t(target)] + (parameter ? ".grad()" : "");
    }
    // The search weighs the roots' elements; with equal weights some failures do not show.
    for (int root : p.roots)
      loss += fmt::format(
          "{}({} * (Tensor::arange({}.numel()).reshape({}.shape()) * 0.7).sin()).sum()",
          loss.empty() ? "" : " + ", names[size_t(root)], names[size_t(root)], names[size_t(root)]);
    out += fmt::format("    Tensor loss = {};\n", loss);
    if (finding.check.way == Way::Disturbed) {
      out += "    loss = loss + (Tensor::rand({}) > 2).cast(loss.dtype());\n";
      // Reads as the search does; a value that is read twice has several names.
      for (int v = 0; v < p.values(); ++v) {
        if (is_disturbed(p, v) && (p.is_leaf(v) || !is_statement(p.step(v))))
          out += fmt::format("    Tensor::rand({{2, 3}}).data(), {}.data();\n", names[size_t(v)]);
      }
    }
    // As the search does: parameters get theirs from backward(), other targets from gradient().
    if (parameters.empty()) {
      out += fmt::format("    return loss.gradient({{{}}});\n  }};\n", targets);
    } else {
      out += targets.empty()
                 ? "    std::vector<Tensor> out;\n"
                 : fmt::format("    std::vector<Tensor> out = loss.gradient({{{}}});\n", targets);
      out += fmt::format(
          "    loss.backward();\n    for (const Tensor& g : {{{}}}) out.push_back(g);\n"
          "    return out;\n  }};\n",
          parameters);
    }
  } else {
    out += fmt::format("    return std::vector<Tensor>{{{}}};\n  }};\n", roots);
  }
  if (p.calls > 1 || captured) out += "  std::vector<Tensor> out;\n";
  for (int call = 0; call < p.calls; ++call) {
    std::string given;
    for (int kind = 0; kind < 2; ++kind) {
      for (int i = 0; i < int(p.leaves.size()); ++i) {
        const Leaf& leaf = p.leaves[size_t(i)];
        if (leaf.role != (kind ? Role::Variable : Role::Argument)) continue;
        std::string text = kind ? fmt::format("n{}.bind({})", i, elements(leaf, call).at[0].n)
                                : leaf_text(leaf, call, placed);
        for (const Feedback& f : p.feedback) {
          if (call > 0 && f.leaf == i)
            text = fmt::format("out[{}]{}", f.root, fed_as_copy(p, f) ? ".clone()" : "");
        }
        given += (given.empty() ? "" : ", ") + text;
      }
    }
    if (p.calls > 1 || captured) {
      out += fmt::format(
          "  out = step({});\n  for (const Tensor& t : out) std::cout << t << \"\\n\";\n", given);
    } else {
      out += fmt::format("  for (const Tensor& t : step({})) std::cout << t << \"\\n\";\n", given);
    }
  }
  return out + "}\n";
}

}  // namespace fuzz
