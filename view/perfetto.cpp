// Lines of a file of events become events of the trace format that both viewers read: times in microseconds
// from the begin of the first rank, a rank's number in place of a process's, and threads for its lanes.
#include "view/perfetto.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tinyshard {
namespace {

using nlohmann::json;

enum Lane : int { kRuns = 1, kItems = 2, kCompilations = 3 };
constexpr std::pair<Lane, const char*> kLanes[] = {
    {kRuns, "runs"}, {kItems, "items"}, {kCompilations, "compilations"}};

double number(const json& row, const char* name) {
  const auto found = row.find(name);
  return found != row.end() && found->is_number() ? found->get<double>() : 0.0;
}
std::string text(const json& row, const char* name) {
  const auto found = row.find(name);
  return found != row.end() && found->is_string() ? found->get<std::string>() : std::string();
}
// The list, or an empty one.
json list(const json& row, const char* name) {
  const auto found = row.find(name);
  return found != row.end() && found->is_array() ? *found : json::array();
}

class RankEvents {
 public:
  explicit RankEvents(const ViewInput& input) {
    for (std::string_view rest = input.lines; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      json row = json::parse(line, nullptr, false);
      if (row.is_object()) rows_.push_back(std::move(row));
    }
    for (const json& row : rows_) {
      const std::string kind = text(row, "k");
      if (kind == "head") head_ = row;
      if (kind == "plan") add_plan(row);
    }
  }

  bool is_one() const { return head_.is_object(); }
  double start_us() const { return number(head_, "start_us"); }

  // The begin of a collective on this rank and, if it waited, a moment of that; microseconds of the trace.
  struct Part {
    int64_t rank = 0;
    double began = -1, waited = -1;
  };
  // By the collective: plan, number of the run, item.
  using Collectives = std::map<std::tuple<std::string, int64_t, int64_t>, std::vector<Part>>;
  void add_collectives(Collectives& all, double shift) const {
    for (const json& run : rows_) {
      const auto hash = hashes_.find(int64_t(number(run, "plan")));
      if (text(run, "k") != "run" || hash == hashes_.end()) continue;
      const double begun = number(run, "t") + shift;
      std::map<int64_t, Part> parts;
      for (const auto& [lists, waits] : {std::pair("i", false), std::pair("w", true)}) {
        for (const auto& [item, t, d] : triples_of(run, lists)) {
          Part& part = parts[item];
          part.rank = int64_t(number(head_, "rank"));
          // A flow ends within the slice that it leads to.
          (waits ? part.waited : part.began) = begun + t + (waits ? .99 * d : 0);
        }
      }
      for (const auto& [item, part] : parts) {
        if (is_collective(int64_t(number(run, "plan")), item))
          all[{hash->second, int64_t(number(run, "run")), item}].push_back(part);
      }
    }
  }

  // Adds the events of the rank, which began so long after the first.
  void add(json& events, double shift) const {
    const auto rank = int64_t(number(head_, "rank"));
    const auto meta = [&](const char* what, int lane, const std::string& name) {
      events.push_back(
          {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}});
    };
    meta("process_name", 0,
         fmt::format("rank {} of {}, {}", rank, number(head_, "ranks"), text(head_, "host")));
    for (const auto& [lane, name] : kLanes) meta("thread_name", lane, name);
    const auto span = [&](Lane lane, const std::string& name, const char* kind, double t, double d,
                          json args) {
      events.push_back({{"name", name},
                        {"cat", kind},
                        {"ph", "X"},
                        {"ts", t + shift},
                        {"dur", d},
                        {"pid", rank},
                        {"tid", int(lane)},
                        {"args", std::move(args)}});
    };
    double held = 0;
    std::map<std::string, double> by_owner;
    for (const json& row : rows_) {
      const std::string kind = text(row, "k");
      if (kind == "run") {
        add_run(row, span);
      } else if (kind == "span") {
        span(kCompilations, text(row, "name"), "compilation", number(row, "t"), number(row, "d"),
             {{"after", text(row, "after")}});
      } else if (kind == "mem") {
        held += number(row, "b");
        const auto owner = owners_.find(text(row, "name"));
        by_owner[owner == owners_.end() ? "other" : owner->second] += number(row, "b");
        events.push_back({{"name", "memory by owner"},
                          {"ph", "C"},
                          {"ts", number(row, "t") + shift},
                          {"pid", rank},
                          {"args", by_owner}});
        events.push_back({{"name", "memory"},
                          {"ph", "C"},
                          {"ts", number(row, "t") + shift},
                          {"pid", rank},
                          {"args", {{"bytes", held}}}});
      }
    }
  }

