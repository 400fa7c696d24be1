// Example: rank 0 sends 1 MiB with tag 7 to rank 1, which posts its receive later. Rank 0 sends
// Offer (tag 7, 1 MiB) and keeps the memory. Rank 1 finds nothing posted and notes the offer. Its
// receive comes, takes the offer and answers Ready (tag 7, handle 3). Rank 0 sends Data (handle 3)
// straight from the caller's memory, in as many pieces as there are sockets between the two, and
// rank 1 reads it straight into its own. A receive that is posted first sends its Ready at once, so
// that nothing waits for the way there and back.
#include "transport/tcp/tcp_channel.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <linux/sockios.h>
#include <mutex>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/process.h"
#include "launch/secret.h"
#include "launch/termination.h"
#include "transport/rendezvous/store.h"
#include "transport/tcp/frame_pipe.h"
#include "transport/tcp/mesh.h"

namespace tinyshard {
namespace {

using namespace tcp;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kUnhealthyLinger{200};  // for the others to take the news of a failure
constexpr size_t kMostNews = 1024;
constexpr uint32_t kMeetingOfChannels = 0;
constexpr uint64_t kPieceAlign = 4096;
constexpr uint64_t kMemoryTurns = 64;

class TcpChannel;

// Channels of this process that have not said that they leave; an exit handler does it for them.
struct Living {
  std::mutex mutex;
  std::vector<TcpChannel*> channels;
};
Living& living() {
  static auto& instance = *new Living;  // used while the process exits
  return instance;
}

class TcpChannel final : public Channel {
 public:
  TcpChannel(const LaunchEnvironment& launch, std::vector<Peer> peers,
             std::chrono::nanoseconds timeout)
      : Channel(launch.rank, launch.size), epoch_(launch.wire_epoch()), timeout_(timeout) {
    epoll_ = Socket(epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) throw UserError(fmt::format("epoll_create1: {}", std::strerror(errno)));
    links_.reserve(peers.size());
    for (size_t rank = 0; rank < peers.size(); ++rank) {
      links_.push_back(std::make_unique<Link>(*this, static_cast<int>(rank), peers[rank]));
      Link& link = *links_.back();
      for (uint32_t i = 0; i < link.streams.size(); ++i) watch(link, i);
      if (!link.streams.empty() && link.streams[0].in_memory) in_memory_.push_back(&link);
    }
    const std::lock_guard lock(living().mutex);
    living().channels.push_back(this);
  }

  ~TcpChannel() override {
    {
      const std::lock_guard lock(living().mutex);
      std::erase(living().channels, this);
    }
    leave();
  }

  std::string_view name() const override { return "tcp"; }

  Transfer send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    Link& link = link_to(peer);
    const Transfer transfer = acquire(Slot::Send, peer, tag, bytes);
    Slot& slot = slots_[transfer];
    slot.data = static_cast<std::byte*>(const_cast<void*>(data));
    if (peer == rank()) {
      send_to_self(link, transfer);
    } else if (bytes <= link.eager_bytes()) {
      push(link, 0, {.kind = Kind::Eager, .tag = tag, .bytes = bytes}, slot.data, transfer);
      if (bytes == 0) slot.done = true;
    } else {
      push(link, 0, {.kind = Kind::Offer, .tag = tag, .bytes = bytes});
      const auto ready = std::ranges::find(link.readies, tag, &Frame::tag);
      if (ready == link.readies.end()) {
        link.offered.push_back(transfer);
      } else {
        send_data(link, transfer, *ready);
        link.readies.erase(ready);
      }
    }
    return transfer;
  }

  Transfer receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    Link& link = link_to(peer);
    const Transfer transfer = acquire(Slot::Receive, peer, tag, bytes);
    Slot& slot = slots_[transfer];
    slot.data = static_cast<std::byte*>(data);
    const auto found = std::ranges::find_if(link.unexpected, [&](const Unexpected& u) {
      return u.tag == tag && u.receiver == FramePipe::kNobody;
    });
    const bool large = bytes > link.eager_bytes() && peer != rank();
    if (found == link.unexpected.end()) {
      link.posted.push_back(transfer);
    } else if (found->kind == Kind::Offer) {
      slot.matched = true;
      if (found->bytes != bytes) finish(slot, found->bytes);
      link.unexpected.erase(found);
    } else {
      found->receiver = transfer;
      if (found->complete) deliver(link, found);
    }
    if (large && !slot.done) {
      slot.announced = true;
      push(link, 0, {.kind = Kind::Ready, .tag = tag, .handle = transfer, .bytes = bytes});
    }
    return transfer;
  }

