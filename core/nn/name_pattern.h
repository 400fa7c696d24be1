// Patterns over the names of a state dict.
//
//   "h.*"               begins "h.0.attn.weight", with "h.0"
//   "h.*.wq|wk|wv"      begins "h.0.wq.weight" and "h.0.attn.wk.bias"
//   "embed|head"        begins "head.weight"
//
// A pattern is segments between dots, each a choice of texts between bars. A * within a text is any
// characters; a segment that is * alone is one segment of the name, or as many more as are needed.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard::nn {

class NamePattern {
 public:
  // UserError for an empty segment or choice.
  explicit NamePattern(std::string_view text);

  // Returns the beginning of the name, up to the end of a segment, that the pattern matches;
  // nothing if it matches none.
  std::optional<std::string> beginning_of(std::string_view name) const;
  bool matches(std::string_view name) const { return beginning_of(name).has_value(); }
  const std::string& text() const { return text_; }

 private:
  using Segment = std::vector<std::string>;  // its choices
  size_t matched(size_t segment, const std::vector<std::string_view>& name, size_t from) const;

  std::string text_;
  std::vector<Segment> segments_;
};

}  // namespace tinyshard::nn
