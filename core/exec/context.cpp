// An epoch's devices, communicators and programs are made when they are first asked for and found in
// tables from then on. Whoever uses the context is counted (Context::Use). The end of an epoch lets no
// new use begin, waits until the count is zero (Context::Ending) and then takes down what there is,
// captured graphs before communicators before devices.
#include "core/exec/context.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/options.h"
#include "core/base/process.h"
#include "core/base/thread_local.h"
#include "core/codegen/kernel.h"
#include "core/exec/kept_in_place.h"

namespace tinyshard {
namespace {

// How many uses and turns this thread is in; only the outermost ones count for others.
struct Inside {
  int uses = 0, turns = 0;
};
TS_HOT_THREAD_LOCAL Inside inside;

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size() && !text.empty();) {
    size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return text;
}

}  // namespace

DeviceRef parse_device(const std::string& text) {
  size_t colon = text.find(':');
  DeviceRef ref{upper(text.substr(0, colon)), DeviceRef::kHere, 0};
  if (colon != std::string::npos) {
    const char* begin = text.data() + colon + 1;
    auto [end, error] = std::from_chars(begin, text.data() + text.size(), ref.index);
    if (error != std::errc() || end != text.data() + text.size() || ref.index < 0) {
      fail(fmt::format("\"{}\" names no device: a kind, or a kind and a number from 0", text));
    }
  }
  const auto& kinds = builtins().devices;
  auto kind = std::ranges::find(kinds, ref.kind, &DeviceKind::name);
  if (kind == kinds.end()) {
    std::string known;
    for (const DeviceKind& k : kinds) known += (known.empty() ? "" : ", ") + k.name;
    fail(fmt::format("there is no kind of device named \"{}\" (in \"{}\"); known: {}", ref.kind,
                     text, known));
  }
  if (int count = kind->count(); ref.index >= count) {
    fail(count == 0
             ? fmt::format("no device \"{}\": {}", text, kind->detail())
             : fmt::format("no device \"{}\": there are {} of kind {}", text, count, ref.kind));
  }
  return ref;
}

// Costs one atomic addition, unless an epoch ends: then the use waits for its end.
Context::Use::Use() {
  if (inside.uses++ > 0) return;
  std::atomic<uint32_t>& all = process().uses_;
  while (all.fetch_add(1, std::memory_order_acquire) & kEnding) {
    if (all.fetch_sub(1, std::memory_order_release) == kEnding + 1) all.notify_all();
    for (uint32_t now; (now = all.load(std::memory_order_relaxed)) & kEnding;) all.wait(now);
  }
}
Context::Use::~Use() {
  if (--inside.uses > 0) return;
  std::atomic<uint32_t>& all = process().uses_;
  if (all.fetch_sub(1, std::memory_order_release) == kEnding + 1) all.notify_all();
}

namespace {

// How long an exit waits for a run, and a run for the end of the process.
constexpr auto kExitPatience = std::chrono::seconds(10);
constexpr size_t kMostHandlers = 1000;  // of one exit, each in front of what libraries did before
constexpr std::string_view kDiverged = "the ranks diverged";  // begins what communicators say of it

}  // namespace

// A library also makes static objects while it runs for the first time, as LLVM does in the middle of a
// compilation, and these end before any handler that was there by then. But exit() destroys what is
// thread_local in its thread before all of them: time for one handler more, in front.
Context::Turn::Turn() {
  struct LeadsAtExit {
    ~LeadsAtExit() { is_main_thread() ? come_first_at_exit() : libraries_were_used(); }
  };
  thread_local const LeadsAtExit leads;
  if (inside.turns == 0 && !process().turns_.try_acquire()) wait_for_turn();
  ++inside.turns;
}

// The main thread may exit without having computed anything.
[[maybe_unused]] static const bool main_thread_leads = (Context::Turn(), true);

void Context::wait_for_turn() {
  while (!process().turns_.try_acquire_for(std::chrono::milliseconds(100))) {
    if (!is_exiting()) continue;
    // Whoever still waits for this thread then, such as a destructor that joins it, shall not for ever.
    std::this_thread::sleep_for(kExitPatience);
    check_not_exiting("nothing can be computed");
  }
}

