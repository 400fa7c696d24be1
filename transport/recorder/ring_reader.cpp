// A ring is read while its rank may still write, or after it was killed in the middle of a write: a
// file is read again until what it says of itself agrees, and what cannot be is named as damage.
#include "transport/recorder/ring_reader.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string_view>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/file.h"
#include "transport/process_watch.h"
#include "transport/text_field.h"

namespace tinyshard::recorder {
namespace {

constexpr int kTries = 5;         // a ring that is being written may be seen in the middle of it
constexpr uint64_t kNewest = 64;  // so many threads may have been killed while they wrote
// Rings begin when all ranks have met. One that began so long before another is of a former job, of
// which many have the same name: none.
constexpr int64_t kBegin = 60'000'000'000;
constexpr uint8_t kOps = 8, kReductions = 4;

struct Damaged : UserError {
  Damaged(const std::filesystem::path& path, const std::string& what)
      : UserError(fmt::format("{} is a damaged ring: {}", path.string(), what)) {}
};

// A ring's file in memory. Its header holds atomics, so it is copied field by field.
class RingBytes {
 public:
  // Both stay with the caller.
  RingBytes(const std::filesystem::path& path, std::string_view bytes)
      : path_(path), bytes_(bytes) {}

  RankRing decode() const {
    check_frame();
    RankRing ring;
    std::memcpy(&ring.origin, bytes_.data(), sizeof(Origin));
    Origin& origin = ring.origin;
    if (origin.check != check_of(&origin, &origin.check))
      throw Damaged(path_, "its first bytes are not as they were written");
    if (origin.ranks < 1 || origin.rank < 0 || origin.rank >= origin.ranks)
      throw Damaged(path_, fmt::format("it is of rank {} of {}", origin.rank, origin.ranks));
    ring.started = field<uint64_t>(offsetof(FileHeader, started));
    ring.beat_ns = wall(origin, field<int64_t>(offsetof(FileHeader, beat_ns)));
    const auto ending = field<uint32_t>(offsetof(FileHeader, ending));
    if (ending > uint32_t(Ending::Badly)) throw Damaged(path_, "it ended in an unknown way");
    ring.ending = Ending(ending);
    ring.exit_status = field<int32_t>(offsetof(FileHeader, exit_status));
    read_failure(ring);
    read_calls(ring);
    return ring;
  }

 private:
  void check_frame() const {
    if (bytes_.size() < kMagic.size() ||
        std::memcmp(bytes_.data(), kMagic.data(), kMagic.size()) != 0)
      throw UserError(fmt::format("{} is no ring of tinyshard", path_.string()));
    if (bytes_.size() < sizeof(FileHeader))
      throw Damaged(path_,
                    fmt::format("it has {} bytes, a ring has {}", bytes_.size(), kFileBytes));
    const auto version = field<uint32_t>(offsetof(Origin, version));
    if (version != kVersion)
      throw UserError(fmt::format("{} is a ring of version {}, this program reads version {}",
                                  path_.string(), version, kVersion));
    if (field<uint32_t>(offsetof(Origin, calls)) != kCalls ||
        field<uint32_t>(offsetof(Origin, text_bytes)) != kTextBytes)
      throw Damaged(path_, "its sizes are none that this version writes");
    if (bytes_.size() != kFileBytes)
      throw Damaged(path_,
                    fmt::format("it has {} bytes, a ring has {}", bytes_.size(), kFileBytes));
  }

