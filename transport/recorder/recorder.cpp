// Example: rank 1 starts its 5,000th call. The count of calls becomes 5,000, the record is written
// at place 4,999 % 4,096 = 903 over that of call 904, its check last, and its time of completion is
// set when the call is done. A process that is killed in between leaves one record whose check is
// wrong, and it is the newest one.
#include "transport/recorder/recorder.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <mutex>
#include <new>
#include <span>
#include <sys/mman.h>
#include <unistd.h>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/options.h"
#include "core/base/process.h"
#include "core/base/signals.h"
#include "launch/secret.h"
#include "transport/process_watch.h"
#include "transport/recorder/ring_file.h"
#include "transport/recorder/ring_reader.h"
#include "transport/text_field.h"

namespace tinyshard {

namespace recorder {

uint64_t check_of(const void* begin, const void* end) {
  const auto* at = static_cast<const std::byte*>(begin);
  const auto* last = static_cast<const std::byte*>(end);
  uint64_t sum = 0x9e3779b97f4a7c15ull;
  for (; at < last; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    sum = (std::rotl(sum, 23) ^ word) * 0xd6e8feb86659fd93ull;
  }
  return mix(sum);
}

}  // namespace recorder

namespace {

using namespace recorder;

constexpr size_t kMostSites = 4096;  // whose numbers are remembered by their address
// The launcher of a job that has ended may ask for the reason so long.
constexpr std::chrono::seconds kIsAskedFor{60};

int64_t nanoseconds(Deadline time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

std::string own_host() {
  std::array<char, 64> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

}  // namespace

struct Recorder::State {
  std::byte* memory = nullptr;
  FileHeader* header = nullptr;
  CallRecord* calls = nullptr;
  char* texts = nullptr;
  const int forks = times_forked();  // a child of this process has its own memory of the ring

  std::mutex mutex;     // of the texts and the failure
  uint64_t worlds = 1;  // that this ring was opened for
  std::map<std::string, uint32_t, std::less<>> numbers;
  // The pointer is held, so that its address belongs to this site for good.
  std::unordered_map<const CollectiveSite*,
                     std::pair<std::shared_ptr<const CollectiveSite>, uint32_t>>
      sites;

  ~State() {
    if (memory != nullptr) munmap(memory, kFileBytes);
  }

  uint32_t number_of(const std::string& text) {
    if (const auto known = numbers.find(text); known != numbers.end()) return known->second;
    const uint32_t used = header->text_used.load(std::memory_order_relaxed);
    const auto length = static_cast<uint32_t>(text.size());
    if (kTextBytes - used < length + sizeof(length)) return 0;
    std::memcpy(texts + used, &length, sizeof(length));
    std::memcpy(texts + used + sizeof(length), text.data(), length);
    header->text_used.store(used + length + uint32_t(sizeof(length)), std::memory_order_release);
    return numbers.emplace(text, used + 1).first->second;
  }

  uint32_t number_of(const std::shared_ptr<const CollectiveSite>& site) {
    if (!site) return 0;
    const std::lock_guard lock(mutex);
    if (const auto known = sites.find(site.get()); known != sites.end())
      return known->second.second;
    if (sites.size() == kMostSites) sites.clear();
    const uint32_t number =
        number_of(fmt::format("{}\n{}\n{}", site->axis, site->purpose, site->source));
    sites.emplace(site.get(), std::pair(site, number));
    return number;
  }

  uint64_t write(CallRecord& record) {
    const uint64_t serial = header->started.fetch_add(1, std::memory_order_relaxed) + 1;
    record.serial = serial;
    record.check = check_of(&record, &record.check);
    CallRecord& to = calls[(serial - 1) % kCalls];
    to.completed_ns.store(0, std::memory_order_relaxed);
    std::memcpy(static_cast<void*>(&to), &record, offsetof(CallRecord, completed_ns));
    return serial;
  }
};

namespace {

// Rings that this process writes, or wrote.
struct Open {
  std::mutex mutex;
  struct Ring {
    std::weak_ptr<Recorder> recorder;
    std::filesystem::path path;
  };
  std::map<std::string, Ring, std::less<>> rings;  // by folder, job, epoch and rank
  std::map<FileHeader*, int> headers;              // and how often the process had been forked then
};
Open& open_rings() {
  static auto& instance = *new Open;  // used while the process exits
  return instance;
}

void note_exit(int status, void*) {
  Open& open = open_rings();
  const std::lock_guard lock(open.mutex);
  for (auto& [header, forks] : open.headers) {
    if (forks != times_forked()) continue;
    header->exit_status = status;
    header->ending.store(status == 0 ? Ending::Well : Ending::Badly, std::memory_order_release);
  }
}

}  // namespace

namespace {

std::string name_of(const Recorder::Place& place) {
  std::string host = own_host();
  std::ranges::replace(host, '/', '-');
  uint32_t nonce = 0;
  fill_random(std::as_writable_bytes(std::span(&nonce, 1)));
  return fmt::format("ring-{}.{:08x}.{}.{}.{:08x}", place.rank, hash_text(place.job) & 0xffffffff,
                     place.epoch, host, nonce);
}

bool is_stale(const std::filesystem::path& path, const recorder::Origin& origin,
              const Recorder::Place& place) {
  const bool of_this_job =
      text_in(origin.job) == std::string_view(place.job).substr(0, origin.job.size() - 1);
  if (of_this_job && (origin.epoch != place.epoch || origin.rank != place.rank)) return false;
  if (look_at(origin) != ProcessState::Ended) return false;
  std::error_code error;
  const auto written = std::filesystem::last_write_time(path, error);
  return of_this_job ||
         (!error && std::filesystem::file_time_type::clock::now() - written > kIsAskedFor);
}

// Leaves what cannot be read or removed: it harms nobody.
void remove_stale(const std::filesystem::path& folder, const Recorder::Place& place) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path path = entry->path();
    if (!path.filename().string().starts_with("ring-")) continue;
    const auto origin = read_origin(path);
    std::error_code ignored;
    if (origin && is_stale(path, *origin, place)) std::filesystem::remove(path, ignored);
  }
}

}  // namespace

std::shared_ptr<Recorder> Recorder::open(const Place& place) {
  const std::string& folder = options().record;
  if (folder.empty()) return nullptr;
  try {
    return open(folder, place);
  } catch (const IoError& error) {
    // A recorder that is to tell of failures must not be one itself.
    static std::atomic<bool> told{false};
    if (!told.exchange(true))
      log_line(fmt::format("rank {} keeps no ring: {}", place.rank, error.what()));
    return nullptr;
  }
}

std::shared_ptr<Recorder> Recorder::open(const std::string& folder, const Place& place) {
  static const bool tells = on_exit(note_exit, nullptr) == 0;
  static_cast<void>(tells);
  Open& rings = open_rings();
  const std::lock_guard lock(rings.mutex);
  Open::Ring& known =
      rings.rings[fmt::format("{}\n{}\n{}\n{}", folder, place.job, place.epoch, place.rank)];
  if (auto ring = known.recorder.lock()) {
    const std::lock_guard counting(ring->state_->mutex);
    ++ring->state_->worlds;
    return ring;
  }

  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError("create", folder, error.value());
  if (!known.path.empty()) std::filesystem::remove(known.path, error);
  remove_stale(folder, place);
  const std::filesystem::path path = std::filesystem::path(folder) / name_of(place);
  const Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) throw IoError("create", path, errno);
  // Reserved now: a full disk would end the process at a write to the map.
  const int problem = [&] {
    const NoFileSizeSignal no_signal;
    return posix_fallocate(file.get(), 0, kFileBytes);
  }();
  if (problem != 0) {
    std::filesystem::remove(path, error);
    throw IoError("reserve room for", path, problem);
  }
  void* memory = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) throw IoError("map", path, errno);

  auto state = std::make_unique<State>();
  state->memory = static_cast<std::byte*>(memory);
  state->header = new (memory) FileHeader();
  state->calls = new (state->memory + kHeaderBytes) CallRecord[kCalls];
  state->texts = reinterpret_cast<char*>(state->memory + kTextOffset);
  const ProcessAddress process = ProcessAddress::own();
  recorder::Origin& origin = state->header->origin;
  origin.rank = place.rank;
  origin.ranks = place.ranks;
  origin.epoch = place.epoch;
  origin.launched = place.launched < 0 ? place.rank : place.launched;
  origin.pid = process.pid;
  origin.host_id = process.host;
  origin.pid_namespace = process.namespace_;
  origin.steady_ns = nanoseconds(std::chrono::steady_clock::now());
  origin.wall_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  put_text(origin.job, place.job);
  put_text(origin.host, own_host());
  put_text(origin.program, program_invocation_short_name);
  origin.check = check_of(&origin, &origin.check);
  state->header->beat_ns = origin.steady_ns;
  rings.headers.emplace(state->header, state->forks);
  std::shared_ptr<Recorder> ring(new Recorder(std::move(state)));
  known = {ring, path};
  return ring;
}

