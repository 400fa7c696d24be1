// A coroutine accepts, and another runs each handshake, all on one thread. Example: a port scanner
// opens a thousand connections and sends nothing. 64 of them wait for their two seconds; each that
// comes then takes the place of the one that has waited longest. A rank needs its place for a
// millisecond, so it comes in between them, and if it is turned away with them it comes again
// (mesh.cpp, store) until its deadline.
#include "transport/tcp/gate.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <pthread.h>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/own_descriptors.h"
#include "launch/hosts.h"
#include "transport/tcp/awaitable_io.h"
#include "transport/tcp/refusals.h"
#include "transport/tcp/tls.h"

namespace tinyshard::tcp {
namespace {

namespace asio = boost::asio;
using asio::use_awaitable;

constexpr size_t kUnproven = 64;
constexpr std::chrono::seconds kHandshakeTime{2};
constexpr std::chrono::milliseconds kForFiles{50};
constexpr int kTriesForFiles = 20;
constexpr std::string_view kNoProof = "it does not hold this job's key",
                           kNoHello = "it sent what is no handshake",
                           kNoKeys =
                               "it proved the job's key, and then did not agree on keys for "
                               "TLS, as if somebody stood between",
                           kEnded = "it ended or was silent before it had proven the job's key";

}  // namespace

struct Gate::State {
  State(const Secret& secret_of_job, Callbacks functions)
      : secret(secret_of_job), callbacks(std::move(functions)), acceptor(context) {}

  asio::awaitable<void> accept() {
    while (acceptor.is_open()) {
      boost::system::error_code error;
      co_await acceptor.async_wait(asio::socket_base::wait_read,
                                   asio::redirect_error(use_awaitable, error));
      if (error == asio::error::operation_aborted || !acceptor.is_open()) co_return;
      // Asio would leave a moment in which what this process starts, such as agents and ranks, gets the
      // socket, too.
      const int fd = error ? -1 : accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0 && !error && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
        continue;
      tries_without_files = fd < 0 && !error ? tries_without_files + 1 : 0;
      if (fd < 0) {
        // No file descriptor is left: others may be closed meanwhile.
        asio::steady_timer pause(context, kForFiles);
        co_await pause.async_wait(asio::redirect_error(use_awaitable, error));
        continue;
      }
      // Both families of addresses are the same to what follows.
      asio::ip::tcp::socket socket(context, family, fd);
      // Its coroutine finds it closed, and takes it from the list.
      if (unproven.size() >= kUnproven) unproven.front()->close(error);
      asio::co_spawn(context, receive(std::move(socket)), asio::detached);
    }
  }

  void refuse(const std::string& who, std::string_view reason) {
    refusals.note(address, who, reason, Refusals::Clock::now());
  }

  asio::awaitable<void> receive(asio::ip::tcp::socket socket) {
    std::optional<Claim> claim;
    Acceptor side(secret);
    std::string problem;
    boost::system::error_code unknown;
    const asio::ip::tcp::endpoint from = socket.remote_endpoint(unknown);
    std::string who =
        unknown ? "a connection" : join_address(from.address().to_string(), from.port());
    const auto place = unproven.insert(unproven.end(), &socket);
    {
      // Closing the socket ends whatever is waited for.
      asio::steady_timer timer(context, kHandshakeTime);
      timer.async_wait([&socket](const boost::system::error_code& cancelled) {
        boost::system::error_code ignored;
        if (!cancelled) socket.close(ignored);
      });
      try {
        claim = co_await handshake(socket, side, who, problem);
      } catch (const boost::system::system_error&) {
        problem = kEnded;  // whoever that was has gone, or had its time: no claim
      }
      timer.cancel();
    }
    // The timer's handler may still be queued with a reference to the socket: it runs before this.
    co_await asio::post(context, use_awaitable);
    unproven.erase(place);
    if (!claim) {
      ++refused;
      refuse(who, problem);
      co_return;
    }
    const bool agrees = (claim->encrypts != 0) == secret.encrypts();
    const Verdict verdict = agrees ? callbacks.judge(*claim) : Verdict::OtherEncryption;
    if (verdict != Verdict::Welcome)
      refuse(fmt::format("rank {} at {}", claim->from, who),
             agrees ? std::string(text(verdict)) : other_encryption(*claim));
    if (!agrees && callbacks.encrypts_otherwise) callbacks.encrypts_otherwise(*claim);
    boost::system::error_code error;
    socket.set_option(asio::ip::tcp::no_delay(true), error);
    co_await asio::async_write(socket, asio::buffer(&verdict, sizeof(verdict)),
                               asio::redirect_error(use_awaitable, error));
    // Who was not told comes again (Claim::attempt).
    if (error || verdict != Verdict::Welcome) co_return;
    std::unique_ptr<TlsSession> session;
    if (secret.encrypts()) {
      session = std::make_unique<TlsSession>(socket.native_handle(), TlsSession::Side::Acceptor,
                                             side.connection_key());
      if (!co_await encrypt(socket, *session)) {
        ++refused;
        refuse(fmt::format("rank {} at {}", claim->from, who), kNoKeys);
        co_return;
      }
    }
    Socket admitted(socket.release());
    admitted.encrypt(std::move(session));
    callbacks.admit(std::move(admitted), *claim);
  }

