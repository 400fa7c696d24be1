// A server of one page for one user: it listens on 127.0.0.1 alone, and answers one request at a time.
// Other users of the machine can reach the port, so the path has a random key; pages of other sites
// can reach it, too, so the name of the host must be ours. Nothing else is ever read or served.
#include "cli/view_server.h"

#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iostream>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/error.h"
#include "launch/secret.h"
#include "view/view_follower.h"

namespace tinyshard::cli {
namespace {

constexpr size_t kMostRequest = 16 << 10;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void fail_with_errno(const char* what) {
  throw UserError(fmt::format("view: {}: {}", what, std::strerror(errno)));
}

// Takes as long for a wrong key as for the right one.
bool is_same(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= unsigned(a[i] ^ b[i]);
  return difference == 0;
}

// Reads up to the end of the headers; empty where they do not come, or are too many.
std::string read_request(int connection) {
  std::string text;
  std::array<char, 4096> piece{};
  while (text.find("\r\n\r\n") == std::string::npos) {
    if (text.size() > kMostRequest) return {};
    const ssize_t n = ::recv(connection, piece.data(), piece.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return {};
    text.append(piece.data(), size_t(n));
  }
  return text;
}

void send_all(int connection, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::send(connection, text.data(), text.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(size_t(n));
  }
}

// The value of the header Host, whose name may be written in any case.
std::string host_of(const std::string& request) {
  for (size_t at = request.find("\r\n"); at != std::string::npos; at = request.find("\r\n", at)) {
    at += 2;
    if (strncasecmp(request.c_str() + at, "host:", 5) != 0) continue;
    size_t begin = at + 5;
    while (begin < request.size() && request[begin] == ' ') ++begin;
    return request.substr(begin, request.find("\r\n", begin) - begin);
  }
  return {};
}

std::string reply(int status, const std::string& body, std::string_view type) {
  const char* reason = status == 200   ? "OK"
                       : status == 403 ? "Forbidden"
                       : status == 405 ? "Method Not Allowed"
                       : status == 500 ? "Internal Server Error"
                                       : "Bad Request";
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}; charset=utf-8\r\nContent-Length: {}\r\n"
      "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Frame-Options: DENY\r\n"
      "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{}",
      status, reason, type, body.size(), body);
}

void serve_one(int connection, ViewFollower& files, std::string_view key) {
  const timeval patience{.tv_sec = 5, .tv_usec = 0};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const std::string request = read_request(connection);
  if (request.empty()) return;
  const Answer answer = answer_to(request.substr(0, request.find("\r\n")), host_of(request), key);
  if (answer.status != 200) {
    send_all(connection, reply(answer.status, "tinyshard view: not served\n", "text/plain"));
    return;
  }
  try {
    send_all(connection, answer.more ? reply(200, files.more(answer.positions), "application/json")
                                     : reply(200, files.page(), "text/html"));
  } catch (const UserError& error) {  // a file that went meanwhile
    send_all(connection, reply(500, std::string(error.what()) + "\n", "text/plain"));
  }
}

// "12,400,0": nothing where that is no list of numbers.
std::optional<std::vector<int64_t>> positions_in(std::string_view text) {
  std::vector<int64_t> positions;
  while (!text.empty()) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    positions.push_back(value);
    text.remove_prefix(size_t(end - text.data()));
    if (text.empty()) break;
    if (text.front() != ',' || text.size() == 1) return std::nullopt;
    text.remove_prefix(1);
  }
  return positions;
}

}  // namespace

Answer answer_to(std::string_view line, std::string_view host, std::string_view key) {
  const size_t first = line.find(' '), second = line.find(' ', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos ||
      !line.substr(second + 1).starts_with("HTTP/1."))
    return {.status = 400};
  const std::string_view name = host.substr(0, host.find(':'));
  if (name != "127.0.0.1" && name != "localhost") return {.status = 403};
  const std::string_view path = line.substr(first + 1, second - first - 1);
  const std::string own = fmt::format("/{}/", key);
  if (!is_same(path.substr(0, own.size()), own)) return {.status = 403};
  const std::string_view rest = path.substr(own.size()), more = "more/";
  Answer answer{.status = line.substr(0, first) == "GET" ? 200 : 405};
  if (rest.empty()) return answer;
  if (!rest.starts_with(more)) return {.status = 403};
  const auto positions = positions_in(rest.substr(more.size()));
  if (!positions) return {.status = 403};
  answer.more = true;
  answer.positions = *positions;
  return answer;
}

int serve_view(const std::vector<std::string>& files, uint16_t port) {
  ViewFollower follower(files);
  follower.page();  // what is missing is told before anybody looks
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener.get() < 0) fail_with_errno("no socket");
  const int yes = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), any, size) != 0 || ::listen(listener.get(), 16) != 0 ||
      ::getsockname(listener.get(), any, &size) != 0)
    fail_with_errno(fmt::format("port {} of 127.0.0.1 cannot be had", port).c_str());
  const std::string key = Secret::random().text();
  std::cout << fmt::format("http://127.0.0.1:{}/{}/\n", ntohs(address.sin_port), key) << std::flush;
  for (;;) {
    const Descriptor connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.get() >= 0) serve_one(connection.get(), follower, key);
  }
}

}  // namespace tinyshard::cli
