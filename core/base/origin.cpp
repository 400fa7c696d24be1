// A table that only grows, by a line of the program that builds nodes, or by a name of a parameter.
#include "core/base/origin.h"

#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/hash.h"
#include "core/base/thread_local.h"

namespace tinyshard {
namespace {

struct LineHash {
  size_t operator()(const std::tuple<const char*, const char*, unsigned>& key) const {
    const auto& [op, file, line] = key;
    return size_t(combine(combine(uint64_t(reinterpret_cast<uintptr_t>(op)), line),
                          uint64_t(reinterpret_cast<uintptr_t>(file))));
  }
};

struct Table {
  std::mutex mutex;
  std::deque<Origin> origins{Origin{}};  // by id; a deque moves nothing
  std::unordered_map<std::tuple<const char*, const char*, unsigned>, OriginId, LineHash> lines;
  std::map<std::pair<OriginId, std::string>, OriginId, std::less<>> abouts;
  std::unordered_map<OriginId, OriginId> plain;  // of those with an `about`: the line alone

  OriginId add(Origin origin) {
    origins.push_back(std::move(origin));
    return OriginId(origins.size() - 1);
  }
};

Table& table() {
  static Table& table = *new Table;  // outlives every static node
  return table;
}

TS_HOT_THREAD_LOCAL OriginId scope = 0;
TS_HOT_THREAD_LOCAL bool is_scoped = false;

}  // namespace

std::string Origin::source() const {
  return file.empty() ? std::string() : fmt::format("{}:{}", file, line);
}

const Origin& origin_of(OriginId id) {
  std::lock_guard lock(table().mutex);
  return table().origins.at(id);
}

OriginId origin_at(const char* op, std::string_view file, unsigned line) {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  auto [found, added] = t.lines.try_emplace({op, file.data(), line}, 0);
  if (added) {
    std::string name(file.substr(file.find_last_of('/') + 1));
    found->second = t.add({.op = op, .file = std::move(name), .line = line, .about = {}});
  }
  return found->second;
}

OriginId with_about(OriginId id, std::string_view about) {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  if (auto line = t.plain.find(id); line != t.plain.end()) id = line->second;
  auto [found, added] = t.abouts.try_emplace({id, std::string(about)}, 0);
  if (added) {
    Origin origin = t.origins.at(id);
    origin.about = about;
    found->second = t.add(std::move(origin));
    t.plain[found->second] = id;
  }
  return found->second;
}

OriginId current_origin() { return is_scoped ? scope : origin_of_call(); }

OriginScope::OriginScope(OriginId origin)
    : before_(std::exchange(scope, origin)), scoped_before_(std::exchange(is_scoped, true)) {}
OriginScope::~OriginScope() {
  scope = before_;
  is_scoped = scoped_before_;
}

}  // namespace tinyshard
