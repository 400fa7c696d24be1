// A stream of bytes to and from one rank: a socket, or memory that both have mapped
// (shared_pipe.h). Neither call waits. One thread at a time.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <sys/types.h>
#include <sys/uio.h>

#include "transport/tcp/socket.h"

namespace tinyshard::tcp {

class Pipe {
 public:
  static constexpr ssize_t kBlocked = -1;  // nothing moves now
  static constexpr ssize_t kEnded = -2;    // nothing will ever

  virtual ~Pipe() = default;
  // As much as goes: bytes taken, or one of the above.
  virtual ssize_t write(std::span<const iovec> parts) = 0;
  virtual ssize_t read(std::span<const iovec> parts) = 0;
  // Of shared memory: something waits to be read.
  virtual bool has_input() const { return false; }
};

class SocketPipe final : public Pipe {
 public:
  explicit SocketPipe(int fd) : fd_(fd) {}  // borrowed
  ssize_t write(std::span<const iovec> parts) override;
  ssize_t read(std::span<const iovec> parts) override;

 private:
  int fd_;
};

}  // namespace tinyshard::tcp
