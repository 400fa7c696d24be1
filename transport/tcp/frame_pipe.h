// Frames over a pipe: a queue of those to send, and a reader that puts payloads where their owner
// wants them, without a copy where they are large. One thread at a time.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "transport/tcp/frame.h"
#include "transport/tcp/pipe.h"

namespace tinyshard::tcp {

// Receives the frames of a pipe.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // A header has come. False: it is malformed.
  virtual bool begin(const Frame& frame) = 0;
  // Where the payload goes from byte `at` on; null: nowhere. Asked anew for each piece that comes.
  virtual std::byte* place(const Frame& frame, uint64_t at) = 0;
  // The payload is there, or there is none.
  virtual void end(const Frame& frame) = 0;
  // Bytes of the payload of `transfer`'s frames have left; its memory is needed no more once all
  // have.
  virtual void sent(uint32_t transfer, uint64_t bytes) = 0;
};

class FramePipe {
 public:
  static constexpr uint32_t kNobody = ~uint32_t{0};

  FramePipe(std::unique_ptr<Pipe> pipe, FrameSink& sink) : pipe_(std::move(pipe)), sink_(&sink) {}

  // Queues a frame. The caller keeps the memory at `data` until sink.sent() has named all of it, or
  // until forget(). Without a transfer (kNobody) the memory is copied.
  void push(const Frame& frame, const std::byte* data = nullptr, uint32_t transfer = kNobody);
  // Sends no more of this transfer than its begun frame, and that from a copy. False while the
  // kernel still reads what was lent to it: ask again.
  bool forget(uint32_t transfer);
  // Drops a transfer of a connection that has ended for good: nobody asks for it any more.
  void disown(uint32_t transfer);
  // Tells the sink of what was lent and has come back.
  void collect();

  // False when the connection has ended.
  bool write();
  bool read();
  // Why it ended: the other side sent what nobody understands.
  bool malformed() const { return malformed_; }
  std::string problem() const { return pipe_->problem(); }
  bool has_input() const { return pipe_->has_input(); }
  bool has_output() const { return first_ < queue_.size() || pipe_->holds(); }
  bool blocked() const { return blocked_; }  // has output that does not go now

 private:
  struct Outgoing {
    Frame frame;
    const std::byte* data;
    uint64_t bytes, sent;  // of frame and payload together
    uint32_t transfer;
    std::vector<std::byte> owned;
  };
  struct Lent {
    uint32_t transfer;
    uint64_t bytes;
  };
  static uint64_t payload(const Frame& frame);
  bool is_lent(const Outgoing& item) const;
  bool lend_first();
  void written(size_t bytes);
  bool parse();
  size_t take(size_t bytes);

  std::unique_ptr<Pipe> pipe_;
  FrameSink* sink_;
  std::vector<Outgoing> queue_;
  size_t first_ = 0;       // of the queue that has not gone
  std::deque<Lent> lent_;  // to the kernel, in that order
  bool blocked_ = false, malformed_ = false;

  std::vector<std::byte> staging_ = std::vector<std::byte>(64 << 10);
  size_t begin_ = 0, end_ = 0;  // of what is in it
  Frame frame_;                 // whose payload is being read
  bool in_payload_ = false;
  uint64_t at_ = 0;
};

}  // namespace tinyshard::tcp
