// A stream of bytes to and from one rank: a socket, TLS over one (tls.h), or memory that both have
// mapped (shared_pipe.h). Neither call waits. One thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <sys/types.h>
#include <sys/uio.h>

namespace tinyshard::tcp {

class Pipe {
 public:
  static constexpr ssize_t kBlocked = -1;  // nothing moves now
  static constexpr ssize_t kEnded = -2;    // nothing will ever

  virtual ~Pipe() = default;
  // Move as many bytes as go now. Return their number, kBlocked or kEnded.
  virtual ssize_t write(std::span<const iovec> parts) = 0;
  virtual ssize_t read(std::span<const iovec> parts) = 0;
  // Tells whether bytes may wait to be read that the socket does not show.
  virtual bool has_input() const { return false; }
  // Tells whether bytes that write() took have not gone yet. The next write(), even of nothing,
  // sends them first.
  virtual bool holds() const { return false; }
  // Why it ended, where it did not just close.
  virtual std::string problem() const { return {}; }

  // Returns whether large pieces are worth being lent.
  virtual bool lends() const { return false; }
  // Writes memory from where it lies, without a copy. Nobody may change it before given_back() has
  // counted its bytes.
  virtual ssize_t lend(const iovec& part) { return write({&part, 1}); }
  // Returns how many lent bytes came back since the last call, in the order in which they were
  // lent.
  virtual uint64_t given_back() { return 0; }
};

// Lends memory to the kernel (MSG_ZEROCOPY) until it says that it copies all the same, as it does to
// a receiver on this host; then lending costs more than it saves.
class SocketPipe final : public Pipe {
 public:
  enum class Lending : uint8_t { WhereItSaves, Always };

  explicit SocketPipe(int fd, Lending lending = Lending::WhereItSaves);  // borrowed
  ssize_t write(std::span<const iovec> parts) override;
  ssize_t read(std::span<const iovec> parts) override;
  bool lends() const override { return lends_; }
  ssize_t lend(const iovec& part) override;
  uint64_t given_back() override;

 private:
  struct Lent {
    uint32_t number;  // the kernel's, of the call
    uint64_t bytes;
    bool is_back;
  };
  void note_given_back(uint32_t first, uint32_t last);

  const int fd_;
  const Lending lending_;
  bool lends_ = false;
  uint32_t next_ = 0;
  std::deque<Lent> lent_;
};

}  // namespace tinyshard::tcp
