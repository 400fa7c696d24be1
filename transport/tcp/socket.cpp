// A connection is tried once: who asks for it knows how often to ask again. Host names are looked
// up as they are written, and never the other way round.
#include "transport/tcp/socket.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/own_descriptors.h"
#include "launch/hosts.h"

namespace tinyshard::tcp {
namespace {

// Waits until the socket is ready for `events`.
void await(const Socket& socket, short events, Deadline deadline, const char* what) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) throw SocketError(fmt::format("{}: the deadline passed", what));
    pollfd ready{.fd = socket.fd(), .events = events, .revents = 0};
    const int n = poll(&ready, 1, static_cast<int>(std::min<int64_t>(left.count(), 1000)));
    if (n > 0) return;
    if (n < 0 && errno != EINTR) throw SocketError(fmt::format("poll: {}", std::strerror(errno)));
  }
}

}  // namespace

Socket::Socket(int fd) : fd_(fd) { keep_from_children(fd); }

void Socket::reset() {
  if (fd_ >= 0) close(release());
}

int Socket::release() {
  share_with_children(fd_);
  return std::exchange(fd_, -1);
}

// The first of the two that there is: some hosts have but one.
std::string loopback() {
  const Socket socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return socket && bind(socket.fd(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)) == 0
             ? "127.0.0.1"
             : "::1";
}

std::pair<std::string, std::string> split_address(std::string_view address) {
  const size_t colon = address.rfind(':');
  std::string_view host = address.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (colon == std::string_view::npos || colon + 1 == address.size() || host.empty() ||
      address.substr(colon + 1).find_first_not_of("0123456789") != std::string_view::npos ||
      (!bracketed && host.find(':') != std::string_view::npos))
    throw UserError(fmt::format("\"{}\" is not an address as host:port or [v6]:port", address));
  if (bracketed) host = host.substr(1, host.size() - 2);
  return {std::string(host), std::string(address.substr(colon + 1))};
}

std::string join_address(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

Socket connect_to(const std::string& address, Deadline deadline) {
  const auto [host, port] = split_address(address);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  if (const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0)
    throw SocketError(fmt::format("host \"{}\" is not known: {}", host, gai_strerror(code)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  int problem = 0;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // The family of an address may be missing here; without descriptors no other one helps.
    if (!socket)
      throw SocketError(fmt::format("socket: {}", std::strerror(errno)),
                        errno == EMFILE || errno == ENFILE);
    if (::connect(socket.fd(), at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS) {
      problem = errno;
      continue;
    }
    await(socket, POLLOUT, deadline, "connect");
    socklen_t size = sizeof(problem);
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &problem, &size);
    if (problem != 0) continue;
    const int on = 1;
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return socket;
  }
  throw SocketError(fmt::format("connect to {}: {}", address, std::strerror(problem)));
}

ssize_t send_now(const Socket& socket, std::span<const std::byte> bytes) {
  if (TlsSession* session = socket.session()) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    const ssize_t n = session->write({&part, 1});
    return n == Pipe::kEnded && session->was_reset() ? kReset : n;
  }
  while (true) {
    const ssize_t n = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return n;
    if (errno == EAGAIN) return Pipe::kBlocked;
    if (errno != EINTR) return errno == ECONNRESET ? kReset : Pipe::kEnded;
  }
}

ssize_t receive_now(const Socket& socket, std::span<std::byte> bytes) {
  if (TlsSession* session = socket.session()) {
    const iovec part{bytes.data(), bytes.size()};
    const ssize_t n = session->read({&part, 1});
    return n == Pipe::kEnded && session->was_reset() ? kReset : n;
  }
  while (true) {
    const ssize_t n = recv(socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) return n;
    if (n == 0) return Pipe::kEnded;
    if (errno == EAGAIN) return Pipe::kBlocked;
    if (errno != EINTR) return errno == ECONNRESET ? kReset : Pipe::kEnded;
  }
}

namespace {

[[noreturn]] void fail_as_ended(const Socket& socket, const char* what, ssize_t how) {
  const std::string problem = socket.session() ? socket.session()->problem() : "";
  if (!problem.empty())
    throw SocketError(fmt::format("what came was not what was sent ({})", problem), true);
  throw SocketError(how == kReset ? fmt::format("{}: {}", what, std::strerror(ECONNRESET))
                                  : "the other side closed the connection");
}

}  // namespace

void write_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline) {
  const auto holds = [&] { return socket.session() != nullptr && socket.session()->holds(); };
  while (!bytes.empty() || holds()) {
    const ssize_t n = send_now(socket, bytes);
    if (n == Pipe::kEnded || n == kReset) fail_as_ended(socket, "send", n);
    if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
    if (n == Pipe::kBlocked || holds()) await(socket, POLLOUT, deadline, "send");
  }
}

