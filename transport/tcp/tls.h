// TLS 1.3 over a connected socket, between two that hold one key: an external PSK, with a fresh
// Diffie-Hellman secret beside it, so that who learns the key later reads nothing of what was heard. No
// certificates. What comes over it is what the other end wrote, in that order, or the session ends and
// says so. Nothing here waits. One thread at a time.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <sys/types.h>
#include <sys/uio.h>

#include "launch/secret.h"
#include "transport/tcp/pipe.h"

namespace tinyshard::tcp {

class TlsSession {
 public:
  enum class Side : uint8_t { Connector, Acceptor };
  enum class Step : uint8_t { Done, WantsInput, WantsOutput, Failed };

  // The socket is borrowed, and blocks nobody from now on.
  TlsSession(int fd, Side side, const Proof& key);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Goes on with the handshake. Called until it is done, or has failed.
  Step handshake();

  // Write and read as a Pipe does.
  ssize_t write(std::span<const iovec> parts);
  ssize_t read(std::span<const iovec> parts);
  bool holds() const;
  bool has_input() const;

  // Why the handshake failed or the session ended; empty where the connection just closed.
  const std::string& problem() const;
  bool was_reset() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class TlsPipe final : public Pipe {
 public:
  explicit TlsPipe(TlsSession& session) : session_(&session) {}  // borrowed
  ssize_t write(std::span<const iovec> parts) override { return session_->write(parts); }
  ssize_t read(std::span<const iovec> parts) override { return session_->read(parts); }
  bool holds() const override { return session_->holds(); }
  bool has_input() const override { return session_->has_input(); }
  std::string problem() const override { return session_->problem(); }

 private:
  TlsSession* session_;
};

}  // namespace tinyshard::tcp
