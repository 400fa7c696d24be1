// Lines of a file of events become events of the trace format that both viewers read: times in microseconds
// from the begin of the first rank, a rank's number in place of a process's, and threads for its lanes.
#include "view/perfetto.h"

#include <algorithm>
#include <map>
#include <string_view>

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
      if (kind == "plan") plans_[int64_t(number(row, "plan"))] = list(row, "items");
    }
  }

  bool is_one() const { return head_.is_object(); }
  double start_us() const { return number(head_, "start_us"); }

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
    for (const json& row : rows_) {
      const std::string kind = text(row, "k");
      if (kind == "run") {
        add_run(row, span);
      } else if (kind == "span") {
        span(kCompilations, text(row, "name"), "compilation", number(row, "t"), number(row, "d"),
             {{"after", text(row, "after")}});
      } else if (kind == "mem") {
        held += number(row, "b");
        events.push_back({{"name", "memory"},
                          {"ph", "C"},
                          {"ts", number(row, "t") + shift},
                          {"pid", rank},
                          {"args", {{"bytes", held}}}});
      }
    }
  }

 private:
  template <class Span>
  void add_run(const json& run, const Span& span) const {
    const double begun = number(run, "t");
    const auto plan = plans_.find(int64_t(number(run, "plan")));
    span(kRuns, fmt::format("run {}", number(run, "run")), "run", begun, number(run, "d"),
         {{"plan", number(run, "plan")}});
    for (const auto& [parts, kind] : {std::pair("i", "item"), std::pair("w", "wait")}) {
      const json values = list(run, parts);
      for (size_t i = 0; i + 2 < values.size(); i += 3) {
        if (!values[i].is_number() || !values[i + 1].is_number() || !values[i + 2].is_number())
          continue;
        const auto item = values[i].get<int64_t>();
        const bool known = plan != plans_.end() && item >= 0 &&
                           size_t(item) < plan->second.size() &&
                           plan->second[size_t(item)].is_object();
        const json none = json::object();
        const json& of = known ? plan->second[size_t(item)] : none;
        const std::string name = known ? text(of, "name") : fmt::format("item {}", item);
        span(kItems, (*parts == 'w' ? "waits for " : "") + name, kind,
             begun + values[i + 1].get<double>(), values[i + 2].get<double>(),
             {{"source", text(of, "source")}, {"for", text(of, "purpose")}});
      }
    }
  }

  std::vector<json> rows_;
  json head_;
  std::map<int64_t, json> plans_;  // items by the number of the plan
};

}  // namespace

std::string perfetto_trace(const std::vector<ViewInput>& inputs) {
  std::vector<RankEvents> ranks;
  for (const ViewInput& input : inputs) {
    if (RankEvents rank(input); rank.is_one()) ranks.push_back(std::move(rank));
  }
  json events = json::array();
  if (ranks.empty()) return "[]";
  const double first = std::ranges::min_element(ranks, {}, &RankEvents::start_us)->start_us();
  for (const RankEvents& rank : ranks) rank.add(events, rank.start_us() - first);
  return json{{"traceEvents", std::move(events)}}.dump(-1, ' ', false,
                                                       json::error_handler_t::replace);
}

}  // namespace tinyshard
