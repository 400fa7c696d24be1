// Jobs go through files in the order of their bytes, whichever device a stretch is for. A thread reads a
// stretch straight into memory that the host reaches; else into a page, hands it to the device's own queue
// and takes the next page: a page is free again when its device has read it.
#include "core/exec/bulk_copies.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <sys/mman.h>

#include <fmt/format.h>

#include "core/base/file.h"
#include "core/exec/locked_memory.h"

namespace tinyshard {
namespace {

constexpr size_t kShortRow = 2048;    // pays for reading what is between it and the next one
constexpr uint64_t kShortGap = 4096;  // a page comes whole anyway
constexpr uint64_t kWindowBytes = 1 << 20;

// Fresh memory comes by pages of 2 MiB where the system has them: to clear and map 4 KiB at a time
// takes longer than to fill them.
void expect_to_fill(void* host, size_t bytes) {
  constexpr uintptr_t kHugePage = 2 << 20;
  auto begin = reinterpret_cast<uintptr_t>(host);
  const uintptr_t end = (begin + bytes) / kHugePage * kHugePage;
  begin = (begin + kHugePage - 1) / kHugePage * kHugePage;
  auto* first = reinterpret_cast<void*>(begin);  // NOLINT(performance-no-int-to-ptr)
  if (begin < end) (void)::madvise(first, end - begin, MADV_HUGEPAGE);
}

void clear(Device& device, void* memory, size_t bytes) {
  if (void* host = device.host_pointer(memory)) {
    std::memset(host, 0, bytes);
  } else if (!device.fill_zero(memory, bytes)) {
    const std::vector<std::byte> zeros(bytes);
    device.copy_in(memory, zeros.data(), bytes);
  }
}

// The same error, with the line of the program that asked for the value.
class IoErrorOfLine final : public IoError {
 public:
  IoErrorOfLine(const IoError& error, const std::string& line)
      : IoError(error), text_(fmt::format("{}  ({})", error.what(), line)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// Reads a stretch to `out`; short rows that are near to each other by one read each window.
void read_stretch(const BoxIn& box, const BoxRows::Stretch& stretch, std::byte* out) {
  const BoxRows& rows = box.rows;
  const size_t bytes = rows.bytes();
  auto read = [&](uint64_t in_array, std::span<std::byte> to) {
    const FileRegion& region = *box.file;
    read_at(*region.file, region.offset + box.file_begin + in_array, to, region.path);
  };
  if (bytes >= kShortRow || stretch.size() <= bytes) {
    rows.for_each_row(stretch, [&](uint64_t in_array, uint64_t in_memory, size_t n) {
      read(in_array, {out + (in_memory - stretch.begin), n});
    });
    return;
  }
  std::vector<std::byte> window;
  const auto end_row = int64_t(stretch.to / bytes);
  for (auto r = int64_t(stretch.from / bytes); r < end_row;) {
    const uint64_t begin = rows[r].in_array;
    uint64_t end = begin + bytes;
    int64_t next = r + 1;
    for (; next < end_row; ++next) {
      const uint64_t at = rows[next].in_array;
      if (at - end > kShortGap || at + bytes - begin > kWindowBytes) break;
      end = at + bytes;
    }
    window.resize(size_t(end - begin));
    read(begin, window);
    for (; r < next; ++r) {
      const auto [in_array, in_memory] = rows[r];
      std::memcpy(out + (in_memory - stretch.begin), window.data() + (in_array - begin), bytes);
    }
  }
}

// Puts a stretch where it belongs: `out` stands for the beginning of its memory.
void fill(const BoxIn& box, const BoxRows::Stretch& stretch, std::byte* out) {
  if (box.file) {
    try {
      return read_stretch(box, stretch, out);
    } catch (const IoError& error) {
      const std::string line = origin_of(box.origin).source();
      if (line.empty()) throw;
      throw IoErrorOfLine(error, line);
    }
  }
  box.rows.for_each_row(stretch, [&](uint64_t in_array, uint64_t in_memory, size_t n) {
    std::memcpy(out + (in_memory - stretch.begin), box.host + in_array, n);
  });
}

// A stretch of a box on its way to devices.
class StretchIn {
 public:
  StretchIn(const BoxIn& box, BoxRows::Stretch stretch) : box_(&box), stretch_(stretch) {}
  StretchIn(StretchIn&&) noexcept = default;
  StretchIn& operator=(StretchIn&&) noexcept = default;
  ~StretchIn() {
    try {
      (void)end();  // its page is read until then
    } catch (...) {
      under_way_.clear();
    }
  }

  // Where the stretch begins in its file or memory, to go by.
  std::pair<const void*, uint64_t> place() const {
    const uint64_t at = box_->rows[int64_t(stretch_.from / box_->rows.bytes())].in_array;
    if (box_->file) return {box_->file->file.get(), box_->file->offset + box_->file_begin + at};
    return {nullptr, reinterpret_cast<uintptr_t>(box_->host) + at};
  }

  void start(CopyQueues& queues) {
    const std::byte* filled = nullptr;
    for (const BoxIn::Target& target : box_->targets) {
      auto* host = static_cast<std::byte*>(target.device->host_pointer(target.memory));
      if (!host) continue;
      if (filled)
        std::memcpy(host + stretch_.begin, filled, stretch_.room());
      else
        fill(*box_, stretch_, host + stretch_.begin);
      filled = host + stretch_.begin;
    }
    for (const BoxIn::Target& target : box_->targets) {
      if (target.device->host_pointer(target.memory)) continue;
      if (!page_) {
        page_.emplace(*target.device);
        if (stretch_.room() > stretch_.size()) std::memset(page_->data(), 0, stretch_.room());
        if (filled)
          std::memcpy(page_->data(), filled, stretch_.room());
        else
          fill(*box_, stretch_, page_->data());
      }
      auto* to = static_cast<std::byte*>(target.memory) + stretch_.begin;
      if (CopyBatch* batch = queues.batch(*target.device)) {
        under_way_.emplace_back(batch, batch->copy_in(to, page_->data(), stretch_.room()));
        continue;
      }
      const std::lock_guard lock(queues.mutex(*target.device));
      target.device->make_current();
      target.device->copy_in(to, page_->data(), stretch_.room());
    }
  }

  int64_t end() {
    for (const auto& [batch, there] : under_way_) batch->wait(*there);
    under_way_.clear();
    page_.reset();
    return int64_t(stretch_.size());
  }

 private:
  const BoxIn* box_;
  BoxRows::Stretch stretch_;
  std::optional<HostPage> page_;
  std::vector<std::pair<CopyBatch*, std::unique_ptr<Event>>> under_way_;
};

}  // namespace

void CopyQueues::add(Device& device) {
  const auto [queue, is_new] = queues_.try_emplace(&device);
  if (!is_new) return;
  if (HostCopies* copies = host_copies(device)) queue->second.batch = copies->begin_copies();
}

void CopyQueues::end() {
  for (auto& [device, queue] : queues_) {
    if (queue.batch) queue.batch->end();
  }
}

CopyBatch* CopyQueues::batch(Device& device) const { return queues_.at(&device).batch.get(); }

void prepare_targets(const BoxIn& box) {
  for (const BoxIn::Target& target : box.targets) {
    void* host = target.device->host_pointer(target.memory);
    if (host) expect_to_fill(host, box.room);
    if (box.room > box.rows.total()) clear(*target.device, target.memory, box.room);
  }
}

void copy_in(const BoxIn& box, CopyQueues& queues) {
  std::optional<StretchIn> before;
  const size_t bytes = box.rows.total();
  for (size_t at = 0; at < bytes;) {
    const BoxRows::Stretch stretch = box.rows.stretch(at, bytes, HostPage::kBytes);
    StretchIn next(box, stretch);
    next.start(queues);
    if (before) before->end();
    before.emplace(std::move(next));
    at = stretch.to;
  }
  if (before) before->end();
}

void copy_in(std::span<const BoxIn> boxes, const ByteProgress& progress) {
  int64_t total = 0;
  CopyQueues queues;
  std::vector<StretchIn> stretches;
  for (const BoxIn& box : boxes) {
    prepare_targets(box);
    const size_t bytes = box.rows.total();
    total += int64_t(bytes);
    for (size_t at = 0; at < bytes;) {
      const BoxRows::Stretch stretch = box.rows.stretch(at, bytes, HostPage::kBytes);
      stretches.emplace_back(box, stretch);
      at = stretch.to;
    }
  }
  std::ranges::stable_sort(stretches, {}, &StretchIn::place);
  for (const BoxIn& box : boxes) {
    for (const BoxIn::Target& target : box.targets) queues.add(*target.device);
  }
  run_file_jobs(
      stretches.size(),
      {[&](size_t i) { stretches[i].start(queues); }, [&](size_t i) { return stretches[i].end(); }},
      [&](int64_t bytes) {
        if (progress) progress(bytes, total);
      });
  queues.end();
}

BoxReader::BoxReader(std::vector<Box> boxes) : boxes_(std::move(boxes)) {
  for (const Box& box : boxes_) queues_.add(*box.device);
  for (const Box& box : boxes_) {
    if (box.device->host_pointer(const_cast<void*>(box.memory))) box.device->synchronize();
  }
}

const std::byte* BoxReader::in_reach(size_t box) const {
  const Box& of = boxes_[box];
  const auto* host =
      static_cast<const std::byte*>(of.device->host_pointer(const_cast<void*>(of.memory)));
  return host && of.rows.count() == 1 ? host + of.rows[0].in_memory : nullptr;
}

namespace {

// Moves the rows of a stretch to the beginning of its memory, behind each other.
std::span<const std::byte> pack(const BoxRows& rows, const BoxRows::Stretch& stretch,
                                const std::byte* memory, std::byte* out) {
  size_t at = 0;
  rows.for_each_row(stretch, [&](uint64_t, uint64_t in_memory, size_t n) {
    std::memmove(out + at, memory + (in_memory - stretch.begin), n);
    at += n;
  });
  return {out, at};
}

}  // namespace

void BoxReader::read(size_t number, size_t from, size_t to, const Put& put) {
  const Box& box = boxes_[number];
  if (const std::byte* host = in_reach(number)) return put(from, {host + from, to - from});
  if (CopyBatch* batch = queues_.batch(*box.device)) return read_ahead(box, *batch, from, to, put);
  const auto* memory = static_cast<const std::byte*>(box.memory);
  const auto* host =
      static_cast<const std::byte*>(box.device->host_pointer(const_cast<void*>(box.memory)));
  std::vector<std::byte> staged(std::min(HostPage::kBytes, box.rows.total() * 2));
  while (from < to) {
    const BoxRows::Stretch stretch = box.rows.stretch(from, to, HostPage::kBytes);
    staged.resize(std::max(staged.size(), stretch.room()));
    if (!host) {
      const std::lock_guard lock(queues_.mutex(*box.device));
      box.device->make_current();
      box.device->copy_out(staged.data(), memory + stretch.begin, stretch.room());
    }
    put(from, pack(box.rows, stretch, host ? host + stretch.begin : staged.data(), staged.data()));
    from = stretch.to;
  }
}

// The device copies the next page while this one is taken.
void BoxReader::read_ahead(const Box& box, CopyBatch& batch, size_t from, size_t to,
                           const Put& put) {
  struct Page {
    Page(CopyBatch& of, const Box& box, const BoxRows::Stretch& what)
        : batch(of), page(*box.device), stretch(what) {
      there = batch.copy_out(page.data(), static_cast<const std::byte*>(box.memory) + what.begin,
                             what.room());
    }
    ~Page() {  // it is written to until then
      try {
        if (there) batch.wait(*there);
      } catch (...) {
        there.reset();
      }
    }
    Page(const Page&) = delete;
    Page& operator=(const Page&) = delete;

    CopyBatch& batch;
    HostPage page;
    BoxRows::Stretch stretch;
    std::unique_ptr<Event> there;
  };
  auto fetch = [&](size_t at) {
    return std::make_unique<Page>(batch, box, box.rows.stretch(at, to, HostPage::kBytes));
  };
  std::unique_ptr<Page> current = from < to ? fetch(from) : nullptr;
  while (current) {
    const size_t next = current->stretch.to;
    std::unique_ptr<Page> ahead = next < to ? fetch(next) : nullptr;
    batch.wait(*std::exchange(current->there, nullptr));
    put(current->stretch.from,
        pack(box.rows, current->stretch, current->page.data(), current->page.data()));
    current = std::move(ahead);
  }
}

std::unique_ptr<Event> BoxReader::begin_read(size_t number, size_t from, size_t to,
                                             std::byte* out) {
  const Box& box = boxes_[number];
  CopyBatch* batch = queues_.batch(*box.device);
  if (!batch || box.rows.count() != 1) return nullptr;
  const auto* memory = static_cast<const std::byte*>(box.memory) + box.rows[0].in_memory + from;
  return batch->copy_out(out, memory, to - from);
}

Device* BoxReader::copying_device() const {
  const auto found =
      std::ranges::find_if(boxes_, [&](const Box& box) { return queues_.batch(*box.device); });
  return found == boxes_.end() ? nullptr : found->device;
}

void BoxReader::wait(size_t box, Event& there) { queues_.batch(*boxes_[box].device)->wait(there); }

}  // namespace tinyshard
