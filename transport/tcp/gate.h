// A listening socket that lets in who holds the job's key, and nobody else: a thread that accepts
// and runs the handshakes (handshake.h) of many connections at once.
//
// Before its proof a connection may send the 160 bytes of a handshake, has two seconds for them,
// and is one of at most 64, of which the oldest gives way to who comes next; whatever else comes is
// closed, counted, and told in a line now and then (refusals.h).
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "launch/secret.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/socket.h"

namespace tinyshard::tcp {

class Gate {
 public:
  // Both run on the gate's thread. `judge` sees claims that are proven; one that it welcomes is
  // given to `admit`, after the connector has been told.
  struct Callbacks {
    int rank = -1;  // whose gate it is, for messages; -1: a store's
    std::function<Verdict(const Claim&)> judge;
    std::function<void(Socket, const Claim&)> admit;
    // A rank that is proven, too, and does not encrypt where this side does, or the other way round.
    std::function<void(const Claim&)> encrypts_otherwise = {};
  };

  // Listens at exactly this address; port 0 is any free one. UserError when it cannot.
  Gate(const std::string& address, const Secret& secret, Callbacks callbacks);
  ~Gate();  // closes; no callback runs afterwards
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  std::string address() const;
  // Tells that connections wait, for a second and longer, as this process may open no more descriptors.
  bool is_short_of_files() const;
  uint64_t refused() const;  // connections that did not prove to hold the key

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tinyshard::tcp