  // Nothing here keeps the caller's memory: what is on its way out goes from a copy, what comes for
  // a receive that was announced to the sender is thrown away, and its number is not used again.
  bool abandon(Transfer transfer) override {
    healthy_ = false;
    Slot& slot = slots_[transfer];
    Link& link = link_to(slot.peer);
    slot.data = nullptr;
    if (slot.kind == Slot::Send) {
      for (Stream& stream : link.streams) stream.frames.forget(transfer);
      std::erase(link.offered, transfer);
      std::erase_if(link.unexpected, [&](const Unexpected& u) { return u.sender == transfer; });
      release(transfer);
      return true;
    }
    std::erase(link.posted, transfer);
    for (Unexpected& message : link.unexpected) {
      if (message.receiver == transfer) message.receiver = FramePipe::kNobody;
    }
    const bool may_come = slot.announced || link.reading(transfer);
    slot.kind = Slot::Abandoned;
    if (!may_come) release(transfer);
    return true;
  }

  void send_notice(int peer, const Notice& notice) override {
    healthy_ = false;
    push(link_to(peer), 0, {.kind = Kind::News, .bytes = sizeof(Notice)},
         reinterpret_cast<const std::byte*>(&notice));
  }

  bool next_notice(Notice& notice) override {
    if (news_.empty()) progress();
    if (news_.empty()) return false;
    notice = news_.front();
    news_.pop_front();
    return true;
  }

  PeerState peer_state(int peer) override {
    progress(true);
    Link& link = link_to(peer);
    PeerState state = link.watch.state();
    if (link.left) {
      state.left = true;
      state.text = "its main returned, or it called exit(0)";
    } else if (link.lost && !state.gone) {
      state.gone = true;
      state.text = link.why;
    }
    return state;
  }

  std::string process_of(int peer) override {
    const Link& link = link_to(peer);
    return fmt::format("process {} on {}", link.process.pid, link.host);
  }

  std::string interrupted() override { return terminated() ? kTerminated : ""; }

  void idle(Duration nap) override {
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(nap).count();
    const timespec time{.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000};
    pollfd ready{.fd = epoll_.fd(), .events = POLLIN, .revents = 0};
    ppoll(&ready, 1, &time, nullptr);
  }

  // Tells the others, and waits until they have what was sent. Once.
  void leave() {
    if (std::exchange(said_farewell_, true) || forks_ != times_forked()) return;
    const Deadline end = Clock::now() + (healthy_ ? timeout_ : kUnhealthyLinger);
    for (const auto& link : links_) {
      // After a failure its silence says what there is to say.
      if (healthy_ && !link->streams.empty()) push(*link, 0, {.kind = Kind::Leave});
    }
    // Closing a socket with bytes that nobody has read would throw away those still to be sent.
    while (Clock::now() < end && !terminated()) {
      progress();
      if (std::ranges::all_of(links_, [](const auto& link) { return link->is_flushed(); })) break;
      idle(milliseconds(1));
    }
  }

 private:
  struct Slot {
    enum Use : uint8_t { Free, Send, Receive, Abandoned } kind = Free;
    bool done = false;
    bool matched = false;    // a large receive: its offer has come
    bool announced = false;  // a large receive: the sender knows the handle
    int peer = -1;
    uint32_t tag = 0;
    std::byte* data = nullptr;
    uint64_t bytes = 0, moved = 0;
    uint64_t sent = 0;  // of a receive: what the message had
    uint64_t seen = 0;  // progress_ when it was last asked for
  };

  struct Unexpected {  // a message that waits for its receive
    Kind kind;         // Eager or Offer
    uint32_t tag;
    uint64_t bytes;
    std::vector<std::byte> content;
    bool complete;
    uint32_t receiver = FramePipe::kNobody, sender = FramePipe::kNobody;  // to itself: of both
    uint64_t serial = 0;
  };

  struct Link;

