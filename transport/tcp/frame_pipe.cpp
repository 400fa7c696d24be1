// Small frames go out and come in many to a call; the payload of a large one is read straight into
// its place. Example: 100 bytes of an Eager frame, then 1 MiB of Data. One read takes 64 KiB into
// the staging buffer: the whole first frame, the second header, and some of its payload, which is
// copied to its place. All other bytes of that payload are read into their place, and what follows
// them into the staging buffer again, by the same call.
#include "transport/tcp/frame_pipe.h"

#include <algorithm>
#include <cstring>

namespace tinyshard::tcp {
namespace {

constexpr size_t kMostParts = 32;  // of one call
constexpr size_t kWorthReadingDirectly = 8 << 10;
constexpr size_t kWorthLending = 64 << 10;  // to pin pages and to be told costs as a copy of less
constexpr size_t kMostGone = 256;           // that stay at the head of the queue
constexpr int kReads = 32;                  // before others have their turn

}  // namespace

uint64_t FramePipe::payload(const Frame& frame) {
  return frame.kind == Kind::Eager || frame.kind == Kind::Data || frame.kind == Kind::News
             ? frame.bytes
             : 0;
}

void FramePipe::push(const Frame& frame, const std::byte* data, uint32_t transfer) {
  if (first_ == queue_.size()) {
    queue_.clear();
    first_ = 0;
  } else if (first_ > kMostGone && first_ > queue_.size() / 2) {
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(first_));
    first_ = 0;
  }
  Outgoing& item =
      queue_.emplace_back(Outgoing{frame, data, sizeof(Frame) + payload(frame), 0, transfer, {}});
  if (transfer != kNobody || data == nullptr) return;
  item.owned.assign(data, data + payload(frame));
  item.data = item.owned.data();
}

bool FramePipe::forget(uint32_t transfer) {
  for (size_t i = first_; i < queue_.size(); ++i) {
    Outgoing& item = queue_[i];
    if (item.transfer != transfer) continue;
    if (item.sent == 0) {
      item.bytes = 0;  // nothing of it goes
    } else if (item.data != nullptr) {
      item.owned.assign(item.data, item.data + (item.bytes - sizeof(Frame)));
      item.data = item.owned.data();
    }
    item.transfer = kNobody;
  }
  collect();
  return std::ranges::find(lent_, transfer, &Lent::transfer) == lent_.end();
}

void FramePipe::disown(uint32_t transfer) {
  for (Lent& lent : lent_) {
    if (lent.transfer == transfer) lent.transfer = kNobody;
  }
}

void FramePipe::collect() {
  if (lent_.empty()) return;
  for (uint64_t bytes = pipe_->given_back(); bytes != 0;) {
    Lent& oldest = lent_.front();
    const uint64_t back = std::min(bytes, oldest.bytes);
    if (oldest.transfer != kNobody) sink_->sent(oldest.transfer, back);
    oldest.bytes -= back;
    bytes -= back;
    if (oldest.bytes == 0) lent_.pop_front();
  }
}

// Returns whether the rest of its payload goes from where it lies.
bool FramePipe::is_lent(const Outgoing& item) const {
  const uint64_t begun = std::max<uint64_t>(item.sent, sizeof(Frame));
  return item.transfer != kNobody && item.bytes >= begun + kWorthLending && pipe_->lends();
}

// The payload of the first frame, whose header has gone. False when the connection has ended.
bool FramePipe::lend_first() {
  Outgoing& item = queue_[first_];
  const uint64_t left = item.bytes - item.sent;
  const ssize_t sent =
      pipe_->lend({const_cast<std::byte*>(item.data) + (item.sent - sizeof(Frame)), left});
  blocked_ = sent == Pipe::kBlocked || static_cast<uint64_t>(sent) < left;
  if (sent == Pipe::kBlocked) return true;
  if (sent == Pipe::kEnded) return false;
  lent_.push_back({item.transfer, static_cast<uint64_t>(sent)});
  item.sent += static_cast<uint64_t>(sent);
  if (item.sent == item.bytes) ++first_;
  return true;
}