 private:
  void add_plan(const json& row) {
    const auto plan = int64_t(number(row, "plan"));
    plans_[plan] = list(row, "items");
    hashes_[plan] = text(row, "hash");
    owners_.try_emplace("temporaries", "temporaries");
    owners_.try_emplace("workspaces", "workspaces");
    for (const json& buffer : list(row, "buffers")) {
      if (buffer.is_array() && buffer.size() > 5 && buffer[4].is_string() && buffer[5].is_string())
        owners_.try_emplace(buffer[5].get<std::string>(), buffer[4].get<std::string>());
    }
  }
  bool is_collective(int64_t plan, int64_t item) const {
    const auto items = plans_.find(plan);
    return items != plans_.end() && item >= 0 && size_t(item) < items->second.size() &&
           items->second[size_t(item)].is_object() &&
           text(items->second[size_t(item)], "kind") == "collective";
  }
  // Item, begin, length of each part of a run.
  static std::vector<std::tuple<int64_t, double, double>> triples_of(const json& run,
                                                                     const char* lists) {
    std::vector<std::tuple<int64_t, double, double>> triples;
    const json values = list(run, lists);
    for (size_t i = 0; i + 2 < values.size(); i += 3) {
      if (values[i].is_number() && values[i + 1].is_number() && values[i + 2].is_number())
        triples.emplace_back(values[i].get<int64_t>(), values[i + 1].get<double>(),
                             values[i + 2].get<double>());
    }
    return triples;
  }

  template <class Span>
  void add_run(const json& run, const Span& span) const {
    const double begun = number(run, "t");
    const auto plan = plans_.find(int64_t(number(run, "plan")));
    span(kRuns, fmt::format("run {}", number(run, "run")), "run", begun, number(run, "d"),
         {{"plan", number(run, "plan")}});
    for (const auto& [parts, kind] : {std::pair("i", "item"), std::pair("w", "wait")}) {
      for (const auto& [item, t, d] : triples_of(run, parts)) {
        const bool known = plan != plans_.end() && item >= 0 &&
                           size_t(item) < plan->second.size() &&
                           plan->second[size_t(item)].is_object();
        const json none = json::object();
        const json& of = known ? plan->second[size_t(item)] : none;
        const std::string name = known ? text(of, "name") : fmt::format("item {}", item);
        span(kItems, (*parts == 'w' ? "waits for " : "") + name, kind, begun + t, d,
             {{"source", text(of, "source")}, {"for", text(of, "purpose")}});
      }
    }
  }

  std::vector<json> rows_;
  json head_;
  std::map<int64_t, json> plans_;  // items by the number of the plan
  std::map<int64_t, std::string> hashes_;
  std::map<std::string, std::string> owners_;  // by the label of a storage
};

// Draws an arrow from the rank that came to a collective last to each one that waited for it.
void add_flows(json& events, const RankEvents::Collectives& collectives) {
  int64_t id = 0;
  for (const auto& [key, parts] : collectives) {
    const auto last = std::ranges::max_element(parts, {}, &RankEvents::Part::began);
    for (const RankEvents::Part& part : parts) {
      if (part.rank == last->rank || part.waited < last->began || last->began < 0) continue;
      const auto end = [&](const char* kind, int64_t rank, double at) {
        json event = {
            {"name", "waits for"},      {"cat", "wait"}, {"ph", kind}, {"id", id}, {"ts", at},
            {"tid", int(Lane::kItems)}, {"pid", rank}};
        if (*kind == 'f') event["bp"] = "e";
        events.push_back(std::move(event));
      };
      end("s", last->rank, last->began);
      end("f", part.rank, part.waited);
      ++id;
    }
  }
}

}  // namespace

std::string perfetto_trace(const std::vector<ViewInput>& inputs) {
  std::vector<RankEvents> ranks;
  for (const ViewInput& input : inputs) {
    if (RankEvents rank(input); rank.is_one()) ranks.push_back(std::move(rank));
  }
  json events = json::array();
  if (ranks.empty()) return "[]";
  const double first = std::ranges::min_element(ranks, {}, &RankEvents::start_us)->start_us();
  RankEvents::Collectives collectives;
  for (const RankEvents& rank : ranks) rank.add_collectives(collectives, rank.start_us() - first);
  add_flows(events, collectives);
  for (const RankEvents& rank : ranks) rank.add(events, rank.start_us() - first);
  return json{{"traceEvents", std::move(events)}}.dump(-1, ' ', false,
                                                       json::error_handler_t::replace);
}

}  // namespace tinyshard
