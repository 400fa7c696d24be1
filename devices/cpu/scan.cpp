// Lines are cut into chunks that caches hold. A thread takes the next chunk and scans it by itself; once
// it is known what came before, it puts that under what it has, which is still in its cache:
//
//   3 1 2 | 5 1 4      inside 3 4 6 | 5 6 10      carries 0 6      out 3 4 6 | 11 12 16
//
// So memory is read once and written once. A thread does not wait for a chunk before that is still at
// work: it goes on with another one, and comes back. Carries are joined in order, by whichever thread,
// so threads change nothing. Where there are many lines, a thread has all chunks of a line.
//
// Lines that do not lie in a row are scanned some columns at a time, side by side.
#include "devices/cpu/scan.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <type_traits>

#include "core/base/error.h"
#include "devices/cpu/scan_kernels.h"
#include "devices/cpu/scan_logs.h"
#include "devices/cpu/thread_pool.h"

namespace tinyshard {
namespace {

using scans::Chunk;

constexpr int64_t kElements = 1 << 14;  // of a chunk
constexpr int64_t kShare = 1 << 12;     // elements that are worth a thread
constexpr int64_t kCarryBytes = 16;     // at most, of a column

constexpr int64_t kMany = 64;  // lines, from which on each is a thread's

// How lines are cut: groups of columns, each into chunks of rows.
struct Cut {
  int64_t columns, tiles, groups, rows, chunks;
  bool by_group;  // a thread has all chunks of a group
};

template <class Kind>
Cut cut_of(const ScanSpec& s) {
  Cut cut{};
  cut.columns = std::min(s.inner, Kind::kColumns);
  cut.tiles = (s.inner + cut.columns - 1) / cut.columns;
  cut.groups = s.outer * cut.tiles;
  const bool whole = Kind::kWholeColumns && s.inner > 1;
  cut.by_group = whole || cut.groups >= kMany;
  cut.rows = whole || (cut.by_group && Kind::kAppliesAlways)
                 ? s.n
                 : std::min(s.n, kElements / cut.columns);
  cut.chunks = (s.n + cut.rows - 1) / cut.rows;
  return cut;
}

// A group while its chunks are joined, and a chunk: first its totals, then what came before.
struct alignas(64) Line {
  std::atomic<bool> taken{false};
  int64_t next = 0;
};
enum State : int { kAtWork, kScanned, kJoined };
struct alignas(64) Part {
  std::atomic<int> state{kAtWork};
  int64_t later = -1;  // the next one that its thread has to come back to
};

int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }
int64_t carry_bytes(const Cut& cut) { return 64 + whole_lines(cut.columns * kCarryBytes); }

template <class Kind>
class Scanner {
 public:
  using T = typename Kind::Element;
  using Out = typename Kind::Out;
  using Carry = typename Kind::Carry;
  static_assert(sizeof(Carry) <= kCarryBytes && sizeof(Line) == 64 && sizeof(Part) == 64);

  Scanner(const ScanSpec& spec, const void* x, void* out, void* scratch)
      : s_(spec),
        cut_(cut_of<Kind>(spec)),
        tasks_(cut_.by_group ? cut_.groups : cut_.groups * cut_.chunks),
        x_(static_cast<const T*>(x)),
        out_(static_cast<Out*>(out)),
        scratch_(static_cast<char*>(scratch)) {}

  void run(ThreadPool& pool) {
    const int64_t elements = s_.outer * s_.n * s_.inner;
    const int64_t useful = std::min(tasks_, elements / kShare);
    const auto threads = int(std::clamp<int64_t>(useful, 1, pool.threads()));
    if (cut_.by_group) {
      at_once_ = std::clamp<int64_t>(tasks_ / (threads * 8), 1, kElements);
    } else {
      for (int64_t g = 0; g < cut_.groups; ++g) {
        new (&line(g)) Line();
        std::fill_n(carries(&line(g)), cut_.columns, Kind::start());
      }
      for (int64_t t = 0; t < tasks_; ++t) new (&part(t)) Part();
    }
    auto work = [](void* self, int, int) { static_cast<Scanner*>(self)->take_tasks(); };
    if (threads == 1)
      take_tasks();
    else
      pool.run(threads, work, this);
  }