void Context::come_first_at_exit() { static_cast<void>(on_exit(take_last_turn, nullptr)); }

// The more has run, the less is new.
void Context::libraries_were_used() {
  static std::atomic<uint64_t> times{0};
  if (const uint64_t now = ++times; now <= kMostHandlers || std::has_single_bit(now))
    come_first_at_exit();
}

// The thread that exits computes no more, either, but may try to: its destructors get errors, and
// sleep for nobody. Before that a rank that ends well hears whether it computed what the others did; if
// not, this is no good end: the C library goes on with the handlers that are left, and this status.
void Context::take_last_turn(int status, void*) {
  Context& context = process();
  if (context.now_ && context.now_->forks != times_forked()) return;  // no thread here has one
  const bool is_within = inside.turns > 0;
  if (!is_within && !context.turns_.try_acquire_for(kExitPatience)) return;
  ++inside.turns;
  static bool compared = false;
  if (is_within || status != 0 || std::exchange(compared, true)) return;
  try {
    context.compare_last_ledgers();
  } catch (const CommError& error) {
    log_line(error.what());
    std::exit(1);  // NOLINT(concurrency-mt-unsafe)
  }
}

// CommError where ranks have given other values. That a rank is gone, or has left, costs this one
// nothing any more.
void Context::compare_last_ledgers() {
  const Use use;
  if (!has_begun_.load(std::memory_order_acquire) || !now_->world || now_->ranks == 1) return;
  try {
    compare_ledgers("the end of the program", true);
  } catch (const CommError& error) {
    if (error.info().detail.find(kDiverged) != std::string::npos) throw;
  }
}
Context::Turn::~Turn() {
  if (--inside.turns == 0) process().turns_.release();
}

// Lets no new use begin, and waits for those under way. It counts as a use itself, so that parts
// which end within it need not wait for it.
class Context::Ending {
 public:
  explicit Ending(Context& context) : context_(context), one_at_a_time_(context.ending_) {
    context.uses_.fetch_or(kEnding, std::memory_order_acquire);
    for (uint32_t now; (now = context.uses_.load(std::memory_order_acquire)) != kEnding;)
      context.uses_.wait(now);
    ++inside.uses;
  }
  ~Ending() {
    --inside.uses;
    context_.uses_.fetch_and(~kEnding, std::memory_order_release);
    context_.uses_.notify_all();
  }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

 private:
  Context& context_;
  std::lock_guard<std::mutex> one_at_a_time_;
};

// Lives on when the process exits: the vendors' libraries have torn themselves down by then.
Context& Context::process() {
  static auto& context = *new Context;
  return context;
}

LiveValues& Context::values() { return process().values_; }
RuntimeParts& Context::parts() { return process().parts_; }

Context& Context::get() {
  Context& context = process();
  const Use use;
  if (!context.has_begun_.load(std::memory_order_acquire)) {
    std::lock_guard lock(context.beginning_);
    if (!context.now_) context.begin({});
  }
  check_is_ours();
  return context;
}

bool Context::is_ours() noexcept {
  const Context& context = process();
  if (!context.has_begun_.load(std::memory_order_acquire)) return true;
  if (context.now_->forks == times_forked()) return true;
  return context.now_->ranks == 1 &&
         std::ranges::none_of(context.now_->open, [&](const auto& entry) {
           auto kind = std::ranges::find(builtins().devices, entry.first.first, &DeviceKind::name);
           return kind != builtins().devices.end() && kind->hardware;
         });
}

void Context::check_is_ours() {
  const Use use;
  if (is_ours()) return;
  const Epoch& epoch = *process().now_;
  throw UserError(
      fmt::format("this process was forked from one that uses {}, which its child cannot: fork "
                  "before the first "
                  "tensor, or start another program",
                  epoch.ranks > 1 ? fmt::format("a job of {} ranks", epoch.ranks)
                                  : epoch.devices.front().to_string()));
}

void Context::configure(const RuntimeOptions& options) {
  Context& context = process();
  const Use use;
  std::lock_guard lock(context.beginning_);
  if (context.now_) fail("devices are in use already; configure before the first tensor");
  context.begin(options);
}

