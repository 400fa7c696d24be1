// Large pieces may be lent to the kernel (MSG_ZEROCOPY), which numbers the calls and tells in the
// socket's error queue, in any order, which of them are done with their memory; given_back() counts
// those at the front. Where the kernel says that it had to copy after all, nothing more is lent.
#include "transport/tcp/pipe.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>
// After the above, which it needs.
#include <linux/errqueue.h>

namespace tinyshard::tcp {

SocketPipe::SocketPipe(int fd, Lending lending) : fd_(fd), lending_(lending) {
  const int on = 1;
  lends_ = setsockopt(fd_, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) == 0;
}

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

ssize_t SocketPipe::lend(const iovec& part) {
  iovec lent = part;
  msghdr message{};
  message.msg_iov = &lent;
  message.msg_iovlen = 1;
  while (true) {
    const ssize_t n = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_ZEROCOPY);
    if (n >= 0) {
      lent_.push_back({next_++, static_cast<uint64_t>(n), false});
      return n;
    }
    if (errno == EAGAIN) return kBlocked;
    if (errno == ENOBUFS) {  // as much is lent as the system permits
      const ssize_t copied = write({&part, 1});
      if (copied > 0) lent_.push_back({next_ - 1, static_cast<uint64_t>(copied), true});
      return copied;
    }
    if (errno != EINTR) return kEnded;
  }
}

uint64_t SocketPipe::given_back() {
  while (!lent_.empty()) {
    std::array<std::byte, 256> room;
    msghdr message{};
    message.msg_control = room.data();
    message.msg_controllen = room.size();
    if (recvmsg(fd_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      if (errno == EINTR) continue;
      break;
    }
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
      const bool of_ip = part->cmsg_level == SOL_IP && part->cmsg_type == IP_RECVERR,
                 of_ipv6 = part->cmsg_level == SOL_IPV6 && part->cmsg_type == IPV6_RECVERR;
      if (!of_ip && !of_ipv6) continue;
      sock_extended_err told;
      std::memcpy(&told, CMSG_DATA(part), sizeof(told));
      if (told.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
      note_given_back(told.ee_info, told.ee_data);
      const bool copied = (told.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0;
      if (copied && lending_ == Lending::WhereItSaves) lends_ = false;
    }
  }
  uint64_t bytes = 0;
  while (!lent_.empty() && lent_.front().is_back) {
    bytes += lent_.front().bytes;
    lent_.pop_front();
  }
  return bytes;
}

// The calls from `first` to `last`, whose numbers may have begun again at zero in between.
void SocketPipe::note_given_back(uint32_t first, uint32_t last) {
  for (Lent& lent : lent_) {
    if (lent.number - first <= last - first) lent.is_back = true;
  }
}

}  // namespace tinyshard::tcp
