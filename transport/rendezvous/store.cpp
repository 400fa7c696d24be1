// Rank 0 may serve the store itself. It does so until its own store goes: by then it has waited for
// all others to have met (transport/tcp/mesh.cpp), and nobody needs the store any more.
#include "transport/rendezvous/store.h"

#include <utility>

#include "transport/rendezvous/file_store.h"
#include "transport/rendezvous/tcp_store.h"

namespace tinyshard {
namespace {

class ServedStore final : public Store {
 public:
  ServedStore(std::unique_ptr<StoreServer> server, std::unique_ptr<Store> client)
      : server_(std::move(server)), client_(std::move(client)) {}
  void set(const std::string& key, const std::string& value) override { client_->set(key, value); }
  bool get(const std::string& key, std::string& value) override { return client_->get(key, value); }
  std::string local_address() const override { return client_->local_address(); }

 private:
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<Store> client_;
};

}  // namespace

std::unique_ptr<Store> open_store(const LaunchEnvironment& launch, const Secret& secret,
                                  Deadline deadline) {
  constexpr std::string_view kFile = "file:";
  check_meeting(launch);
  const Meeting& meeting = launch.meeting;
  if (meeting.store.starts_with(kFile))
    return open_file_store(meeting.store.substr(kFile.size()), launch.rank == 0);
  std::unique_ptr<StoreServer> server;
  if (meeting.at_first_rank && launch.rank == 0)
    server = std::make_unique<StoreServer>(meeting.store, secret, meeting.epoch);
  auto client = connect_store(meeting.store, secret, meeting.epoch, launch.rank, deadline);
  if (!server) return client;
  return std::make_unique<ServedStore>(std::move(server), std::move(client));
}

}  // namespace tinyshard