bool FramePipe::write() {
  while (has_output()) {
    if (pipe_->holds()) {
      if (pipe_->write({}) == Pipe::kEnded) return false;
      blocked_ = pipe_->holds();
      if (blocked_) return true;
      continue;
    }
    if (queue_[first_].bytes == 0) {  // forgotten
      ++first_;
      continue;
    }
    if (queue_[first_].sent >= sizeof(Frame) && is_lent(queue_[first_])) {
      if (!lend_first()) return false;
      if (blocked_) return true;
      continue;
    }
    std::array<iovec, kMostParts> parts;
    size_t n = 0, offered = 0;
    for (size_t i = first_; i < queue_.size() && n + 2 <= parts.size(); ++i) {
      Outgoing& item = queue_[i];
      if (item.bytes == item.sent) continue;
      if (item.sent < sizeof(Frame))
        parts[n++] = {reinterpret_cast<std::byte*>(&item.frame) + item.sent,
                      sizeof(Frame) - item.sent};
      if (is_lent(item)) {
        offered += sizeof(Frame) - std::min<uint64_t>(item.sent, sizeof(Frame));
        break;
      }
      const uint64_t gone = item.sent < sizeof(Frame) ? 0 : item.sent - sizeof(Frame);
      const uint64_t left = item.bytes - sizeof(Frame) - gone;
      if (left != 0) parts[n++] = {const_cast<std::byte*>(item.data) + gone, left};
      offered += item.bytes - item.sent;
    }
    const ssize_t sent = pipe_->write(std::span(parts).first(n));
    blocked_ = sent == Pipe::kBlocked || static_cast<size_t>(sent) < offered || pipe_->holds();
    if (sent == Pipe::kBlocked) return true;
    if (sent == Pipe::kEnded) return false;
    written(static_cast<size_t>(sent));
    if (blocked_) return true;
  }
  blocked_ = false;
  return true;
}

void FramePipe::written(size_t bytes) {
  while (first_ < queue_.size()) {
    Outgoing& item = queue_[first_];
    const uint64_t now = std::min<uint64_t>(bytes, item.bytes - item.sent);
    const uint64_t before = std::max<uint64_t>(item.sent, sizeof(Frame));
    item.sent += now;
    bytes -= now;
    if (item.transfer != kNobody && item.sent > before)
      sink_->sent(item.transfer, item.sent - before);
    if (item.sent < item.bytes) return;
    ++first_;
  }
}

bool FramePipe::read() {
  for (int reads = 0; reads < kReads; ++reads) {
    std::array<iovec, 2> parts;
    size_t n = 0;
    const uint64_t left = in_payload_ ? payload(frame_) - at_ : 0;
    if (begin_ == end_) begin_ = end_ = 0;
    if (left >= kWorthReadingDirectly && begin_ == end_) {
      if (std::byte* place = sink_->place(frame_, at_)) parts[n++] = {place, left};
    }
    const bool direct = n != 0;
    if (begin_ != 0) {
      std::memmove(staging_.data(), staging_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    parts[n++] = {staging_.data() + end_, staging_.size() - end_};
    const size_t wanted = (direct ? left : 0) + staging_.size() - end_;
    const ssize_t got = pipe_->read(std::span(parts).first(n));
    if (got == Pipe::kBlocked) return true;
    if (got == Pipe::kEnded) return false;
    size_t bytes = static_cast<size_t>(got);
    if (direct) {
      const uint64_t placed = std::min<uint64_t>(bytes, left);
      at_ += placed;
      bytes -= placed;
      if (at_ == payload(frame_)) {
        in_payload_ = false;
        sink_->end(frame_);
      }
    }
    end_ += bytes;
    if (!parse()) {
      malformed_ = true;
      return false;
    }
    if (static_cast<size_t>(got) < wanted) return true;
  }
  return true;
}

// Parses the staging buffer.
bool FramePipe::parse() {
  while (true) {
    if (in_payload_) {
      const size_t taken =
          take(static_cast<size_t>(std::min<uint64_t>(payload(frame_) - at_, end_ - begin_)));
      at_ += taken;
      if (at_ < payload(frame_)) return true;
      in_payload_ = false;
      sink_->end(frame_);
    }
    if (end_ - begin_ < sizeof(Frame)) return true;
    std::memcpy(&frame_, staging_.data() + begin_, sizeof(Frame));
    begin_ += sizeof(Frame);
    if (!sink_->begin(frame_)) return false;
    at_ = 0;
    in_payload_ = true;
  }
}

size_t FramePipe::take(size_t bytes) {
  if (bytes == 0) return 0;
  if (std::byte* place = sink_->place(frame_, at_))
    std::memcpy(place, staging_.data() + begin_, bytes);
  begin_ += bytes;
  return bytes;
}

}  // namespace tinyshard::tcp
