// A box of a file is rows of neighbouring bytes. They are read by jobs of 8 MiB on several threads. Short
// rows that lie near to each other come by one read, with what is between them:
//
//   columns 0..99 of f32[1000, 300]      rows of 400 bytes, 800 bytes apart: windows of up to 1 MiB
//   columns 0..99'999 of f32[8, 300'000] rows of 400 kB: each is read into its place
//
// On devices whose memory the host cannot write, a job fills memory of its own, which is sent as a whole.
#include "core/exec/read_boxes.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>

#include "core/exec/box_rows.h"
#include "core/exec/context.h"
#include "core/exec/transfer.h"

namespace tinyshard {
namespace {

constexpr size_t kJobBytes = 8 << 20;  // of one read, or of many short ones
constexpr size_t kShortRow = 2048;     // pays for reading what is between it and the next one
constexpr uint64_t kShortGap = 4096;   // a page comes whole anyway
constexpr uint64_t kWindowBytes = 1 << 20;

// Rows [first, last) of a part, or bytes [from, to) of its only row.
struct Job {
  size_t fill, part;
  int64_t first, last;
  size_t from, to;
};

// Where a part's bytes go: the memory itself where the host can write to it, else a copy that is
// sent to the device when it is full.
class Destination {
 public:
  Destination(Device& device, void* memory, uint64_t begin, uint64_t end, std::mutex& of_device)
      : device_(device),
        memory_(static_cast<std::byte*>(memory)),
        begin_(begin),
        mutex_(of_device) {
    host_ = static_cast<std::byte*>(device.host_pointer(memory));
    if (!host_) staged_.resize(size_t(end - begin));
  }
  std::byte* at(uint64_t place) {
    return host_ ? host_ + place : staged_.data() + (place - begin_);
  }
  void send() {
    if (host_) return;
    const std::lock_guard lock(mutex_);
    device_.make_current();
    device_.copy_in(memory_ + begin_, staged_.data(), staged_.size());
  }

