// Runs of one plan are much alike. The first ones differ, as caches and communicators warm up, and the
// slow ones are those that somebody looks for: these keep their items, others only their begin and length.
#include "report/view_runs.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include <fmt/format.h>

namespace tinyshard {
namespace {

constexpr size_t kMostBytes = size_t{3} << 20;  // of runs in a file
constexpr int64_t kMostRuns = 20'000;           // that have a line
constexpr int64_t kFirst = 3, kMostSlow = 16;
constexpr double kShortWait = 0.5;  // microseconds: of what was done already

double length_us(std::chrono::nanoseconds t) { return double(t.count()) * 1e-3; }

}  // namespace

bool ViewRuns::is_told(Counted& of, double took) const {
  if (told_bytes_ > kMostBytes) return false;
  if (of.runs <= kFirst || std::has_single_bit(uint64_t(of.runs))) return true;
  if (took <= of.longest || of.detailed_slow >= kMostSlow) return false;
  ++of.detailed_slow;
  return true;
}

std::string ViewRuns::parts_text(double begun) const {
  std::string items, waits;
  for (const Part& p : parts_) {
    std::string& text = p.waits ? waits : items;
    fmt::format_to(std::back_inserter(text), "{}{},{:.1f},{:.1f}", text.empty() ? "" : ",", p.item,
                   p.begun - begun, p.took);
  }
  return fmt::format(R"(,"i":[{}],"w":[{}])", items, waits);
}

// An item that reads what a collective brings waits for it first: that time is the collective's. Parts are
// in the order of their ends, so such waits come right before the item.
double ViewRuns::waited_within(size_t item) const {
  double waited = 0;
  for (size_t i = item; i > 0; --i) {
    const Part& before = parts_[i - 1];
    if (!before.waits || before.begun < parts_[item].begun) break;
    waited += before.took;
  }
  return std::min(waited, parts_[item].took);
}

std::string ViewRuns::add(const ObservedEvent& event, std::chrono::steady_clock::time_point start) {
  const double us = length_us(event.begun - start), took = length_us(event.took);
  parts_.clear();
  if (event.items) {
    for (const ItemTime& item : *event.items) {
      const double length = length_us(item.took);
      if (item.waits && length < kShortWait) continue;
      parts_.push_back({item.item, item.waits, length_us(item.begun - start), length});
    }
  }
  Counted& of = counted_[event.plan];
  ++of.runs;
  if (event.measured) {
    of.items.clear();
    of.measured = true;
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& p = parts_[i];
    if (size_t(p.item) >= of.items.size()) of.items.resize(size_t(p.item) + 1);
    ItemSum& sum = of.items[size_t(p.item)];
    if (p.waits) {
      sum.waited += p.took;
      continue;
    }
    const double worked = p.took - waited_within(i);
    ++sum.count;
    sum.sum += worked;
    sum.longest = std::max(sum.longest, worked);
  }
  std::string line;
  if (told_runs_ < kMostRuns) {
    ++told_runs_;
    line = fmt::format(R"({{"k":"run","plan":{},"run":{},"t":{:.1f},"d":{:.1f})", event.plan,
                       event.ticket.run, us, took);
    if (event.measured) line += R"(,"measured":true)";
    if (event.measured || is_told(of, took)) line += parts_text(us);
    line += "}";
  }
  if (of.runs > 1 && !event.measured) of.longest = std::max(of.longest, took);
  told_bytes_ += line.size();
  if (event.measured || std::has_single_bit(uint64_t(of.runs))) line += "\n" + sum_of(event.plan);
  return line;
}

std::string ViewRuns::sum_of(uint64_t plan) const {
  const Counted& of = counted_.at(plan);
  std::string rows;
  for (size_t i = 0; i < of.items.size(); ++i) {
    const ItemSum& s = of.items[i];
    if (s.count == 0 && s.waited == 0) continue;
    fmt::format_to(std::back_inserter(rows), "{}[{},{},{:.1f},{:.1f},{:.1f}]",
                   rows.empty() ? "" : ",", i, s.count, s.sum, s.longest, s.waited);
  }
  return fmt::format(R"({{"k":"sum","plan":{},"runs":{}{},"items":[{}]}})", plan, of.runs,
                     of.measured ? R"(,"measured":true)" : "", rows);
}

std::vector<uint64_t> ViewRuns::plans() const {
  std::vector<uint64_t> plans;
  for (const auto& [plan, counted] : counted_) plans.push_back(plan);
  std::ranges::sort(plans);
  return plans;
}

}  // namespace tinyshard
