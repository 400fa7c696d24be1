// The store over TCP: a server at rank 0 or in the launcher, and its clients. Nobody is listened to
// before the handshake (transport/tcp/handshake.h); until then a connection has two seconds, may
// send no more than the handshake, and is one of at most 64.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/rendezvous/store.h"

namespace tinyshard {

class StoreServer {
 public:
  // Listens at exactly this address ("127.0.0.1:0": any free port of the loopback) and serves from
  // a thread of its own. UserError when it cannot.
  StoreServer(const std::string& address, const Secret& secret, uint32_t epoch);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  std::string address() const;  // "127.0.0.1:40123"
  // This rank will set nothing more: who waits for a value under "<anything>/<rank>" is told.
  void give_up(int rank, const std::string& reason);
  void set(const std::string& key, const std::string& value);  // unless it is set already
  bool has(const std::string& key) const;
  uint64_t refused() const;  // connections that did not prove to hold the key

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// How long a question may take: the store answers at once, but its host may not.
inline constexpr std::chrono::milliseconds kAnswerTime{10000};

// Connects as often as it takes until the deadline. StoreError when nobody is there, or the key is
// another one.
std::unique_ptr<Store> connect_store(const std::string& address, const Secret& secret,
                                     uint32_t epoch, int rank, Deadline deadline,
                                     std::chrono::milliseconds answer_time = kAnswerTime);

}  // namespace tinyshard