 private:
  Device& device_;
  std::byte *memory_, *host_;
  uint64_t begin_;
  std::mutex& mutex_;
  std::vector<std::byte> staged_;
};

// Reads the rows of a job; short ones that are near to each other by one read each window.
void read_rows(const FileRegion& region, const BoxRows& rows, const Job& job,
               Destination& destination) {
  const size_t bytes = rows.bytes();
  std::vector<std::byte> window;
  for (int64_t r = job.first; r < job.last;) {
    const auto [begin, to] = rows[r];
    int64_t next = r + 1;
    uint64_t end = begin + bytes;
    while (bytes < kShortRow && next < job.last) {
      const uint64_t at = rows[next].in_array;
      if (at - end > kShortGap || at + bytes - begin > kWindowBytes) break;
      end = at + bytes;
      ++next;
    }
    if (next == r + 1) {
      read_at(*region.file, region.offset + begin, {destination.at(to), bytes}, region.path);
    } else {
      window.resize(size_t(end - begin));
      read_at(*region.file, region.offset + begin, window, region.path);
      for (int64_t i = r; i < next; ++i) {
        const auto [from, place] = rows[i];
        std::memcpy(destination.at(place), window.data() + (from - begin), bytes);
      }
    }
    r = next;
  }
}

// Fresh memory comes by pages of 2 MiB where the system has them: to clear and map 4 KiB at a time
// takes longer than to fill them.
void expect_to_fill(const PartToFill& part) {
  constexpr uintptr_t kHugePage = 2 << 20;
  void* memory = part.storage->memory()[part.device];
  auto begin =
      reinterpret_cast<uintptr_t>(part.storage->devices()[part.device]->host_pointer(memory));
  if (begin == 0) return;
  const uintptr_t end = (begin + part.storage->local_bytes()) / kHugePage * kHugePage;
  begin = (begin + kHugePage - 1) / kHugePage * kHugePage;
  auto* first = reinterpret_cast<void*>(begin);  // NOLINT(performance-no-int-to-ptr)
  if (begin < end) (void)::madvise(first, end - begin, MADV_HUGEPAGE);
}

}  // namespace

size_t PartToFill::bytes() const { return size_t(product(box.size)) * itemsize(storage->dtype()); }

std::vector<PartToFill> parts_to_fill(Storage& storage) {
  std::vector<PartToFill> parts;
  const std::vector<int> positions = Context::get().local_positions(storage.sharding.mesh);
  for (size_t i = 0; i < positions.size(); ++i) {
    if (!storage.devices()[i]->executes()) continue;
    LocalBox box = local_box(storage.sharding, storage.shape(), positions[i]);
    const auto same = std::ranges::find(parts, box, &PartToFill::box);
    if (same != parts.end()) {
      same->replicas.push_back(i);
    } else {
      parts.push_back({&storage, i, std::move(box), {}});
    }
  }
  return parts;
}

void clear_padding(const PartToFill& part) {
  const size_t bytes = part.storage->local_bytes();
  if (part.bytes() == bytes) return;
  Device& device = *part.storage->devices()[part.device];
  void* memory = part.storage->memory()[part.device];
  if (void* host = device.host_pointer(memory)) {
    std::memset(host, 0, bytes);
  } else if (!device.fill_zero(memory, bytes)) {
    const std::vector<std::byte> zeros(bytes);
    device.copy_in(memory, zeros.data(), bytes);
  }
}

void copy_to_replicas(const PartToFill& part) {
  Storage& storage = *part.storage;
  const Dims& shape = storage.local_shape();
  const Box whole{shape, Dims(shape.size()), shape, itemsize(storage.dtype())};
  for (size_t to : part.replicas) {
    copy_box(whole, *storage.devices()[part.device], storage.memory()[part.device],
             *storage.devices()[to], storage.memory()[to]);
  }
}

void read_boxes(std::span<const FileFill> fills, const ByteProgress& progress) {
  int64_t total = 0;
  std::vector<std::vector<PartToFill>> parts;
  std::vector<std::vector<BoxRows>> rows;
  std::vector<Job> jobs;
  std::map<Device*, std::mutex> mutexes;
  for (size_t f = 0; f < fills.size(); ++f) {
    Storage& storage = *fills[f].storage;
    parts.push_back(parts_to_fill(storage));
    rows.emplace_back();
    for (size_t p = 0; p < parts[f].size(); ++p) {
      const PartToFill& part = parts[f][p];
      (void)storage.memory();  // allocated by one thread
      (void)mutexes[storage.devices()[part.device]];
      expect_to_fill(part);
      clear_padding(part);
      total += int64_t(part.bytes());
      const BoxRows& of_part = rows[f].emplace_back(
          storage.shape(), part.box, storage.local_shape(), itemsize(storage.dtype()));
      if (of_part.count() == 1) {
        for (size_t at = 0; at < of_part.bytes(); at += kJobBytes)
          jobs.push_back({f, p, 0, 1, at, std::min(at + kJobBytes, of_part.bytes())});
      } else {
        const auto step =
            std::max<int64_t>(1, int64_t(kJobBytes / std::max<size_t>(1, of_part.bytes())));
        for (int64_t r = 0; r < of_part.count(); r += step)
          jobs.push_back({f, p, r, std::min(r + step, of_part.count()), 0, of_part.bytes()});
      }
    }
  }
  auto read = [&](size_t i) {
    const Job& job = jobs[i];
    const PartToFill& part = parts[job.fill][job.part];
    const BoxRows& all = rows[job.fill][job.part];
    const FileRegion& region = fills[job.fill].region;
    Device& device = *part.storage->devices()[part.device];
    void* memory = part.storage->memory()[part.device];
    std::mutex& mutex = mutexes.at(&device);
    if (all.count() == 1) {
      const auto [from, to] = all[0];
      Destination destination(device, memory, to + job.from, to + job.to, mutex);
      read_at(*region.file, region.offset + from + job.from,
              {destination.at(to + job.from), job.to - job.from}, region.path);
      destination.send();
      return int64_t(job.to - job.from);
    }
    Destination destination(device, memory, all[job.first].in_memory,
                            all[job.last - 1].in_memory + all.bytes(), mutex);
    read_rows(region, all, job, destination);
    destination.send();
    return (job.last - job.first) * int64_t(all.bytes());
  };
  run_file_jobs(jobs.size(), read, [&](int64_t bytes) {
    if (progress) progress(bytes, total);
  });
  for (const auto& of_fill : parts) {
    for (const PartToFill& part : of_fill) copy_to_replicas(part);
  }
}

void fill_parts(std::span<const PartFill> fills, const ByteProgress& progress) {
  int64_t total = 0;
  std::vector<std::pair<size_t, PartToFill>> parts;  // behind the number of the fill
  std::map<Device*, std::mutex> mutexes;
  for (size_t f = 0; f < fills.size(); ++f) {
    for (PartToFill& part : parts_to_fill(*fills[f].storage)) {
      (void)part.storage->memory();  // allocated by one thread
      (void)mutexes[part.storage->devices()[part.device]];
      expect_to_fill(part);
      clear_padding(part);
      total += int64_t(part.bytes());
      parts.emplace_back(f, std::move(part));
    }
  }
  auto fill = [&](size_t i) {
    const auto& [f, part] = parts[i];
    Device& device = *part.storage->devices()[part.device];
    void* memory = part.storage->memory()[part.device];
    auto* host = static_cast<std::byte*>(device.host_pointer(memory));
    const size_t bytes = part.bytes(), room = part.storage->local_bytes();
    if (bytes == 0) return int64_t{0};
    if (host && bytes == room) {
      fills[f].read(part.box, {host, bytes});
      return int64_t(bytes);
    }
    std::vector<std::byte> packed(bytes);
    fills[f].read(part.box, packed);
    if (bytes == room) {
      const std::lock_guard lock(mutexes.at(&device));
      device.make_current();
      device.copy_in(memory, packed.data(), bytes);
      return int64_t(bytes);
    }
    const Dims& size = part.box.size;
    const BoxRows rows(size, {Dims(size.size()), size}, part.storage->local_shape(),
                       itemsize(part.storage->dtype()));
    std::vector<std::byte> staged(host ? 0 : room);
    std::byte* out = host ? host : staged.data();
    for (int64_t r = 0; r < rows.count(); ++r)
      std::memcpy(out + rows[r].in_memory, packed.data() + rows[r].in_array, rows.bytes());
    if (!host) {
      const std::lock_guard lock(mutexes.at(&device));
      device.make_current();
      device.copy_in(memory, staged.data(), room);
    }
    return int64_t(bytes);
  };
  run_file_jobs(parts.size(), fill, [&](int64_t bytes) {
    if (progress) progress(bytes, total);
  });
  for (const auto& [f, part] : parts) copy_to_replicas(part);
}

}  // namespace tinyshard
