// rearrange: reshapes and permutes as a formula says, "b t (h d) -> b h t d".
#include <algorithm>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "core/base/sizes.h"
#include "core/tensor/view_internal.h"

namespace tinyshard {

using value::Value;

namespace {

using Group = std::vector<std::string>;  // names that share one dim

std::vector<Group> parse_side(const std::string& side, const std::string& formula) {
  std::string spaced;
  for (char c : side) spaced += c == '(' || c == ')' ? std::string{' ', c, ' '} : std::string{c};
  std::istringstream words(spaced);
  std::vector<Group> groups;
  bool open = false;
  for (std::string word; words >> word;) {
    if (word == "(" || word == ")") {
      if (open == (word == "(")) fail(fmt::format("brackets of \"{}\" do not match", formula));
      open = word == "(";
      if (open) groups.emplace_back();
    } else if (open) {
      groups.back().push_back(word);
    } else {
      groups.push_back({word});
    }
  }
  if (open) fail(fmt::format("brackets of \"{}\" do not match", formula));
  return groups;
}

// "..." becomes one name for each dim that it stands for.
std::vector<Group> without_ellipsis(const std::vector<Group>& groups, int64_t dims) {
  std::vector<Group> out;
  for (const Group& group : groups) {
    Group names;
    bool alone = group.size() == 1 && group[0] == "...";
    for (const std::string& name : group) {
      if (name != "...") {
        names.push_back(name);
        continue;
      }
      for (int64_t i = 0; i < dims; ++i) {
        if (alone) {
          out.push_back({fmt::format("...{}", i)});
        } else {
          names.push_back(fmt::format("...{}", i));
        }
      }
    }
    if (!alone) out.push_back(names);
  }
  return out;
}

}  // namespace

Tensor Tensor::rearrange(const std::string& formula,
                         const std::vector<std::pair<std::string, int64_t>>& sizes,
                         Caller caller) const& {
  Call call("rearrange", caller);
  Value x(*this);
  size_t arrow = formula.find("->");
  if (arrow == std::string::npos || formula.find("->", arrow + 2) != std::string::npos) {
    fail(fmt::format("\"{}\" must have one ->", formula));
  }
  std::vector<Group> left = parse_side(formula.substr(0, arrow), formula),
                     right = parse_side(formula.substr(arrow + 2), formula);
  bool has_ellipsis = std::ranges::find(left, Group{"..."}) != left.end();
  int64_t rest = x.rank() - static_cast<int64_t>(left.size()) + (has_ellipsis ? 1 : 0);
  left = without_ellipsis(left, std::max<int64_t>(0, rest)),
  right = without_ellipsis(right, std::max<int64_t>(0, rest));
  if (static_cast<int64_t>(left.size()) != x.rank()) {
    fail(fmt::format("\"{}\" names {} dims, x is {}", formula, left.size(), describe()));
  }

  std::map<std::string, int64_t> size_of(sizes.begin(), sizes.end());
  for (auto [name, size] : size_of) {
    if (size < 0) fail(fmt::format("\"{}\" has the size {}", name, size));
  }
  Group names;
  Dims shape;
  for (int64_t d = 0; d < x.rank(); ++d) {
    int64_t known = 1;
    const std::string* unknown = nullptr;
    for (const std::string& name : left[d]) {
      if (name != "1" && std::ranges::find(names, name) != names.end())
        fail(fmt::format("\"{}\" occurs twice in \"{}\"", name, formula));
      names.push_back(name);
      if (name == "1") size_of[name] = 1;
      if (size_of.contains(name)) {
        known = multiply_sizes(known, size_of[name]);
      } else if (unknown) {
        fail(fmt::format("give the size of \"{}\" or \"{}\"", *unknown, name));
      } else {
        unknown = &name;
      }
    }
    int64_t size = x.size(d);
    if (unknown ? known == 0 || size % known != 0 : size != known) {
      fail(fmt::format("dim {} of {} does not divide as \"{}\" says: {} by {}", d, describe(),
                       formula, size, known));
    }
    if (unknown) size_of[*unknown] = size / known;
    for (const std::string& name : left[d]) shape.push_back(size_of[name]);
  }
  // Dims called 1 come and go; all others must be on both sides.
  Dims order, out;
  Group placed;
  for (const Group& group : right) {
    int64_t size = 1;
    for (const std::string& name : group) {
      if (name == "1") continue;
      auto place = std::ranges::find(names, name);
      if (place == names.end() || std::ranges::find(placed, name) != placed.end()) {
        fail(fmt::format("\"{}\" must occur once on each side of \"{}\"", name, formula));
      }
      placed.push_back(name);
      order.push_back(place - names.begin());
      size *= size_of[name];
    }
    out.push_back(size);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == "1") {
      order.push_back(static_cast<int64_t>(i));
    } else if (std::ranges::find(placed, names[i]) == placed.end()) {
      fail(fmt::format("\"{}\" is missing on the right of \"{}\"", names[i], formula));
    }
  }
  return value::moved(*this, [shape, order, out](const Value& whole) {
    return value::reshape(value::permute(value::reshape(whole, shape), order), out);
  });
}

}  // namespace tinyshard
