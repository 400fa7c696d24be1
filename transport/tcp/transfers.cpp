// Messages of one tag meet in order: for each peer there are lists of posted receives,
// of messages that came or were offered before their receive, of offered sends, and of
// Readies before their send; a frame takes the oldest of its tag. A slot that is given
// up while bytes for it may still come stays until they have: its handle must not mean
// another receive. A frame beyond what an honest rank may send ends the link.
#include "transport/tcp/transfers.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard::tcp {
namespace {

constexpr size_t kMostNews = 1024;
constexpr uint64_t kPieceAlign = 4096;

}  // namespace

Transfers::Transfers(int rank, uint32_t epoch, std::vector<Peer> peers)
    : rank_(rank), epoch_(epoch), waiting_(peers.size()), links_(std::move(peers), *this) {}

Transfers::Transfer Transfers::send(int peer, uint32_t tag, const void* data, size_t bytes) {
  Waiting& waiting = from(peer);
  const Transfer transfer = acquire(Slot::Send, peer, tag, bytes);
  Slot& slot = slots_[transfer];
  slot.data = static_cast<std::byte*>(const_cast<void*>(data));
  if (peer == rank_) {
    send_to_self(transfer);
  } else if (bytes <= links_.to(peer).eager_bytes()) {
    send_small(peer, transfer);
  } else {
    push(peer, 0, {.kind = Kind::Offer, .tag = tag, .bytes = bytes});
    const auto ready = std::ranges::find(waiting.readies, tag, &Frame::tag);
    if (ready == waiting.readies.end()) {
      waiting.offered.push_back(transfer);
    } else {
      send_data(peer, transfer, *ready);
      waiting.readies.erase(ready);
    }
  }
  return transfer;
}

Transfers::Transfer Transfers::receive(int peer, uint32_t tag, void* data, size_t bytes) {
  Waiting& waiting = from(peer);
  const Transfer transfer = acquire(Slot::Receive, peer, tag, bytes);
  Slot& slot = slots_[transfer];
  slot.data = static_cast<std::byte*>(data);
  const auto found = std::ranges::find_if(waiting.unexpected, [&](const Unexpected& u) {
    return u.tag == tag && u.receiver == FramePipe::kNobody;
  });
  const bool large = bytes > links_.to(peer).eager_bytes() && peer != rank_;
  if (found == waiting.unexpected.end()) {
    waiting.posted.push_back(transfer);
  } else if (found->kind == Kind::Held) {
    pull(peer, transfer, found->number, found->bytes);
    waiting.unexpected.erase(found);
    --waiting.told;
    return transfer;
  } else if (found->kind == Kind::Offer) {
    slot.matched = true;
    if (found->bytes != bytes) finish(slot, found->bytes);
    waiting.unexpected.erase(found);
    --waiting.told;
  } else {
    found->receiver = transfer;
    if (found->complete) deliver(peer, found);
  }
  if (large && !slot.done) {
    slot.announced = true;
    push(peer, 0, {.kind = Kind::Ready, .tag = tag, .handle = transfer, .bytes = bytes});
  }
  return transfer;
}

void Transfers::abandon(Transfer transfer) {
  Slot& slot = slots_[transfer];
  Link& link = links_.to(slot.peer);
  Waiting& waiting = from(slot.peer);
  slot.data = nullptr;
  if (slot.kind == Slot::Send) {
    for (Stream& stream : link.streams) links_.take_back(link, stream, transfer);
    std::erase(waiting.offered, transfer);
    std::erase_if(waiting.kept, [&](const Kept& kept) { return kept.transfer == transfer; });
    std::erase_if(waiting.unexpected, [&](const Unexpected& u) { return u.sender == transfer; });
    release(transfer);
    return;
  }
  std::erase(waiting.posted, transfer);
  for (Unexpected& message : waiting.unexpected) {
    if (message.receiver == transfer) message.receiver = FramePipe::kNobody;
  }
  const bool may_come = slot.announced || link.reading(transfer);
  slot.kind = Slot::Abandoned;
  if (!may_come) release(transfer);
}

void Transfers::send_notice(int peer, const Notice& notice) {
  push(peer, 0, {.kind = Kind::News, .bytes = sizeof(Notice)},
       reinterpret_cast<const std::byte*>(&notice));
}

bool Transfers::next_notice(Notice& notice) {
  if (news_.empty()) links_.progress();
  if (news_.empty()) return false;
  notice = news_.front();
  news_.pop_front();
  return true;
}

