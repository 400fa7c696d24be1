// Requests are a header, a key and, to set, a value; answers a header and a value. Each is answered
// at once: a rank that asks for "address/2" before rank 2 has set it is told so, and asks again
// (mesh.cpp), while it looks whether rank 2 still lives.
#include "transport/rendezvous/tcp_store.h"

#include <algorithm>
#include <future>
#include <memory>
#include <pthread.h>
#include <span>
#include <thread>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "transport/rendezvous/stored_values.h"
#include "transport/tcp/awaitable_io.h"
#include "transport/tcp/gate.h"
#include "transport/tcp/refusals.h"
#include "transport/tcp/socket.h"

namespace tinyshard {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;

enum class Operation : uint32_t { Set = 1, Get };
using Status = StoredValues::Status;

struct RequestHeader {
  Operation operation;
  uint32_t key_bytes, value_bytes;
};
struct ReplyHeader {
  Status status;
  int32_t culprit;
  uint32_t value_bytes;
};

constexpr std::string_view kTwice = "it sets a value that is there already, as another rank does";
constexpr milliseconds kShortestPause{5}, kLongestPause{200};

}  // namespace

// Everything but the gate lives on one thread.
struct StoreServer::State : std::enable_shared_from_this<State> {
  asio::awaitable<void> serve(asio::ip::tcp::socket socket,
                              std::unique_ptr<tcp::TlsSession> session, int rank) {
    const auto read = [&](asio::mutable_buffer to) {
      return tcp::read_exactly(socket, session.get(), to);
    };
    try {
      for (;;) {
        RequestHeader request{};
        co_await read(asio::buffer(&request, sizeof(request)));
        if (request.key_bytes > Store::kLongestKey || request.value_bytes > Store::kLongestValue)
          co_return;
        std::string key(request.key_bytes, '\0'), value(request.value_bytes, '\0');
        co_await read(asio::buffer(key));
        co_await read(asio::buffer(value));
        ReplyHeader reply{Status::Good, -1, 0};
        if (request.operation == Operation::Set) {
          // Only the first proposal for a formation stands; all other values are of one rank each.
          const bool proposal = key.starts_with("formation/");
          reply.status = values.set(std::move(key), std::move(value));
          if (reply.status == Status::Differs && !proposal)
            refusals.note(address, fmt::format("rank {}", rank), kTwice,
                          tcp::Refusals::Clock::now());
          value.clear();
        } else if (request.operation == Operation::Get) {
          reply.status = values.get(key, value, reply.culprit);
        } else {
          co_return;
        }
        reply.value_bytes = static_cast<uint32_t>(value.size());
        std::string answer(reinterpret_cast<const char*>(&reply), sizeof(reply));
        answer += value;
        co_await tcp::write_exactly(socket, session.get(), asio::buffer(answer));
      }
    } catch (const boost::system::system_error&) {  // NOLINT(bugprone-empty-catch)
      // The client has gone.
    }
  }

  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  StoredValues values;
  uint32_t epoch = 0;
  std::string address;  // for what is told of refusals
  tcp::Refusals refusals{log_line};
  std::thread thread;
  std::unique_ptr<tcp::Gate> gate;
};

StoreServer::StoreServer(const std::string& address, const Secret& secret, uint32_t epoch)
    : state_(std::make_shared<State>()) {
  State* state = state_.get();
  state->epoch = epoch;
  state->gate = std::make_unique<tcp::Gate>(
      address, secret,
      tcp::Gate::Callbacks{
          .judge =
              [epoch](const tcp::Claim& claim) {
                if (claim.purpose != tcp::Purpose::Store) return tcp::Verdict::Unexpected;
                return claim.epoch == epoch ? tcp::Verdict::Welcome : tcp::Verdict::OtherEpoch;
              },
          .admit =
              [state](tcp::Socket socket, const tcp::Claim& claim) {
                asio::post(state->context, [state, rank = claim.from,
                                            fd = std::make_shared<tcp::Socket>(std::move(socket))] {
                  // Both families of addresses are the same to what follows.
                  asio::ip::tcp::socket taken(state->context, asio::ip::tcp::v4(), fd->release());
                  asio::co_spawn(state->context,
                                 state->serve(std::move(taken), fd->take_session(), rank),
                                 asio::detached);
                });
              },
          // The others, which wait for it, hear why it does not come.
          .encrypts_otherwise =
              [this](const tcp::Claim& claim) {
                if (claim.from < 0) return;
                const std::string who = fmt::format("rank {}", claim.from);
                give_up(claim.from,
                        tcp::other_encryption(claim.encrypts != 0, who, tcp::rank_or_store(-1)));
              }});
  state->address = state->gate->address();
  state->thread = std::thread([state] {
    pthread_setname_np(pthread_self(), "ts-store");
    state->context.run();
  });
}