Recorder::Recorder(std::unique_ptr<State> state) : state_(std::move(state)) {}

Recorder::~Recorder() {
  Open& open = open_rings();
  const std::lock_guard lock(open.mutex);
  open.headers.erase(state_->header);
  if (state_->forks != times_forked()) return;
  const bool failed = state_->header->failed.load() != 0;
  state_->header->ending.store(failed ? Ending::Badly : Ending::Well, std::memory_order_release);
}

Recorder::GroupName Recorder::name_group(uint64_t id, std::string_view name,
                                         std::span<const int> ranks) {
  const std::lock_guard lock(state_->mutex);
  return {combine(id, state_->worlds),
          state_->number_of(fmt::format("{}\n{}", name, fmt::join(ranks, ",")))};
}

uint64_t Recorder::start(const Collective& call, const GroupName& group, uint64_t sequence,
                         Deadline now) {
  CallRecord record;
  record.started_ns = nanoseconds(now);
  record.group = group.id;
  record.group_text = group.text;
  record.sequence = sequence;
  record.count = call.count;
  for (size_t count : call.counts) record.counts_hash = combine(record.counts_hash, count);
  record.schedule = call.ticket.schedule;
  record.run = call.ticket.run;
  record.item = call.ticket.item;
  record.context_epoch = static_cast<uint32_t>(call.ticket.epoch);
  record.from = call.from;
  record.to = call.to;
  record.site_text = state_->number_of(call.site);
  record.op = static_cast<uint8_t>(call.op);
  record.reduce = static_cast<uint8_t>(call.reduce);
  record.dtype = static_cast<uint8_t>(call.dtype);
  return state_->write(record);
}

