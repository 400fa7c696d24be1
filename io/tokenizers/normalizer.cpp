// Steps see valid UTF-8 only: bytes that are none pass between them as they are. A step notes when
// it took away the beginning of the text (`cut`). BERT's normalizer is four steps: controls and
// spaces, room around Chinese characters, accents, lower case.
#include "io/tokenizers/normalizer.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <utf8proc.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "io/tokenizers/charsmap.h"
#include "io/tokenizers/pattern.h"
#include "io/tokenizers/unicode.h"

namespace tinyshard::tokenizers {
namespace {

constexpr std::array<std::pair<std::string_view, int>, 4> kForms{{
    {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
    {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
}};
constexpr int kDecomposed = kForms[1].second;

std::string in_form(std::string_view text, int form) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::ranges::all_of(text, is_ascii)) return std::string(text);  // the same in all forms
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &made,
                                             static_cast<utf8proc_option_t>(form));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(made, std::free);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  check_internal(size >= 0, "a text that is normalised is UTF-8");
  return {reinterpret_cast<const char*>(made), static_cast<size_t>(size)};
}

// Calls put(code, out) for each character.
template <class Put>
std::string by_character(std::string_view text, Put put) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Letter letter = letter_at(text, at);
    put(letter.code, out);
    at += letter.size;
  }
  return out;
}

// Leaves out characters; `cut` is set where the first is one of them.
template <class Drops>
std::string without(std::string_view text, bool& cut, Drops drops) {
  if (!text.empty() && drops(letter_at(text, 0).code)) cut = true;
  return by_character(text, [&](uint32_t code, std::string& out) {
    if (!drops(code)) append_utf8(out, code);
  });
}

std::string lowered(std::string_view text) {
  return by_character(text, [](uint32_t code, std::string& out) {
    // The one letter whose lower case is two: i and a dot above.
    if (code == 0x130) return out.append("i\xcc\x87"), void();
    append_utf8(out, lower(code));
  });
}

std::string without_accents(std::string_view text, bool& cut) {
  return without(text, cut, is_nonspacing_mark);
}

std::string stripped(std::string_view text, bool left, bool right, bool& cut) {
  std::vector<size_t> begins;
  for (size_t at = 0; at < text.size(); at += letter_at(text, at).size) begins.push_back(at);
  size_t first = 0, last = begins.size();
  const auto space = [&](size_t i) { return is_space(letter_at(text, begins[i]).code); };
  while (left && first < last && space(first)) ++first;
  while (right && last > first && space(last - 1)) --last;
  cut |= first > 0;
  const auto place = [&](size_t i) { return i < begins.size() ? begins[i] : text.size(); };
  return std::string(text.substr(place(first), place(last) - place(first)));
}

// The rules of NMT's preprocessing: controls go, odd spaces become spaces.
bool nmt_drops(uint32_t c) {
  return (c >= 0x1 && c <= 0x8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f ||
         c == 0x9f;
}
bool nmt_is_space(uint32_t c) {
  return c == 0x9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
         (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff ||
         c == 0xfffd;
}

bool is_chinese(uint32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
         (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
         (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

bool bert_drops(uint32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  return c == 0 || c == 0xfffd || is_other(c);
}

std::string with_spaces(std::string_view text, bool (*is)(uint32_t)) {
  return by_character(
      text, [&](uint32_t code, std::string& out) { append_utf8(out, is(code) ? ' ' : code); });
}

}  // namespace

void Normalizer::add(const Part& part) {
  if (part.missing()) return;
  const std::string type = part.type();
  const auto form = std::ranges::find(kForms, type, [](const auto& f) { return f.first; });
  if (form != kForms.end()) {
    steps_.push_back([form](std::string_view t, bool&) { return in_form(t, form->second); });
  } else if (type == "Sequence") {
    for (const Part& each : part["normalizers"].items()) add(each);
  } else if (type == "Lowercase") {
    steps_.push_back([](std::string_view t, bool&) { return lowered(t); });
  } else if (type == "StripAccents") {
    steps_.push_back(without_accents);
  } else if (type == "Strip") {
    const bool left = part.flag("strip_left", true), right = part.flag("strip_right", true);
    steps_.push_back([=](std::string_view t, bool& cut) { return stripped(t, left, right, cut); });
  } else if (type == "Nmt") {
    steps_.push_back([](std::string_view t, bool& cut) {
      return with_spaces(without(t, cut, nmt_drops), nmt_is_space);
    });
  } else if (type == "Prepend") {
    steps_.push_back([prefix = part.text("prepend")](std::string_view t, bool&) {
      return t.empty() ? std::string() : prefix + std::string(t);
    });
  } else if (type == "ByteLevel") {
    steps_.push_back([](std::string_view t, bool&) { return in_byte_letters(t); });
  } else if (type == "Replace") {
    add_replace(part);
  } else if (type == "BertNormalizer") {
    add_bert(part);
  } else if (type == "Precompiled") {
    auto map = Charsmap::parse(part.text("precompiled_charsmap"));
    if (!map) throw part.error("its precompiled_charsmap is no table of replacements");
    steps_.push_back([map = std::move(*map)](std::string_view t, bool&) { return map(t); });
  } else {
    throw part.error(
        fmt::format("it has a normalizer, {}, that is not known", io::in_quotes(type)));
  }
}

void Normalizer::add_replace(const Part& part) {
  auto pattern = std::make_shared<Pattern>(Pattern::of(part["pattern"]));
  steps_.push_back([pattern, content = part.text("content")](std::string_view text, bool& cut) {
    std::string out;
    pattern->cut(text, [&](size_t begin, size_t end, bool is_match) {
      cut |= is_match && begin == 0 && content.empty();
      out += is_match ? std::string_view(content) : text.substr(begin, end - begin);
    });
    return out;
  });
}

void Normalizer::add_bert(const Part& part) {
  if (part.flag("clean_text", true)) {
    steps_.push_back([](std::string_view t, bool& cut) {
      return with_spaces(without(t, cut, bert_drops), is_space);
    });
  }
  if (part.flag("handle_chinese_chars", true)) {
    steps_.push_back([](std::string_view t, bool&) {
      return by_character(t, [](uint32_t code, std::string& out) {
        if (is_chinese(code)) out += ' ';
        append_utf8(out, code);
        if (is_chinese(code)) out += ' ';
      });
    });
  }
  const bool lowers = part.flag("lowercase", true);
  if (part.flag("strip_accents", lowers)) {
    steps_.push_back([](std::string_view t, bool& cut) {
      return without_accents(in_form(t, kDecomposed), cut);
    });
  }
  if (lowers) steps_.push_back([](std::string_view t, bool&) { return lowered(t); });
}

std::string Normalizer::operator()(std::string_view text, bool& cut) const {
  if (steps_.empty()) return std::string(text);
  const auto run = [&](std::string_view valid) {
    std::string made(valid);
    for (const Step& step : steps_) made = step(made, cut);
    return made;
  };
  std::string out;
  while (!text.empty()) {
    const size_t good = valid_utf8(text);
    if (good > 0) out += run(text.substr(0, good));
    if (good == text.size()) break;
    out += text[good];
    text.remove_prefix(good + 1);
  }
  return out;
}

}  // namespace tinyshard::tokenizers
