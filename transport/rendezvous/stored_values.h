// The decisions of a store, without its sockets: a value is set once, and whoever asks for a value
// of a rank that will set nothing more is told so. The server over TCP holds one (tcp_store.cpp),
// and so does the simulator's (tests/simulator).
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "transport/rendezvous/store.h"

namespace tinyshard {

class StoredValues {
 public:
  static constexpr size_t kMostBytes = 64 << 20;  // of all keys and values
  enum class Status : uint32_t { Good = 1, Absent, Differs, Full, GivenUp };

  Status set(std::string key, std::string value);
  // Where the rank that sets this key was given up, `culprit` is that rank and `value` the reason.
  Status get(const std::string& key, std::string& value, int32_t& culprit) const;
  // This rank will set nothing more. The first reason stands.
  void give_up(int rank, std::string reason) { given_up_.emplace(rank, std::move(reason)); }

  // Reads an answer for the rank that asked: true or false as Store::get, or the StoreError.
  static bool understand(Status status, const std::string& key, const std::string& answer,
                         int32_t culprit);

 private:
  std::map<std::string, std::string> values_;
  std::map<int, std::string> given_up_;
  size_t bytes_ = 0;
};

}  // namespace tinyshard
