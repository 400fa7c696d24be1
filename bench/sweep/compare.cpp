// Shares of limits and ratios to a peer, worst first.
#include "bench/sweep/compare.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <span>
#include <sstream>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace tinyshard::sweep {

std::string text_of(const Timed& timed) {
  const std::string head = fmt::format("{} {} ", timed.id, timed.kind);
  if (!timed.us) return head + "failed: " + timed.text;
  return head + fmt::format("{:.2f} {:.2f} {:.3f} {}", *timed.us, timed.limit,
                            timed.limit / *timed.us, timed.text);
}

namespace {

std::string rest_of(std::istream& words) {
  std::string text;
  std::getline(words >> std::ws, text);
  return text;
}

// By id. Lines that begin with # are remarks.
std::map<int64_t, Timed> read(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw UserError(fmt::format("cannot read {}", file));
  std::map<int64_t, Timed> list;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    Timed timed;
    std::string third;
    if (!(words >> timed.id >> timed.kind >> third))
      throw UserError(fmt::format("{}: \"{}\" is no line \"ID KIND MICROSECONDS\"", file, line));
    if (third != "failed:") {
      double us = 0, share = 0;
      if (!(std::istringstream(third) >> us) || !(us > 0))
        throw UserError(fmt::format("{}: \"{}\" has no time", file, line));
      timed.us = us;
      words >> timed.limit >> share;  // a peer's line ends before
      words.clear();
    }
    timed.text = rest_of(words);
    list.emplace(timed.id, timed);
  }
  return list;
}

struct Row {
  const Timed* ours;
  double share;
  std::optional<double> ratio;  // the peer's time over ours
  // Rows that the peer has not come last, by their share.
  std::pair<bool, double> order() const { return {!ratio, ratio.value_or(share)}; }
};

double at(const std::vector<double>& sorted, double share) {
  return sorted[size_t(share * double(sorted.size() - 1))];
}

void print_summary(const std::vector<Row>& rows) {
  std::vector<double> shares, ratios;
  double logarithms = 0;
  for (const Row& row : rows) {
    shares.push_back(row.share);
    if (!row.ratio) continue;
    ratios.push_back(*row.ratio);
    logarithms += std::log(*row.ratio);
  }
  if (shares.empty()) return;
  std::ranges::sort(shares);
  std::cout << fmt::format("share of the limit: 5th percentile {:.2f}, median {:.2f} of {} cases\n",
                           at(shares, 0.05), at(shares, 0.5), shares.size());
  if (ratios.empty()) return;
  std::ranges::sort(ratios);
  const auto below = [&](double ratio) {
    return std::ranges::lower_bound(ratios, ratio) - ratios.begin();
  };
  std::cout << fmt::format(
      "their time over ours: geometric mean {:.2f}, median {:.2f}, least {:.2f} of {} cases; "
      "below 0.8: {}, below 0.9: {}\n",
      std::exp(logarithms / double(ratios.size())), at(ratios, 0.5), ratios[0], ratios.size(),
      below(0.8), below(0.9));
}

}  // namespace

void compare(const std::string& ours, const std::string& theirs, size_t worst) {
  const auto mine = read(ours), others = read(theirs);
  std::vector<Row> rows;
  for (const auto& [id, timed] : mine) {
    const auto other = others.find(id);
    if (other != others.end() && other->second.kind != timed.kind)
      throw UserError(fmt::format("case {} is a {} in {} and a {} in {}: not the same list", id,
                                  timed.kind, ours, other->second.kind, theirs));
    if (!timed.us) {
      std::cout << "ours failed: " << id << " " << timed.kind << " " << timed.text << "\n";
      continue;
    }
    Row row{&timed, timed.limit / *timed.us, {}};
    if (other != others.end() && other->second.us) row.ratio = *other->second.us / *timed.us;
    rows.push_back(row);
  }
  for (const auto& [id, timed] : others)
    if (!timed.us)
      std::cout << "theirs failed: " << id << " " << timed.kind << " " << timed.text << "\n";
  print_summary(rows);
  std::ranges::stable_sort(rows, {}, &Row::order);
  for (const Row& row : std::span(rows).first(std::min(worst, rows.size())))
    std::cout << fmt::format("{:>6} {:4.0f} % of the limit  {:.1f} us  {} {} {}\n",
                             row.ratio ? fmt::format("{:.2f}x", *row.ratio) : "-", 100 * row.share,
                             *row.ours->us, row.ours->id, row.ours->kind, row.ours->text);
}

}  // namespace tinyshard::sweep