void read_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t n = receive_now(socket, bytes);
    if (n == Pipe::kEnded || n == kReset) fail_as_ended(socket, "receive", n);
    if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
    if (n == Pipe::kBlocked) await(socket, POLLIN, deadline, "receive");
  }
}

namespace {

void encrypt(Socket& socket, const Proof& key, Deadline deadline) {
  auto session = std::make_unique<TlsSession>(socket.fd(), TlsSession::Side::Connector, key);
  for (auto step = session->handshake(); step != TlsSession::Step::Done;
       step = session->handshake()) {
    if (step == TlsSession::Step::Failed) {
      const bool closed = session->problem().empty();
      throw SocketError(closed ? "the other side closed the connection"
                               : fmt::format("the two sides could not agree on keys, as if "
                                             "somebody stood between them ({})",
                                             session->problem()),
                        !closed);
    }
    await(socket, step == TlsSession::Step::WantsInput ? POLLIN : POLLOUT, deadline, "TLS");
  }
  socket.encrypt(std::move(session));
}

}  // namespace

void introduce(Socket& socket, const Secret& secret, const Claim& asked, Deadline deadline) {
  Claim claim = asked;
  claim.encrypts = secret.encrypts() ? 1 : 0;
  const Connector connector(secret, claim.from);
  Challenge challenge{};
  write_all(socket, std::as_bytes(std::span(&connector.hello(), 1)), deadline);
  read_all(socket, std::as_writable_bytes(std::span(&challenge, 1)), deadline);
  if (const auto other = Connector::other_version(challenge))
    throw SocketError(
        fmt::format("{} runs {}, and {} on {} runs {}: all of a job have to run the "
                    "same version",
                    other->who(), other->version.text(),
                    claim.from < 0 ? "this process" : fmt::format("rank {}", claim.from),
                    own_host_name(), Version::own().text()),
        true);
  const std::optional<Answer> answer = connector.answer(challenge, claim);
  if (!answer) throw SocketError("the other side does not hold this job's key", true);
  write_all(socket, std::as_bytes(std::span(&*answer, 1)), deadline);
  Verdict verdict{};
  read_all(socket, std::as_writable_bytes(std::span(&verdict, 1)), deadline);
  if (verdict == Verdict::OtherEncryption)
    throw SocketError(other_encryption(secret.encrypts(),
                                       claim.from < 0 ? "this process" : rank_or_store(claim.from),
                                       rank_or_store(claim.to)),
                      true);
  if (verdict != Verdict::Welcome)
    throw SocketError(fmt::format("refused: {}", text(verdict)), true);
  if (secret.encrypts()) encrypt(socket, connector.connection_key(challenge), deadline);
}

std::string own_host(const Socket& socket) {
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  std::array<char, 64> text{};
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text.data(), text.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0)
    throw SocketError(fmt::format("getsockname: {}", std::strerror(errno)));
  return text.data();
}

std::string host_towards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (const int code = getaddrinfo(host.c_str(), "9", &hints, &found); code != 0)
    throw UserError(fmt::format("host \"{}\" is not known: {}", host, gai_strerror(code)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  const Socket socket(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.fd(), found->ai_addr, found->ai_addrlen) != 0)
    throw UserError(fmt::format("host \"{}\" cannot be reached: {}", host, std::strerror(errno)));
  return own_host(socket);
}

}  // namespace tinyshard::tcp