bool Transfers::poll(Transfer transfer) {
  Slot& slot = slots_[transfer];
  if (!slot.done) {
    // A call asks for its transfers one after the other: the first that is asked for again moves
    // all of them along.
    if (slot.seen == links_.turn()) links_.progress();
    slot.seen = links_.turn();
    if (!slot.done) return false;
  }
  const int peer = slot.peer;
  const uint64_t bytes = slot.bytes, sent = slot.sent;
  release(transfer);
  if (bytes != sent) {
    throw ChannelError(
        peer, fmt::format("rank {} sent {} bytes where {} were expected", peer, sent, bytes));
  }
  return true;
}

Transfers::Transfer Transfers::acquire(Slot::Use kind, int peer, uint32_t tag, uint64_t bytes) {
  if (free_.empty()) {
    free_.push_back(static_cast<Transfer>(slots_.size()));
    slots_.emplace_back();
  }
  const Transfer transfer = free_.back();
  free_.pop_back();
  slots_[transfer] = {.kind = kind,
                      .peer = peer,
                      .tag = tag,
                      .bytes = bytes,
                      .sent = bytes,
                      .seen = links_.turn() - 1};
  return transfer;
}

void Transfers::release(Transfer transfer) {
  slots_[transfer] = {};
  free_.push_back(transfer);
}

// Ends a receive, whose message had so many bytes.
void Transfers::finish(Slot& slot, uint64_t sent) {
  slot.sent = sent;
  slot.done = true;
}

void Transfers::push(int peer, size_t stream, Frame frame, const std::byte* data,
                     uint32_t transfer) {
  frame.epoch = epoch_;
  links_.push(links_.to(peer), stream, frame, data, transfer);
}

void Transfers::send_small(int peer, Transfer transfer) {
  Waiting& waiting = from(peer);
  Slot& slot = slots_[transfer];
  const uint64_t takes = slot.bytes + kMessageTakes;
  if (waiting.used + takes > kUnexpectedBytes) {
    waiting.kept.push_back({++waiting.numbers, transfer});
    push(peer, 0,
         {.kind = Kind::Held, .tag = slot.tag, .bytes = slot.bytes, .offset = waiting.numbers});
    return;
  }
  waiting.used += takes;
  if (slot.bytes == 0) slot.done = true;
  push(peer, 0, {.kind = Kind::Eager, .tag = slot.tag, .bytes = slot.bytes}, slot.data, transfer);
}

// Lets a receive ask for the message that its sender keeps.
void Transfers::pull(int peer, Transfer transfer, uint64_t number, uint64_t bytes) {
  Slot& slot = slots_[transfer];
  slot.matched = true;
  if (bytes != slot.bytes) return finish(slot, bytes);
  slot.announced = true;
  push(peer, 0, {.kind = Kind::Pull, .handle = transfer, .offset = number});
}

// A small message of so many bytes has its receive, or will have none.
void Transfers::take_small(int peer, uint64_t bytes) {
  Waiting& waiting = from(peer);
  waiting.taken += bytes + kMessageTakes;
  if (waiting.taken < kCreditStep || leaves_) return;
  push(peer, 0, {.kind = Kind::Credit, .bytes = waiting.taken});
  waiting.taken = 0;
}

void Transfers::send_data(int peer, Transfer transfer, const Frame& ready) {
  const Slot& slot = slots_[transfer];
  // If the sizes differ, the receiver has seen that in the offer, and says so.
  if (ready.bytes != slot.bytes) return;
  const std::byte* data = slot.data;
  const uint64_t bytes = slot.bytes, pieces = links_.to(peer).streams.size();
  const uint64_t each = (bytes / pieces + kPieceAlign) / kPieceAlign * kPieceAlign;
  for (uint64_t i = 0, at = 0; at < bytes; ++i, at += each) {
    push(peer, i,
         {.kind = Kind::Data,
          .handle = ready.handle,
          .bytes = std::min(each, bytes - at),
          .offset = at},
         data + at, transfer);
  }
}

void Transfers::send_to_self(Transfer transfer) {
  Slot& slot = slots_[transfer];
  const Transfer receiver = take_posted(rank_, slot.tag);
  if (receiver == FramePipe::kNobody) {
    from(rank_).unexpected.push_back(
        {Kind::Eager, slot.tag, slot.bytes, {}, true, FramePipe::kNobody, transfer, 0});
    return;
  }
  hand_over(slots_[receiver], slot.data, slot.bytes);
  slot.done = true;
}