  template <class T>
  T field(size_t offset) const {
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

  static int64_t wall(const Origin& origin, int64_t steady) {
    return static_cast<int64_t>(uint64_t(steady) - uint64_t(origin.steady_ns) +
                                uint64_t(origin.wall_ns));
  }

  void read_failure(RankRing& ring) const {
    if (field<uint32_t>(offsetof(FileHeader, failed)) == 0) return;
    RankRing::Failure failure;
    const auto cause = field<uint32_t>(offsetof(FileHeader, cause));
    failure.culprit = field<int32_t>(offsetof(FileHeader, culprit));
    if (cause > uint32_t(FailureCause::Aborted) || failure.culprit >= ring.origin.ranks)
      throw Damaged(path_, "its failure makes no sense");
    failure.cause = FailureCause(cause);
    failure.at_ns = wall(ring.origin, field<int64_t>(offsetof(FileHeader, failed_ns)));
    failure.text = text_in(field<std::array<char, 512>>(offsetof(FileHeader, failure)));
    ring.failure = failure;
  }

  void read_calls(RankRing& ring) const {
    const uint64_t kept = std::min<uint64_t>(ring.started, kCalls);
    for (uint64_t serial = ring.started - kept + 1; serial <= ring.started; ++serial) {
      alignas(CallRecord) std::array<std::byte, sizeof(CallRecord)> record;
      const size_t at = kHeaderBytes + (serial - 1) % kCalls * sizeof(CallRecord);
      std::memcpy(record.data(), bytes_.data() + at, record.size());
      const auto field_of = [&]<class T>(T, size_t offset) {
        T value;
        std::memcpy(&value, record.data() + offset, sizeof(T));
        return value;
      };
      const uint64_t found = field_of(uint64_t{}, offsetof(CallRecord, serial));
      const uint64_t check = field_of(uint64_t{}, offsetof(CallRecord, check));
      const bool whole =
          check == check_of(record.data(), record.data() + offsetof(CallRecord, check));
      if (!whole || found != serial) {
        if (ring.started - serial < kNewest) continue;  // ended in the middle of it
        throw Damaged(path_, fmt::format("its call {} is not as it was written", serial));
      }
      ring.calls.push_back(decode_call(ring, field_of));
    }
  }

  template <class Field>
  RecordedCall decode_call(const RankRing& ring, Field&& field_of) const {
    RecordedCall call;
    call.kind = RecordKind(field_of(uint8_t{}, offsetof(CallRecord, kind)));
    const uint8_t op = field_of(uint8_t{}, offsetof(CallRecord, op)),
                  reduce = field_of(uint8_t{}, offsetof(CallRecord, reduce)),
                  dtype = field_of(uint8_t{}, offsetof(CallRecord, dtype));
    if (op >= kOps || reduce >= kReductions || dtype > uint8_t(DType::Index) ||
        (call.kind != RecordKind::Call && call.kind != RecordKind::Run))
      throw Damaged(path_, fmt::format("op {}, reduction {}, type {} are none", op, reduce, dtype));
    call.serial = field_of(uint64_t{}, offsetof(CallRecord, serial));
    call.group = field_of(uint64_t{}, offsetof(CallRecord, group));
    call.sequence = field_of(uint64_t{}, offsetof(CallRecord, sequence));
    call.counts_hash = field_of(uint64_t{}, offsetof(CallRecord, counts_hash));
    call.call.op = CollectiveOp(op);
    call.call.reduce = ReduceOp(reduce);
    call.call.dtype = DType(dtype);
    call.call.count = field_of(uint64_t{}, offsetof(CallRecord, count));
    call.call.from = field_of(int32_t{}, offsetof(CallRecord, from));
    call.call.to = field_of(int32_t{}, offsetof(CallRecord, to));
    call.call.ticket = {.epoch = field_of(uint32_t{}, offsetof(CallRecord, context_epoch)),
                        .schedule = field_of(uint64_t{}, offsetof(CallRecord, schedule)),
                        .item = field_of(uint64_t{}, offsetof(CallRecord, item)),
                        .run = field_of(uint64_t{}, offsetof(CallRecord, run))};
    call.started_ns = wall(ring.origin, field_of(int64_t{}, offsetof(CallRecord, started_ns)));
    const int64_t completed = field_of(int64_t{}, offsetof(CallRecord, completed_ns));
    if (completed != 0) call.completed_ns = wall(ring.origin, completed);
    read_group(call, text(field_of(uint32_t{}, offsetof(CallRecord, group_text))), ring.origin);
    read_site(call, text(field_of(uint32_t{}, offsetof(CallRecord, site_text))));
    return call;
  }

  // By its number: the place behind it, see Recorder.
  std::string_view text(uint32_t number) const {
    if (number == 0) return {};
    const uint32_t used = field<uint32_t>(offsetof(FileHeader, text_used)), at = number - 1;
    if (used > kTextBytes || at >= used || used - at < sizeof(uint32_t))
      throw Damaged(path_, fmt::format("it has no text at {}", at));
    const auto length = field<uint32_t>(kTextOffset + at);
    if (length > used - at - sizeof(uint32_t))
      throw Damaged(path_, fmt::format("its text at {} has {} bytes", at, length));
    return bytes_.substr(kTextOffset + at + sizeof(uint32_t), length);
  }

  void read_group(RecordedCall& call, std::string_view text, const Origin& origin) const {
    const size_t end = text.rfind('\n');
    if (end == std::string_view::npos) return;
    call.group_name = text.substr(0, end);
    for (const char* at = text.data() + end + 1; at < text.data() + text.size(); ++at) {
      int rank = -1;
      at = std::from_chars(at, text.data() + text.size(), rank).ptr;
      if (rank < 0 || rank >= origin.ranks)
        throw Damaged(path_, fmt::format("group \"{}\" has no such ranks", call.group_name));
      call.ranks.push_back(rank);
    }
  }

  static void read_site(RecordedCall& call, std::string_view text) {
    const size_t first = text.find('\n'), last = text.rfind('\n');
    if (first == std::string_view::npos || first == last) return;
    CollectiveSite site;
    site.axis = text.substr(0, first);
    site.purpose = text.substr(first + 1, last - first - 1);
    site.source = text.substr(last + 1);
    call.call.site = std::make_shared<const CollectiveSite>(std::move(site));
  }

  const std::filesystem::path& path_;
  std::string_view bytes_;
};

// Since the start of the host, in seconds; 0 where it cannot be seen.
double start_of_process(int64_t pid) {
  std::string stat;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), stat, '\0');
  size_t at = stat.rfind(')');
  for (int word = 2; word < 22 && at != std::string::npos; ++word) at = stat.find(' ', at + 1);
  if (at == std::string::npos) return 0;
  return std::strtod(stat.c_str() + at, nullptr) / double(sysconf(_SC_CLK_TCK));
}

}  // namespace

