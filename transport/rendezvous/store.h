// A few small values that the ranks of a job share while they meet: where each of them listens.
// Values are bytes; who reads one checks it. Two kinds: at a server (tcp_store.h), or in a folder
// that all ranks see (file_store.h).
#pragma once
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#include "core/runtime/communicator.h"
#include "launch/environment.h"
#include "launch/secret.h"

namespace tinyshard {

// The store cannot be reached, or refuses. The meeting (transport/tcp/mesh.h) makes it a CommError.
struct StoreError : std::runtime_error {
  explicit StoreError(const std::string& what, int culprit_rank = -1)
      : std::runtime_error(what), culprit(culprit_rank) {}
  int culprit;  // the rank that will not come, -1: unknown
};

class Store {
 public:
  static constexpr size_t kLongestKey = 256, kLongestValue = 64 << 10;

  virtual ~Store() = default;
  // A value is set once; setting it again to another one is a StoreError.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // False while nobody has set it.
  virtual bool get(const std::string& key, std::string& value) = 0;
  // The address of this host by which the store is reached: where the other ranks find it, too.
  virtual std::string local_address() const = 0;
};

// The store that the launch environment names. Where rank 0 serves it, rank 0 begins to.
std::unique_ptr<Store> open_store(const LaunchEnvironment& launch, const Secret& secret,
                                  Deadline deadline);

}  // namespace tinyshard
