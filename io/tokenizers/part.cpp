// A name that is missing gives a part that is missing, of which all names are missing in turn: a
// chain of names needs no checks. A value of another type than asked for counts as missing.
#include "io/tokenizers/part.h"

#include <fmt/format.h>

#include "io/tokenizers/unicode.h"

namespace tinyshard::tokenizers {
namespace {

const nlohmann::json kMissing;

}  // namespace

io::FormatError Part::error(std::string_view why) const {
  return {label_, fmt::format("not a tokenizer that can be used: {}", why)};
}

Part Part::operator[](const char* name) const {
  if (!value_->is_object() || !value_->contains(name)) return {kMissing, label_};
  return {value_->at(name), label_};
}

std::vector<Part> Part::items() const {
  std::vector<Part> out;
  if (!value_->is_array()) return out;
  for (const auto& item : *value_) out.emplace_back(item, label_);
  return out;
}

bool Part::flag(const char* name, bool otherwise) const {
  const Part found = (*this)[name];
  return found.json().is_boolean() ? found.json().get<bool>() : otherwise;
}

int64_t Part::number(const char* name, int64_t otherwise) const {
  const Part found = (*this)[name];
  return found.json().is_number_integer() ? found.json().get<int64_t>() : otherwise;
}

std::string Part::text(const char* name, const std::string& otherwise) const {
  const Part found = (*this)[name];
  return found.json().is_string() ? found.json().get<std::string>() : otherwise;
}

std::string Part::character(const char* name, const std::string& otherwise) const {
  const std::string found = text(name, otherwise);
  if (found.empty() || letter_at(found, 0).size != found.size())
    throw error(fmt::format("its {} is {}, not one character", name, io::in_quotes(found)));
  return found;
}

}  // namespace tinyshard::tokenizers
