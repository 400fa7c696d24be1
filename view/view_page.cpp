// The page is put together from parts at marks that data cannot contain, as every '<' in it is written
// as an escape of JSON.
#include "view/view_page.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "view/page_parts.h"

namespace tinyshard {
namespace {

using nlohmann::json;

// JSON with nothing in it that HTML or a script would read as its own.
std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    // U+2028 and U+2029, which end a line of a script.
    const bool separator = text.substr(i, 2) == "\xe2\x80" && i + 2 < text.size() &&
                           (text[i + 2] == '\xa8' || text[i + 2] == '\xa9');
    if (c == '<' || c == '>' || c == '&') {
      out += fmt::format("\\u{:04x}", unsigned(c));
    } else if (separator) {
      out += text[i + 2] == '\xa8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      out += c;
    }
  }
  return out;
}

// Numbers that are too large for a double are no JSON for a browser, and depth is stack.
constexpr int kMostDepth = 64;

bool is_deep(std::string_view line) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
      continue;
    }
    quoted = c == '"';
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kMostDepth) return true;
  }
  return false;
}

}  // namespace

std::string view_data(const std::vector<ViewInput>& inputs, bool follows) {
  std::string text = follows ? "{\"follows\":true,\"files\":[" : "{\"files\":[";
  bool first = true;
  for (const ViewInput& input : inputs) {
    std::string lines;
    int64_t left_out = 0;
    for (std::string_view rest = input.lines; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      if (line.find_first_not_of(" \r\t") == std::string_view::npos) continue;
      const json row =
          is_deep(line) ? json(json::value_t::discarded) : json::parse(line, nullptr, false);
      if (!row.is_object()) {
        ++left_out;
        continue;
      }
      lines +=
          (lines.empty() ? "" : ",\n") + row.dump(-1, ' ', false, json::error_handler_t::replace);
    }
    text += fmt::format("{}{{\"name\":{},\"left_out\":{}{}{},\"lines\":[{}]}}", first ? "" : ",",
                        json(input.name).dump(-1, ' ', false, json::error_handler_t::replace),
                        left_out, follows ? fmt::format(",\"at\":{}", input.at) : "",
                        input.anew ? ",\"anew\":true" : "", lines);
    first = false;
  }
  return escaped(text + "]}");
}

namespace {

// Scripts of the page carry a number that only this page has.
std::string random_number() {
  std::random_device device;
  std::string text;
  for (int i = 0; i < 4; ++i) text += fmt::format("{:08x}", device());
  return text;
}

void put(std::string& page, std::string_view mark, std::string_view text) {
  const size_t at = page.find(mark);
  if (at == std::string::npos) throw InternalError(fmt::format("the page has no {}", mark));
  page.replace(at, mark.size(), text);
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad())
    throw UserError(
        fmt::format("view: {} cannot be read: {}", path.string(), std::strerror(errno)));
  return text;
}

}  // namespace

std::string view_page(const std::vector<ViewInput>& inputs, bool follows) {
  std::string page(view::kPage), scripts;
  for (const std::string_view script : view::kScripts) scripts += script;
  const std::string number = random_number();
  put(page, "@POLICY@", number);
  put(page, "@CONNECT@", follows ? "; connect-src 'self'" : "");
  put(page, "@SCRIPT_NUMBER@", number);
  put(page, "/*STYLE*/", view::kStyle);
  put(page, "/*SCRIPT*/", scripts);
  put(page, "@DATA@", view_data(inputs, follows));
  return page;
}

std::vector<std::string> view_files(const std::vector<std::string>& paths) {
  std::vector<std::string> all;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      all.push_back(path);
      continue;
    }
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const std::string ending = entry.path().extension().string();
      if (ending == ".tsview" || ending == ".jsonl") files.push_back(entry.path().string());
    }
    if (files.empty())
      throw UserError(fmt::format("view: {} has no file that ends with .tsview or .jsonl", path));
    std::ranges::sort(files);
    all.insert(all.end(), files.begin(), files.end());
  }
  return all;
}

std::vector<ViewInput> read_view_inputs(const std::vector<std::string>& paths) {
  std::vector<ViewInput> inputs;
  for (const std::string& path : view_files(paths))
    inputs.push_back({std::filesystem::path(path).filename().string(), read_text(path)});
  return inputs;
}

}  // namespace tinyshard
