// A record tells each pass by the nodes that it brought and did away with; the graph before the sharding
// rewrite is what stands after the pass before it. Example, for a.matmul(b).sum() over two devices:
//
//   digraph tinyshard {
//     n7 [label="matmul f32[8, 4]\ndata: Shard(0)\ntrain.cpp:20"];
//     n5 -> n7;
//   }
#include "core/exec/plan_dot.h"

#include <map>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/exec/plan_words.h"

namespace tinyshard {
namespace dot {
namespace {

using nlohmann::json;

// A string of DOT: quotes and backslashes are escaped, and no line ends in the middle of it.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += ' ';
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + "\"";
}

std::set<uint64_t> nodes_before_sharding(const json& record) {
  std::set<uint64_t> now;
  for (const json& pass : record.at("passes")) {
    if (pass.at("name") == "shard") break;
    for (const json& id : pass.at("removed")) now.erase(id.get<uint64_t>());
    for (const json& id : pass.at("added")) now.insert(id.get<uint64_t>());
  }
  return now;
}

std::string digraph(const std::string& nodes, const std::string& edges) {
  return "digraph tinyshard {\n  node [shape=box, style=rounded, fontname=\"sans-serif\", "
         "fontsize=10];\n" +
         nodes + edges + "}\n";
}

}  // namespace
}  // namespace dot

std::string plan_dot(std::string_view text) {
  std::string nodes, edges;
  if (!text.empty()) {
    const nlohmann::json record = nlohmann::json::parse(text);
    std::map<uint64_t, std::string> places;
    for (const nlohmann::json& value : record.at("values"))
      places[value.at(0).get<uint64_t>()] = placement_words(record, value.at(3), value.at(4));
    const std::set<uint64_t> wanted = dot::nodes_before_sharding(record);
    for (const nlohmann::json& node : record.at("nodes")) {
      const auto id = node.at(0).get<uint64_t>();
      if (!wanted.contains(id)) continue;
      std::string label = node.at(1).get<std::string>();
      const auto place = places.find(id);
      if (place != places.end() && !place->second.empty()) label += "\n" + place->second;
      const nlohmann::json& origin = record.at("origins").at(node.at(3).get<size_t>());
      if (const auto source = origin.at(1).get<std::string>(); !source.empty())
        label += "\n" + source;
      nodes += fmt::format("  n{} [label={}];\n", id, dot::quoted(label));
      for (const nlohmann::json& from : node.at(2))
        edges += fmt::format("  n{} -> n{};\n", from.get<uint64_t>(), id);
    }
  }
  return dot::digraph(nodes, edges);
}

std::string items_dot(std::string_view text) {
  std::string nodes, edges;
  if (text.empty()) return dot::digraph(nodes, edges);
  const nlohmann::json record = nlohmann::json::parse(text);
  std::map<int, size_t> writer;  // the last one so far, by buffer
  size_t number = 0;
  for (const nlohmann::json& item : record.at("items")) {
    std::string label = item.at("name").get<std::string>();
    for (const char* more : {"purpose", "source"}) {
      if (item.contains(more)) label += "\n" + item.at(more).get<std::string>();
    }
    nodes += fmt::format("  i{} [label={}];\n", number, dot::quoted(label));
    std::set<size_t> before;
    for (const nlohmann::json& buffer : item.at("reads")) {
      const auto from = writer.find(buffer.get<int>());
      if (from != writer.end()) before.insert(from->second);
    }
    for (const size_t from : before) edges += fmt::format("  i{} -> i{};\n", from, number);
    for (const nlohmann::json& buffer : item.at("writes")) writer[buffer.get<int>()] = number;
    ++number;
  }
  return dot::digraph(nodes, edges);
}

}  // namespace tinyshard
