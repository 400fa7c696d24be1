// A ring has a count of the bytes ever written and one of those ever read, each changed by one side
// only; their difference is what lies in it. Example: capacity 8, written 13, read 9: bytes 9 to 12
// lie at places 1 to 4, and four more can be written. A count that makes no sense ends the pipe:
// the memory is the peer's, too.
#include "transport/tcp/shared_pipe.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <optional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/signals.h"

namespace tinyshard::tcp {
namespace {

constexpr uint64_t kCapacity = 1 << 20;  // a power of two

struct RingHeader {
  Nonce nonce;
  alignas(64) std::atomic<uint64_t> written{0};
  alignas(64) std::atomic<uint64_t> read{0};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
constexpr size_t kDataOffset = 4096;
constexpr size_t kRingBytes = kDataOffset + kCapacity;
static_assert(sizeof(RingHeader) <= kDataOffset);

// A ring mapped into this process.
class Ring {
 public:
  Ring() = default;
  explicit Ring(int fd) {
    void* at = mmap(nullptr, kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) memory_ = static_cast<std::byte*>(at);
  }
  ~Ring() {
    if (memory_ != nullptr) munmap(memory_, kRingBytes);
  }
  Ring(Ring&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  Ring& operator=(Ring&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }

  explicit operator bool() const { return memory_ != nullptr; }
  RingHeader& header() const { return *std::launder(reinterpret_cast<RingHeader*>(memory_)); }
  void make_header() const { new (memory_) RingHeader(); }

  ssize_t write(std::span<const iovec> parts) const {
    RingHeader& h = header();
    const uint64_t written = h.written.load(std::memory_order_relaxed);
    const uint64_t used = written - h.read.load(std::memory_order_acquire);
    if (used > kCapacity) return Pipe::kEnded;
    const uint64_t moved =
        copy(parts, written, kCapacity - used,
             [](auto* ring, auto* part, size_t n) { std::memcpy(ring, part, n); });
    if (moved == 0) return Pipe::kBlocked;
    h.written.store(written + moved, std::memory_order_release);
    return static_cast<ssize_t>(moved);
  }

  ssize_t read(std::span<const iovec> parts) const {
    RingHeader& h = header();
    const uint64_t read = h.read.load(std::memory_order_relaxed);
    const uint64_t used = h.written.load(std::memory_order_acquire) - read;
    if (used > kCapacity) return Pipe::kEnded;
    const uint64_t moved = copy(
        parts, read, used, [](auto* ring, auto* part, size_t n) { std::memcpy(part, ring, n); });
    if (moved == 0) return Pipe::kBlocked;
    h.read.store(read + moved, std::memory_order_release);
    return static_cast<ssize_t>(moved);
  }

 private:
  // Up to `most` bytes between the parts and the ring from byte `at` on.
  template <class Copy>
  uint64_t copy(std::span<const iovec> parts, uint64_t at, uint64_t most, Copy&& bytes) const {
    uint64_t moved = 0;
    for (const iovec& part : parts) {
      for (uint64_t done = 0; done < part.iov_len && moved < most;) {
        const uint64_t place = (at + moved) & (kCapacity - 1);
        const uint64_t n = std::min({part.iov_len - done, most - moved, kCapacity - place});
        bytes(memory_ + kDataOffset + place, static_cast<std::byte*>(part.iov_base) + done, n);
        done += n;
        moved += n;
      }
    }
    return moved;
  }

  std::byte* memory_ = nullptr;
};

class SharedPipe final : public Pipe {
 public:
  SharedPipe(Ring out, Ring in) : out_(std::move(out)), in_(std::move(in)) {}
  ssize_t write(std::span<const iovec> parts) override { return out_.write(parts); }
  ssize_t read(std::span<const iovec> parts) override { return in_.read(parts); }
  bool has_input() const override {
    const RingHeader& h = in_.header();
    return h.written.load(std::memory_order_acquire) != h.read.load(std::memory_order_relaxed);
  }

 private:
  Ring out_, in_;
};

struct Place {
  int32_t descriptor = -1;
  uint32_t zero = 0;
  Nonce nonce = {};
};

// The ring of another process; none where it cannot be seen, or is not the one meant.
Ring open_ring(const ProcessAddress& process, const Place& place) {
  const ProcessAddress self = ProcessAddress::own();
  if (process.host != self.host || process.namespace_ != self.namespace_ || place.descriptor < 0)
    return {};
  const std::string path = fmt::format("/proc/{}/fd/{}", process.pid, place.descriptor);
  const Socket fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat about{};
  // It must not become shorter under a reader: that it cannot is sealed.
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (!fd || fstat(fd.fd(), &about) != 0 || about.st_size != off_t(kRingBytes) ||
      (fcntl(fd.fd(), F_GET_SEALS) & kSeals) != kSeals)
    return {};
  Ring ring(fd.fd());
  if (ring && std::memcmp(&ring.header().nonce, &place.nonce, sizeof(Nonce)) != 0) return {};
  return ring;
}

}  // namespace

struct SharedMemoryOffer::State {
  const Socket& socket;
  ProcessAddress peer;
  Deadline deadline;
  Socket memory;  // open until the peer has mapped it
  Ring own, theirs;
};

SharedMemoryOffer::SharedMemoryOffer(const Socket& socket, const ProcessAddress& peer,
                                     Deadline deadline)
    : state_(new State{socket, peer, deadline, {}, {}, {}}) {
  Place place;
  fill_random(place.nonce);
  state_->memory = Socket(memfd_create("tinyshard", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = state_->memory.fd();
  const NoFileSizeSignal no_signal;  // they do without shared memory
  if (fd >= 0 && ftruncate(fd, off_t(kRingBytes)) == 0 &&
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
    state_->own = Ring(fd);
  if (state_->own) {
    state_->own.make_header();
    state_->own.header().nonce = place.nonce;
    place.descriptor = fd;
  }
  write_all(socket, std::as_bytes(std::span(&place, 1)), deadline);
}

SharedMemoryOffer::~SharedMemoryOffer() = default;
SharedMemoryOffer::SharedMemoryOffer(SharedMemoryOffer&&) noexcept = default;
SharedMemoryOffer& SharedMemoryOffer::operator=(SharedMemoryOffer&&) noexcept = default;

void SharedMemoryOffer::answer() {
  Place place;
  read_all(state_->socket, std::as_writable_bytes(std::span(&place, 1)), state_->deadline);
  if (state_->own) state_->theirs = open_ring(state_->peer, place);
  const uint32_t good = state_->theirs ? 1 : 0;
  write_all(state_->socket, std::as_bytes(std::span(&good, 1)), state_->deadline);
}

std::unique_ptr<Pipe> SharedMemoryOffer::accept() {
  uint32_t good = 0;
  read_all(state_->socket, std::as_writable_bytes(std::span(&good, 1)), state_->deadline);
  if (good != 1 || !state_->theirs) return nullptr;
  return std::make_unique<SharedPipe>(std::move(state_->own), std::move(state_->theirs));
}

}  // namespace tinyshard::tcp