StoreServer::~StoreServer() {
  state_->gate.reset();
  state_->context.stop();
  state_->thread.join();
  state_->refusals.close(state_->address);
}

std::string StoreServer::address() const { return state_->gate->address(); }
uint64_t StoreServer::refused() const { return state_->gate->refused(); }

void StoreServer::give_up(int rank, const std::string& reason) {
  asio::post(state_->context,
             [state = state_.get(), rank, reason] { state->values.give_up(rank, reason); });
}

void StoreServer::set(const std::string& key, const std::string& value) {
  asio::post(state_->context,
             [state = state_.get(), key, value] { state->values.set(key, value); });
}

bool StoreServer::has(const std::string& key) const {
  std::promise<bool> found;
  asio::post(state_->context, [&] {
    std::string ignored;
    int32_t culprit = -1;
    found.set_value(state_->values.get(key, ignored, culprit) == Status::Good);
  });
  return found.get_future().get();
}

namespace {

class TcpStore final : public Store {
 public:
  TcpStore(tcp::Socket socket, milliseconds answer_time)
      : socket_(std::move(socket)), answer_time_(answer_time) {}

  void set(const std::string& key, const std::string& value) override {
    std::string ignored;
    ask(Operation::Set, key, value, ignored);
  }

  bool get(const std::string& key, std::string& value) override {
    return ask(Operation::Get, key, {}, value);
  }

  std::string local_address() const override { return tcp::own_host(socket_); }

 private:
  // False where there is no such value.
  bool ask(Operation operation, const std::string& key, const std::string& value,
           std::string& answer) {
    const Deadline deadline = std::chrono::steady_clock::now() + answer_time_;
    try {
      const RequestHeader request{operation, static_cast<uint32_t>(key.size()),
                                  static_cast<uint32_t>(value.size())};
      std::string message(reinterpret_cast<const char*>(&request), sizeof(request));
      message += key;
      message += value;
      tcp::write_all(socket_, std::as_bytes(std::span(message)), deadline);
      ReplyHeader reply{};
      tcp::read_all(socket_, std::as_writable_bytes(std::span(&reply, 1)), deadline);
      if (reply.value_bytes > kLongestValue) throw StoreError("the store's answer is too long");
      answer.resize(reply.value_bytes);
      tcp::read_all(socket_, std::as_writable_bytes(std::span(answer)), deadline);
      return StoredValues::understand(reply.status, key, answer, reply.culprit);
    } catch (const tcp::SocketError& error) {
      throw StoreError(fmt::format("the job's store is gone: {}", error.what()));
    }
  }

  tcp::Socket socket_;
  const milliseconds answer_time_;
};

}  // namespace

std::unique_ptr<Store> connect_store(const std::string& address, const Secret& secret,
                                     uint32_t epoch, int rank, Deadline deadline,
                                     milliseconds answer_time) {
  for (milliseconds pause = kShortestPause;; pause = std::min(2 * pause, kLongestPause)) {
    try {
      tcp::Socket socket = tcp::connect_to(address, deadline);
      tcp::introduce(socket, secret, {.purpose = tcp::Purpose::Store, .epoch = epoch, .from = rank},
                     deadline);
      return std::make_unique<TcpStore>(std::move(socket), answer_time);
    } catch (const tcp::SocketError& error) {
      // A store that does not begin to listen, or refuses for a while, is asked again.
      if (error.final || std::chrono::steady_clock::now() + pause >= deadline)
        throw StoreError(fmt::format("the job's store at {}: {}", address, error.what()));
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace tinyshard