 private:
  Line& line(int64_t group) {
    return *reinterpret_cast<Line*>(scratch_ + group * carry_bytes(cut_));
  }
  Part& part(int64_t task) {
    return *reinterpret_cast<Part*>(scratch_ + (cut_.groups + task) * carry_bytes(cut_));
  }
  static Carry* carries(void* head) {
    return reinterpret_cast<Carry*>(static_cast<char*>(head) + 64);
  }

  void take_tasks() {
    int64_t first_left = -1, last_left = -1;  // chunks to come back to
    auto none_left = [&] {
      while (first_left >= 0 && finish(first_left)) first_left = part(first_left).later;
      return first_left < 0;
    };
    for (;;) {
      const int64_t first = next_.fetch_add(at_once_, std::memory_order_relaxed);
      if (first >= tasks_) break;
      const int64_t end = std::min(tasks_, first + at_once_);
      for (int64_t t = first; t < end; ++t) {
        if (cut_.by_group) {
          scan_group(t);
          continue;
        }
        begin(t);
        if (first_left < 0)
          first_left = t;
        else
          part(last_left).later = t;
        last_left = t;
        none_left();
      }
    }
    while (!none_left()) std::this_thread::yield();
  }

  Chunk<T, Out> chunk_of(int64_t group, int64_t chunk) const {
    const int64_t column = group % cut_.tiles * cut_.columns, begin = chunk * cut_.rows;
    const int64_t row = s_.arg.reverse ? s_.n - 1 - begin : begin;
    const int64_t at = (group / cut_.tiles * s_.n + row) * s_.inner + column;
    return {x_ + at,
            out_ + at,
            std::min(cut_.rows, s_.n - begin),
            std::min(cut_.columns, s_.inner - column),
            s_.arg.reverse ? -s_.inner : s_.inner,
            begin};
  }

  void scan_group(int64_t group) {
    Carry before[scans::kMostColumns], totals[scans::kMostColumns];
    std::fill_n(before, cut_.columns, Kind::start());
    for (int64_t i = 0; i < cut_.chunks; ++i) {
      const Chunk<T, Out> c = chunk_of(group, i);
      if constexpr (Kind::kAppliesAlways) {
        Kind::apply(c, before);
      } else {
        Kind::inside(c, totals);
        if (i > 0) Kind::apply(c, before);
        for (int64_t j = 0; j < c.columns; ++j) before[j] = Kind::join(before[j], totals[j]);
      }
    }
  }

  void begin(int64_t task) {
    Part& mine = part(task);
    Kind::inside(chunk_of(task / cut_.chunks, task % cut_.chunks), carries(&mine));
    mine.state.store(kScanned, std::memory_order_release);
  }

  // Returns false as long as it is not known what came before the chunk.
  bool finish(int64_t task) {
    const int64_t group = task / cut_.chunks, chunk = task % cut_.chunks;
    Part& mine = part(task);
    if (mine.state.load(std::memory_order_acquire) != kJoined) join(group);
    if (mine.state.load(std::memory_order_acquire) != kJoined) return false;
    if (chunk > 0 || Kind::kAppliesAlways) Kind::apply(chunk_of(group, chunk), carries(&mine));
    return true;
  }

