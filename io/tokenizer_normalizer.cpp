#include "io/tokenizer_normalizer.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <utf8proc.h>
#include <utility>

#include "core/base/error.h"

namespace tinyshard {
namespace {

constexpr std::array<std::pair<std::string_view, int>, 4> kForms{{
    {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
    {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
}};

std::string in_form(std::string_view text, int form) {
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &made,
                                             static_cast<utf8proc_option_t>(form));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(made, std::free);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  check_internal(size >= 0, "a text that is normalised is UTF-8");
  return {reinterpret_cast<const char*>(made), static_cast<size_t>(size)};
}

}  // namespace

bool TokenizerNormalizer::add(std::string_view form) {
  const auto known = std::ranges::find(kForms, form, [](const auto& f) { return f.first; });
  if (known == kForms.end()) return false;
  forms_.push_back(known->second);
  return true;
}

std::string TokenizerNormalizer::operator()(std::string_view text) const {
  std::string made(text);
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::ranges::all_of(made, is_ascii)) return made;  // the same in all forms
  for (const int form : forms_) made = in_form(made, form);
  return made;
}

}  // namespace tinyshard
