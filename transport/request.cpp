// How parts are cut and travel (the phases are in request.h). Example: an all-reduce of 8 elements
// by two ranks with one participant each.
//
//   small   both ranks own the whole: each sends its 8 terms to the other and combines 2 x 8.
//   large   rank 0 owns elements 0 to 3, rank 1 the rest. In `move` rank 1 sends 0 to 3 to rank 0
//           and gets 4 to 7 of it; each combines its part. In `gather` each sends its part back.
//
// Terms are combined in the order of the group, whichever comes first, so that results have the
// same bits at every run and on all ranks.
#include "transport/request.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "transport/reduce.h"

namespace tinyshard {
namespace {

constexpr uint32_t kHeaderStep = 0, kMoveStep = 1, kGatherStep = 2, kPairStep = 0;
constexpr size_t kAloneSegmentBytes =
    64 << 10;  // within one process nothing is gained from pieces beyond the cache
constexpr size_t kAlign = 64;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

GroupLayout::GroupLayout(std::span<const int> of_participants, int own_rank) {
  for (size_t p = 0; p < of_participants.size(); ++p) {
    auto member = std::find_if(members.begin(), members.end(),
                               [&](const Member& m) { return m.rank == of_participants[p]; });
    if (member == members.end()) {
      member = members.insert(members.end(), Member{of_participants[p], {}});
      ranks.push_back(of_participants[p]);
    }
    member_of.push_back(static_cast<int>(member - members.begin()));
    local_index.push_back(static_cast<int>(member->participants.size()));
    member->participants.push_back(static_cast<int>(p));
    if (of_participants[p] == own_rank) self = member_of.back();
  }
}

void Request::begin(const GroupLayout& group, Channel& channel, const CommOptions& options,
                    const Collective& call, std::span<const CommBuffer> send,
                    std::span<const CommBuffer> recv, uint64_t sequence, uint32_t tag,
                    bool verify) {
  group_ = &group;
  channel_ = &channel;
  options_ = &options;
  call_ = call;
  counts_.assign(call.counts.begin(), call.counts.end());
  call_.counts = counts_;
  send_.assign(send.begin(), send.end());
  recv_.assign(recv.begin(), recv.end());
  sequence_ = sequence;
  tag_ = tag;
  started_ = channel.now();
  item_ = call.op == CollectiveOp::Barrier ? 1 : itemsize(call.dtype);
  oldest_ = next_ = 0;
  header_pending_ = broken_ = false;
  header_first_ = verify || call.op == CollectiveOp::Barrier;

  plan();
  if (runs_alone()) {
    run_alone();
  } else if (group.members.size() > 1 && (header_first_ || call.identity != nullptr)) {
    begin_header();
  }
  announces_ = call.op == CollectiveOp::Barrier && call.identity != nullptr;
  label_ = {};
  if (call.identity != nullptr && call.identity->run == 0)
    call.identity->label.copy(label_.data(), label_.size() - 1);
  call_.identity = nullptr;  // read above, and not kept
}

// ------------------------------------------------------------------------------------------------
// The plan: parts, and which phases they pass.

void Request::plan() {
  parts_.clear();
  move_ = Move::None;
  gather_ = false;
  gather_skips_ = -1;
  const GroupLayout& group = *group_;
  const CommTuning& tuning = options_->tuning;
  const size_t members = group.members.size(), bytes = call_.count * item_;
  const bool alone = members == 1;

  switch (call_.op) {
    case CollectiveOp::AllReduce:
      move_ = Move::Reduce;
      if (bytes * (members - 1) <= tuning.direct_bytes) {
        // Every rank owns, and combines, the whole.
        for (size_t m = 0; m < members; ++m) {
          parts_.push_back({static_cast<int>(m), 0, call_.count, data(recv_, 0, 0), nullptr});
        }
      } else {
        add_parts_by_rank(nullptr);
        gather_ = true;
      }
      break;
    case CollectiveOp::ReduceScatter:
    case CollectiveOp::AllGather: {
      const bool scatter = call_.op == CollectiveOp::ReduceScatter;
      move_ = scatter ? Move::Reduce : Move::None;
      gather_ = !scatter;
      size_t offset = 0;
      for (size_t p = 0; p < group.member_of.size(); ++p) {
        Part part{group.member_of[p], offset, part_count(p), nullptr, nullptr};
        const size_t index = static_cast<size_t>(group.local_index[p]);
        const bool own = part.owner == group.self;
        if (scatter && own) part.place = data(recv_, index, 0);
        if (!scatter) part.place = data(recv_, 0, offset);
        if (!scatter && own) part.own = data(send_, index, 0);
        offset += part.count;
        parts_.push_back(part);
      }
      break;
    }
    case CollectiveOp::Broadcast: {
      const size_t from = static_cast<size_t>(call_.from);
      const int root = group.member_of[from];
      const std::byte* source = nullptr;
      if (root == group.self) source = data(send_, static_cast<size_t>(group.local_index[from]), 0);
      gather_ = true;
      if (members <= 2 || bytes < tuning.split_broadcast_bytes) {
        parts_.push_back({root, 0, call_.count, data(recv_, 0, 0), source});
      } else {
        move_ = Move::Deal;
        gather_skips_ = root;
        add_parts_by_rank(source);
      }
      break;
    }
    case CollectiveOp::AllToAll:
    case CollectiveOp::Send:
    case CollectiveOp::Recv:
      move_ = Move::Swap;
      break;
    case CollectiveOp::Barrier:
      break;
  }

  segment_elements_ = std::numeric_limits<size_t>::max();
  if (move_ == Move::Reduce || move_ == Move::Deal) {
    segment_elements_ =
        std::max<size_t>(1, (alone ? kAloneSegmentBytes : tuning.segment_bytes) / item_);
  }
  size_t longest = 0;
  for (const Part& part : parts_) longest = std::max(longest, part.count);
  segments_ =
      move_ == Move::Swap ? 1 : longest / segment_elements_ + (longest % segment_elements_ != 0);
}

void Request::add_parts_by_rank(const std::byte* source) {
  const size_t members = group_->members.size(), each = call_.count / members,
               rest = call_.count % members;
  size_t offset = 0;
  for (size_t m = 0; m < members; ++m) {
    const size_t count = each + (m < rest);
    parts_.push_back({static_cast<int>(m), offset, count, data(recv_, 0, offset),
                      source == nullptr ? nullptr : source + offset * item_});
    offset += count;
  }
}

std::byte* Request::data(std::span<const CommBuffer> buffers, size_t index, size_t element) const {
  return static_cast<std::byte*>(buffers[index].data) + element * item_;
}

Request::Range Request::range(const Part& part, size_t segment) const {
  const size_t begin = segment == 0 ? 0 : std::min(part.count, segment * segment_elements_);
  return {begin, std::min(segment_elements_, part.count - begin)};
}

// ------------------------------------------------------------------------------------------------
// The course of a request.

bool Request::advance() {
  if (header_pending_ && !finish_header() && header_first_) return false;
  if (broken_) return false;
  try {
    return move() && !header_pending_;
  } catch (const ChannelError&) {
    broken_ = true;
    throw;
  }
}

bool Request::move() {
  for (bool moved = true; moved;) {
    moved = false;
    while (next_ < segments_ && next_ - oldest_ < kSlots) begin_segment(next_++);
    for (size_t segment = oldest_; segment < next_; ++segment) {
      Slot& slot = this->slot(segment);
      if (slot.state == State::Moving) {
        // Every rank posts the gathers in the order of the segments, so a later segment waits for
        // its turn.
        if (!complete(slot.pending)) break;
        finish_move(segment);
        moved = true;
      }
      if (slot.state == State::Gathering && complete(slot.pending)) {
        finish_segment(segment);
        moved = true;
      }
    }
    while (oldest_ < next_ && slot(oldest_).state == State::Done) ++oldest_;
  }
  return oldest_ == segments_;
}

void Request::begin_segment(size_t segment) {
  Slot& slot = this->slot(segment);
  slot.state = State::Moving;
  switch (move_) {
    case Move::None:
      break;
    case Move::Reduce:
      begin_reduce(segment, slot);
      break;
    case Move::Deal:
      begin_deal(segment, slot);
      break;
    case Move::Swap:
      begin_swap(slot);
      break;
  }
}

void Request::finish_move(size_t segment) {
  if (move_ == Move::Reduce) combine_terms(segment, slot(segment));
  if (gather_) {
    begin_gather(segment);
  } else {
    finish_segment(segment);
  }
}

void Request::finish_segment(size_t segment) {
  slot(segment).state = State::Done;
  spread(segment);
}

// The results of this segment are on this rank: brings them to every local participant.
void Request::spread(size_t segment) const {
  const CollectiveOp op = call_.op;
  if (op != CollectiveOp::AllReduce && op != CollectiveOp::AllGather &&
      op != CollectiveOp::Broadcast)
    return;
  for (const Part& part : parts_) {
    if (!gather_ && part.owner != group_->self) continue;
    const Range r = range(part, segment);
    const size_t bytes = r.count * item_;
    std::byte* place = part.place + r.begin * item_;
    if (part.own != nullptr) copy_bytes(place, part.own + r.begin * item_, bytes);
    for (size_t l = 1; l < recv_.size(); ++l) {
      copy_bytes(
          static_cast<std::byte*>(recv_[l].data) + (place - static_cast<std::byte*>(recv_[0].data)),
          place, bytes);
    }
  }
}

// Runs where one rank holds all participants: no slots, no messages, and no segment depends on
// another.
void Request::run_alone() {
  auto run = [this](size_t segment) {
    if (move_ == Move::Reduce) {
      for (const Part& part : parts_) {
        const Range r = range(part, segment);
        combine_own(part.place + r.begin * item_, part.offset + r.begin, r.count);
      }
    }
    spread(segment);
  };
  if (options_->parallel && segments_ > 1) {
    options_->parallel(segments_, run);
  } else {
    for (size_t segment = 0; segment < segments_; ++segment) run(segment);
  }
  oldest_ = next_ = segments_;
}

bool Request::complete(std::vector<Pending>& pending) {
  while (!pending.empty()) {
    const Channel::Transfer transfer = pending.back().transfer;
    try {
      if (!channel_->test(transfer)) return false;
    } catch (const ChannelError&) {
      pending.pop_back();
      throw;
    }
    pending.pop_back();
  }
  return true;
}

bool Request::abandon() {
  bool clean = true;
  auto drop = [&](std::vector<Pending>& pending) {
    for (const Pending& p : pending) clean = channel_->abandon(p.transfer) && clean;
    pending.clear();
  };
  drop(header_transfers_);
  for (Slot& slot : slots_) drop(slot.pending);
  return clean;
}

void Request::awaited(std::vector<int>& ranks) {
  // complete() stops at the first transfer that is not; here each one counts.
  std::optional<ChannelError> error;
  auto add = [&](std::vector<Pending>& pending) {
    std::erase_if(pending, [&](const Pending& p) {
      try {
        if (channel_->test(p.transfer)) return true;
      } catch (const ChannelError& e) {
        error = e;
        return true;
      }
      if (std::find(ranks.begin(), ranks.end(), p.rank) == ranks.end()) ranks.push_back(p.rank);
      return false;
    });
  };
  if (header_pending_) add(header_transfers_);
  for (size_t segment = oldest_; segment < next_ && !broken_; ++segment) {
    add(slot(segment).pending);
    broken_ = error.has_value();
  }
  if (error) throw ChannelError(*error);
}

// ------------------------------------------------------------------------------------------------
// Header: everyone tells everyone.

void Request::begin_header() {
  header_pending_ = true;
  headers_.resize(group_->members.size());
  headers_[self()] = header_of(call_, sequence_);
  for (size_t m = 0; m < headers_.size(); ++m) {
    if (m == self()) continue;
    post_receive(header_transfers_, static_cast<int>(m), kHeaderStep,
                 reinterpret_cast<std::byte*>(&headers_[m]), sizeof(CallHeader));
  }
  // Who has this one's header may fail at once, and takes back what has no receive yet.
  for (size_t m = 0; m < headers_.size(); ++m) {
    if (m == self()) continue;
    post_send(header_transfers_, static_cast<int>(m), kHeaderStep,
              reinterpret_cast<std::byte*>(&headers_[self()]), sizeof(CallHeader));
  }
}

// True when all have come, and agree.
bool Request::finish_header() {
  if (!complete(header_transfers_)) return false;
  header_pending_ = false;
  compare_headers(headers_, group_->ranks, self());
  return true;
}

void Request::compare_known_headers() {
  std::erase_if(header_transfers_, [&](const Pending& p) { return channel_->test(p.transfer); });
  std::vector<CallHeader> known;
  std::vector<int> ranks;
  size_t own = 0;
  for (size_t m = 0; m < group_->members.size(); ++m) {
    const int rank = group_->ranks[m];
    const bool missing =
        std::ranges::any_of(header_transfers_, [&](const Pending& p) { return p.rank == rank; });
    if (missing && m != self()) continue;
    if (m == self()) own = known.size();
    known.push_back(headers_[m]);
    ranks.push_back(rank);
  }
  compare_headers(known, ranks, own);
}

// ------------------------------------------------------------------------------------------------
// Reduce: terms go to the owner of their part.

void Request::begin_reduce(size_t segment, Slot& slot) {
  const size_t members = group_->members.size();
  const bool combines = send_.size() > 1;

  // Room: for each own part the terms of the other ranks, then for each part the combined own ones.
  // The parts of a direct all-reduce are the same range, whose own terms are combined once.
  size_t bytes = 0;
  for (const Part& part : parts_) {
    const size_t stride = aligned(range(part, segment).count * item_);
    bytes += (part.owner == group_->self ? members - 1 : 0) * stride + (combines ? stride : 0);
  }
  if (slot.scratch.size() < bytes + kAlign) slot.scratch.resize(bytes + kAlign);
  std::byte* next = slot.scratch.data() +
                    (kAlign - reinterpret_cast<uintptr_t>(slot.scratch.data()) % kAlign) % kAlign;
  auto take = [&](size_t count) {
    std::byte* taken = next;
    next += aligned(count * item_);
    return taken;
  };

  slot.terms.clear();
  const Part* previous = nullptr;
  const std::byte* mine = nullptr;
  for (const Part& part : parts_) {
    const Range r = range(part, segment);
    const size_t bytes_of_part = r.count * item_, element = part.offset + r.begin;
    if (!combines) {
      mine = data(send_, 0, element);
    } else if (previous == nullptr || previous->offset != part.offset ||
               previous->count != part.count) {
      std::byte* combined = take(r.count);
      combine_own(combined, element, r.count);
      mine = combined;
    }
    previous = &part;
    if (part.owner != group_->self) {
      post_send(slot.pending, part.owner, kMoveStep, mine, bytes_of_part);
      continue;
    }
    for (size_t m = 0; m < members; ++m) {
      if (m == self()) {
        slot.terms.push_back(mine);
        continue;
      }
      std::byte* term = take(r.count);
      post_receive(slot.pending, static_cast<int>(m), kMoveStep, term, bytes_of_part);
      slot.terms.push_back(term);
    }
  }
}

void Request::combine_terms(size_t segment, Slot& slot) {
  std::span<const std::byte* const> terms = slot.terms;
  const size_t members = group_->members.size();
  for (const Part& part : parts_) {
    if (part.owner != group_->self) continue;
    const Range r = range(part, segment);
    reduce_buffers(call_.dtype, call_.reduce, part.place + r.begin * item_, terms.first(members),
                   r.count);
    terms = terms.subspan(members);
  }
}

void Request::combine_own(std::byte* out, size_t element, size_t count) const {
  thread_local std::vector<const std::byte*> terms;
  terms.clear();
  for (size_t l = 0; l < send_.size(); ++l) terms.push_back(data(send_, l, element));
  reduce_buffers(call_.dtype, call_.reduce, out, terms, count);
}

// ------------------------------------------------------------------------------------------------
// Deal, gather, swap: bytes move, nothing is computed.

void Request::begin_deal(size_t segment, Slot& slot) {
  for (const Part& part : parts_) {
    const Range r = range(part, segment);
    const size_t begin = r.begin * item_, bytes = r.count * item_;
    if (gather_skips_ == group_->self) {
      if (part.owner != group_->self)
        post_send(slot.pending, part.owner, kMoveStep, part.own + begin, bytes);
    } else if (part.owner == group_->self) {
      post_receive(slot.pending, gather_skips_, kMoveStep, part.place + begin, bytes);
    }
  }
}

void Request::begin_gather(size_t segment) {
  Slot& slot = this->slot(segment);
  slot.state = State::Gathering;
  for (const Part& part : parts_) {
    const Range r = range(part, segment);
    const size_t begin = r.begin * item_, bytes = r.count * item_;
    if (part.owner != group_->self) {
      if (gather_skips_ != group_->self) {
        post_receive(slot.pending, part.owner, kGatherStep, part.place + begin, bytes);
      }
      continue;
    }
    const std::byte* source = part.own != nullptr ? part.own : part.place;
    for (size_t m = 0; m < group_->members.size(); ++m) {
      if (m == self() || static_cast<int>(m) == gather_skips_) continue;
      post_send(slot.pending, static_cast<int>(m), kGatherStep, source + begin, bytes);
    }
  }
}

void Request::begin_swap(Slot& slot) {
  const size_t bytes = call_.count * item_;
  if (call_.op == CollectiveOp::Send) {
    post_send(slot.pending, group_->member_of[static_cast<size_t>(call_.to)], kPairStep,
              data(send_, 0, 0), bytes);
    return;
  }
  if (call_.op == CollectiveOp::Recv) {
    post_receive(slot.pending, group_->member_of[static_cast<size_t>(call_.from)], kPairStep,
                 data(recv_, 0, 0), bytes);
    return;
  }

  // Both sides walk the pairs of two ranks sender by sender, receiver by receiver: that is the
  // order of their messages. Receives first, so that messages find their place when they come.
  const std::vector<int>& local = group_->local();
  const size_t n = group_->member_of.size();
  swap_offsets_.assign(local.size() + local.size() * local.size(), 0);
  const std::span<size_t> filled = std::span(swap_offsets_).first(local.size());  // by receiver
  const std::span<size_t> inside =
      std::span(swap_offsets_).subspan(local.size());  // of local pairs
  for (size_t from = 0; from < n; ++from) {
    const bool own = group_->member_of[from] == group_->self;
    for (size_t l = 0; l < local.size(); ++l) {
      const size_t count = part_count(from * n + static_cast<size_t>(local[l]));
      if (own) {
        inside[static_cast<size_t>(group_->local_index[from]) * local.size() + l] = filled[l];
      } else {
        post_receive(slot.pending, group_->member_of[from], kMoveStep, data(recv_, l, filled[l]),
                     count * item_);
      }
      filled[l] += count;
    }
  }
  for (size_t l = 0; l < local.size(); ++l) {
    size_t sent = 0;
    for (size_t to = 0; to < n; ++to) {
      const size_t count = part_count(static_cast<size_t>(local[l]) * n + to);
      const std::byte* piece = data(send_, l, sent);
      if (group_->member_of[to] == group_->self) {
        const size_t receiver = static_cast<size_t>(group_->local_index[to]);
        copy_bytes(data(recv_, receiver, inside[l * local.size() + receiver]), piece,
                   count * item_);
      } else {
        post_send(slot.pending, group_->member_of[to], kMoveStep, piece, count * item_);
      }
      sent += count;
    }
  }
}

// A message of no bytes is not sent: both sides know the counts.
void Request::post_send(std::vector<Pending>& pending, int member, uint32_t step,
                        const std::byte* data, size_t bytes) {
  const size_t limit = std::min(channel_->max_message(), options_->tuning.max_message_bytes);
  const int rank = group_->members[static_cast<size_t>(member)].rank;
  for (size_t begin = 0; begin < bytes; begin += limit) {
    pending.push_back(
        {channel_->send(rank, tag_ | step, data + begin, std::min(limit, bytes - begin)), rank});
  }
}

void Request::post_receive(std::vector<Pending>& pending, int member, uint32_t step,
                           std::byte* data, size_t bytes) {
  const size_t limit = std::min(channel_->max_message(), options_->tuning.max_message_bytes);
  const int rank = group_->members[static_cast<size_t>(member)].rank;
  for (size_t begin = 0; begin < bytes; begin += limit) {
    pending.push_back(
        {channel_->receive(rank, tag_ | step, data + begin, std::min(limit, bytes - begin)), rank});
  }
}

}  // namespace tinyshard