  std::string other_encryption(const Claim& claim) const {
    return tcp::other_encryption(claim.encrypts != 0, fmt::format("rank {}", claim.from),
                                 rank_or_store(callbacks.rank));
  }

  asio::awaitable<bool> encrypt(asio::ip::tcp::socket& socket, TlsSession& session) {
    bool agreed = false;
    {
      asio::steady_timer timer(context, kHandshakeTime);
      timer.async_wait([&socket](const boost::system::error_code& cancelled) {
        boost::system::error_code ignored;
        if (!cancelled) socket.close(ignored);
      });
      try {
        agreed = co_await agree_on_keys(socket, session);
      } catch (const boost::system::system_error&) {
        agreed = false;
      }
      timer.cancel();
    }
    co_await asio::post(context, use_awaitable);  // as above
    co_return agreed&& socket.is_open();
  }

  // `problem` says why there is no claim; `who` learns what the other side says of itself.
  asio::awaitable<std::optional<Claim>> handshake(asio::ip::tcp::socket& socket, Acceptor& side,
                                                  std::string& who, std::string& problem) {
    Hello hello{};
    co_await asio::async_read(socket, asio::buffer(&hello, sizeof(hello)), use_awaitable);
    const std::optional<Challenge> challenge = side.challenge(hello);
    if (!challenge && !Acceptor::is_hello(hello)) {
      problem = kNoHello;
      co_return std::nullopt;
    }
    if (!challenge) {
      const OtherVersion own = Acceptor::other_version(callbacks.rank, own_host_name());
      who = fmt::format("{}{}, {}", hello.rank < 0 ? "" : fmt::format("rank {} at ", hello.rank),
                        who, hello.version.text());
      problem = fmt::format("it is another version than {}, {}", own.who(), own.version.text());
      co_await asio::async_write(socket, asio::buffer(&own, sizeof(own)), use_awaitable);
      co_return std::nullopt;
    }
    co_await asio::async_write(socket, asio::buffer(&*challenge, sizeof(*challenge)),
                               use_awaitable);
    Answer answer{};
    co_await asio::async_read(socket, asio::buffer(&answer, sizeof(answer)), use_awaitable);
    problem = kNoProof;
    co_return side.claim(answer);
  }

  Secret secret;
  Callbacks callbacks;
  asio::io_context context{1};
  asio::ip::tcp family = asio::ip::tcp::v4();
  asio::ip::tcp::acceptor acceptor;
  std::list<asio::ip::tcp::socket*> unproven;  // in the order in which they came
  Refusals refusals{log_line};
  std::atomic<uint64_t> refused{0};
  std::atomic<int> tries_without_files{0};
  std::string address;
  std::thread thread;
};

Gate::Gate(const std::string& address, const Secret& secret, Callbacks callbacks)
    : state_(std::make_unique<State>(secret, std::move(callbacks))) {
  const auto [host, port] = split_address(address);
  try {
    asio::ip::tcp::resolver resolver(state_->context);
    const asio::ip::tcp::endpoint endpoint =
        resolver.resolve(host, port, asio::ip::resolver_base::numeric_service).begin()->endpoint();
    state_->family = endpoint.protocol();
    const int fd = ::socket(state_->family.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) throw UserError(fmt::format("socket: {}", std::strerror(errno)));
    state_->acceptor.assign(state_->family, fd);
    keep_from_children(fd);
    state_->acceptor.native_non_blocking(true);
    state_->acceptor.set_option(asio::socket_base::reuse_address(true));
    state_->acceptor.bind(endpoint);
    state_->acceptor.listen();
    const asio::ip::tcp::endpoint bound = state_->acceptor.local_endpoint();
    state_->address = join_address(bound.address().to_string(), bound.port());
  } catch (const boost::system::system_error& error) {
    throw UserError(fmt::format("listening at {}: {}", address, error.code().message()));
  }
  asio::co_spawn(state_->context, state_->accept(), asio::detached);
  state_->thread = std::thread([state = state_.get()] {
    pthread_setname_np(pthread_self(), "ts-gate");
    state->context.run();
  });
}

Gate::~Gate() {
  state_->context.stop();
  state_->thread.join();
  share_with_children(state_->acceptor.native_handle());
  state_->refusals.close(state_->address);
}

std::string Gate::address() const { return state_->address; }
bool Gate::is_short_of_files() const { return state_->tries_without_files >= kTriesForFiles; }
uint64_t Gate::refused() const { return state_->refused; }

}  // namespace tinyshard::tcp
