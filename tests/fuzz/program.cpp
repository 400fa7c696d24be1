// Programs as text, and what their leaves hold.
#include "tests/fuzz/program.h"

#include <cmath>
#include <sstream>

#include <fmt/format.h>

namespace fuzz {
namespace {

constexpr const char* kRoles[] = {"constant", "arg", "state", "variable", "parameter"};
constexpr const char* kStyles[] = {"uniform", "whole", "wild", "index", "same", "range", "given"};

template <class T>
std::string joined(const std::vector<T>& list) {
  std::string out;
  for (const T& x : list) out += (out.empty() ? "" : ",") + fmt::format("{}", x);
  return out.empty() ? "-" : out;
}

template <class T>
std::vector<T> split(const std::string& text) {
  std::vector<T> out;
  if (text == "-") return out;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    if constexpr (std::is_floating_point_v<T>) {
      out.push_back(std::stod(word));
    } else {
      out.push_back(T(std::stoll(word)));
    }
  }
  return out;
}

template <size_t N>
int place_in(const char* const (&list)[N], const std::string& word) {
  for (size_t i = 0; i < N; ++i) {
    if (word == list[i]) return int(i);
  }
  throw Invalid("unknown word in a program");
}

std::string hex(const std::vector<std::byte>& bytes) {
  std::string out;
  for (std::byte b : bytes) out += fmt::format("{:02x}", int(b));
  return out;
}

std::vector<std::byte> unhex(const std::string& text) {
  std::vector<std::byte> out;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(std::byte(std::stoi(text.substr(i, 2), nullptr, 16)));
  return out;
}

// splitmix64: every seed and place has its own bits.
uint64_t mixed(uint64_t seed, uint64_t place) {
  uint64_t z = seed * 0x9e3779b97f4a7c15ULL + (place + 1) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

std::string to_text(const Program& p) {
  std::string out;
  if (!p.mesh.empty()) out += fmt::format("mesh {}\n", joined(p.mesh));
  for (const Leaf& leaf : p.leaves) {
    out += fmt::format("leaf {} {} seed={} style={} role={}", name(leaf.type), joined(leaf.shape),
                       leaf.seed, kStyles[size_t(leaf.style)], kRoles[size_t(leaf.role)]);
    if (leaf.limit) out += fmt::format(" limit={}", leaf.limit);
    if (!leaf.placement.empty()) out += fmt::format(" place={}", joined(leaf.placement));
    if (!leaf.given.empty()) out += fmt::format(" given={}", hex(leaf.given));
    out += "\n";
  }
  for (const Step& step : p.steps) {
    out += fmt::format("{} in={}", step.op, joined(step.in));
    if (!step.n.empty()) out += fmt::format(" n={}", joined(step.n));
    if (!step.d.empty()) out += fmt::format(" d={}", joined(step.d));
    if (!step.text.empty()) out += fmt::format(" text={}", step.text);
    out += "\n";
  }
  for (const Feedback& f : p.feedback) out += fmt::format("feedback {} {}\n", f.root, f.leaf);
  if (p.calls != 1) out += fmt::format("calls {}\n", p.calls);
  if (!p.targets.empty()) out += fmt::format("targets {}\n", joined(p.targets));
  return out + fmt::format("roots {}\n", joined(p.roots));
}

Program parse(const std::string& text) {
  Program p;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, word;
    if (!(words >> first) || first[0] == '#') continue;
    if (first == "mesh" || first == "roots" || first == "targets" || first == "calls") {
      words >> word;
      if (first == "mesh") p.mesh = split<int64_t>(word);
      if (first == "roots") p.roots = split<int>(word);
      if (first == "targets") p.targets = split<int>(word);
      if (first == "calls") p.calls = std::stoi(word);
    } else if (first == "feedback") {
      Feedback f{};
      words >> f.root >> f.leaf;
      p.feedback.push_back(f);
    } else if (first == "leaf") {
      Leaf leaf;
      words >> word, leaf.type = type_named(word);
      words >> word, leaf.shape = split<int64_t>(word);
      while (words >> word) {
        std::string key = word.substr(0, word.find('=')), value = word.substr(word.find('=') + 1);
        if (key == "seed") leaf.seed = std::stoull(value);
        if (key == "style") leaf.style = Style(place_in(kStyles, value));
        if (key == "role") leaf.role = Role(place_in(kRoles, value));
        if (key == "limit") leaf.limit = std::stoll(value);
        if (key == "place") leaf.placement = split<int64_t>(value);
        if (key == "given") leaf.given = unhex(value);
      }
      p.leaves.push_back(leaf);
    } else {
      Step step;
      step.op = first;
      while (words >> word) {
        std::string key = word.substr(0, word.find('=')), value = word.substr(word.find('=') + 1);
        if (key == "in") step.in = split<int>(value);
        if (key == "n") step.n = split<int64_t>(value);
        if (key == "d") step.d = split<double>(value);
        if (key == "text") step.text = value;
      }
      p.steps.push_back(step);
    }
  }
  return p;
}

Array elements(const Leaf& leaf, int call) {
  if (leaf.style == Style::Given) return from_bytes(leaf.type, leaf.shape, leaf.given);
  Array out(leaf.type, leaf.shape);
  uint64_t seed = leaf.seed;
  if (leaf.role == Role::Argument || leaf.role == Role::Variable) seed += uint64_t(call) * 7919;
  for (size_t i = 0; i < out.at.size(); ++i) {
    uint64_t bits = mixed(seed, leaf.style == Style::Same ? 0 : i);
    double unit = std::ldexp(double(bits >> 11), -53);
    Element& e = out.at[i];
    int64_t small = int64_t(bits % 12) - (is_signed(leaf.type) ? 5 : 0);
    switch (leaf.style) {
      case Style::Index:
        e.n = int64_t(bits % uint64_t(leaf.limit));
        break;
      case Style::Range:
        e.n = int64_t(i), e.v = double(i);
        break;
      case Style::Wild:
        e.n = int64_t(bits);
        e.v = bits % 11 == 0   ? NAN
              : bits % 11 == 1 ? INFINITY
              : bits % 11 == 2 ? -INFINITY
              : bits % 11 == 3 ? 0.0
              : bits % 11 == 4 ? -0.0
                               : std::ldexp(unit - 0.5, int(bits >> 5 & 15) - 5);
        break;
      default:
        e.n = small;
        e.v = leaf.style == Style::Uniform ? unit * 4 - 2 : double(int64_t(bits % 7) - 3);
    }
    e.v = rounded(leaf.type, e.v);
    e.n = wrapped(leaf.type, leaf.type == Type::Bool ? int64_t(bits & 1) : e.n);
  }
  return out;
}

Element same_element(const Leaf& leaf) {
  Leaf one = leaf;
  one.shape.clear();
  return elements(one, 0).at[0];
}

Array loss_weights(Type type, const Shape& shape, int k) {
  Array out(type, shape);
  for (size_t i = 0; i < out.at.size(); ++i) {
    out.at[i].v = rounded(type, 0.5 + std::ldexp(double(mixed(77 + uint64_t(k), i) >> 11), -53));
  }
  return out;
}

bool writes(const Step& step) {
  return step.op.ends_with("assign") || step.op.starts_with("setitem");
}
bool is_statement(const Step& step) {
  return writes(step) || step.op == "realize" || step.op == "free";
}
bool is_placement(const Step& step) { return step.op.starts_with("shard"); }
bool reads_values(const Step& step) { return step.op == "masked_select" || step.op == "nonzero"; }
bool fed_as_copy(const Program& program, const Feedback& feedback) {
  return program.is_leaf(program.roots[size_t(feedback.root)]);
}

}  // namespace fuzz
