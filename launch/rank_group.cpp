// JSON is UTF-8, and names of files and arguments are bytes: a text travels as the characters of
// those numbers. Example: the byte e9 of "caf\xe9" goes as U+00E9 and comes as e9.
#include "launch/rank_group.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace tinyshard {
namespace {

std::string to_text(std::string_view bytes) {
  std::string text;
  for (char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += char(0xc0 | byte >> 6);
      text += char(0x80 | (byte & 0x3f));
    }
  }
  return text;
}

std::string to_bytes(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      bytes += text[i];
    } else if ((byte & 0xfc) == 0xc0 && i + 1 < text.size()) {
      bytes += char(byte << 6 | (text[++i] & 0x3f));
    } else {
      throw UserError("a group of ranks: a text has characters that stand for no byte");
    }
  }
  return bytes;
}

template <class Convert>
std::vector<std::string> each(const std::vector<std::string>& texts, Convert convert) {
  std::vector<std::string> converted;
  for (const std::string& text : texts) converted.push_back(convert(text));
  return converted;
}

}  // namespace

std::string to_json(const RankGroup& g) {
  return nlohmann::json{{"command", each(g.command, to_text)},
                        {"environment", each(g.environment, to_text)},
                        {"folder", to_text(g.folder)},
                        {"first_rank", g.first_rank},
                        {"ranks", g.ranks},
                        {"size", g.size},
                        {"bind_cores", g.bind_cores},
                        {"stays", g.stays}}
      .dump();
}

RankGroup rank_group_from_json(std::string_view text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    RankGroup g;
    g.command = each(json.at("command").get<std::vector<std::string>>(), to_bytes);
    g.environment = each(json.at("environment").get<std::vector<std::string>>(), to_bytes);
    g.folder = to_bytes(json.at("folder").get<std::string>());
    json.at("first_rank").get_to(g.first_rank);
    json.at("ranks").get_to(g.ranks);
    json.at("size").get_to(g.size);
    json.at("bind_cores").get_to(g.bind_cores);
    json.at("stays").get_to(g.stays);
    if (g.command.empty() || g.ranks < 1 || g.ranks > g.size || g.first_rank < 0 ||
        g.first_rank > g.size - g.ranks)
      throw UserError("a group of ranks that makes no sense");
    return g;
  } catch (const nlohmann::json::exception& error) {
    throw UserError(fmt::format("a group of ranks: {}", error.what()));
  }
}

std::string escaped(std::string_view text) {
  std::string line;
  for (char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\\') {
      line += "\\\\";
    } else {
      line += c;
    }
  }
  return line;
}

std::string unescaped(std::string_view line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool pair = line[i] == '\\' && i + 1 < line.size();
    if (pair) ++i;
    text += pair && line[i] == 'n' ? '\n' : line[i];
  }
  return text;
}

}  // namespace tinyshard
