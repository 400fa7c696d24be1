// A pipe through memory that two ranks of one host have mapped: a ring of bytes for each direction.
// The memory has no name that could stay behind: each rank makes its ring with memfd_create, and
// the other opens it through /proc, where it is found by process and descriptor, both told over the
// proven connection, and known by a nonce.
#pragma once
#include <memory>

#include "transport/process_watch.h"
#include "transport/tcp/pipe.h"
#include "transport/tcp/socket.h"

namespace tinyshard::tcp {

class SharedMemoryOffer {
 public:
  // Tells the peer of this rank's ring. Both ranks of a pair do, before either accepts.
  SharedMemoryOffer(const Socket& socket, const ProcessAddress& peer, Deadline deadline);
  ~SharedMemoryOffer();
  SharedMemoryOffer(SharedMemoryOffer&&) noexcept;
  SharedMemoryOffer& operator=(SharedMemoryOffer&&) noexcept;

  // Opens the peer's ring, and tells whether it can. Comes before accept() of any pair.
  void answer();
  // The pipe; null where one of the two could not open the other's ring. SocketError where the peer
  // has gone.
  std::unique_ptr<Pipe> accept();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tinyshard::tcp