void Context::shutdown() {
  if (inside.uses > 0)
    throw UserError("Runtime::shutdown: called from inside of a run, by an observer");
  const bool compares = [] {
    const Use use;
    return process().has_begun_.load(std::memory_order_acquire) && process().now_->ranks > 1 &&
           is_ours() && !is_exiting();
  }();
  if (compares) {
    const Turn turn;
    process().compare_last_ledgers();
  }
  end_epoch();
}

void Context::end_epoch() {
  Context& context = process();
  const Ending ending(context);
  if (context.now_) {
    check_is_ours();
    for (auto& [name, device] : context.now_->open) {
      try {
        device->synchronize();
      } catch (const Error& e) {  // what it was doing is lost in any case
        log_line(fmt::format("Runtime::shutdown: {}", e.what()));
      }
    }
  }
  if (context.now_) KeptInPlace::epoch_ends();
  context.parts_.end_all();
  context.has_begun_ = false;
  context.world_ = nullptr;
  const std::unique_ptr<Epoch> last = std::move(context.now_);
}

// Another rank may be lost while the others meet: they then agree once more, without it.
void Context::reform() {
  const RuntimeOptions options = [] {
    const Use use;
    return get().configured_;
  }();
  int attempts = std::max(1, builtins().launch()[0].second);
  for (;; --attempts) {
    end_epoch();
    builtins().reform();
    const Use use;
    Context& context = process();
    {
      const std::lock_guard lock(context.beginning_);
      if (context.now_)
        throw UserError(
            "Runtime::reform: another thread used the library meanwhile; let one thread re-form");
      context.begin(options);
    }
    try {
      context.world();
      return;
    } catch (const CommError& error) {
      if (attempts <= 1) throw;
      log_line(fmt::format("re-forming once more: {}", error.what()));
    }
  }
}

const World& Context::world_now() {
  for (;;) {  // another thread may end the epoch that this one has found
    if (const World* world = process().world_.load(std::memory_order_acquire)) return *world;
    get();
  }
}

void Context::begin(const RuntimeOptions& wanted) {
  auto next = std::make_unique<Epoch>();
  Epoch& epoch = *next;
  epoch.forks = times_forked();
  watch_for_exit();
  come_first_at_exit();
  auto launch = builtins().launch();
  std::tie(epoch.rank, epoch.ranks) = launch[0];
  epoch.local_ranks = launch[1].second;
  int local_rank = launch[1].first;
  if (wanted.devices_per_rank < 0)
    fail(fmt::format("devices_per_rank is {}", wanted.devices_per_rank));
  const int per_rank =
      wanted.devices_per_rank > 0 ? wanted.devices_per_rank : options().devices_per_rank;
  std::vector<std::string> names =
      wanted.devices.empty() ? split_list(options().devices) : wanted.devices;
  if (names.empty()) {
    const auto& kinds = builtins().devices;
    auto best = std::ranges::find_if(kinds, [](const DeviceKind& k) { return k.count() > 0; });
    check_internal(best != kinds.end(), "there is always a CPU");
    names = share_out(epoch, *best, std::max(1, per_rank), local_rank);
  } else if (names.size() == 1 && names[0].find(':') == std::string::npos) {
    const DeviceKind& named = kind(parse_device(names[0]).kind);
    int each = per_rank;
    if (each == 0) each = named.hardware ? named.count() / std::max(1, epoch.local_ranks) : 1;
    names = share_out(epoch, named, std::max(1, each), local_rank);
  }
  for (const std::string& name : names) {
    DeviceRef ref = parse_device(name);
    if (std::ranges::find(epoch.devices, ref) != epoch.devices.end()) {
      fail(fmt::format("device \"{}\" is named twice", name));
    }
    epoch.devices.push_back(ref);
  }
  if (wanted.devices_per_rank > 0 && wanted.devices_per_rank != int(epoch.devices.size())) {
    fail(fmt::format("{} devices are named but devices_per_rank is {}", epoch.devices.size(),
                     wanted.devices_per_rank));
  }
  World world;
  world.rank = epoch.rank;
  world.ranks = epoch.ranks;
  for (int r = 0; r < epoch.ranks; ++r) {
    for (DeviceRef ref : epoch.devices) {
      ref.rank = epoch.ranks > 1 ? r : DeviceRef::kHere;
      world.devices.push_back(ref);
    }
  }
  // Shares that are not even, as of a job that lost ranks, are not known to be of one host each.
  if (wanted.hosts < 0) fail(fmt::format("hosts is {}", wanted.hosts));
  const int hosts = wanted.hosts > 0 ? wanted.hosts : options().hosts;
  const auto shared = epoch.ranks > 1 ? epoch.ranks : int(epoch.devices.size());
  if (hosts > 0 && shared % hosts == 0) world.hosts = hosts;
  if (epoch.ranks > 1) set_log_rank(epoch.rank);
  builtins().observe(epoch.rank, epoch.ranks);
  if (options().debug >= 1) {
    std::string told;
    for (const DeviceRef& ref : epoch.devices) told += (told.empty() ? "" : ", ") + ref.to_string();
    log_line(fmt::format("rank {} of {} computes on {}", epoch.rank, epoch.ranks, told));
  }
  auto known = std::ranges::find_if(worlds_, [&](const auto& w) { return *w == world; });
  if (known == worlds_.end()) {
    worlds_.push_back(std::make_unique<const World>(std::move(world)));
    known = worlds_.end() - 1;
  }
  configured_ = wanted;
  epoch.number = ++epochs_;
  now_ = std::move(next);
  world_ = known->get();
  has_begun_.store(true, std::memory_order_release);
}