void Transfers::hand_over(Slot& receive, const std::byte* data, uint64_t bytes) {
  if (bytes == receive.bytes && bytes != 0 && receive.data != nullptr)
    std::memcpy(receive.data, data, bytes);
  finish(receive, bytes);
}

void Transfers::deliver(int peer, std::deque<Unexpected>::iterator message) {
  Waiting& waiting = from(peer);
  if (message->sender != FramePipe::kNobody) {
    Slot& sender = slots_[message->sender];
    hand_over(slots_[message->receiver], sender.data, sender.bytes);
    sender.done = true;
  } else {
    hand_over(slots_[message->receiver], message->content.data(), message->bytes);
    waiting.unexpected_bytes -= message->bytes + kMessageTakes;
    take_small(peer, message->bytes);
  }
  waiting.unexpected.erase(message);
}

// The oldest receive of this tag, no longer posted.
Transfers::Transfer Transfers::take_posted(int peer, uint32_t tag) {
  Waiting& waiting = from(peer);
  const auto found =
      std::ranges::find_if(waiting.posted, [&](Transfer t) { return slots_[t].tag == tag; });
  if (found == waiting.posted.end()) return FramePipe::kNobody;
  const Transfer transfer = *found;
  waiting.posted.erase(found);
  return transfer;
}

// --- frames that come; those that no honest rank sends end the connection ------------------------

bool Transfers::begin(int peer, Stream& stream, const Frame& frame) {
  stream.receiver = FramePipe::kNobody;
  if (frame.epoch != epoch_ || from(peer).left) return false;
  switch (frame.kind) {
    case Kind::Eager:
      return frame.bytes <= links_.to(peer).eager_bytes() && begin_eager(peer, stream, frame);
    case Kind::Offer:
      return frame.bytes > links_.to(peer).eager_bytes() && take_offer(peer, frame);
    case Kind::Ready:
      return frame.bytes > links_.to(peer).eager_bytes() && take_ready(peer, frame);
    case Kind::Data:
      return begin_data(peer, stream, frame);
    case Kind::News:
      return frame.bytes == sizeof(Notice);
    case Kind::Leave:
      return true;
    case Kind::Held:
      return frame.bytes <= links_.to(peer).eager_bytes() && take_held(peer, frame);
    case Kind::Pull:
      return take_pull(peer, frame);
    case Kind::Credit:
      return take_credit(peer, frame);
  }
  return false;
}

bool Transfers::begin_eager(int peer, Stream& stream, const Frame& frame) {
  Waiting& waiting = from(peer);
  stream.receiver = take_posted(peer, frame.tag);
  if (stream.receiver != FramePipe::kNobody) return true;
  const uint64_t takes = frame.bytes + kMessageTakes;
  if (waiting.unexpected_bytes + takes > kUnexpectedBytes) return false;
  stream.serial = ++waiting.serials;
  waiting.unexpected_bytes += takes;
  waiting.unexpected.push_back({Kind::Eager, frame.tag, frame.bytes,
                                std::vector<std::byte>(frame.bytes), false, FramePipe::kNobody,
                                FramePipe::kNobody, stream.serial});
  return true;
}

bool Transfers::take_offer(int peer, const Frame& frame) {
  Waiting& waiting = from(peer);
  const Transfer transfer = take_posted(peer, frame.tag);
  if (transfer == FramePipe::kNobody) {
    if (++waiting.told > kMostTold) return false;
    waiting.unexpected.push_back({Kind::Offer, frame.tag, frame.bytes, {}, true});
    return true;
  }
  Slot& slot = slots_[transfer];
  slot.matched = true;
  if (frame.bytes != slot.bytes) {
    finish(slot, frame.bytes);
  } else if (slot.moved == slot.bytes) {
    slot.done = true;
  }
  return true;
}

bool Transfers::take_ready(int peer, const Frame& frame) {
  Waiting& waiting = from(peer);
  const auto found =
      std::ranges::find_if(waiting.offered, [&](Transfer t) { return slots_[t].tag == frame.tag; });
  if (found == waiting.offered.end()) {
    if (waiting.readies.size() >= kMostTold) return false;
    waiting.readies.push_back(frame);
    return true;
  }
  const Transfer transfer = *found;
  waiting.offered.erase(found);
  send_data(peer, transfer, frame);
  return true;
}

