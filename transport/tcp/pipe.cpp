#include "transport/tcp/pipe.h"

#include <cerrno>
#include <sys/socket.h>

namespace tinyshard::tcp {

ssize_t SocketPipe::write(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  while (true) {
    const ssize_t n = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) return n;
    if (errno == EAGAIN) return kBlocked;
    if (errno != EINTR) return kEnded;
  }
}

ssize_t SocketPipe::read(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  while (true) {
    const ssize_t n = recvmsg(fd_, &message, MSG_DONTWAIT);
    if (n > 0) return n;
    if (n == 0) return kEnded;
    if (errno == EAGAIN) return kBlocked;
    if (errno != EINTR) return kEnded;
  }
}

}  // namespace tinyshard::tcp
