// Shared memory is looked at in each turn; the kernel is asked about sockets in each
// turn too, or only in every 64th where all others share memory with this rank, as a
// socket then only tells of an end. Memory that was lent to the kernel has to come
// back before its owner may reuse it: after 200 ms the connection is cut instead.
#include "transport/tcp/links.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "transport/tcp/tls.h"

namespace tinyshard::tcp {
namespace {

constexpr uint64_t kMemoryTurns = 64;
constexpr std::chrono::milliseconds kTakesBack{200};

// Ends it at once, with what has not gone yet.
void disconnect(int fd) {
  const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
  if (connect(fd, &nowhere, sizeof(nowhere)) != 0) shutdown(fd, SHUT_RDWR);
}

std::unique_ptr<Pipe> pipe_over(const Socket& socket) {
  if (TlsSession* session = socket.session()) return std::make_unique<TlsPipe>(*session);
  return std::make_unique<SocketPipe>(socket.fd());
}

size_t number_of(const Link& link, const Stream& stream) {
  size_t number = 0;
  while (&link.streams[number] != &stream) ++number;
  return number;
}

}  // namespace

Stream::Stream(FrameHandler& of, int from, Socket s, std::unique_ptr<Pipe> memory)
    : handler(of),
      rank(from),
      socket(std::move(s)),
      in_memory(memory != nullptr),
      frames(memory ? std::move(memory) : pipe_over(socket), *this) {}

Link::Link(FrameHandler& handler, int to, Peer& peer)
    : rank(to), process(peer.process), host(peer.host) {
  if (!peer.streams.empty()) watch = ProcessWatch(peer.process);
  for (Socket& socket : peer.streams)
    streams.emplace_back(handler, rank, std::move(socket), std::move(peer.memory));
}

bool Link::reading(uint32_t transfer) const {
  return std::ranges::any_of(streams, [&](const Stream& s) { return s.receiver == transfer; });
}

bool Link::is_flushed() const {
  if (lost || streams.empty()) return true;
  return std::ranges::all_of(streams, [](const Stream& stream) {
    int queued = 0;
    if (stream.frames.has_output()) return false;
    // Bytes in shared memory stay there for the other to read.
    return stream.in_memory || (ioctl(stream.socket.fd(), SIOCOUTQ, &queued) == 0 && queued == 0);
  });
}

Links::Links(std::vector<Peer> peers, FrameHandler& handler)
    : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw UserError(fmt::format("epoll_create1: {}", std::strerror(errno)));
  links_.reserve(peers.size());
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    links_.push_back(std::make_unique<Link>(handler, static_cast<int>(rank), peers[rank]));
    Link& link = *links_.back();
    for (uint32_t i = 0; i < link.streams.size(); ++i) watch(link, i);
    if (!link.streams.empty() && link.streams[0].in_memory) in_memory_.push_back(&link);
    for (Stream& stream : link.streams) {
      if (!stream.in_memory && stream.frames.has_input()) unread_.emplace_back(&link, &stream);
    }
  }
}

void Links::push(Link& link, size_t stream, const Frame& frame, const std::byte* data,
                 uint32_t transfer) {
  if (link.lost || link.streams.empty()) return;
  FramePipe& frames = link.streams[stream].frames;
  frames.push(frame, data, transfer);
  if (!frames.blocked()) write(link, link.streams[stream]);
}

void Links::take_back(Link& link, Stream& stream, uint32_t transfer) {
  const auto deadline = std::chrono::steady_clock::now() + kTakesBack;
  while (!stream.frames.forget(transfer)) {
    if (link.lost || std::chrono::steady_clock::now() > deadline) {
      lose(link, stream);
      disconnect(stream.socket.fd());
      stream.frames.disown(transfer);
      return;
    }
    pollfd told{.fd = stream.socket.fd(), .events = 0, .revents = 0};  // errors are always told
    poll(&told, 1, 10);
  }
}

void Links::idle(std::chrono::nanoseconds nap) const {
  if (!unread_.empty()) return;
  const auto nanoseconds = nap.count();
  const timespec time{.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000};
  pollfd ready{.fd = epoll_.fd(), .events = POLLIN, .revents = 0};
  ppoll(&ready, 1, &time, nullptr);
}

void Links::progress(bool thorough) {
  ++turn_;
  for (Link* link : in_memory_) {
    Stream& stream = link->streams[0];
    if (!link->lost && stream.frames.has_output() && !stream.frames.write()) lose(*link, stream);
    if (!link->lost && !stream.frames.read()) lose(*link, stream);
  }
  if (!thorough && in_memory_.size() + 1 == links_.size() && turn_ % kMemoryTurns != 0) return;
  for (const auto& [link, stream] : std::exchange(unread_, {})) read(*link, *stream);
  std::array<epoll_event, 64> events;
  const int n = epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < n; ++i) {
    const uint64_t id = events[static_cast<size_t>(i)].data.u64;
    Link& link = to(static_cast<int>(id >> 32));
    Stream& stream = link.streams[id & 0xffffffff];
    const uint32_t happened = events[static_cast<size_t>(i)].events;
    if (link.lost) continue;
    if (stream.in_memory) {
      // The other end of the socket has closed. What it had written before is read first.
      while (!link.lost && stream.frames.has_input()) {
        if (!stream.frames.read()) lose(link, stream);
      }
      if (!link.lost) lose(link, stream);
      continue;
    }
    if ((happened & EPOLLERR) != 0) stream.frames.collect();  // what was lent comes back so, too
    if ((happened & EPOLLOUT) != 0) write(link, stream);
    if ((happened & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read(link, stream);
    if (!link.lost) watch(link, static_cast<uint32_t>(id));
  }
}

void Links::write(Link& link, Stream& stream) {
  if (!stream.frames.write()) return lose(link, stream);
  watch(link, static_cast<uint32_t>(number_of(link, stream)));
}

void Links::read(Link& link, Stream& stream) {
  if (link.lost) return;
  if (!stream.frames.read()) return lose(link, stream);
  if (stream.frames.has_input()) unread_.emplace_back(&link, &stream);
}

// Asks the kernel for what is of interest now: input, and output where some did not go.
void Links::watch(Link& link, uint32_t number) {
  if (link.lost) return;
  Stream& stream = link.streams[number];
  const uint32_t wanted =
      uint32_t{EPOLLIN} | (stream.frames.blocked() && !stream.in_memory ? uint32_t{EPOLLOUT} : 0u);
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
void Links::lose(Link& link, const Stream& stream) {
  if (link.lost) return;
  link.lost = true;
  int problem = 0;
  socklen_t size = sizeof(problem);
  getsockopt(stream.socket.fd(), SOL_SOCKET, SO_ERROR, &problem, &size);
  if (stream.frames.malformed()) {
    link.why = fmt::format("process {} on {} sent what is no message of this job", link.process.pid,
                           link.host);
  } else if (const std::string changed = stream.frames.problem(); !changed.empty()) {
    link.why = fmt::format(
        "over the connection to process {} on {} came what its other end did not send ({})",
        link.process.pid, link.host, changed);
  } else if (problem == ECONNRESET) {
    link.why = fmt::format(
        "the connection to process {} on {} was reset: it has ended, or the way to "
        "it is cut",
        link.process.pid, link.host);
  } else if (problem == 0 || problem == EPIPE) {
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

}  // namespace tinyshard::tcp