bool Transfers::take_held(int peer, const Frame& frame) {
  Waiting& waiting = from(peer);
  const Transfer transfer = take_posted(peer, frame.tag);
  if (transfer != FramePipe::kNobody) {
    pull(peer, transfer, frame.offset, frame.bytes);
    return true;
  }
  if (++waiting.told > kMostTold) return false;
  waiting.unexpected.push_back({Kind::Held,
                                frame.tag,
                                frame.bytes,
                                {},
                                true,
                                FramePipe::kNobody,
                                FramePipe::kNobody,
                                0,
                                frame.offset});
  return true;
}

// A kept message that was given up meanwhile is not found: numbers are not used again.
bool Transfers::take_pull(int peer, const Frame& frame) {
  Waiting& waiting = from(peer);
  const auto found = std::ranges::find(waiting.kept, frame.offset, &Kept::number);
  if (found == waiting.kept.end()) return frame.offset <= waiting.numbers;
  const Transfer transfer = found->transfer;
  waiting.kept.erase(found);
  Slot& slot = slots_[transfer];
  if (slot.bytes == 0) slot.done = true;
  push(peer, 0, {.kind = Kind::Data, .handle = frame.handle, .bytes = slot.bytes}, slot.data,
       transfer);
  return true;
}

bool Transfers::take_credit(int peer, const Frame& frame) {
  Waiting& waiting = from(peer);
  if (frame.bytes > waiting.used) return false;
  waiting.used -= frame.bytes;
  return true;
}

bool Transfers::begin_data(int peer, Stream& stream, const Frame& frame) {
  if (frame.handle >= slots_.size()) return false;
  const Slot& slot = slots_[frame.handle];
  if (slot.peer != peer || !slot.announced || frame.offset > slot.bytes ||
      frame.bytes > slot.bytes - frame.offset || slot.moved + frame.bytes > slot.bytes)
    return false;
  stream.receiver = frame.handle;
  return true;
}

std::byte* Transfers::place(int peer, Stream& stream, const Frame& frame, uint64_t at) {
  Waiting& waiting = from(peer);
  if (frame.kind == Kind::News) return reinterpret_cast<std::byte*>(&stream.notice) + at;
  if (frame.kind == Kind::Data) {
    const Slot& slot = slots_[frame.handle];
    return slot.data == nullptr ? nullptr : slot.data + frame.offset + at;
  }
  if (stream.receiver != FramePipe::kNobody) {
    const Slot& slot = slots_[stream.receiver];
    return slot.data == nullptr || slot.bytes != frame.bytes ? nullptr : slot.data + at;
  }
  const auto message = std::ranges::find(waiting.unexpected, stream.serial, &Unexpected::serial);
  return message == waiting.unexpected.end() ? nullptr : message->content.data() + at;
}

void Transfers::end(int peer, Stream& stream, const Frame& frame) {
  Waiting& waiting = from(peer);
  if (frame.kind == Kind::News) {
    if (news_.size() < kMostNews) news_.push_back(stream.notice);
  } else if (frame.kind == Kind::Leave) {
    waiting.left = true;
  } else if (frame.kind == Kind::Data) {
    Slot& slot = slots_[frame.handle];
    slot.moved += frame.bytes;
    if (slot.moved == slot.bytes && slot.matched && slot.kind == Slot::Receive) slot.done = true;
  } else if (frame.kind == Kind::Eager && stream.receiver != FramePipe::kNobody) {
    Slot& slot = slots_[stream.receiver];
    if (slot.kind == Slot::Receive) {
      finish(slot, frame.bytes);
    } else {
      release(stream.receiver);  // given up in the middle of it
    }
    take_small(peer, frame.bytes);
  } else if (frame.kind == Kind::Eager) {
    const auto message = std::ranges::find(waiting.unexpected, stream.serial, &Unexpected::serial);
    message->complete = true;
    if (message->receiver != FramePipe::kNobody) deliver(peer, message);
  }
  stream.receiver = FramePipe::kNobody;
}

void Transfers::sent(uint32_t transfer, uint64_t bytes) {
  Slot& slot = slots_[transfer];
  slot.moved += bytes;
  if (slot.moved == slot.bytes) slot.done = true;
}

void Transfers::say_farewell() {
  leaves_ = true;
  for (const auto& link : links_.all()) {
    if (!link->streams.empty()) push(link->rank, 0, {.kind = Kind::Leave});
  }
}

}  // namespace tinyshard::tcp
