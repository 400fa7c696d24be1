// All messages are one all-reduce of three numbers. To find the first reason, ranks reduce the
// lowest number of those that have one; it then broadcasts its text in a buffer of fixed size.
// Participants of a process beside its first add nothing to the reduction.
#include "core/nn/agreement.h"

#include <limits>
#include <numeric>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "core/exec/context.h"
#include "core/exec/kept_in_place.h"

namespace tinyshard::nn {

Exchange::Exchange(Message mine, ReduceOp op, int64_t nothing)
    : identity_{.label = "of a checkpoint"} {
  const Context::Turn turn;
  KeptInPlace::crosses();
  Communicator& world = Context::get().world();
  terms_.resize(world.local().size());
  std::vector<CommBuffer> buffers;
  for (size_t i = 0; i < terms_.size(); ++i) {
    if (i == 0) {
      terms_[i] = mine;
    } else {
      terms_[i].fill(nothing);
    }
    buffers.push_back({terms_[i].data()});
  }
  // Only values on which all ranks agree are saved.
  if (Ledgers& ledgers = Context::get().ledgers(); ledgers.written_here()) {
    std::vector<int> ranks(size_t(Context::get().ranks()));
    std::iota(ranks.begin(), ranks.end(), 0);
    ledgers.identify(ranks, identity_);
  }
  work_ = world.start({.op = CollectiveOp::AllReduce,
                       .reduce = op,
                       .dtype = DType::I64,
                       .count = mine.size(),
                       .identity = &identity_},
                      buffers, buffers);
}

Message Exchange::wait() {
  work_.wait();
  return terms_[0];
}

Message exchange(Message mine, ReduceOp op, int64_t nothing) {
  const Context::Turn turn;
  return Exchange(mine, op, nothing).wait();
}

std::string first_reason(std::string_view own) {
  constexpr int64_t kNobody = std::numeric_limits<int64_t>::max();
  const int rank = Context::get().rank();
  const int64_t first =
      exchange({own.empty() ? kNobody : rank, kNobody, kNobody}, ReduceOp::Min, kNobody)[0];
  if (first == kNobody) return {};
  std::array<char, 1024> text{};
  if (first == rank) {
    std::array<char, 64> host{};
    gethostname(host.data(), host.size() - 1);
    fmt::format_to_n(text.data(), text.size() - 1, "rank {} on {}: {}", rank, host.data(), own);
  }
  const Context::Turn turn;
  Communicator& world = Context::get().world();
  int root = 0;
  while (world.rank_of(root) != first) ++root;
  std::vector<std::array<char, 1024>> texts(world.local().size(), text);
  std::vector<CommBuffer> buffers;
  for (auto& each : texts) buffers.push_back({each.data()});
  world.broadcast(buffers, buffers, text.size(), DType::U8, root).wait();
  return texts[0].data();
}

bool agree(bool mine) { return exchange({mine, mine, mine}, ReduceOp::Min, 1)[0] != 0; }

}  // namespace tinyshard::nn