  struct Stream final : FrameSink {
    Stream(TcpChannel& owner, Link& of, Socket s, std::unique_ptr<Pipe> memory)
        : channel(owner),
          link(of),
          socket(std::move(s)),
          in_memory(memory != nullptr),
          frames(memory ? std::move(memory) : std::make_unique<SocketPipe>(socket.fd()), *this) {}
    bool begin(const Frame& frame) override { return channel.begin(link, *this, frame); }
    std::byte* place(const Frame& frame, uint64_t at) override {
      return channel.place(link, *this, frame, at);
    }
    void end(const Frame& frame) override { channel.end(link, *this, frame); }
    void sent(uint32_t transfer, uint64_t bytes) override { channel.sent(transfer, bytes); }

    TcpChannel& channel;
    Link& link;
    Socket socket;
    bool in_memory;  // the socket then carries nothing
    FramePipe frames;
    uint32_t events = 0;  // that the kernel is asked for, once watched
    bool watched = false;
    // Where the payload being read goes: a transfer, or an unexpected message.
    uint32_t receiver = FramePipe::kNobody;
    uint64_t serial = 0;
    Notice notice;
  };

  struct Link {
    Link(TcpChannel& channel, int to, Peer& peer)
        : rank(to), process(peer.process), host(peer.host) {
      if (!peer.streams.empty()) watch = ProcessWatch(peer.process);
      for (Socket& socket : peer.streams)
        streams.emplace_back(channel, *this, std::move(socket), std::move(peer.memory));
    }

    bool reading(Transfer transfer) const {
      return std::ranges::any_of(streams, [&](const Stream& s) { return s.receiver == transfer; });
    }

    // Both ends agree on it: either shares the memory of the other or neither does.
    size_t eager_bytes() const {
      return !streams.empty() && streams[0].in_memory ? kEagerBytesInMemory : kEagerBytes;
    }

    bool is_flushed() const {
      if (lost || streams.empty()) return true;
      return std::ranges::all_of(streams, [](const Stream& stream) {
        int queued = 0;
        if (stream.frames.has_output()) return false;
        // What lies in shared memory stays there for the other to read.
        return stream.in_memory ||
               (ioctl(stream.socket.fd(), SIOCOUTQ, &queued) == 0 && queued == 0);
      });
    }

    int rank;
    ProcessAddress process;
    std::string host;
    ProcessWatch watch;
    std::deque<Stream> streams;
    std::vector<Transfer> posted;   // receives without a message, in their order
    std::vector<Transfer> offered;  // large sends whose receive is not known
    std::vector<Frame> readies;     // receives whose send has not come
    std::deque<Unexpected> unexpected;
    size_t unexpected_bytes = 0;
    uint64_t serials = 0;
    bool lost = false, left = false;
    std::string why;
  };

  Link& link_to(int peer) { return *links_[static_cast<size_t>(peer)]; }

  // ----------------------------------------------------------------------------------------------
  // Transfers.

