// A part of a tokenizer.json: a JSON value that may be missing, and the errors that name its file.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "io/errors.h"

namespace tinyshard::tokenizers {

class Part {
 public:
  Part(const nlohmann::json& value, std::string_view label) : value_(&value), label_(label) {}

  // "<file>: not a tokenizer that can be used: <why>"
  io::FormatError error(std::string_view why) const;

  bool missing() const { return value_->is_null(); }
  const nlohmann::json& json() const { return *value_; }
  const std::string& label() const { return label_; }
  Part operator[](const char* name) const;  // missing where there is no such name
  std::vector<Part> items() const;          // none where it is no list

  std::string type() const { return text("type"); }
  bool flag(const char* name, bool otherwise) const;
  int64_t number(const char* name, int64_t otherwise) const;
  std::string text(const char* name, const std::string& otherwise = "") const;
  // Returns the one character of a text. FormatError where it is none or several.
  std::string character(const char* name, const std::string& otherwise) const;

 private:
  const nlohmann::json* value_;
  std::string label_;
};

}  // namespace tinyshard::tokenizers