void Recorder::complete(uint64_t serial, Deadline now) {
  // A call that has been overwritten is not told.
  if (state_->header->started.load(std::memory_order_relaxed) - serial >= kCalls) return;
  state_->calls[(serial - 1) % kCalls].completed_ns.store(nanoseconds(now),
                                                          std::memory_order_relaxed);
}

void Recorder::run(const Ticket& ticket, const GroupName& group, Deadline now) {
  CallRecord record;
  record.kind = RecordKind::Run;
  record.started_ns = nanoseconds(now);
  record.group = group.id;
  record.group_text = group.text;
  record.schedule = ticket.schedule;
  record.run = ticket.run;
  record.context_epoch = static_cast<uint32_t>(ticket.epoch);
  state_->write(record);
}

void Recorder::fail(int culprit, FailureCause cause, std::string_view text) {
  FileHeader& header = *state_->header;
  const std::lock_guard lock(state_->mutex);
  if (header.failed.load() != 0) return;
  header.culprit = culprit;
  header.cause = cause;
  header.failed_ns = nanoseconds(std::chrono::steady_clock::now());
  put_text(header.failure, text);
  header.failed.store(1, std::memory_order_release);
}

void Recorder::beat(Deadline now) {
  state_->header->beat_ns.store(nanoseconds(now), std::memory_order_relaxed);
}

}  // namespace tinyshard