ProcessState look_at(const Origin& origin) {
  const ProcessAddress self = ProcessAddress::own();
  if (origin.host_id != self.host || origin.pid_namespace != self.namespace_ || origin.pid <= 0)
    return ProcessState::OutOfSight;
  const ProcessWatch watch({origin.host_id, origin.pid_namespace, origin.pid});
  if (kill(pid_t(origin.pid), 0) != 0 && errno == ESRCH) return ProcessState::Ended;
  // A number that another process has now: that one began after the ring did.
  if (start_of_process(origin.pid) > double(origin.steady_ns) * 1e-9 + 1)
    return ProcessState::Ended;
  const PeerState state = watch.state();
  return state.gone      ? ProcessState::Ended
         : state.suspect ? ProcessState::Stopped
                         : ProcessState::Runs;
}

std::optional<Origin> read_origin(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  Origin origin;
  if (!file.read(reinterpret_cast<char*>(&origin), sizeof(origin)) || origin.magic != kMagic ||
      origin.version != kVersion || origin.check != check_of(&origin, &origin.check))
    return std::nullopt;
  return origin;
}

std::string start_of(const Origin& origin) {
  constexpr uint32_t kStarts = 0xffff;  // of an epoch, how often the job was started
  return fmt::format("{} {}", text_in(origin.job), origin.epoch & kStarts);
}

std::string describe(const RecordedCall& recorded) {
  if (recorded.kind == RecordKind::Run)
    return fmt::format("a recorded step (run {} of schedule {:x})", recorded.call.ticket.run,
                       recorded.call.ticket.schedule);
  std::string text = tinyshard::describe_with_axis(recorded.call);
  if (recorded.counts_hash != 0) text += fmt::format(" with counts {:x}", recorded.counts_hash);
  text += fmt::format(" (call {} of group \"{}\"", recorded.sequence, recorded.group_name);
  return text + describe_place(recorded.call) + ")";
}

