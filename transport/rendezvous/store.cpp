// Rank 0 may serve the store itself. It does so until its own store goes: by then it has waited for
// all others to have met (transport/tcp/mesh.cpp), and nobody needs the store any more.
#include "transport/rendezvous/store.h"

#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
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

// The store of ranks that are left of a job. It knows ranks as the launcher does, above all those
// that are gone: "address/0/2" of the second formation of ranks 0, 1 and 3 is its "2/address/0/3".
class FormationStore final : public Store {
 public:
  FormationStore(const LaunchEnvironment& launch, std::unique_ptr<Store> store)
      : launch_(launch), store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override {
    as_now([&] {
      store_->set(launched(key), value);
      return true;
    });
  }
  bool get(const std::string& key, std::string& value) override {
    return as_now([&] { return store_->get(launched(key), value); });
  }
  std::string local_address() const override { return store_->local_address(); }

 private:
  std::string launched(const std::string& key) const {
    const size_t slash = key.rfind('/');
    int rank = -1;
    if (slash != std::string::npos)
      std::from_chars(key.data() + slash + 1, key.data() + key.size(), rank);
    check_internal(rank >= 0 && rank < launch_.size, "keys of a meeting end in a rank");
    return fmt::format("{}/{}{}", launch_.formation, key.substr(0, slash + 1),
                       launch_.launched_as(rank));
  }
  template <class Ask>
  bool as_now(Ask&& ask) {
    try {
      return ask();
    } catch (const StoreError& error) {
      throw StoreError(error.what(), error.culprit < 0 ? -1 : launch_.rank_now(error.culprit));
    }
  }

  const LaunchEnvironment launch_;
  std::unique_ptr<Store> store_;
};

}  // namespace

std::unique_ptr<Store> open_store(const LaunchEnvironment& launch, const Secret& secret,
                                  Deadline deadline) {
  constexpr std::string_view kFile = "file:";
  check_meeting(launch);
  const Meeting& meeting = launch.meeting;
  if (launch.formation > 0) {
    std::unique_ptr<Store> store;
    if (meeting.store.starts_with(kFile)) {
      store = open_file_store({meeting.store.substr(kFile.size()), meeting.job, meeting.epoch},
                              FolderRole::Reforms, launch.rank == 0);
    } else {
      store = connect_store(meeting.store, secret, meeting.epoch, launch.launched_as(launch.rank),
                            deadline);
    }
    return std::make_unique<FormationStore>(launch, std::move(store));
  }
  if (meeting.store.starts_with(kFile))
    return open_file_store({meeting.store.substr(kFile.size()), meeting.job, meeting.epoch},
                           launch.rank == 0 ? FolderRole::Leads : FolderRole::Joins,
                           launch.rank == 0);
  std::unique_ptr<StoreServer> server;
  if (meeting.at_first_rank && launch.rank == 0)
    server = std::make_unique<StoreServer>(meeting.store, secret, meeting.epoch);
  auto client = connect_store(meeting.store, secret, meeting.epoch, launch.rank, deadline);
  if (!server) return client;
  return std::make_unique<ServedStore>(std::move(server), std::move(client));
}

}  // namespace tinyshard