// Every rank calls its own CUDA:0, CUDA:1...: all build the same program. Which pieces of hardware
// these are depends on the rank's place on its host.
std::vector<std::string> Context::share_out(Epoch& epoch, const DeviceKind& kind, int each,
                                            int local_rank) {
  if (kind.hardware) {
    epoch.first_of_kind[kind.name] = local_rank * each;
    if (int last = (local_rank + 1) * each; last > kind.count() && kind.count() > 0) {
      throw UserError(fmt::format(
          "rank {} of this host gets {}:{}, but there are {} of kind {}: start fewer ranks a host, "
          "or name the devices of each (--devices, TS_DEVICES)",
          local_rank, kind.name, last - 1, kind.count(), kind.name));
    }
  }
  std::vector<std::string> names;
  for (int i = 0; i < each; ++i) names.push_back(fmt::format("{}:{}", kind.name, i));
  return names;
}

const DeviceKind& Context::kind(const std::string& name) const {
  for (const DeviceKind& k : builtins().devices) {
    if (k.name == name) return k;
  }
  throw UserError(fmt::format("there is no kind of device named \"{}\"", name));
}

Device& Context::device(const DeviceRef& ref) {
  std::lock_guard lock(now_->mutex);
  auto& device = now_->open[{ref.kind, ref.index}];
  if (!device) {
    auto first = now_->first_of_kind.find(ref.kind);
    int number = ref.index + (first == now_->first_of_kind.end() ? 0 : first->second);
    device = kind(ref.kind).open(number, now_->local_ranks);
  }
  return *device;
}

std::vector<Device*> Context::open_devices() const {
  std::lock_guard lock(now_->mutex);
  std::vector<Device*> devices;
  for (const auto& [name, device] : now_->open) {
    if (device) devices.push_back(device.get());
  }
  return devices;
}

std::vector<int> Context::local_positions(const Mesh& mesh) const {
  std::vector<int> positions;
  for (int p = 0; p < int(mesh.size()); ++p) {
    int rank = mesh.devices()[p].rank;
    if (rank == DeviceRef::kHere || rank == now_->rank) positions.push_back(p);
  }
  return positions;
}

std::vector<AxisGroup> Context::groups_along(const Mesh& mesh, int axis) const {
  const std::vector<int> local = local_positions(mesh);
  int64_t stride = 1;
  for (size_t a = mesh.axes().size(); a-- > size_t(axis) + 1;) stride *= mesh.axes()[a].size;
  std::map<int64_t, AxisGroup> groups;  // by the first position
  for (size_t l = 0; l < local.size(); ++l) {
    const int64_t first = local[l] - mesh.coordinates(local[l])[axis] * stride;
    AxisGroup& group = groups[first];
    for (int64_t k = 0; group.local.empty() && k < mesh.axes()[axis].size; ++k)
      group.positions.push_back(int(first + k * stride));
    group.local.push_back(l);
  }
  std::vector<AxisGroup> out;
  for (auto& [first, group] : groups) out.push_back(std::move(group));
  return out;
}