  // Tells the chunks of a group that are scanned, one after the other, what came before.
  void join(int64_t group) {
    Line& all = line(group);
    if (all.taken.exchange(true, std::memory_order_acquire)) return;
    Carry* carry = carries(&all);
    for (; all.next < cut_.chunks; ++all.next) {
      Part& next = part(group * cut_.chunks + all.next);
      if (next.state.load(std::memory_order_acquire) != kScanned) break;
      Carry* own = carries(&next);
      for (int64_t j = 0; j < cut_.columns; ++j) {
        const Carry before = carry[j];
        carry[j] = Kind::join(before, own[j]);
        own[j] = before;
      }
      next.state.store(kJoined, std::memory_order_release);
    }
    all.taken.store(false, std::memory_order_release);
  }

  ScanSpec s_;
  Cut cut_;
  int64_t tasks_;
  const T* x_;
  Out* out_;
  char* scratch_;
  int64_t at_once_ = 1;
  std::atomic<int64_t> next_{0};
};

// Calls f with the kind as a type: f(std::type_identity<Kind>()).
template <class T, class F>
auto with_best(const ScanArg& arg, const F& f) {
  const bool least = arg.kind == ScanKind::Min;
  if (arg.places)
    return least ? f(std::type_identity<scans::Best<T, true, true>>())
                 : f(std::type_identity<scans::Best<T, false, true>>());
  return least ? f(std::type_identity<scans::Best<T, true, false>>())
               : f(std::type_identity<scans::Best<T, false, false>>());
}

// Integers wrap: those of sums and products are unsigned.
template <class T, class F>
auto with_kind(const ScanArg& arg, const F& f) {
  using Sum =
      std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>;
  using Number = typename Sum::type;
  switch (arg.kind) {
    case ScanKind::Sum:
      return arg.reverse ? f(std::type_identity<scans::Totals<scans::Add, Number, true>>())
                         : f(std::type_identity<scans::Totals<scans::Add, Number, false>>());
    case ScanKind::Prod:
      return f(std::type_identity<scans::Totals<scans::Multiply, Number, false>>());
    case ScanKind::LogSumExp:
      if constexpr (std::is_floating_point_v<T>)
        return f(std::type_identity<scans::LogsOfSums<T>>());
      break;
    default:
      return with_best<T>(arg, f);
  }
  throw InternalError("a scan that was refused");
}

template <class F>
auto dispatch(const ScanSpec& s, const F& f) {
  switch (s.dtype) {
    case DType::F32:
      return with_kind<float>(s.arg, f);
    case DType::F64:
      return with_kind<double>(s.arg, f);
    case DType::I32:
      return with_kind<int32_t>(s.arg, f);
    case DType::I64:
      return with_kind<int64_t>(s.arg, f);
    case DType::U32:
      return with_kind<uint32_t>(s.arg, f);
    default:
      return with_kind<uint64_t>(s.arg, f);
  }
}

}  // namespace

bool scan_supports(const ScanSpec& s) {
  const DType d = s.dtype;
  if (s.arg.kind == ScanKind::LogSumExp) return d == DType::F32 || d == DType::F64;
  if (s.arg.places && s.n > INT32_MAX) return false;
  return d == DType::F32 || d == DType::F64 || d == DType::I32 || d == DType::I64 ||
         d == DType::U32 || d == DType::U64;
}

int64_t scan_scratch_bytes(const ScanSpec& s) {
  if (s.outer * s.n * s.inner == 0) return 0;
  return dispatch(s, [&](auto kind) {
    using Kind = typename decltype(kind)::type;
    const Cut cut = cut_of<Kind>(s);
    return cut.by_group ? 0 : cut.groups * (1 + cut.chunks) * carry_bytes(cut);
  });
}

void scan_lines(const ScanSpec& s, const void* x, void* out, void* scratch, ThreadPool& pool) {
  check_internal(scan_supports(s), "a scan of numbers that accumulate");
  if (s.outer * s.n * s.inner == 0) return;
  dispatch(s, [&](auto kind) {
    using Kind = typename decltype(kind)::type;
    Scanner<Kind>(s, x, out, scratch).run(pool);
  });
}

}  // namespace tinyshard
