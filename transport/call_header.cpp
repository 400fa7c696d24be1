// Example: 4 ranks, rank 1 left out a step and now saves a checkpoint while the others begin run 8.
// Each gets the headers of all; three are equal, so all four throw "the ranks diverged: rank 1 runs
// all_reduce min i64 x 3 as call 15 (a checkpoint), ranks 0, 2, 3 run all_reduce sum f32 x 64 as
// call 15 (run 8)", with rank 1 as the culprit.
#include "transport/call_header.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/hash.h"

namespace tinyshard {
namespace {

std::string describe(const CallHeader& header) {
  Collective call{.op = static_cast<CollectiveOp>(header.op),
                  .reduce = static_cast<ReduceOp>(header.reduce),
                  .dtype = static_cast<DType>(header.dtype),
                  .count = header.count,
                  .from = header.from};
  std::string text = tinyshard::describe(call);
  if (header.counts_hash != 0) text += fmt::format(" with counts {:x}", header.counts_hash);
  text += fmt::format(" as call {}", header.sequence);
  const std::string_view label(header.label, strnlen(header.label, sizeof(header.label)));
  const std::string_view source(header.source, strnlen(header.source, sizeof(header.source)));
  std::vector<std::string> more;
  if (header.run != 0) {
    more.push_back(
        fmt::format("run {} of this job, {} {:08x}", header.run, label, header.what & 0xffffffff));
  } else if (!label.empty()) {
    more.emplace_back(label);
  }
  if (!source.empty()) more.emplace_back(source);
  return more.empty() ? text : fmt::format("{} ({})", text, fmt::join(more, "; "));
}

bool same_call(const CallHeader& a, const CallHeader& b) {
  return a.sequence == b.sequence && a.count == b.count && a.counts_hash == b.counts_hash &&
         a.run == b.run && a.what == b.what && a.op == b.op && a.reduce == b.reduce &&
         a.dtype == b.dtype && a.from == b.from;
}

bool same_inputs(const CallHeader& a, const CallHeader& b) { return a.inputs == b.inputs; }

std::string list(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

// The members by what they run, the largest class first, equal ones in the order of their first
// members.
template <class Same>
std::vector<std::vector<size_t>> classes(std::span<const CallHeader> headers, Same&& same) {
  std::vector<std::vector<size_t>> found;
  for (size_t m = 0; m < headers.size(); ++m) {
    auto fits =
        std::ranges::find_if(found, [&](const auto& c) { return same(headers[c[0]], headers[m]); });
    if (fits == found.end()) fits = found.insert(found.end(), std::vector<size_t>());
    fits->push_back(m);
  }
  std::ranges::stable_sort(found, std::ranges::greater(), &std::vector<size_t>::size);
  return found;
}

// Whom to blame: the first member that is not in the largest class, or, where there is no largest,
// the first that differs from this one.
size_t culprit_of(const std::vector<std::vector<size_t>>& found, size_t self) {
  const bool most = found[0].size() > found[1].size();
  size_t culprit = SIZE_MAX;
  for (const auto& members : found) {
    const bool innocent =
        most ? &members == &found[0] : std::ranges::find(members, self) != members.end();
    if (!innocent) culprit = std::min(culprit, members[0]);
  }
  return culprit;
}

std::vector<int> ranks_of(const std::vector<size_t>& members, std::span<const int> ranks) {
  std::vector<int> of;
  for (size_t m : members) of.push_back(ranks[m]);
  return of;
}

}  // namespace

CallHeader header_of(const Collective& call, uint64_t sequence) {
  CallHeader header{.sequence = sequence,
                    .count = call.count,
                    .op = static_cast<uint8_t>(call.op),
                    .reduce = static_cast<uint8_t>(call.reduce),
                    .dtype = static_cast<uint8_t>(call.dtype),
                    .from = call.from};
  for (size_t count : call.counts) header.counts_hash = combine(header.counts_hash, count);
  if (const RunIdentity* identity = call.identity) {
    header.run = identity->run;
    header.what = identity->what;
    header.inputs = identity->inputs;
    identity->label.copy(header.label, sizeof(header.label) - 1);
  }
  if (call.site) call.site->source.copy(header.source, sizeof(header.source) - 1);
  return header;
}

void compare_headers(std::span<const CallHeader> headers, std::span<const int> ranks, size_t self,
                     InputHistory* inputs) {
  // The usual case allocates nothing.
  const auto as_self = [&](auto&& same) {
    return std::ranges::all_of(headers,
                               [&](const CallHeader& h) { return same(h, headers[self]); });
  };
  if (!as_self(same_call)) {
    const auto found = classes(headers, same_call);
    const size_t culprit = culprit_of(found, self);
    std::string text;
    // The one to blame comes first.
    for (bool blamed : {true, false}) {
      for (const auto& members : found) {
        if ((std::ranges::find(members, culprit) != members.end()) != blamed) continue;
        text += fmt::format("{}{} {} {}", text.empty() ? "" : ", ", list(ranks_of(members, ranks)),
                            members.size() == 1 ? "runs" : "run", describe(headers[members[0]]));
      }
    }
    throw Divergence(ranks[culprit], "the ranks diverged: " + text);
  }

  if (inputs == nullptr || inputs->own || headers[self].inputs == 0) return;
  if (as_self(same_inputs)) {
    if (inputs->last != headers[self].inputs) ++inputs->agreed;
    inputs->last = headers[self].inputs;
    return;
  }
  if (inputs->agreed < InputHistory::kCommon) {
    inputs->own = true;
    return;
  }
  const auto given = classes(headers, same_inputs);
  const size_t culprit = culprit_of(given, self);
  const auto of_culprit = std::ranges::find_if(given, [&](const auto& members) {
    return std::ranges::find(members, culprit) != members.end();
  });
  std::vector<size_t> others;
  for (size_t m = 0; m < headers.size(); ++m) {
    if (std::ranges::find(*of_culprit, m) == of_culprit->end()) others.push_back(m);
  }
  throw Divergence(
      ranks[culprit],
      fmt::format("the ranks diverged: in {}, {} was given other values than {}, as after a step "
                  "that one of them left out; the {} different values before were the same on all",
                  describe(headers[self]), list(ranks_of(*of_culprit, ranks)),
                  list(ranks_of(others, ranks)), inputs->agreed));
}

}  // namespace tinyshard