Communicator& Context::world() {
  if (!now_->world) now_->world = builtins().connect(int(now_->devices.size()));
  return *now_->world;
}

Communicator* Context::device_communicator(Communicator& group,
                                           const std::vector<Device*>& devices) {
  auto [entry, added] = now_->device_groups.try_emplace({&group, devices});
  if (added && builtins().connect_devices) {
    std::string why;
    entry->second = builtins().connect_devices(group, devices, &why);
    if (options().debug >= 1)
      log_line(entry->second
                   ? fmt::format("group \"{}\" uses {}", group.name(), entry->second->transport())
                   : fmt::format("group \"{}\" goes through the host: {}", group.name(), why));
  }
  return entry->second.get();
}

Communicator& Context::communicator(const Mesh& mesh, int axis, int position) {
  std::vector<int64_t> place = mesh.coordinates(position);
  int64_t stride = 1;
  for (size_t a = mesh.axes().size(); a-- > size_t(axis) + 1;) stride *= mesh.axes()[a].size;
  int64_t first = position - place[axis] * stride;
  bool here = true;
  for (int64_t i = 0; i < mesh.axes()[axis].size; ++i) {
    int owner = mesh.devices()[first + i * stride].rank;
    here = here && (owner == DeviceRef::kHere || owner == now_->rank);
  }
  if (here) {
    auto& group = now_->local_groups[mesh.axes()[axis].size];
    if (!group) group = builtins().connect_local(int(mesh.axes()[axis].size));
    return *group;
  }
  std::vector<int> participants;
  const auto& all = tinyshard::world().devices;
  for (int64_t i = 0; i < mesh.axes()[axis].size; ++i) {
    const DeviceRef& ref = mesh.devices()[first + i * stride];
    auto found = std::ranges::find(all, ref);
    if (found == all.end()) {
      throw UserError(fmt::format(
          "device {} is not one of the devices of this job; name it in --devices or TS_DEVICES",
          ref.to_string()));
    }
    participants.push_back(int(found - all.begin()));
  }
  return group_of(participants, fmt::format("axis \"{}\"", mesh.axes()[axis].name));
}

Communicator& Context::group_of(const std::vector<int>& participants, std::string_view name) {
  if (participants.size() == tinyshard::world().devices.size() &&
      std::ranges::is_sorted(participants))
    return world();
  auto& group = now_->groups[participants];
  if (!group) group = world().split(participants, std::string(name));
  return *group;
}

Communicator& Context::communicator_of(const std::vector<int>& ranks) {
  std::vector<int> participants;
  const auto& all = tinyshard::world().devices;
  for (size_t p = 0; p < all.size(); ++p) {
    if (std::ranges::binary_search(ranks, all[p].rank)) participants.push_back(int(p));
  }
  return group_of(participants, fmt::format("ranks {}", fmt::join(ranks, ", ")));
}

void Context::compare_ledgers(std::string_view asked, bool is_the_end) {
  for (const Ledger* ledger : now_->ledgers.due(is_the_end)) {
    if (is_the_end && world().failed()) return;  // which its ranks know
    Communicator& group = communicator_of(ledger->ranks());
    if (is_the_end && group.failed()) continue;
    RunIdentity identity{.label = "a comparison of values", .asked = asked};
    now_->ledgers.identify(ledger->ranks(), identity);
    std::vector<uint8_t> bytes(group.local().size());
    std::vector<CommBuffer> buffers;
    for (uint8_t& byte : bytes) buffers.push_back({&byte});
    group
        .start({.op = CollectiveOp::AllReduce,
                .reduce = ReduceOp::Max,
                .dtype = DType::U8,
                .count = 1,
                .identity = &identity},
               buffers, buffers)
        .wait();
  }
}

}  // namespace tinyshard
