// Workers and their messages: a length, then text and bytes, over a pair of sockets.
#include "tests/fuzz/worker.h"

#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <system_error>
#include <tinyshard/tinyshard.h>
#include <unistd.h>

#include <fmt/format.h>

namespace fuzz {
namespace {

constexpr int kSocket = 3;           // of a worker
constexpr int kProgramsEach = 1500;  // before a worker is started anew: kernels stay in memory
double deadline_s = 60;

bool send_all(int socket, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t n = send(socket, at, size, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n, size -= size_t(n);
  }
  return true;
}
bool send_message(int socket, const std::string& text) {
  uint64_t size = text.size();
  return send_all(socket, &size, sizeof size) && send_all(socket, text.data(), text.size());
}

enum class Got : uint8_t { All, End, Late };
Got receive_all(int socket, void* data, size_t size, std::chrono::steady_clock::time_point until) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    pollfd p{socket, POLLIN, 0};
    if (left.count() <= 0) return Got::Late;
    // A worker whose way is rarely drawn may wait for an hour; poll() gives up before.
    if (poll(&p, 1, int(std::min<int64_t>(left.count(), 1'000'000))) == 0) continue;
    ssize_t n = recv(socket, at, size, 0);
    if (n <= 0) return Got::End;
    at += n, size -= size_t(n);
  }
  return Got::All;
}
Got receive_message(int socket, std::string& text, double seconds) {
  auto until = std::chrono::steady_clock::now() +
               std::chrono::milliseconds(int64_t(std::min(seconds, 1e8) * 1000));
  uint64_t size = 0;
  Got got = receive_all(socket, &size, sizeof size, until);
  if (got != Got::All) return got;
  text.resize(size);
  return receive_all(socket, text.data(), size, until);
}

std::string packed(const Results& results) {
  std::ostringstream out;
  out << "K " << results.size();
  for (const auto& call : results) {
    out << " " << call.size();
    for (const Result& r : call) {
      out << " " << r.type << " " << r.shape.size();
      for (int64_t d : r.shape) out << " " << d;
      out << " " << r.data.size() << ":";
      out.write(reinterpret_cast<const char*>(r.data.data()), std::streamsize(r.data.size()));
    }
  }
  return out.str();
}

Results unpacked(const std::string& text) {
  std::istringstream in(text);
  std::string word;
  size_t calls = 0;
  in >> word >> calls;
  Results results(calls);
  for (auto& call : results) {
    size_t n = 0;
    in >> n;
    call.resize(n);
    for (Result& r : call) {
      size_t rank = 0, size = 0;
      in >> r.type >> rank;
      r.shape.resize(rank);
      for (int64_t& d : r.shape) in >> d;
      in >> size;
      in.get();
      r.data.resize(size);
      in.read(reinterpret_cast<char*>(r.data.data()), std::streamsize(size));
    }
  }
  return results;
}

std::string answer(const std::string& request) {
  std::istringstream in(request);
  int way = 0, placed = 0;
  in >> way >> placed;
  in.get();
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  auto failed = [](const char* kind, const std::exception& e) {
    return fmt::format("E {}: {}", kind, e.what());
  };
  try {
    return packed(execute(parse(text), Way(way), placed != 0));
  } catch (const tinyshard::UserError& e) {
    return failed("UserError", e);
  } catch (const tinyshard::InternalError& e) {
    return failed("InternalError", e);
  } catch (const tinyshard::DeviceError& e) {
    return failed("DeviceError", e);
  } catch (const std::exception& e) {
    return failed("exception", e);
  }
}

}  // namespace

void Worker::set_deadline(double seconds) { deadline_s = seconds; }

Worker::~Worker() { stop(true); }

void Worker::start() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw std::system_error(errno, std::generic_category(), "socketpair");
  errors_ = memfd_create("stderr", MFD_CLOEXEC);
  // Everything that needs memory comes before the fork.
  std::vector<std::string> words;
  for (char** e = environ; *e; ++e) {
    std::string word = *e;
    bool ours = false;
    for (const auto& [key, value] : environment_) ours = ours || word.starts_with(key + "=");
    if (!ours) words.push_back(word);
  }
  for (const auto& [key, value] : environment_) words.push_back(key + "=" + value);
  std::vector<char*> environment;
  for (std::string& word : words) environment.push_back(word.data());
  environment.push_back(nullptr);
  char program[] = "/proc/self/exe", flag[] = "--worker";
  char* arguments[] = {program, flag, nullptr};
  pid_ = fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(pair[1], kSocket);  // dup2 clears the flag that would close it, unless it is 3 already
    fcntl(kSocket, F_SETFD, 0);
    dup2(errors_, 2);
    execve(program, arguments, environment.data());
    _exit(127);
  }
  close(pair[1]);
  socket_ = pair[0];
  programs_ = 0;
}

std::string Worker::stop(bool kill_it) {
  if (pid_ < 0) return "";
  if (kill_it) kill(pid_, SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  std::string text = WIFSIGNALED(status) ? fmt::format("SIG{}", sigabbrev_np(WTERMSIG(status)))
                                         : fmt::format("exit status {}", WEXITSTATUS(status));
  off_t size = lseek(errors_, 0, SEEK_END);
  std::string said(size_t(std::min<off_t>(size, 4000)), ' ');
  if (pread(errors_, said.data(), said.size(), size - off_t(said.size())) > 0 && !kill_it)
    text += "\n" + said;
  close(socket_), close(errors_);
  pid_ = socket_ = errors_ = -1;
  return text;
}

Reply Worker::run(const Program& program, Way way, bool placed) {
  if (pid_ >= 0 && ++programs_ > kProgramsEach) stop(true);
  if (pid_ < 0) start();
  Reply reply;
  std::string message;
  send_message(socket_, fmt::format("{} {}\n{}", int(way), int(placed), to_text(program)));
  Got got = receive_message(socket_, message, deadline_s);
  if (got == Got::Late) {
    reply.kind = Reply::Kind::Hang;
    reply.text = fmt::format("no end after {} s", deadline_s);
    stop(true);
  } else if (got == Got::End) {
    reply.kind = Reply::Kind::Crash;
    reply.text = stop(false);
  } else if (message.starts_with("E ")) {
    reply.kind = Reply::Kind::Error;
    reply.text = message.substr(2);
  } else {
    reply.results = unpacked(message);
  }
  return reply;
}

Reply Workers::run(const Program& program, Way way, bool placed, const Environment& environment) {
  std::unique_ptr<Worker>& worker = workers_[environment];
  if (!worker) worker = std::make_unique<Worker>(environment);
  return worker->run(program, way, placed);
}

int serve(int socket) {
  tinyshard::Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
  std::string request;
  while (receive_message(socket, request, 1e8) == Got::All) {
    if (!send_message(socket, answer(request))) break;
  }
  return 0;
}

}  // namespace fuzz
