// A session of TLS reads and writes the socket itself, as far as that goes at once; the coroutine then waits
// until the socket is ready and asks it again.
#include "transport/tcp/awaitable_io.h"

#include <sys/uio.h>

#include <boost/asio/error.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

namespace tinyshard::tcp {
namespace {

namespace asio = boost::asio;
using asio::use_awaitable;
using AsioSocket = asio::ip::tcp::socket;

void check_lives(ssize_t moved) {
  if (moved == Pipe::kEnded) throw boost::system::system_error(asio::error::eof);
}

}  // namespace

asio::awaitable<void> read_exactly(AsioSocket& socket, TlsSession* session,
                                   asio::mutable_buffer to) {
  if (session == nullptr) {
    co_await asio::async_read(socket, to, use_awaitable);
    co_return;
  }
  while (to.size() != 0) {
    const iovec part{to.data(), to.size()};
    const ssize_t n = session->read({&part, 1});
    check_lives(n);
    if (n > 0) to += static_cast<size_t>(n);
    if (n == Pipe::kBlocked) co_await socket.async_wait(AsioSocket::wait_read, use_awaitable);
  }
}

asio::awaitable<void> write_exactly(AsioSocket& socket, TlsSession* session,
                                    asio::const_buffer from) {
  if (session == nullptr) {
    co_await asio::async_write(socket, from, use_awaitable);
    co_return;
  }
  while (from.size() != 0 || session->holds()) {
    const iovec part{const_cast<void*>(from.data()), from.size()};
    const ssize_t n = session->write({&part, 1});
    check_lives(n);
    if (n > 0) from += static_cast<size_t>(n);
    if (session->holds()) co_await socket.async_wait(AsioSocket::wait_write, use_awaitable);
  }
}

asio::awaitable<bool> agree_on_keys(AsioSocket& socket, TlsSession& session) {
  for (;;) {
    switch (session.handshake()) {
      case TlsSession::Step::Done:
        co_return true;
      case TlsSession::Step::Failed:
        co_return false;
      case TlsSession::Step::WantsInput:
        co_await socket.async_wait(AsioSocket::wait_read, use_awaitable);
        break;
      case TlsSession::Step::WantsOutput:
        co_await socket.async_wait(AsioSocket::wait_write, use_awaitable);
        break;
    }
  }
}

}  // namespace tinyshard::tcp
