// The connections of this rank to the others: sockets that the kernel is asked about, and memory
// that ranks of one host share. They carry frames; what these mean is its handler's business. One
// thread at a time.
//
// A connection that ends, or over which comes what no rank of this job sends, is lost for good, and
// says why. Sending to it does nothing.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/channel.h"
#include "transport/process_watch.h"
#include "transport/tcp/frame_pipe.h"
#include "transport/tcp/mesh.h"
#include "transport/tcp/socket.h"

namespace tinyshard::tcp {

// A socket to a rank, or the memory shared with it.
struct Stream;

// Understands the frames that come from each rank: see FrameSink.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;
  virtual bool begin(int rank, Stream& stream, const Frame& frame) = 0;
  virtual std::byte* place(int rank, Stream& stream, const Frame& frame, uint64_t at) = 0;
  virtual void end(int rank, Stream& stream, const Frame& frame) = 0;
  virtual void sent(uint32_t transfer, uint64_t bytes) = 0;
};

struct Stream final : FrameSink {
  Stream(FrameHandler& of, int from, Socket s, std::unique_ptr<Pipe> memory);
  bool begin(const Frame& frame) override { return handler.begin(rank, *this, frame); }
  std::byte* place(const Frame& frame, uint64_t at) override {
    return handler.place(rank, *this, frame, at);
  }
  void end(const Frame& frame) override { handler.end(rank, *this, frame); }
  void sent(uint32_t transfer, uint64_t bytes) override { handler.sent(transfer, bytes); }

  FrameHandler& handler;
  const int rank;
  Socket socket;
  bool in_memory;  // the socket then carries nothing
  FramePipe frames;
  uint32_t events = 0;  // that the kernel is asked for, once watched
  bool watched = false;
  // The handler's: where the payload being read goes, a transfer or an unexpected message.
  uint32_t receiver = FramePipe::kNobody;
  uint64_t serial = 0;
  Notice notice;
};

struct Link {
  Link(FrameHandler& handler, int to, Peer& peer);

  // Returns whether a payload for the transfer is being read.
  bool reading(uint32_t transfer) const;
  // Both ends agree on it: either shares the memory of the other or neither does.
  size_t eager_bytes() const {
    return !streams.empty() && streams[0].in_memory ? kEagerBytesInMemory : kEagerBytes;
  }
  bool is_flushed() const;  // the other side has all that was sent, or never will

  int rank;
  ProcessAddress process;
  std::string host;
  ProcessWatch watch;
  std::deque<Stream> streams;  // none to this rank itself
  bool lost = false;
  std::string why;
};

class Links {
 public:
  // Connections by rank. UserError where the kernel has no more to watch them with.
  Links(std::vector<Peer> peers, FrameHandler& handler);

  Link& to(int rank) { return *links_[static_cast<size_t>(rank)]; }
  std::span<const std::unique_ptr<Link>> all() const { return links_; }

  void push(Link& link, size_t stream, const Frame& frame, const std::byte* data,
            uint32_t transfer);
  // The memory of the transfer is its owner's again. What the kernel still reads of it, for a
  // receiver that does not take it, ends the connection after a time: nobody may get what is written
  // there next.
  void take_back(Link& link, Stream& stream, uint32_t transfer);
  // Reads what has come and writes what can go. Sockets beside shared memory only show that a peer
  // has gone: they are asked now and then, or where this is `thorough`.
  void progress(bool thorough = false);
  // Increases with each look at all connections.
  uint64_t turn() const { return turn_; }
  void idle(std::chrono::nanoseconds nap) const;  // or until something comes over a socket

 private:
  void write(Link& link, Stream& stream);
  void read(Link& link, Stream& stream);
  void watch(Link& link, uint32_t number);
  void lose(Link& link, const Stream& stream);

  Socket epoll_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank
  std::vector<Link*> in_memory_;              // those of them that share memory with this rank
  // Streams that may have input which the kernel does not announce: it was deciphered together with
  // earlier bytes.
  std::vector<std::pair<Link*, Stream*>> unread_;
  uint64_t turn_ = 1;
};

}  // namespace tinyshard::tcp
