// Example: 4 ranks, rank 1 left out a step and now saves a checkpoint while the others begin run 8.
// Each gets the headers of all; three are equal, so all four throw "the ranks diverged: rank 1 runs
// all_reduce min i64 x 3 as call 15 (a checkpoint), ranks 0, 2, 3 run all_reduce sum f32 x 64 as
// call 15 (run 8)", with rank 1 as the culprit.
#include "transport/call_header.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/hash.h"
#include "transport/text_field.h"

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
  const std::string_view label = text_in(header.label), asked = text_in(header.asked);
  std::vector<std::string> more;
  if (header.run != 0) {
    more.push_back(
        fmt::format("run {} of this job, {} {:08x}", header.run, label, header.what & 0xffffffff));
  } else if (!label.empty()) {
    more.emplace_back(label);
  }
  if (!asked.empty()) more.emplace_back(asked);
  return more.empty() ? text : fmt::format("{} ({})", text, fmt::join(more, "; "));
}

bool same_call(const CallHeader& a, const CallHeader& b) {
  return a.sequence == b.sequence && a.count == b.count && a.counts_hash == b.counts_hash &&
         a.run == b.run && a.what == b.what && a.op == b.op && a.reduce == b.reduce &&
         a.dtype == b.dtype && a.from == b.from;
}

bool same_inputs(const CallHeader& a, const CallHeader& b) { return a.inputs == b.inputs; }

// Says what to write instead.
std::string_view advice(GivenValue::Kind kind) {
  switch (kind) {
    case GivenValue::Kind::Draw:
      return "numbers of a tensor over ranks are drawn by all of them: seed all ranks alike "
             "(manual_seed), and draw what one rank alone needs in a thread of its own";
    case GivenValue::Kind::Part:
      return "the parts of one value have one type, and the sizes that its shape gives them: where "
             "parts are uneven, give from_local() the shape of the whole";
    case GivenValue::Kind::Copy:
      return "devices that hold the same part of a value have to be given the same";
    case GivenValue::Kind::Step:
      return "a value over ranks is computed by all of them together";
    default:
      return "what is brought to devices of several ranks has to be the same on all of them: seeds "
             "and rates, too; a batch that each rank reads for itself goes there by from_local()";
  }
}

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

// Returns the member to blame: the first that is not in the largest class or, if no class is the
// largest, the first that differs from this member.
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

// Where the ranks were asked by different methods, or in different lines.
std::string_view advice_where_asked_differs(std::span<const CallHeader> headers) {
  const auto as_first = [&](const CallHeader& h) {
    return text_in(h.asked) == text_in(headers[0].asked);
  };
  return std::ranges::all_of(headers, as_first)
             ? ""
             : "; a value over ranks is computed by all of them together";
}

// Returns the first given value in which two members differ, of both. Headers hold the latest
// values only: nulls if the members differ in an earlier one.
std::pair<const GivenValue*, const GivenValue*> first_given(const CallHeader& a,
                                                            const CallHeader& b) {
  for (size_t i = 0; i < a.given.size(); ++i) {
    if (a.given[i].hash != b.given[i].hash) return {&a.given[i], &b.given[i]};
  }
  return {nullptr, nullptr};
}

[[noreturn]] void tell_inputs(std::span<const CallHeader> headers, std::span<const int> ranks,
                              size_t self) {
  const auto given = classes(headers, same_inputs);
  const size_t culprit = culprit_of(given, self);
  const auto of_culprit = std::ranges::find_if(given, [&](const auto& members) {
    return std::ranges::find(members, culprit) != members.end();
  });
  std::vector<size_t> others;
  for (size_t m = 0; m < headers.size(); ++m) {
    if (std::ranges::find(*of_culprit, m) == of_culprit->end()) others.push_back(m);
  }
  const std::string who = list(ranks_of(*of_culprit, ranks)), most = list(ranks_of(others, ranks));
  std::string text = fmt::format("the ranks diverged: in {}, {} was given other values than {}",
                                 describe(headers[self]), who, most);
  const auto [its, theirs] = first_given(headers[culprit], headers[others[0]]);
  const auto told = [](const GivenValue& value) {
    return value.kind == GivenValue::Kind::None ? "nothing" : text_in(value.about);
  };
  GivenValue::Kind kind = GivenValue::Kind::Host;
  if (its != nullptr) {
    text += fmt::format("; {}: {}, {}: {}", who, told(*its), most, told(*theirs));
    kind = its->kind == theirs->kind ? its->kind : GivenValue::Kind::Step;
  }
  throw Divergence(ranks[culprit], fmt::format("{}; {}", text, advice(kind)));
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
    put_text(header.label, identity->label);
    put_text(header.asked, identity->asked);
    header.given = identity->given;
  }
  if (header.asked[0] == 0 && call.site) put_text(header.asked, call.site->source);
  return header;
}

void compare_headers(std::span<const CallHeader> headers, std::span<const int> ranks, size_t self) {
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
    throw Divergence(ranks[culprit], fmt::format("the ranks diverged: {}{}", text,
                                                 advice_where_asked_differs(headers)));
  }

  if (!as_self(same_inputs)) tell_inputs(headers, ranks, self);
}

}  // namespace tinyshard
