// The file of a ring: what a rank did last, readable after it was killed, as the kernel keeps what
// was written to a mapped file. Plain bytes, in this order:
//   FileHeader   4096   who wrote it, and what becomes of that process
//   CallRecord   4096 x 128   call n lies at place n % 4096
//   texts        64 KiB   names of groups and places in the program, each after its length
// A file is 580 KiB, however long the job.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/channel.h"

namespace tinyshard::recorder {

inline constexpr std::array<char, 8> kMagic = {'T', 'S', 'R', 'I', 'N', 'G', '\r', '\n'};
inline constexpr uint32_t kVersion = 2;
inline constexpr uint32_t kCalls = 4096;
inline constexpr uint32_t kTextBytes = 64 << 10;

// The part that stays the same while the job runs; `check` is over all before it.
struct Origin {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t calls = kCalls, text_bytes = kTextBytes;
  int32_t rank = -1, ranks = 0;
  // How often the job was started again and, above 16 bits, how often it went on without some of its
  // ranks or with new ones (LaunchEnvironment::wire_epoch).
  uint32_t epoch = 0;
  int32_t launched = -1;  // the number that the launcher gave to this rank
  uint32_t unused = 0;
  int64_t pid = 0;
  uint64_t host_id = 0, pid_namespace = 0;  // see ProcessAddress
  int64_t steady_ns = 0, wall_ns = 0;       // both clocks at one time: hosts agree on the latter
  std::array<char, 40> job = {};
  std::array<char, 64> host = {};
  std::array<char, 64> program = {};
  uint64_t check = 0;
};
static_assert(sizeof(Origin) == 256);

enum class Ending : uint32_t { Running, Well, Badly };

struct FileHeader {
  Origin origin;
  std::atomic<uint64_t> started{0};  // calls so far
  std::atomic<int64_t> beat_ns{0};   // steady clock: when this process last showed that it runs
  std::atomic<uint32_t> text_used{0};
  std::atomic<Ending> ending{Ending::Running};
  int32_t exit_status = 0;
  // The first failure of a group here.
  std::atomic<uint32_t> failed{0};
  FailureCause cause = FailureCause::Unknown;
  int32_t culprit = -1;
  int64_t failed_ns = 0;
  std::array<char, 512> failure = {};
};
inline constexpr size_t kHeaderBytes = 4096;
static_assert(sizeof(FileHeader) <= kHeaderBytes);

// A collective call of one group, or a run of a recorded step whose calls the host does not see.
enum class RecordKind : uint8_t { Call = 1, Run = 2 };

struct CallRecord {
  uint64_t serial = 0;  // from 1
  int64_t started_ns = 0;
  uint64_t group = 0, sequence = 0;
  uint64_t count = 0, counts_hash = 0;
  uint64_t schedule = 0, run = 0, item = 0;
  uint32_t context_epoch = 0;
  int32_t from = 0, to = 0;
  uint32_t group_text = 0, site_text = 0;  // where in the texts, 0: nowhere
  uint8_t op = 0, reduce = 0, dtype = 0;
  RecordKind kind = RecordKind::Call;
  uint64_t check = 0;                    // over all before it
  std::atomic<int64_t> completed_ns{0};  // 0: under way
  std::array<uint64_t, 2> unused = {};
};
static_assert(sizeof(CallRecord) == 128);

inline constexpr size_t kTextOffset = kHeaderBytes + kCalls * sizeof(CallRecord);
inline constexpr size_t kFileBytes = kTextOffset + kTextBytes;

// The check of the bytes before it: a length that is a multiple of eight.
uint64_t check_of(const void* begin, const void* end);

}  // namespace tinyshard::recorder
