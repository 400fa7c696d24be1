// Rates come from the records of a ring alone, so that one look is enough, and a job that was never
// watched tells as much. Example: ten runs of 100 ms, in each of which ranks 0, 1 and 3 begin their
// all_reduce after 60 ms, and rank 2 after 85: rank 2 is late by 25 ms a run, a quarter of the time; the
// others are in calls for 40 % of it, rank 2 for 15 %.
//
// A rank is not late for what it waited itself. Example: rank 3 waits for rank 1 in an all_gather of axis
// "data" and comes to the all_reduce that it shares with rank 2 only then: rank 1 is late, rank 3 is not.
#include "transport/recorder/activity.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tinyshard::recorder {
namespace {

constexpr uint64_t kRuns = 10;
constexpr double kHoldsUp = .05;  // share of the time

double seconds(int64_t from, int64_t to) { return double(to - from) * 1e-9; }

// The records of the last runs of a ring.
struct Window {
  uint64_t first_run = 0, last_run = 0;
  int64_t begin_ns = 0;     // of the first run
  int64_t last_run_ns = 0;  // begin of the last one
  std::span<const RecordedCall> calls;
};

Window last_runs(const RankRing& ring) {
  Window window;
  // Calls outside of runs, such as those by which ranks compare their schedules, have the number 0.
  const auto in_run = [](const RecordedCall& call) { return call.call.ticket.run > 0; };
  const auto last = std::find_if(ring.calls.rbegin(), ring.calls.rend(), in_run);
  if (last == ring.calls.rend()) return window;
  const Ticket& latest = last->call.ticket;
  window.last_run = window.first_run = latest.run;
  size_t begin = ring.calls.size();
  for (size_t i = ring.calls.size(); i-- > 0;) {
    if (!in_run(ring.calls[i])) continue;
    const Ticket& ticket = ring.calls[i].call.ticket;
    if (ticket.epoch != latest.epoch || ticket.run > window.first_run ||
        ticket.run + kRuns < latest.run)
      break;
    if (ticket.run == latest.run) window.last_run_ns = ring.calls[i].started_ns;
    window.first_run = ticket.run;
    window.begin_ns = ring.calls[i].started_ns;
    begin = i;
  }
  window.calls = std::span(ring.calls).subspan(begin);
  return window;
}

// Runs that take longer than those before them lower the rate before they end.
double rate_of(const Window& window, int64_t now_ns) {
  const auto runs = double(window.last_run - window.first_run);
  const double took = seconds(window.begin_ns, window.last_run_ns),
               since = seconds(window.last_run_ns, now_ns);
  if (runs == 0 || took <= 0) return 0;
  return since > 2 * took / runs ? 1 / since : runs / took;
}

struct Span {
  int64_t begin_ns, end_ns;
};

// When a rank was in calls: disjoint, in order of time.
std::vector<Span> spans_in_calls(const Window& window, int64_t now_ns) {
  std::vector<Span> spans;
  int64_t until = window.begin_ns;
  for (const RecordedCall& call : window.calls) {
    if (call.kind != RecordKind::Call) continue;
    const int64_t begin = std::max(call.started_ns, until),
                  end = std::max(begin, call.completed_ns.value_or(now_ns));
    if (end > begin) spans.push_back({begin, end});
    until = end;
  }
  return spans;
}

// How long a rank was in calls between two times.
double seconds_in_calls(std::span<const Span> spans, int64_t from_ns, int64_t to_ns) {
  double in = 0;
  for (auto s = std::ranges::lower_bound(spans, from_ns, {}, &Span::end_ns);
       s != spans.end() && s->begin_ns < to_ns; ++s)
    in += seconds(std::max(s->begin_ns, from_ns), std::min(s->end_ns, to_ns));
  return in;
}

double share_in_calls(const Window& window, std::span<const Span> spans) {
  if (spans.empty()) return 0;
  const int64_t end = std::max(spans.back().end_ns, window.last_run_ns);
  const double all = seconds(window.begin_ns, end);
  return all > 0 ? seconds_in_calls(spans, window.begin_ns, end) / all : 0;
}

}  // namespace

std::vector<RankActivity> activities(std::span<const RankRing> rings, int64_t now_ns) {
  std::vector<RankActivity> ranks;
  std::vector<std::vector<Span>> in_calls;  // of each ring
  struct Begin {
    size_t ring;
    int64_t ns;
    uint64_t run;
  };
  std::map<std::pair<uint64_t, uint64_t>, std::vector<Begin>> shared;  // the calls that ranks share
  for (const RankRing& ring : rings) {
    const Window window = last_runs(ring);
    RankActivity& rank = ranks.emplace_back();
    rank.run = window.last_run;
    rank.runs_per_s = rate_of(window, now_ns);
    rank.in_calls = share_in_calls(window, in_calls.emplace_back(spans_in_calls(window, now_ns)));
    for (const RecordedCall& call : window.calls) {
      if (call.kind == RecordKind::Call && !is_pair(call.call.op) && call.ranks.size() > 1)
        shared[{call.group, call.sequence}].push_back(
            {ranks.size() - 1, call.started_ns, call.call.ticket.run});
    }
  }
  // A rank that is late to one call of a run is late to all that follow in it, so the largest delay counts.
  std::vector<std::map<uint64_t, double>> late(ranks.size());
  for (const auto& [call, begins] : shared) {
    if (begins.size() < 2) continue;
    const int64_t first = std::ranges::min_element(begins, {}, &Begin::ns)->ns;
    for (const Begin& begin : begins) {
      double& most = late[begin.ring][begin.run];
      most = std::max(
          most, seconds(first, begin.ns) - seconds_in_calls(in_calls[begin.ring], first, begin.ns));
      ++ranks[begin.ring].calls;
    }
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    for (const auto& [run, most] : late[i]) ranks[i].late_per_run += most / double(late[i].size());
  }
  return ranks;
}

int slowest(std::span<const RankActivity> ranks) {
  if (ranks.size() < 2) return -1;
  const auto share = [](const RankActivity& r) { return r.late_per_run * r.runs_per_s; };
  const auto worst = std::ranges::max_element(ranks, {}, share);
  double next = 0;
  for (auto r = ranks.begin(); r != ranks.end(); ++r) {
    if (r != worst) next = std::max(next, share(*r));
  }
  return share(*worst) - next > kHoldsUp ? int(worst - ranks.begin()) : -1;
}

}  // namespace tinyshard::recorder
