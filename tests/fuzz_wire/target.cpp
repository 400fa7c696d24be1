// A libFuzzer program for each thing that reads what others sent (FUZZ_WIRE_TARGET names it):
// whatever the bytes are, it returns or throws an error of ours, lets nobody in, and never waits.
// See scripts/fuzz_wire.sh.
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "launch/hosts.h"
#include "launch/rank_group.h"
#include "launch/secret.h"
#include "transport/rendezvous/tcp_store.h"
#include "transport/tcp/gate.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/mesh.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_channel.h"

namespace tinyshard {
namespace {

using namespace tcp;
using Bytes = std::span<const std::byte>;
using Clock = std::chrono::steady_clock;

Deadline soon() { return Clock::now() + std::chrono::seconds(4); }

template <class Value>
Value first(Bytes& bytes) {
  Value value{};
  const size_t size = std::min(bytes.size(), sizeof(value));
  std::memcpy(&value, bytes.data(), size);
  bytes = bytes.subspan(size);
  return value;
}

// Both sides of a handshake, as values: nobody who does not know the key may get through.
void handshake(Bytes bytes) {
  static const Secret secret = Secret::random();
  Acceptor acceptor(secret);
  if (acceptor.challenge(first<Hello>(bytes)) && acceptor.claim(first<Answer>(bytes))) std::abort();
  const Connector connector(secret);
  const auto challenge = first<Challenge>(bytes);
  if (connector.answer(challenge, Claim{})) std::abort();
  if (const auto other = Connector::other_version(challenge))
    static_cast<void>(other->who() + other->version.text());
}

// Until the other side has closed; it does at once where the bytes have an end.
void send_and_drain(const Socket& socket, Bytes bytes) {
  try {
    write_all(socket, bytes, soon());
  } catch (const SocketError&) {
    return;  // it has closed meanwhile
  }
  shutdown(socket.fd(), SHUT_WR);
  std::array<std::byte, 1> one{};
  const auto end = soon();
  try {
    while (true) read_all(socket, one, end);
  } catch (const SocketError&) {
    if (Clock::now() >= end) std::abort();
  }
}

void gate(Bytes bytes) {
  static const Gate listening("127.0.0.1:0", Secret::random(),
                              {.judge = [](const Claim&) -> Verdict { std::abort(); },
                               .admit = [](Socket, const Claim&) { std::abort(); }});
  send_and_drain(connect_to(listening.address(), soon()), bytes);
}

// Requests of one that holds the key.
void store(Bytes bytes) {
  constexpr int kRunsOfOne = 2000;  // a store takes values until it is full
  static const Secret secret = Secret::random();
  static std::unique_ptr<StoreServer> server;
  static int runs = 0;
  if (runs++ % kRunsOfOne == 0) server = std::make_unique<StoreServer>("127.0.0.1:0", secret, 0);
  Socket socket = connect_to(server->address(), soon());
  introduce(socket, secret, {.purpose = Purpose::Store, .from = 1}, soon());
  send_and_drain(socket, bytes);
}

// A peer that holds the key, while small and large receives and a large send are under way.
void frames(Bytes bytes) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
  std::vector<Peer> peers(2);
  peers[1].streams.emplace_back(ends[0]);
  peers[1].host = "elsewhere";
  Socket far(ends[1]);
  LaunchEnvironment launch;
  launch.size = 2;
  const auto channel = join_by_tcp(launch, std::move(peers), std::chrono::milliseconds(1));
  constexpr size_t kLarge = 100'000;
  // Each of its exact size, so that a byte beyond it is found.
  std::vector<std::byte> large(kLarge), some(100);
  static const std::vector<std::byte> out(kLarge);
  int small = 0;
  std::vector<Channel::Transfer> transfers = {
      channel->receive(1, 2, &small, sizeof(small)),    // handle 0
      channel->receive(1, 2, large.data(), kLarge),     // handle 1
      channel->receive(1, 4, some.data(), some.size())  // handle 2
  };
  transfers.push_back(channel->send(1, 3, out.data(), kLarge));
  const auto look = [&] {
    Notice notice;
    while (channel->next_notice(notice)) {
    }
    std::erase_if(transfers, [&](Channel::Transfer transfer) {
      try {
        return channel->test(transfer);
      } catch (const ChannelError&) {
        return true;
      }
    });
  };
  // In pieces, so that frames end in the middle of them.
  const size_t piece = bytes.empty() ? 1 : 1 + std::to_integer<size_t>(bytes.back()) * 8;
  while (!bytes.empty() && !channel->peer_state(1).gone) {
    const size_t size = std::min(piece, bytes.size());
    if (send(far.fd(), bytes.data(), size, MSG_NOSIGNAL | MSG_DONTWAIT) <= 0) break;
    bytes = bytes.subspan(size);
    look();
  }
  look();
  for (Channel::Transfer transfer : transfers) channel->abandon(transfer);
  far.reset();
  static_cast<void>(channel->peer_state(1));
}

void hosts(Bytes bytes) {
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto ours = [](auto&& call) {
    try {
      call();
    } catch (const UserError&) {  // InternalError is our fault
    }
  };
  ours([&] { place_ranks(parse_hosts(text), 3); });
  ours([&] { rank_group_from_json(text); });
  static const Socket file(memfd_create("hosts", MFD_CLOEXEC));
  if (ftruncate(file.fd(), 0) != 0 || pwrite(file.fd(), text.data(), text.size(), 0) < 0)
    std::abort();
  ours([&] { read_host_file(fmt::format("/proc/self/fd/{}", file.fd())); });
}

struct Target {
  std::string_view name;
  void (*read)(Bytes);
};
const Target kTargets[] = {{"handshake", handshake},
                           {"gate", gate},
                           {"store", store},
                           {"frames", frames},
                           {"hosts", hosts}};

}  // namespace
}  // namespace tinyshard

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  tinyshard::set_log_sink([](std::string_view) {});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const auto& target : tinyshard::kTargets) {
    if (target.name == FUZZ_WIRE_TARGET) target.read(std::as_bytes(std::span(data, size)));
  }
  return 0;
}
