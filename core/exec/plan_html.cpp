// The piece stands alone: styles are attributes of its own elements or rules below its own class, colors
// are the reader's but for lines, and every text of the program passes `escaped`.
#include "core/exec/plan_html.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/exec/plan_words.h"

namespace tinyshard {

using nlohmann::json;

std::string placement_words(const json& record, const json& mesh, const json& placements) {
  const json& axes = record.at("meshes").at(mesh.get<size_t>()).at("axes");
  std::string words;
  bool several = false;
  for (size_t i = 0; i < axes.size() && i < placements.size(); ++i) {
    const json& p = placements[i];
    several = several || axes[i].at(1).get<int64_t>() > 1;
    words += fmt::format(
        "{}{}: {}", words.empty() ? "" : ", ", axes[i].at(0).get<std::string>(),
        p.is_number() ? fmt::format("Shard({})", p.get<int64_t>()) : p.get<std::string>());
  }
  return several ? words : "";
}

namespace html {
namespace {

constexpr size_t kMostRows = 400;  // of a table

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c == '<'    ? "&lt;"
           : c == '>'  ? "&gt;"
           : c == '&'  ? "&amp;"
           : c == '"'  ? "&quot;"
           : c == '\'' ? "&#39;"
                       : std::string(1, c);
  }
  return out;
}

std::string readable(double bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string shape_words(const json& dtype, const json& shape) {
  std::string words;
  for (const json& dim : shape) words += fmt::format("{}{}", words.empty() ? "" : ", ", dim.dump());
  return fmt::format("{}[{}]", dtype.get<std::string>(), words);
}

std::string source_of(const json& record, const json& origin) {
  const json& told = record.at("origins").at(origin.get<size_t>());
  const auto about = told.at(2).get<std::string>(), source = told.at(1).get<std::string>();
  return about.empty() ? source : about + " · " + source;
}

struct Table {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::vector<bool> numbers;  // columns that stand at the right
};

std::string text_of(const Table& table, bool open) {
  if (table.rows.empty()) return {};
  std::string text = fmt::format("<details{}><summary>{} ({})</summary><table><thead><tr>",
                                 open ? " open" : "", escaped(table.title), table.rows.size());
  const auto cell = [&](const char* tag, size_t column, const std::string& value) {
    return fmt::format("<{0}{1}>{2}</{0}>", tag, table.numbers[column] ? " class=\"n\"" : "",
                       escaped(value));
  };
  for (size_t c = 0; c < table.columns.size(); ++c) text += cell("th", c, table.columns[c]);
  text += "</tr></thead><tbody>";
  for (size_t r = 0; r < std::min(table.rows.size(), kMostRows); ++r) {
    text += "<tr>";
    for (size_t c = 0; c < table.columns.size(); ++c) text += cell("td", c, table.rows[r][c]);
    text += "</tr>";
  }
  text += "</tbody></table>";
  if (table.rows.size() > kMostRows)
    text += fmt::format("<p>and {} more</p>", table.rows.size() - kMostRows);
  return text + "</details>";
}

std::string placements_alone(const json& list) {
  std::string words;
  for (const json& p : list)
    words += fmt::format(
        "{}{}", words.empty() ? "" : ", ",
        p.is_number() ? fmt::format("Shard({})", p.get<int64_t>()) : p.get<std::string>());
  return words;
}

std::string figures(const json& r) {
  std::string text = "<p>";
  const auto figure = [&](const std::string& value, const char* what) {
    text += fmt::format("<span class=\"f\"><b>{}</b> {}</span> ", value, what);
  };
  figure(r.at("kernels").dump(), "kernels");
  if (r.at("library_calls") != 0) figure(r.at("library_calls").dump(), "library calls");
  if (r.at("collectives") != 0) figure(r.at("collectives").dump(), "collectives");
  if (r.at("copies") != 0) figure(r.at("copies").dump(), "copies");
  figure(fmt::format("{:.4g}", r.at("operations").get<double>()), "operations");
  if (r.at("sent") != 0) figure(readable(r.at("sent").get<double>()), "sent by a device");
  const auto held = r.at("held").get<double>(), arena = r.at("arena").get<double>(),
             workspace = r.value("workspace", 0.0);
  figure(readable(held + arena + workspace), "at the peak of a device");
  if (workspace > 0) figure(readable(workspace), "of it workspaces of library calls");
  figure(r.at("devices").dump(), "devices");
  return text + "</p>";
}

Table movements(const json& record) {
  Table table{"Movements", {"Value", "From", "To", "Sent", "Line"}, {}, {0, 0, 0, 1, 0}};
  for (const json& m : record.at("moves"))
    table.rows.push_back({shape_words(m.at("dtype"), m.at("shape")), placements_alone(m.at("from")),
                          placements_alone(m.at("to")), readable(m.at("bytes").get<double>()),
                          source_of(record, m.at("o"))});
  return table;
}

Table values(const json& record) {
  Table table{"Values over several devices", {"Value", "Lies", "Name", "Line"}, {}, {0, 0, 0, 0}};
  for (const json& v : record.at("values")) {
    const std::string where = placement_words(record, v.at(3), v.at(4));
    if (where.empty()) continue;
    table.rows.push_back({shape_words(v.at(1), v.at(2)), where, v.at(6).get<std::string>(),
                          source_of(record, v.at(5))});
  }
  return table;
}

Table items(const json& record) {
  Table table{
      "Items", {"Item", "Reads", "Writes", "Operations", "For", "Line"}, {}, {0, 1, 1, 1, 0, 0}};
  for (const json& i : record.at("items"))
    table.rows.push_back({i.at("name").get<std::string>(), readable(i.at("read").get<double>()),
                          readable(i.at("written").get<double>()),
                          fmt::format("{:.4g}", i.at("ops").get<double>()), i.value("purpose", ""),
                          i.value("source", "")});
  return table;
}

Table memory(const json& record) {
  Table table{"Memory of devices", {"Device", "Held", "Temporaries"}, {}, {0, 1, 1}};
  for (const json& m : record.at("memory"))
    table.rows.push_back({m.at(0).get<std::string>(), readable(m.at(1).get<double>()),
                          readable(m.at(2).get<double>())});
  return table;
}

}  // namespace
}  // namespace html

std::string plan_html(std::string_view text) {
  std::string out =
      "<div class=\"tinyshard-plan\"><style>.tinyshard-plan{font:14px/1.45 system-ui,sans-serif}"
      ".tinyshard-plan table{border-collapse:collapse;margin:6px 0 14px}"
      ".tinyshard-plan td,.tinyshard-plan th{padding:2px 12px 2px 0;text-align:left;"
      "border-bottom:1px solid #8884;vertical-align:top}.tinyshard-plan .n{text-align:right}"
      ".tinyshard-plan .f{margin-right:18px}.tinyshard-plan summary{cursor:pointer}</style>";
  if (text.empty()) return out + "<p>Nothing has to be computed.</p></div>\n";
  const json record = json::parse(text);
  out += html::figures(record);
  out += html::text_of(html::movements(record), true);
  out += html::text_of(html::items(record), true);
  out += html::text_of(html::values(record), false);
  out += html::text_of(html::memory(record), false);
  return out + "</div>\n";
}

}  // namespace tinyshard
