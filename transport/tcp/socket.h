// Sockets of the side that connects: a few calls with a deadline each. The side that accepts from
// many at once is gate.h; what moves the data is tcp_channel.cpp.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>

#include "core/runtime/communicator.h"
#include "launch/secret.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/tls.h"

namespace tinyshard::tcp {

struct SocketError : std::runtime_error {
  // Final: trying again would give the same.
  explicit SocketError(const std::string& what, bool is_final = false)
      : std::runtime_error(what), final(is_final) {}
  bool final;
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd);  // children of this process get none of it
  ~Socket() { reset(); }
  Socket(Socket&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), session_(std::move(other.session_)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(session_, other.session_);
    return *this;
  }
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();
  int release();  // to who may share it with them

  // The session encrypts all that goes over the socket; null: nothing does.
  TlsSession* session() const { return session_.get(); }
  void encrypt(std::unique_ptr<TlsSession> session) { session_ = std::move(session); }
  std::unique_ptr<TlsSession> take_session() { return std::move(session_); }

 private:
  int fd_ = -1;
  std::unique_ptr<TlsSession> session_;
};

// As much as goes now, encrypted where the socket is: bytes, or as of a Pipe, or kReset, which is an end
// that the other side may not have meant.
constexpr ssize_t kReset = -3;
ssize_t send_now(const Socket& socket, std::span<const std::byte> bytes);
ssize_t receive_now(const Socket& socket, std::span<std::byte> bytes);

// "host:port" or "[v6]:port"; UserError naming it otherwise.
std::pair<std::string, std::string> split_address(std::string_view address);
std::string join_address(const std::string& host, int port);

// Not blocking, without Nagle's delay. One try, until the deadline.
Socket connect_to(const std::string& address, Deadline deadline);
void write_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline);
void read_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline);

// The whole handshake of a new connection, which is encrypted afterwards where the secret says so.
// SocketError where the other side refuses; final where it holds another key, is another version, or says
// why.
void introduce(Socket& socket, const Secret& secret, const Claim& claim, Deadline deadline);

std::string loopback();  // the address of this host for itself

// The address of the own end, without a port.
std::string own_host(const Socket& socket);

// The address of this host by which `host` would see it. Nothing is sent. UserError where that host
// is not known.
std::string host_towards(const std::string& host);

}  // namespace tinyshard::tcp
