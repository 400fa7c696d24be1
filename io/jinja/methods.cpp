// Methods of texts and dicts, and the functions that every template has.
#include <algorithm>
#include <ctime>
#include <map>

#include <fmt/format.h>

#include "io/jinja/builtins.h"
#include "io/tokenizers/unicode.h"

namespace tinyshard::jinja {
namespace {

using Strings = std::vector<std::string>;

// Changes each character by put(code, at the beginning of a word, out).
template <class Put>
std::string by_character(const std::string& text, Put put) {
  std::string out;
  bool begins = true;
  for (size_t at = 0; at < text.size();) {
    const tokenizers::Letter letter = tokenizers::letter_at(text, at);
    if (letter.code == tokenizers::kNoCharacter)
      out += text[at];
    else
      put(letter.code, begins, out);
    begins = !tokenizers::is_word(letter.code);
    at += letter.size;
  }
  return out;
}

std::string lower(const std::string& text) {
  return by_character(text, [](uint32_t code, bool, std::string& out) {
    tokenizers::append_utf8(out, tokenizers::lower(code));
  });
}
std::string upper(const std::string& text) {
  return by_character(text, [](uint32_t code, bool, std::string& out) {
    tokenizers::append_utf8(out, tokenizers::upper(code));
  });
}
std::string title(const std::string& text) {
  return by_character(text, [](uint32_t code, bool begins, std::string& out) {
    tokenizers::append_utf8(out, begins ? tokenizers::upper(code) : tokenizers::lower(code));
  });
}
std::string capitalized(const std::string& text) {
  const size_t first = text.empty() ? 0 : tokenizers::letter_at(text, 0).size;
  return upper(text.substr(0, first)) + lower(text.substr(first));
}

// Takes characters off the ends: white space, or those of `which`.
std::string stripped(const std::string& text, bool left, bool right, const Value& which) {
  const auto goes = [&](const Value& letter) {
    if (which.is_text()) return which.text().find(letter.text()) != std::string::npos;
    return tokenizers::is_space(tokenizers::letter_at(letter.text(), 0).code);
  };
  List letters = elements(text);
  size_t begin = 0, end = letters.size();
  while (left && begin < end && goes(letters[begin])) ++begin;
  while (right && end > begin && goes(letters[end - 1])) --end;
  std::string out;
  for (size_t i = begin; i < end; ++i) out += letters[i].text();
  return out;
}

List split(const std::string& text, const Value& separator, const Value& most, bool from_right) {
  Strings out;
  int64_t left = most.is_integer() && most.integer() >= 0 ? most.integer() : INT64_MAX;
  std::string rest = text;
  if (separator.is_text()) {
    const std::string& by = separator.text();
    if (by.empty()) fail("a split by an empty text");
    for (; left > 0; --left) {
      const size_t at = from_right ? rest.rfind(by) : rest.find(by);
      if (at == std::string::npos) break;
      out.push_back(from_right ? rest.substr(at + by.size()) : rest.substr(0, at));
      rest = from_right ? rest.substr(0, at) : rest.substr(at + by.size());
    }
    out.push_back(rest);
  } else {
    const auto is_space = [](char c) {
      return tokenizers::is_space(static_cast<unsigned char>(c) & 0x7f) && !(c & 0x80);
    };
    rest = stripped(rest, !from_right, from_right, {});
    while (!rest.empty() && left-- > 0) {
      if (from_right) {
        size_t at = rest.size();
        while (at > 0 && !is_space(rest[at - 1])) --at;
        out.push_back(rest.substr(at));
        rest = stripped(rest.substr(0, at), false, true, {});
      } else {
        const auto at = static_cast<size_t>(std::ranges::find_if(rest, is_space) - rest.begin());
        out.push_back(rest.substr(0, at));
        rest = stripped(rest.substr(at), true, false, {});
      }
    }
    if (!rest.empty()) out.push_back(stripped(rest, true, true, {}));
  }
  if (from_right) std::ranges::reverse(out);
  return List(out.begin(), out.end());
}

std::string replaced(std::string text, const std::string& from, const std::string& to,
                     int64_t most) {
  if (from.empty()) fail("a replacement of an empty text");
  for (size_t at = 0; most-- != 0 && (at = text.find(from, at)) != std::string::npos;) {
    text.replace(at, from.size(), to);
    check_size(text.size());
    at += to.size();
  }
  return text;
}

bool begins_or_ends(const std::string& text, const Value& with, bool begins) {
  const List all = with.is_list() ? with.list() : List{with};
  return std::ranges::any_of(all, [&](const Value& each) {
    return begins ? text.starts_with(each.str()) : text.ends_with(each.str());
  });
}

template <class Is>
bool all_are(const std::string& text, Is is) {
  for (size_t at = 0; at < text.size();) {
    const tokenizers::Letter letter = tokenizers::letter_at(text, at);
    if (!is(letter.code)) return false;
    at += letter.size;
  }
  return !text.empty();
}

List lines_of(const std::string& text) {
  List out;
  std::string rest = text;
  while (!rest.empty()) {
    const size_t at = rest.find('\n');
    out.emplace_back(rest.substr(0, at));
    rest = at == std::string::npos ? "" : rest.substr(at + 1);
  }
  return out;
}

using TextMethod = Value (*)(const std::string& text, const Arguments& a);
const std::map<std::string, TextMethod>& text_methods() {
  static const std::map<std::string, TextMethod> all{
      {"lower", [](const std::string& t, const Arguments&) { return Value(lower(t)); }},
      {"upper", [](const std::string& t, const Arguments&) { return Value(upper(t)); }},
      {"title", [](const std::string& t, const Arguments&) { return Value(title(t)); }},
      {"capitalize", [](const std::string& t, const Arguments&) { return Value(capitalized(t)); }},
      {"strip",
       [](const std::string& t, const Arguments& a) {
         return Value(stripped(t, true, true, a.get(0, "chars")));
       }},
      {"lstrip",
       [](const std::string& t, const Arguments& a) {
         return Value(stripped(t, true, false, a.get(0, "chars")));
       }},
      {"rstrip",
       [](const std::string& t, const Arguments& a) {
         return Value(stripped(t, false, true, a.get(0, "chars")));
       }},
      {"split",
       [](const std::string& t, const Arguments& a) {
         return Value(split(t, a.get(0, "sep"), a.get(1, "maxsplit"), false));
       }},
      {"rsplit",
       [](const std::string& t, const Arguments& a) {
         return Value(split(t, a.get(0, "sep"), a.get(1, "maxsplit"), true));
       }},
      {"splitlines", [](const std::string& t, const Arguments&) { return Value(lines_of(t)); }},
      {"startswith",
       [](const std::string& t, const Arguments& a) {
         return Value(begins_or_ends(t, a.get(0, "prefix"), true));
       }},
      {"endswith",
       [](const std::string& t, const Arguments& a) {
         return Value(begins_or_ends(t, a.get(0, "suffix"), false));
       }},
      {"removeprefix",
       [](const std::string& t, const Arguments& a) {
         const std::string p = a.get(0, "prefix").str();
         return Value(t.starts_with(p) ? t.substr(p.size()) : t);
       }},
      {"removesuffix",
       [](const std::string& t, const Arguments& a) {
         const std::string p = a.get(0, "suffix").str();
         return Value(t.ends_with(p) ? t.substr(0, t.size() - p.size()) : t);
       }},
      {"replace",
       [](const std::string& t, const Arguments& a) {
         const Value most = a.get(2, "count");
         return Value(replaced(t, a.get(0, "old").str(), a.get(1, "new").str(),
                               most.is_integer() ? most.integer() : -1));
       }},
      {"find",
       [](const std::string& t, const Arguments& a) {
         const size_t at = t.find(a.get(0, "sub").str());
         return Value(at == std::string::npos
                          ? int64_t{-1}
                          : static_cast<int64_t>(elements(t.substr(0, at)).size()));
       }},
      {"count",
       [](const std::string& t, const Arguments& a) {
         return Value(static_cast<int64_t>(split(t, a.get(0, "sub").str(), {}, false).size()) - 1);
       }},
      {"join",
       [](const std::string& t, const Arguments& a) {
         std::string out;
         bool first = true;
         for (const Value& each : elements(a.get(0, "iterable"))) {
           out += (first ? "" : t) + each.str();
           check_size(out.size());
           first = false;
         }
         return Value(out);
       }},
      {"isdigit", [](const std::string& t,
                     const Arguments&) { return Value(all_are(t, tokenizers::is_numeric)); }},
      {"isspace", [](const std::string& t,
                     const Arguments&) { return Value(all_are(t, tokenizers::is_space)); }},
      {"isalnum",
       [](const std::string& t, const Arguments&) {
         return Value(all_are(t, [](uint32_t c) { return c != '_' && tokenizers::is_word(c); }));
       }},
      {"isalpha",
       [](const std::string& t, const Arguments&) {
         return Value(all_are(t, [](uint32_t c) {
           return c != '_' && tokenizers::is_word(c) && !tokenizers::is_numeric(c);
         }));
       }},
      {"isupper", [](const std::string& t,
                     const Arguments&) { return Value(t == upper(t) && t != lower(t)); }},
      {"islower", [](const std::string& t,
                     const Arguments&) { return Value(t == lower(t) && t != upper(t)); }},
  };
  return all;
}

Value dict_method(const Value& dict, const std::string& name) {
  const auto collected = [dict](auto of) {
    return Function([dict, of](const Arguments&) -> Value {
      List out;
      for (const auto& [key, value] : dict.dict()) out.push_back(of(key, value));
      return out;
    });
  };
  if (name == "items")
    return collected([](const Value& key, const Value& value) { return Value(List{key, value}); });
  if (name == "keys") return collected([](const Value& key, const Value&) { return key; });
  if (name == "values") return collected([](const Value&, const Value& value) { return value; });
  if (name != "get") return {};
  return Function([dict](const Arguments& a) -> Value {
    const Value found = dict.entry(a.get(0, "key")), otherwise = a.get(1, "default");
    if (!found.is_undefined()) return found;
    return otherwise.is_undefined() ? Value(None()) : otherwise;
  });
}

Value range(const Arguments& a) {
  const bool one = a.positional.size() < 2;
  const int64_t begin = one ? 0 : a.get(0, "start").integer();
  const int64_t end = a.get(one ? 0 : 1, "stop").integer();
  const int64_t step = a.positional.size() > 2 ? a.get(2, "step").integer() : 1;
  if (step == 0) fail("a range with a step of 0");
  List out;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    if (out.size() == 100'000) fail("a range of more than 100000 numbers");
    out.emplace_back(i);
  }
  return out;
}

Value time_now(const Arguments& a) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::string out(256, '\0');
  out.resize(std::strftime(out.data(), out.size(), a.get(0, "format").str().c_str(), &local));
  return out;
}

Dict dict_of(const Arguments& a) {
  const Value from = a.get(0, "mapping");
  Dict out = from.is_dict() ? from.dict() : Dict();
  for (const auto& [name, value] : a.named) out.emplace_back(name, value);
  return out;
}

}  // namespace

Value method(const Value& value, const std::string& name) {
  if (value.is_dict()) return dict_method(value, name);
  if (!value.is_text()) return {};
  const auto found = text_methods().find(name);
  if (found == text_methods().end()) return {};
  return Function(
      [text = value.text(), call = found->second](const Arguments& a) { return call(text, a); });
}

Dict global_functions() {
  return {{"range", Function(range)},
          {"dict", Function([](const Arguments& a) { return Value(dict_of(a)); })},
          {"namespace", Function([](const Arguments& a) {
             return Value(Namespace{std::make_shared<Dict>(dict_of(a))});
           })},
          {"strftime_now", Function(time_now)},
          {"raise_exception", Function([](const Arguments& a) -> Value {
             fail("the template refuses: " + a.get(0, "message").str());
           })}};
}

}  // namespace tinyshard::jinja
