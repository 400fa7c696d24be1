// Values are taken in three rounds. States that optimizers keep go by the
// parameter that they belong to, as its name may be another one now; then
// whatever has equal names; then states that older programs saved by number. A
// value is taken once, so a later round never takes what an earlier one did.
#include "core/nn/match_names.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/log.h"

namespace tinyshard::nn {
namespace {

using KeptFor = TensorState::KeptFor;
using Names = std::vector<std::string>;

// "a, b, c and 12 more"
std::string abridged(const Names& names) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

// The part of "optimizer.m.fc.weight" before the parameter's name; nothing where it has another name.
std::optional<std::string> kind_of(const std::string& name, const KeptFor& kept) {
  if (!name.ends_with(kept.name)) return std::nullopt;
  return name.substr(0, name.size() - kept.name.size());
}

class Matching {
 public:
  Matching(const StateDict& into, const std::map<std::string, FoundValue>& found)
      : into_(into), found_(found) {}

  NameMatch run() {
    by_parameter();
    by_name();
    by_number();
    tell_of_tied();
    for (const auto& [name, value] : found_) {
      if (!taken_.contains(name)) out_.report.unexpected.push_back(name);
    }
    return std::move(out_);
  }

 private:
  void take(const std::string& name, const std::string& value) {
    out_.source.emplace(name, value);
    taken_.insert(value);
  }

  void by_parameter() {
    std::map<std::pair<std::string, const TensorState*>, std::string> values;
    for (const auto& [name, value] : found_) {
      if (!value.kept_for) continue;
      const auto parameter = value.kept_for->parameter.lock();
      const auto kind = kind_of(name, *value.kept_for);
      if (parameter && kind) values.emplace(std::pair(*kind, parameter.get()), name);
    }
    if (values.empty()) return;
    for (const auto& [name, tensor] : into_) {
      const auto& kept = tensor.state()->kept_for;
      const auto kind = kept ? kind_of(name, *kept) : std::nullopt;
      if (!kind) continue;
      const auto value = values.find({*kind, kept->parameter.lock().get()});
      if (value != values.end()) take(name, value->second);
    }
  }

  void by_name() {
    const std::set<std::string> of_others = taken_;
    for (const auto& [name, tensor] : into_) {
      if (!out_.source.contains(name) && found_.contains(name) && !of_others.contains(name))
        take(name, name);
    }
  }

  void by_number() {
    size_t count = 0;
    for (const auto& [name, tensor] : into_) {
      const auto& kept = tensor.state()->kept_for;
      const auto kind = kept ? kind_of(name, *kept) : std::nullopt;
      if (!kind || out_.source.contains(name)) continue;
      const std::string numbered = *kind + std::to_string(kept->number);
      if (!found_.contains(numbered) || into_.contains(numbered) || taken_.contains(numbered))
        continue;
      take(name, numbered);
      ++count;
    }
    if (count == 0) return;
    log_line(
        fmt::format("{} tensors of an optimizer's state have numbers in place of names, as older "
                    "programs saved "
                    "them: they are taken in the order of the optimizer's parameters",
                    count));
  }

  // A tensor with several names is loaded where one of them has a value.
  void tell_of_tied() {
    std::map<const TensorState*, const std::string*> loaded;
    for (const auto& [name, value] : out_.source) {
      const auto [first, is_first] = loaded.emplace(into_.at(name).state().get(), &value);
      if (!is_first && *first->second != value) out_.twice.emplace_back(*first->second, value);
    }
    for (const auto& [name, tensor] : into_) {
      if (!out_.source.contains(name) && !loaded.contains(tensor.state().get()))
        out_.report.missing.push_back(name);
    }
  }

  const StateDict& into_;
  const std::map<std::string, FoundValue>& found_;
  std::set<std::string> taken_;
  NameMatch out_;
};

}  // namespace

NameMatch match_names(const StateDict& into, const std::map<std::string, FoundValue>& found,
                      const LoadOptions& options) {
  NameMatch match = Matching(into, found).run();
  Names different;
  for (const auto& [name, value] : match.source) {
    const Dims shape = into.at(name).shape(), &other = found.at(value).shape;
    if (shape != other)
      different.push_back(
          fmt::format("{} (model {}, file {})", name, to_string(shape), to_string(other)));
  }
  std::string problems;
  auto report = [&](const char* what, const Names& names, bool counts) {
    if (!names.empty() && counts)
      problems += fmt::format("{}{}: {}", problems.empty() ? "" : "; ", what, abridged(names));
  };
  report("missing", match.report.missing, options.strict);
  report("unexpected", match.report.unexpected, options.strict && !options.ignore_unexpected);
  report("shapes differ", different, true);
  if (!problems.empty()) fail(problems);
  if (match.source.empty() && !into.empty() && !found.empty())
    fail(fmt::format("no name is known: the model has {}, the values are {}",
                     abridged(match.report.missing), abridged(match.report.unexpected)));
  return match;
}

void fail_of_tied(const std::string& one, const std::string& other) {
  fail(fmt::format("{} and {} are one tensor of the model, but have two values", one, other));
}

}  // namespace tinyshard::nn
