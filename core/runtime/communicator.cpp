// A row for each op says on which sides it has buffers and whether it
// reduces; texts, checks and counts follow from the rows. Counts for
// parts of different lengths lie in one list, for AllToAll by sender:
//
//   counts of 2 participants [1 2 3 4]    0 sends 1 + 2 and receives 1 + 3: a row, and a column
#include "core/runtime/communicator.h"

#include <array>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

struct OpRow {
  std::string_view name;
  bool reduces;
  bool sends, receives;  // a buffer per local participant on that side
};
constexpr std::array<OpRow, 8> kOps = {{
    {"all_reduce", true, true, true},
    {"all_gather", false, true, true},
    {"reduce_scatter", true, true, true},
    {"broadcast", false, true, true},
    {"all_to_all", false, true, true},
    {"send", false, true, false},
    {"recv", false, false, true},
    {"barrier", false, false, false},
}};

const OpRow& row(CollectiveOp op) { return kOps[static_cast<size_t>(op)]; }

}  // namespace

std::string_view name(CollectiveOp op) { return row(op).name; }

std::string describe(const Collective& call) {
  if (call.op == CollectiveOp::Barrier) return "barrier";
  std::string text{name(call.op)};
  if (row(call.op).reduces) text += fmt::format(" {}", name(call.reduce));
  text += fmt::format(" {}", name(call.dtype));
  if (call.counts.empty()) {
    text += fmt::format(" x {}", call.count);
  } else {
    text += fmt::format(" x [{}]", fmt::join(call.counts, ","));
  }
  if (call.op == CollectiveOp::Broadcast) text += fmt::format(" from {}", call.from);
  if (is_pair(call.op)) {
    text += fmt::format(" {} -> {}", call.from, call.to);
  }
  return text;
}

std::string describe_with_axis(const Collective& call) {
  return describe(call) + (call.site && !call.site->axis.empty()
                               ? fmt::format(" on mesh axis \"{}\"", call.site->axis)
                               : std::string());
}

std::string describe_place(const Collective& call) {
  std::string text;
  if (call.site && !call.site->purpose.empty()) text += "; " + call.site->purpose;
  if (call.site && !call.site->source.empty()) text += fmt::format(" ({})", call.site->source);
  if (call.ticket.run > 0) {
    text += fmt::format("{}in run {} of schedule {:x}", text.empty() ? "; " : ", ", call.ticket.run,
                        call.ticket.schedule);
  }
  return text;
}

namespace {

// `count` parts from `first` on, `step` apart in the list of counts.
size_t sum_parts(const Collective& call, size_t first, size_t step, size_t count) {
  if (call.counts.empty()) return call.count * count;
  size_t total = 0;
  for (size_t i = 0; i < count; ++i) total += call.counts[first + i * step];
  return total;
}

}  // namespace

size_t sent_elements(const Collective& call, size_t size, size_t participant) {
  switch (call.op) {
    case CollectiveOp::AllGather:
      return sum_parts(call, participant, 1, 1);
    case CollectiveOp::ReduceScatter:
      return sum_parts(call, 0, 1, size);
    case CollectiveOp::AllToAll:
      return sum_parts(call, participant * size, 1, size);
    case CollectiveOp::Broadcast:
      return int(participant) == call.from ? call.count : 0;
    default:
      return row(call.op).sends ? call.count : 0;
  }
}

size_t received_elements(const Collective& call, size_t size, size_t participant) {
  switch (call.op) {
    case CollectiveOp::AllGather:
      return sum_parts(call, 0, 1, size);
    case CollectiveOp::ReduceScatter:
      return sum_parts(call, participant, 1, 1);
    case CollectiveOp::AllToAll:
      return sum_parts(call, participant, size, size);
    default:
      return row(call.op).receives ? call.count : 0;
  }
}

Communicator::Communicator(std::string name, int rank, std::vector<int> ranks)
    : name_(std::move(name)), rank_(rank), ranks_(std::move(ranks)) {
  for (int p = 0; p < size(); ++p) {
    if (rank_of(p) == rank_) local_.push_back(p);
  }
}

void Communicator::check(const Collective& call, std::span<const CommBuffer> send,
                         std::span<const CommBuffer> recv) const {
  const OpRow& op = row(call.op);
  auto fail = [&](const std::string& what) {
    throw UserError(
        fmt::format("{} on group \"{}\" of {}: {}", describe(call), name_, size(), what));
  };
  const bool pair = is_pair(call.op);
  const size_t n = static_cast<size_t>(size()), buffers = pair ? 1 : local_.size();

  size_t expected = 0;
  if (call.op == CollectiveOp::AllGather || call.op == CollectiveOp::ReduceScatter) expected = n;
  if (call.op == CollectiveOp::AllToAll) expected = n * n;
  if (!call.counts.empty() && call.counts.size() != expected) {
    fail(fmt::format("{} counts given, expected {}", call.counts.size(), expected));
  }
  if (send.size() != (op.sends ? buffers : 0) || recv.size() != (op.receives ? buffers : 0)) {
    fail(fmt::format("{} send and {} receive buffers given for {} local participants", send.size(),
                     recv.size(), local_.size()));
  }
  if (call.op != CollectiveOp::Barrier && call.dtype == DType::Index)
    fail("index values never reach memory");
  if (pair || call.op == CollectiveOp::Broadcast) {
    auto in_range = [&](int p) { return p >= 0 && p < size(); };
    if (!in_range(call.from) || (pair && !in_range(call.to))) fail("no such participant");
  }
  if (pair) {
    const int own = call.op == CollectiveOp::Send ? call.from : call.to;
    if (rank_of(own) != rank_)
      fail(fmt::format("participant {} belongs to rank {}", own, rank_of(own)));
  }
}

}  // namespace tinyshard
