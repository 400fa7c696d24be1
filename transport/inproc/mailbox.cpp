// A message waits in the box of its receiver and points to memory and a slot of
// its sender, so a channel that ends takes its messages out of all boxes. Boxes
// count their changes: a nap between two looks at a box misses none. Copies are
// made under the box's lock, so none is under way when a transfer is given up.
#include "transport/inproc/mailbox.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include <fmt/format.h>

namespace tinyshard {
namespace {

// A transfer, owned by its channel. The peer's thread may complete it: `done` is written last.
struct Slot {
  std::atomic<bool> done{false};
  int peer = -1;
  size_t bytes = 0, sent = 0;  // of a receive: expected, and what the message had
};

struct Entry {  // a message that waits for its receive, or a receive that waits for its message
  int from;
  uint32_t tag;
  std::byte* data;
  size_t bytes;
  Slot* slot;
};

struct Box {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> messages, receives;
  std::deque<Notice> notices;
  uint64_t changes = 0;
  bool closed = false;

  void wake() {
    {
      std::lock_guard lock(mutex);
      ++changes;
    }
    changed.notify_all();
  }
};

struct Post {
  explicit Post(int ranks) : boxes(static_cast<size_t>(ranks)) {}
  Box& box(int rank) { return boxes[static_cast<size_t>(rank)]; }
  std::vector<Box> boxes;
};

// Memory order of `done`: everything the completing thread wrote is seen by the thread that finds
// it true.
void deliver(const Entry& message, const Entry& receive) {
  if (message.bytes == receive.bytes && message.bytes != 0)
    std::memcpy(receive.data, message.data, message.bytes);
  receive.slot->sent = message.bytes;
  receive.slot->done.store(true, std::memory_order_release);
  message.slot->done.store(true, std::memory_order_release);
}

// Takes the oldest entry of (from, tag) out of the queue.
bool take(std::deque<Entry>& queue, int from, uint32_t tag, Entry& found) {
  for (auto entry = queue.begin(); entry != queue.end(); ++entry) {
    if (entry->from != from || entry->tag != tag) continue;
    found = *entry;
    queue.erase(entry);
    return true;
  }
  return false;
}

class Mailbox final : public Channel {
 public:
  Mailbox(std::shared_ptr<Post> post, int rank)
      : Channel(rank, static_cast<int>(post->boxes.size())), post_(std::move(post)) {}

  ~Mailbox() override {
    for (Box& box : post_->boxes) {
      std::lock_guard lock(box.mutex);
      std::erase_if(box.messages, [&](const Entry& e) { return e.from == rank(); });
      if (&box == &own()) {
        box.receives.clear();
        box.closed = true;
      }
    }
    for (Box& box : post_->boxes) box.wake();
  }

  std::string_view name() const override { return "inproc"; }

  Transfer send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    const Transfer transfer = acquire(peer, bytes);
    const Entry message{rank(), tag, static_cast<std::byte*>(const_cast<void*>(data)), bytes,
                        &slots_[transfer]};
    Box& box = post_->box(peer);
    {
      std::lock_guard lock(box.mutex);
      ++box.changes;
      if (Entry receive; take(box.receives, rank(), tag, receive)) {
        deliver(message, receive);
      } else {
        box.messages.push_back(message);
      }
    }
    box.changed.notify_all();
    return transfer;
  }

  Transfer receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    const Transfer transfer = acquire(peer, bytes);
    const Entry receive{peer, tag, static_cast<std::byte*>(data), bytes, &slots_[transfer]};
    bool delivered = false;
    {
      std::lock_guard lock(own().mutex);
      if (Entry message; take(own().messages, peer, tag, message)) {
        deliver(message, receive);
        delivered = true;
      } else {
        own().receives.push_back(receive);
      }
    }
    if (delivered && peer != rank()) post_->box(peer).wake();
    return transfer;
  }

  bool abandon(Transfer transfer) override {
    Slot* slot = &slots_[transfer];
    const auto is_slot = [&](const Entry& e) { return e.slot == slot; };
    // A send waits in the peer's box, a receive in the own one. Under the lock nobody is copying.
    for (Box* box : {&post_->box(slot->peer), &own()}) {
      std::lock_guard lock(box->mutex);
      std::erase_if(box->messages, is_slot);
      std::erase_if(box->receives, is_slot);
    }
    free_.push_back(transfer);
    return true;
  }

  void send_notice(int peer, const Notice& notice) override {
    Box& box = post_->box(peer);
    {
      std::lock_guard lock(box.mutex);
      box.notices.push_back(notice);
      ++box.changes;
    }
    box.changed.notify_all();
  }

  bool next_notice(Notice& notice) override {
    std::lock_guard lock(own().mutex);
    if (own().notices.empty()) return false;
    notice = own().notices.front();
    own().notices.pop_front();
    return true;
  }

  PeerState peer_state(int peer) override {
    Box& box = post_->box(peer);
    std::lock_guard lock(box.mutex);
    if (!box.closed) return {};
    return {.gone = true, .text = "its communicators were destroyed"};
  }

  void idle(Duration nap) override {
    std::unique_lock lock(own().mutex);
    own().changed.wait_for(lock, nap, [&] { return own().changes != seen_; });
    seen_ = own().changes;
  }

 private:
  bool poll(Transfer transfer) override {
    Slot& slot = slots_[transfer];
    if (!slot.done.load(std::memory_order_acquire)) return false;
    const int peer = slot.peer;
    const size_t bytes = slot.bytes, sent = slot.sent;
    free_.push_back(transfer);
    if (bytes != sent) {
      throw ChannelError(
          peer, fmt::format("rank {} sent {} bytes where {} were expected", peer, sent, bytes));
    }
    return true;
  }

  Box& own() { return post_->box(rank()); }

  Transfer acquire(int peer, size_t bytes) {
    if (free_.empty()) {
      free_.push_back(static_cast<Transfer>(slots_.size()));
      slots_.emplace_back();
    }
    const Transfer transfer = free_.back();
    free_.pop_back();
    Slot& slot = slots_[transfer];
    slot.done.store(false, std::memory_order_relaxed);
    slot.peer = peer;
    slot.bytes = slot.sent = bytes;
    return transfer;
  }

  std::shared_ptr<Post> post_;
  std::deque<Slot> slots_;  // stable addresses: boxes point at them
  std::vector<Transfer> free_;
  uint64_t seen_ = 0;  // changes of the own box at the last nap; guarded by its mutex
};

}  // namespace

std::vector<std::unique_ptr<Channel>> make_mailboxes(int ranks) {
  auto post = std::make_shared<Post>(ranks);
  std::vector<std::unique_ptr<Channel>> channels;
  channels.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    channels.push_back(std::make_unique<Mailbox>(post, rank));
  return channels;
}

}  // namespace tinyshard