  bool poll(Transfer transfer) override {
    Slot& slot = slots_[transfer];
    if (!slot.done) {
      // A call asks for its transfers one after the other: the first that is asked for again moves
      // all of them along.
      if (slot.seen == progress_) progress();
      slot.seen = progress_;
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

  Transfer acquire(Slot::Use kind, int peer, uint32_t tag, uint64_t bytes) {
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
                        .seen = progress_ - 1};
    return transfer;
  }

  void release(Transfer transfer) {
    slots_[transfer] = {};
    free_.push_back(transfer);
  }

  // Of a receive: its message had so many bytes.
  static void finish(Slot& slot, uint64_t sent) {
    slot.sent = sent;
    slot.done = true;
  }

  void push(Link& link, size_t stream, Frame frame, const std::byte* data = nullptr,
            uint32_t transfer = FramePipe::kNobody) {
    if (link.lost || link.streams.empty()) return;
    frame.epoch = epoch_;
    FramePipe& frames = link.streams[stream].frames;
    frames.push(frame, data, transfer);
    if (!frames.blocked()) write(link, link.streams[stream]);
  }

  void send_data(Link& link, Transfer transfer, const Frame& ready) {
    const Slot& slot = slots_[transfer];
    // Of other sizes: the receiver has seen the offer, and says so.
    if (ready.bytes != slot.bytes) return;
    const std::byte* data = slot.data;
    const uint64_t bytes = slot.bytes, pieces = link.streams.size();
    const uint64_t each = (bytes / pieces + kPieceAlign) / kPieceAlign * kPieceAlign;
    for (uint64_t i = 0, at = 0; at < bytes; ++i, at += each) {
      push(link, i,
           {.kind = Kind::Data,
            .handle = ready.handle,
            .bytes = std::min(each, bytes - at),
            .offset = at},
           data + at, transfer);
    }
  }

  void send_to_self(Link& link, Transfer transfer) {
    Slot& slot = slots_[transfer];
    const Transfer receiver = take_posted(link, slot.tag);
    if (receiver == FramePipe::kNobody) {
      link.unexpected.push_back(
          {Kind::Eager, slot.tag, slot.bytes, {}, true, FramePipe::kNobody, transfer, 0});
      return;
    }
    hand_over(slots_[receiver], slot.data, slot.bytes);
    slot.done = true;
  }

  static void hand_over(Slot& receive, const std::byte* data, uint64_t bytes) {
    if (bytes == receive.bytes && bytes != 0 && receive.data != nullptr)
      std::memcpy(receive.data, data, bytes);
    finish(receive, bytes);
  }

  void deliver(Link& link, std::deque<Unexpected>::iterator message) {
    if (message->sender != FramePipe::kNobody) {
      Slot& sender = slots_[message->sender];
      hand_over(slots_[message->receiver], sender.data, sender.bytes);
      sender.done = true;
    } else {
      hand_over(slots_[message->receiver], message->content.data(), message->bytes);
      link.unexpected_bytes -= message->bytes;
    }
    link.unexpected.erase(message);
    for (uint32_t i = 0; i < link.streams.size(); ++i) watch(link, i);
  }

  // The oldest receive of this tag, no longer posted.
  Transfer take_posted(Link& link, uint32_t tag) {
    const auto found =
        std::ranges::find_if(link.posted, [&](Transfer t) { return slots_[t].tag == tag; });
    if (found == link.posted.end()) return FramePipe::kNobody;
    const Transfer transfer = *found;
    link.posted.erase(found);
    return transfer;
  }

  // ----------------------------------------------------------------------------------------------
  // Frames that come. Those that no honest rank sends end the connection.

  bool begin(Link& link, Stream& stream, const Frame& frame) {
    stream.receiver = FramePipe::kNobody;
    if (frame.epoch != epoch_ || link.left) return false;
    switch (frame.kind) {
      case Kind::Eager:
        return frame.bytes <= link.eager_bytes() && begin_eager(link, stream, frame);
      case Kind::Offer:
        return frame.bytes > link.eager_bytes() && take_offer(link, frame);
      case Kind::Ready:
        return frame.bytes > link.eager_bytes() && take_ready(link, frame);
      case Kind::Data:
        return begin_data(link, stream, frame);
      case Kind::News:
        return frame.bytes == sizeof(Notice);
      case Kind::Leave:
        return true;
    }
    return false;
  }

  bool begin_eager(Link& link, Stream& stream, const Frame& frame) {
    stream.receiver = take_posted(link, frame.tag);
    if (stream.receiver != FramePipe::kNobody) return true;
    if (link.unexpected.size() >= kUnexpectedFrames) return false;
    stream.serial = ++link.serials;
    link.unexpected_bytes += frame.bytes;
    link.unexpected.push_back({Kind::Eager, frame.tag, frame.bytes,
                               std::vector<std::byte>(frame.bytes), false, FramePipe::kNobody,
                               FramePipe::kNobody, stream.serial});
    return true;
  }

  bool take_offer(Link& link, const Frame& frame) {
    const Transfer transfer = take_posted(link, frame.tag);
    if (transfer == FramePipe::kNobody) {
      if (link.unexpected.size() >= kUnexpectedFrames) return false;
      link.unexpected.push_back({Kind::Offer, frame.tag, frame.bytes, {}, true});
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

  bool take_ready(Link& link, const Frame& frame) {
    const auto found =
        std::ranges::find_if(link.offered, [&](Transfer t) { return slots_[t].tag == frame.tag; });
    if (found == link.offered.end()) {
      if (link.readies.size() >= kUnexpectedFrames) return false;
      link.readies.push_back(frame);
      return true;
    }
    const Transfer transfer = *found;
    link.offered.erase(found);
    send_data(link, transfer, frame);
    return true;
  }

  bool begin_data(Link& link, Stream& stream, const Frame& frame) {
    if (frame.handle >= slots_.size()) return false;
    const Slot& slot = slots_[frame.handle];
    if (slot.peer != link.rank || !slot.announced || frame.offset > slot.bytes ||
        frame.bytes > slot.bytes - frame.offset || slot.moved + frame.bytes > slot.bytes)
      return false;
    stream.receiver = frame.handle;
    return true;
  }

  std::byte* place(Link& link, Stream& stream, const Frame& frame, uint64_t at) {
    if (frame.kind == Kind::News) return reinterpret_cast<std::byte*>(&stream.notice) + at;
    if (frame.kind == Kind::Data) {
      const Slot& slot = slots_[frame.handle];
      return slot.data == nullptr ? nullptr : slot.data + frame.offset + at;
    }
    if (stream.receiver != FramePipe::kNobody) {
      const Slot& slot = slots_[stream.receiver];
      return slot.data == nullptr || slot.bytes != frame.bytes ? nullptr : slot.data + at;
    }
    const auto message = std::ranges::find(link.unexpected, stream.serial, &Unexpected::serial);
    return message == link.unexpected.end() ? nullptr : message->content.data() + at;
  }

  void end(Link& link, Stream& stream, const Frame& frame) {
    if (frame.kind == Kind::News) {
      if (news_.size() < kMostNews) news_.push_back(stream.notice);
    } else if (frame.kind == Kind::Leave) {
      link.left = true;
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
    } else if (frame.kind == Kind::Eager) {
      const auto message = std::ranges::find(link.unexpected, stream.serial, &Unexpected::serial);
      message->complete = true;
      if (message->receiver != FramePipe::kNobody) deliver(link, message);
    }
    stream.receiver = FramePipe::kNobody;
  }

  void sent(uint32_t transfer, uint64_t bytes) {
    Slot& slot = slots_[transfer];
    slot.moved += bytes;
    if (slot.moved == slot.bytes) slot.done = true;
  }

  // ----------------------------------------------------------------------------------------------
  // Sockets.

  // Sockets beside shared memory only show that a peer has gone: they are asked now and then, or
  // where this is `thorough`.
  void progress(bool thorough = false) {
    ++progress_;
    for (Link* link : in_memory_) {
      Stream& stream = link->streams[0];
      if (!link->lost && stream.frames.has_output() && !stream.frames.write()) lose(*link, stream);
      if (!link->lost && !is_full(*link) && !stream.frames.read()) lose(*link, stream);
    }
    if (!thorough && in_memory_.size() + 1 == links_.size() && progress_ % kMemoryTurns != 0)
      return;
    std::array<epoll_event, 64> events;
    const int n = epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < n; ++i) {
      const uint64_t id = events[static_cast<size_t>(i)].data.u64;
      Link& link = link_to(static_cast<int>(id >> 32));
      Stream& stream = link.streams[id & 0xffffffff];
      const uint32_t happened = events[static_cast<size_t>(i)].events;
      if (link.lost) continue;
      if (stream.in_memory) {
        // The other end of the socket has closed. What it had written before is read first, and
        // waits in the ring for as long as there is no room for it here.
        while (!link.lost && !is_full(link) && stream.frames.has_input()) {
          if (!stream.frames.read()) lose(link, stream);
        }
        if (!link.lost && !stream.frames.has_input()) lose(link, stream);
        continue;
      }
      if ((happened & EPOLLOUT) != 0) write(link, stream);
      if (!link.lost && (happened & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
        if (!stream.frames.read()) lose(link, stream);
      }
      if (!link.lost) watch(link, static_cast<uint32_t>(id));
    }
  }

  void write(Link& link, Stream& stream) {
    if (!stream.frames.write()) return lose(link, stream);
    watch(link, static_cast<uint32_t>(number_of(link, stream)));
  }

  static bool is_full(const Link& link) { return link.unexpected_bytes > kUnexpectedBytes; }

  static size_t number_of(const Link& link, const Stream& stream) {
    size_t number = 0;
    while (&link.streams[number] != &stream) ++number;
    return number;
  }

  // Asks the kernel for what is of interest now: input unless too much of it waits for its receive,
  // output where some did not go.
  void watch(Link& link, uint32_t number) {
    if (link.lost) return;
    Stream& stream = link.streams[number];
    const bool full = link.unexpected_bytes > kUnexpectedBytes;
    const uint32_t wanted =
        (full ? 0u : uint32_t{EPOLLIN}) |
        (stream.frames.blocked() && !stream.in_memory ? uint32_t{EPOLLOUT} : 0u);
    if (wanted == stream.events && stream.watched) return;
    epoll_event event{};
    event.events = wanted;
    event.data.u64 = static_cast<uint64_t>(link.rank) << 32 | number;
    epoll_ctl(epoll_.fd(), stream.watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, stream.socket.fd(),
              &event);
    stream.events = wanted;
    stream.watched = true;
  }

  // The connection is of no use any more. What waits for this rank goes on waiting: who asks for
  // its state learns why.
  void lose(Link& link, const Stream& stream) {
    if (link.lost) return;
    link.lost = true;
    int problem = 0;
    socklen_t size = sizeof(problem);
    getsockopt(stream.socket.fd(), SOL_SOCKET, SO_ERROR, &problem, &size);
    if (stream.frames.malformed()) {
      link.why = fmt::format("process {} on {} sent what is no message of this job",
                             link.process.pid, link.host);
    } else if (problem == 0 || problem == ECONNRESET || problem == EPIPE) {
      link.why = fmt::format("process {} on {} has ended: its connection was closed",
                             link.process.pid, link.host);
    } else {
      link.why = fmt::format("process {} on {} cannot be reached: {}", link.process.pid, link.host,
                             std::strerror(problem));
    }
    for (Stream& other : link.streams) {
      epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, other.socket.fd(), nullptr);
      shutdown(other.socket.fd(), SHUT_RDWR);
    }
  }

  const uint32_t epoch_;
  const std::chrono::nanoseconds timeout_;
  const int forks_ = times_forked();  // a child of this process has no part in the job
  Socket epoll_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank
  std::vector<Link*> in_memory_;              // those of them that share memory with this rank
  std::deque<Slot> slots_;
  std::vector<Transfer> free_;
  std::deque<Notice> news_;
  uint64_t progress_ = 1;
  bool healthy_ = true, said_farewell_ = false;
};

void leave_at_exit(int status, void*) {
  if (status != 0) return;
  Living& l = living();
  const std::lock_guard lock(l.mutex);
  for (TcpChannel* channel : l.channels) channel->leave();
}

}  // namespace

std::unique_ptr<Channel> meet_by_tcp(const LaunchEnvironment& launch, const Secret& secret,
                                     Store& store, uint64_t meeting, bool share_memory,
                                     std::chrono::nanoseconds timeout) {
  return join_by_tcp(launch,
                     form_mesh(launch, secret, store, meeting,
                               {.share_memory = share_memory,
                                .store_tells_failures = launch.launcher == Launcher::Own},
                               Clock::now() + timeout),
                     timeout);
}

std::unique_ptr<Channel> join_by_tcp(const LaunchEnvironment& launch, std::vector<Peer> peers,
                                     std::chrono::nanoseconds timeout) {
  return std::make_unique<TcpChannel>(launch, std::move(peers), timeout);
}

std::unique_ptr<Channel> connect_tcp(const LaunchEnvironment& launch, bool share_memory,
                                     std::chrono::nanoseconds timeout) {
  static const bool leaves = on_exit(leave_at_exit, nullptr) == 0;
  static_cast<void>(leaves);
  check_meeting(launch);
  watch_for_termination();
  const Secret secret = job_secret(launch.meeting.job);
  try {
    const uint64_t meeting = next_meeting(launch.wire_epoch(), kMeetingOfChannels);
    const auto store = open_store(launch, secret, Clock::now() + timeout);
    return meet_by_tcp(launch, secret, *store, meeting, share_memory, timeout);
  } catch (const StoreError& error) {
    throw CommError({.rank = launch.rank,
                     .peer = error.culprit,
                     .operation = "connect",
                     .detail = error.what()});
  }
}

TransportInfo tcp_info() {
  return {"tcp", true, "sockets, and memory shared within a host; no other library is needed"};
}

}  // namespace tinyshard