int64_t RankRing::last_sign_ns() const {
  int64_t last = beat_ns;
  for (const RecordedCall& call : calls)
    last = std::max({last, call.started_ns, call.completed_ns.value_or(0)});
  return failure ? std::max(last, failure->at_ns) : last;
}

std::string RankRing::who() const {
  return fmt::format(
      "rank {}{} (process {} on {})", rank(),
      origin.launched == rank() ? "" : fmt::format(", launched as {},", origin.launched),
      origin.pid, text_in(origin.host));
}

RankRing read_ring(const std::filesystem::path& path) {
  for (int tries = 1;; ++tries) {
    try {
      const std::string bytes = read_file(path, 4 * kFileBytes);
      RankRing ring = RingBytes(path, bytes).decode();
      ring.process = look_at(ring.origin);
      return ring;
    } catch (const Damaged&) {
      if (tries == kTries) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

namespace {

// Sorts the rings of one start of a job by formations. If a rank has two, the later one counts: the
// former one is of an earlier job with the same name.
JobRings by_formations(std::vector<RankRing> rings) {
  std::ranges::sort(rings, std::ranges::greater(),
                    [](const RankRing& ring) { return ring.origin.wall_ns; });
  std::map<uint32_t, std::vector<RankRing>> formations;
  const uint32_t last = rings.front().formation();
  for (RankRing& ring : rings) {
    std::vector<RankRing>& of = formations[ring.formation()];
    const bool is_former =
        !of.empty() && (ring.origin.ranks != of.front().origin.ranks ||
                        of.front().origin.wall_ns - ring.origin.wall_ns > kBegin ||
                        std::ranges::find(of, ring.rank(), &RankRing::rank) != of.end());
    if (!is_former) of.push_back(std::move(ring));
  }
  for (auto& [formation, of] : formations) std::ranges::sort(of, {}, &RankRing::rank);
  JobRings job;
  job.rings = std::move(formations[last]);
  formations.erase(last);
  for (auto& [formation, of] : formations) job.earlier.push_back(std::move(of));
  return job;
}

int64_t begun(const std::vector<RankRing>& rings) {
  return std::ranges::max(rings, {}, [](const RankRing& ring) { return ring.origin.wall_ns; })
      .origin.wall_ns;
}

}  // namespace

bool JobRings::runs() const {
  return std::ranges::any_of(rings, [](const RankRing& ring) {
    return ring.process == ProcessState::Runs || ring.process == ProcessState::Stopped;
  });
}

std::vector<JobRings> read_jobs(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> paths;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with("ring-")) paths.push_back(entry->path());
  }
  if (error) throw IoError("read", folder, error.value());
  std::ranges::sort(paths);
  std::vector<std::string> problems;
  std::map<std::string, std::vector<RankRing>> starts;
  for (const auto& path : paths) {
    try {
      RankRing ring = read_ring(path);
      starts[start_of(ring.origin)].push_back(std::move(ring));
    } catch (const UserError& problem) {
      problems.emplace_back(problem.what());
    }
  }
  std::map<std::string, std::vector<RankRing>> jobs;
  for (auto& [start, rings] : starts) {
    std::vector<RankRing>& job = jobs[std::string(text_in(rings.front().origin.job))];
    if (job.empty() || begun(job) < begun(rings)) job = std::move(rings);
  }
  std::vector<JobRings> found;
  for (auto& [name, rings] : jobs) found.push_back(by_formations(std::move(rings)));
  std::ranges::sort(found, std::ranges::greater(),
                    [](const JobRings& job) { return begun(job.rings); });
  if (found.empty() && !problems.empty()) found.emplace_back();
  if (!found.empty()) found.front().problems = std::move(problems);
  return found;
}

JobRings read_rings(const std::filesystem::path& folder, std::string_view job) {
  std::vector<JobRings> jobs = read_jobs(folder);
  const auto is_it = [&](const JobRings& of) {
    return job.empty() || (!of.rings.empty() && text_in(of.origin().job) == job);
  };
  const auto found = std::ranges::find_if(jobs, is_it);
  return found == jobs.end() ? JobRings() : std::move(*found);
}

}  // namespace tinyshard::recorder
