#include "core/exec/runtime.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/options.h"
#include "core/base/process.h"
#include "core/codegen/kernel.h"
#include "core/exec/runtime_part.h"
#include "multi/mesh_names.h"

namespace tinyshard {
namespace {

// Lives on when the process exits: the vendors' libraries have torn themselves down by then.
std::unique_ptr<Runtime>& instance() {
  static auto* runtime = new std::unique_ptr<Runtime>;
  return *runtime;
}

const bool world_is_found =
    (find_world_by([] { Runtime::get(); }), find_devices_by(parse_device), true);

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

Runtime& Runtime::get() {
  if (!instance()) instance().reset(new Runtime({}));
  check_is_ours();
  return *instance();
}

bool Runtime::is_ours() noexcept {
  const std::unique_ptr<Runtime>& runtime = instance();
  if (!runtime || runtime->forks_ == times_forked()) return true;
  return runtime->ranks_ == 1 && std::ranges::none_of(runtime->open_, [&](const auto& entry) {
           auto kind = std::ranges::find(builtins().devices, entry.first.first, &DeviceKind::name);
           return kind != builtins().devices.end() && kind->hardware;
         });
}

void Runtime::check_is_ours() {
  if (is_ours()) return;
  const Runtime& runtime = *instance();
  throw UserError(
      fmt::format("this process was forked from one that uses {}, which its child cannot: fork "
                  "before the first "
                  "tensor, or start another program",
                  runtime.ranks_ > 1 ? fmt::format("a job of {} ranks", runtime.ranks_)
                                     : runtime.devices_.front().to_string()));
}

void Runtime::configure(const RuntimeOptions& options) {
  if (instance())
    throw UserError(
        "Runtime::configure: devices are in use already; configure before the first tensor");
  instance().reset(new Runtime(options));
}

void Runtime::shutdown() {
  if (instance()) {
    check_is_ours();
    for (auto& [name, device] : instance()->open_) {
      try {
        device->synchronize();
      } catch (const Error& e) {  // what it was doing is lost in any case
        log_line(fmt::format("Runtime::shutdown: {}", e.what()));
      }
    }
  }
  RuntimePart::end_all();
  instance().reset();
  set_world(std::nullopt);
}

Runtime::Runtime(const RuntimeOptions& wanted) : forks_(times_forked()) {
  watch_for_exit();
  auto launch = builtins().launch();
  std::tie(rank_, ranks_) = launch[0];
  local_ranks_ = launch[1].second;
  int local_rank = launch[1].first;
  if (wanted.devices_per_rank < 0)
    throw UserError(fmt::format("devices_per_rank is {}", wanted.devices_per_rank));
  std::vector<std::string> names =
      wanted.devices.empty() ? split_list(options().devices) : wanted.devices;
  if (names.empty()) {
    const auto& kinds = builtins().devices;
    auto best = std::ranges::find_if(kinds, [](const DeviceKind& k) { return k.count() > 0; });
    check_internal(best != kinds.end(), "there is always a CPU");
    names = share_out(*best, std::max(1, wanted.devices_per_rank), local_rank);
  } else if (names.size() == 1 && names[0].find(':') == std::string::npos) {
    const DeviceKind& named = kind(parse_device(names[0]).kind);
    int each = wanted.devices_per_rank;
    if (each == 0) each = named.hardware ? named.count() / std::max(1, local_ranks_) : 1;
    names = share_out(named, std::max(1, each), local_rank);
  }
  for (const std::string& name : names) {
    DeviceRef ref = parse_device(name);
    if (std::ranges::find(devices_, ref) != devices_.end()) {
      throw UserError(fmt::format("device \"{}\" is named twice", name));
    }
    devices_.push_back(ref);
  }
  if (wanted.devices_per_rank > 0 && wanted.devices_per_rank != int(devices_.size())) {
    throw UserError(fmt::format("{} devices are named but devices_per_rank is {}", devices_.size(),
                                wanted.devices_per_rank));
  }
  World world;
  world.rank = rank_;
  world.ranks = ranks_;
  for (int r = 0; r < ranks_; ++r) {
    for (DeviceRef ref : devices_) {
      ref.rank = ranks_ > 1 ? r : DeviceRef::kHere;
      world.devices.push_back(ref);
    }
  }
  set_world(std::move(world));
  if (ranks_ > 1) set_log_rank(rank_);
}

Runtime::~Runtime() {
  device_groups_.clear();
  groups_.clear();
  local_groups_.clear();
  world_.reset();
  kernels_.clear();
  calls_.clear();
  open_.clear();
}

// Every rank calls its own CUDA:0, CUDA:1...: all build the same program. Which pieces of hardware
// these are depends on the rank's place on its host.
std::vector<std::string> Runtime::share_out(const DeviceKind& kind, int each, int local_rank) {
  if (kind.hardware) {
    first_of_kind_[kind.name] = local_rank * each;
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

const DeviceKind& Runtime::kind(const std::string& name) const {
  for (const DeviceKind& k : builtins().devices) {
    if (k.name == name) return k;
  }
  throw UserError(fmt::format("there is no kind of device named \"{}\"", name));
}

Device& Runtime::device(const DeviceRef& ref) {
  std::lock_guard lock(mutex_);
  auto& device = open_[{ref.kind, ref.index}];
  if (!device) {
    auto first = first_of_kind_.find(ref.kind);
    int number = ref.index + (first == first_of_kind_.end() ? 0 : first->second);
    device = kind(ref.kind).open(number, local_ranks_);
  }
  return *device;
}

std::vector<int> Runtime::local_positions(const Mesh& mesh) const {
  std::vector<int> positions;
  for (int p = 0; p < int(mesh.size()); ++p) {
    int rank = mesh.devices()[p].rank;
    if (rank == DeviceRef::kHere || rank == rank_) positions.push_back(p);
  }
  return positions;
}

Program& Runtime::program(Device& device, const std::shared_ptr<const CompiledKernel>& kernel) {
  std::lock_guard lock(mutex_);
  auto& program = kernels_[{&device, kernel.get()}];
  if (!program) {
    program = device.load(kernel->code);
    alive_.push_back(kernel);
  }
  return *program;
}

bool Runtime::has_program(Device& device, const CompiledKernel& kernel) {
  std::lock_guard lock(mutex_);
  return kernels_.contains({&device, &kernel});
}

Program& Runtime::program(Device& device, const LibraryCall& call) {
  std::string key = describe(*call.node);
  for (const UOp& x : call.also) key += " + " + describe(*x);
  for (const UOp& s : call.node->src()) {
    key += fmt::format(" {}{}", name(s.dtype()), tinyshard::to_string(s.shape()));
  }
  auto add = [&](char mark, const std::vector<StridedView>& views) {
    for (const StridedView& view : views) {
      key += fmt::format(" {}{} {} {}", mark, view.offset, tinyshard::to_string(view.shape),
                         tinyshard::to_string(view.strides));
    }
  };
  add('@', call.operands);
  add('>', call.results);
  std::lock_guard lock(mutex_);
  auto& program = calls_[{&device, key}];
  if (!program) program = device.library(call);
  return *program;
}

Communicator& Runtime::world() {
  if (!world_) world_ = builtins().connect(int(devices_.size()));
  return *world_;
}

std::shared_ptr<InputHistory> Runtime::input_history(uint64_t schedule,
                                                     const Communicator& communicator) {
  constexpr size_t kMost = 4096;
  std::lock_guard lock(mutex_);
  if (histories_.size() >= kMost) return nullptr;
  std::shared_ptr<InputHistory>& history = histories_[{schedule, &communicator}];
  if (!history) history = std::make_shared<InputHistory>();
  return history;
}

Communicator* Runtime::device_communicator(Communicator& group,
                                           const std::vector<Device*>& devices) {
  auto [entry, added] = device_groups_.try_emplace({&group, devices});
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

Communicator& Runtime::communicator(const Mesh& mesh, int axis, int position) {
  std::vector<int64_t> place = mesh.coordinates(position);
  int64_t stride = 1;
  for (size_t a = mesh.axes().size(); a-- > size_t(axis) + 1;) stride *= mesh.axes()[a].size;
  int64_t first = position - place[axis] * stride;
  bool here = true;
  for (int64_t i = 0; i < mesh.axes()[axis].size; ++i) {
    int owner = mesh.devices()[first + i * stride].rank;
    here = here && (owner == DeviceRef::kHere || owner == rank_);
  }
  if (here) {
    auto& group = local_groups_[mesh.axes()[axis].size];
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
  if (participants.size() == all.size() && std::ranges::is_sorted(participants)) return world();
  auto& group = groups_[participants];
  if (!group)
    group = world().split(participants, fmt::format("axis \"{}\"", mesh.axes()[axis].name));
  return *group;
}

}  // namespace tinyshard
