// Roots become an Executable in three stages: passes over the graph (core/passes/passes.h), steps of
// scheduling (core/schedule/steps.h) and the preparation of what runs (executable.h). Which devices
// take part is asked here, once: libraries, limits and profiles that passes go by are theirs.
#include "core/exec/make_executable.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "core/base/debug_text.h"
#include "core/base/error.h"
#include "core/base/observer.h"
#include "core/base/options.h"
#include "core/exec/context.h"
#include "core/exec/kept_in_place.h"
#include "core/exec/kernel_steps.h"
#include "core/exec/plan_record.h"
#include "core/exec/state.h"
#include "core/exec/versions.h"
#include "core/passes/passes.h"
#include "core/schedule/steps.h"
#include "core/uop/args.h"
#include "multi/rewrite.h"

namespace tinyshard {
namespace {

struct Planned {
  Schedule schedule;
  std::vector<Sharding> shardings;
  uint64_t record = 0;  // of the plan, where observers read records
};

// Returns a device of each kind that computes something; it stands for all of its kind. What a
// library does not do on one kind in the graph is left to generated kernels on all of them. A
// device that only gives a value away, or holds a file, has no say.
std::vector<Device*> computing_kinds(const Graph& graph) {
  Context& context = Context::get();
  std::vector<Device*> kinds;
  auto add = [&](const DeviceRef& ref) {
    Device& device = context.device(ref);
    auto same = [&](const Device* d) {
      return d->executes() == device.executes() && d->target() == device.target();
    };
    if (std::ranges::none_of(kinds, same)) kinds.push_back(&device);
  };
  std::vector<int64_t> seen;
  auto add_mesh = [&](const Mesh& mesh) {
    if (std::ranges::find(seen, mesh.id()) != seen.end()) return;
    seen.push_back(mesh.id());
    auto local = context.local_positions(mesh);
    if (!local.empty()) add(mesh.devices()[local[0]]);
  };
  for (const UOp& x : graph.order()) {
    if (x.op() == Op::Redistribute) {
      add_mesh(Mesh::from_payload(x->payload));
      continue;
    }
    if (is_movement(x.op()) || x.op() == Op::Identity) continue;
    for (const UOp& s : x->src()) {
      UOp base = under_views(s);
      if (base.op() == Op::Buffer) add_mesh(Storage::of(*base)->sharding.mesh);
    }
  }
  if (kinds.empty()) add(default_mesh().devices()[0]);
  return kinds;
}

// Takes the limits of a plan from the profile of the kind of device that runs most side by side. If
// several kinds meet in a plan, the others wait for it.
void follow_profile(const std::vector<Device*>& kinds, PassContext& context,
                    ScheduleOptions& schedule) {
  auto parts = [](const Device* d) { return d->profile().split.parts; };
  const DeviceProfile& profile = (*std::ranges::max_element(kinds, {}, parts))->profile();
  context.split = profile.split;
  context.small_products = profile.small_products;
  context.scans.short_chunks = !profile.joins_kernels;
  if (profile.copies_operands) {
    context.worth_copying = [kinds](const LibraryCall& call, int operand) {
      int64_t least = kinds[0]->worth_copying(call, operand);
      for (Device* d : kinds) least = std::min(least, d->worth_copying(call, operand));
      return least;
    };
  }
  schedule.join_kernels = profile.joins_kernels;
  if (!options().serial) schedule.spare_bytes = profile.spare_bytes;
}

// Values of other shapes or placements may have the same parts on each device. Their storages differ,
// so all but the first become copies:
//
//   zeros({6}) split over three devices, zeros({2}) on each of them     parts: zeros({2}), both
std::vector<UOp> separate_results(std::vector<UOp> parts, std::span<const UOp> values,
                                  std::span<const Sharding> shardings) {
  NodeMap<size_t> first(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    for (;;) {
      const size_t* other = first.find(parts[i]);
      if (!other) first[parts[i]] = i;
      if (!other || (shardings[*other] == shardings[i] &&
                     std::ranges::equal(values[*other].shape(), values[i].shape())))
        break;
      parts[i] = UOp::make(Op::Contiguous, parts[i].dtype(), {parts[i]});
    }
  }
  return parts;
}

// Tells whether BEAM chooses between libraries and loops. Ranks that each chose for themselves
// would plan different steps.
bool times_providers(const std::vector<Device*>& kinds) {
  return options().beam > 1 && options().libraries && kinds.size() == 1 && kinds[0]->executes() &&
         Context::get().ranks() == 1;
}

Planned plan(Graph graph, Providers providers) {
  PlanRecorder recorder(graph.roots());
  // Nodes that passes make come from what they are made of, not from the call that computes them.
  const OriginScope origin(0);
  follow_debug_option();
  graph.become(separate_versions(graph));
  std::vector<Device*> kinds = computing_kinds(graph);
  auto supports = [kinds, providers](const LibraryCall& call) {
    // A scattered sum is always the device's own: there is no other way to do it.
    const UOp& x = call.node;
    bool sums = x.op() == Op::ScatterAdd && scatter_arg(*x).op == ReduceOp::Sum;
    return ((options().libraries && providers != Providers::Loops) || sums) &&
           std::ranges::all_of(kinds, [&](Device* d) { return d->supports(call, nullptr); });
  };
  check_disabled(known_steps());
  PassContext context;
  context.graph = graph;
  const bool timed = providers == Providers::Fastest && times_providers(kinds);
  context.library_supports = supports;
  if (options().libraries && providers != Providers::Loops) {
    for (const Device* d : kinds) {
      const LibraryProvider* own = d->library_provider();
      if (own && std::ranges::count(context.providers, own) == 0) context.providers.push_back(own);
    }
  }
  if (timed) {
    context.products_by_library = [kinds, supports](const LibraryCall& call) {
      return supports(call) && !loops_are_faster(call.node, *kinds[0]);
    };
  }
  ScheduleOptions schedule_options{.library_supports = supports,
                                   .bucket_bytes = options().bucket_bytes};
  follow_profile(kinds, context, schedule_options);
  // A failed call on a device's own queue does not keep what is queued behind it from running.
  schedule_options.updates_at_once =
      Context::get().ranks() > 1 && KeptInPlace::any() && std::ranges::all_of(kinds, [](Device* d) {
        return d->native_queue(Queue::Compute) == nullptr;
      });
  if (timed || providers == Providers::Libraries) {
    // Small products are loops without a trial only where they become a part of another kernel.
    context.small_products.columns = context.small_products.few = 0;
  }
  if (recorder.is_read()) {
    context.after_pass = [&](std::string_view pass, const PassContext& now) {
      recorder.after(pass, now.graph.roots());
    };
  }
  run_passes(context);
  context.graph.become(separate_results(context.graph.roots(), graph.roots(), context.shardings));
  Planned result{{}, context.shardings};
  recorder.lie(context.values, context.movements);
  ObservedScope event([] { return ObservedEvent{.kind = EventKind::Pass, .name = "schedule"}; });
  result.schedule = make_schedule(context.graph, context.shardings, schedule_options);
  event.finish([&] { return fmt::format("{} items", result.schedule.items.size()); });
  result.record = recorder.tell(result.schedule);
  return result;
}

// Throws UserError if the graph names a placeholder other than `inputs`, those of the captured step
// that it is made for.
void check_placeholders(const Graph& graph, std::span<const std::shared_ptr<Storage>> inputs) {
  for (const UOp& x : graph.order()) {
    if (x.op() != Op::Buffer || !Storage::of(*x)->is_placeholder()) continue;
    if (std::ranges::none_of(inputs, [&](const auto& s) { return s.get() == Storage::of(*x); })) {
      throw UserError(
          "this tensor was made inside a captured step and has no value outside of it: return it "
          "from the step");
    }
  }
}

}  // namespace

std::vector<StepName> known_steps() {
  std::vector<StepName> names = names_of(passes());
  std::ranges::copy(names_of(schedule_steps()), std::back_inserter(names));
  std::ranges::copy(names_of(kernel_steps()), std::back_inserter(names));
  return names;
}

std::unique_ptr<Executable> make_executable(std::span<const UOp> roots, bool compare_ranks,
                                            std::span<const std::shared_ptr<Storage>> inputs,
                                            Providers providers) {
  Graph graph(roots);
  check_placeholders(graph, inputs);
  Planned planned = plan(std::move(graph), providers);
  std::vector<Dims> shapes;
  for (const UOp& root : roots) shapes.emplace_back(root.shape().begin(), root.shape().end());
  auto executable = std::make_unique<Executable>(std::move(planned.schedule), compare_ranks);
  executable->set_record(planned.record);
  executable->prepare(planned.shardings, shapes);
  return executable;
}

Schedule make_plan(std::span<const UOp> roots, Providers providers) {
  Graph graph(roots);
  check_placeholders(graph, {});
  return plan(std::move(graph), providers).schedule;
}

}  // namespace tinyshard
