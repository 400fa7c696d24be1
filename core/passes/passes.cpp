// The table of passes. A pass reads the graph and puts another one in its place, or leaves it, which
// keeps the order of its nodes known (core/uop/graph.h).
#include "core/passes/passes.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/options.h"
#include "core/passes/attention.h"
#include "core/passes/empties.h"
#include "core/passes/known_scatters.h"
#include "core/passes/narrow.h"
#include "core/passes/products.h"
#include "core/passes/program_pass.h"
#include "core/passes/regather.h"
#include "core/passes/replaced.h"
#include "core/passes/scans.h"
#include "core/passes/scatters.h"
#include "core/passes/sorts.h"
#include "core/passes/spell.h"
#include "core/passes/tidy.h"
#include "core/rewrite/pattern.h"
#include "core/uop/args.h"
#include "core/uop/own_kernel.h"
#include "core/uop/product_region.h"
#include "core/uop/scan.h"
#include "core/uop/unfold.h"
#include "multi/per_device.h"
#include "multi/rewrite.h"
#include "multi/sparse_sums.h"

namespace tinyshard {
namespace {

void names_pass(PassContext& c) { c.graph.become(without_names(c.graph)); }
void program_pass(PassContext& c) { run_program_passes(c.graph); }
// Libraries are asked for composites on the local graph; what none of them keeps need not wait.
void spell_pass(PassContext& c) {
  const std::string& how = options().composites;
  c.graph.become(spell(c.graph, [&](const Composite& row) {
    if (!how.empty()) return how == "keep";
    return std::ranges::any_of(c.providers,
                               [&](const LibraryProvider* p) { return p->keeps(row); });
  }));
}
bool keeps_none(const Composite&) { return false; }
void spell_rest_pass(PassContext& c) {
  std::vector<UOp> spelled = spell(c.graph, keeps_none);
  if (spelled == c.graph.roots()) return;
  c.graph.become(std::move(spelled));
  c.graph.become(tidy(c.graph));
}
void tidy_pass(PassContext& c) { c.graph.become(tidy(c.graph)); }

void plan_pass(PassContext& c) { c.planning = Planning::Together; }

void shard_pass(PassContext& c) {
  LocalGraph local = to_local(c.graph, c.planning);
  if (auto own = std::ranges::find(local.own, true); own != local.own.end()) {
    const size_t root = size_t(own - local.own.begin());
    throw UserError(fmt::format(
        "{} is what each device of {} has for itself: it has a value for all once shard_map "
        "returns it",
        describe(*under_names(c.graph.roots()[root])), local.shardings[root].mesh.to_string()));
  }
  c.graph = std::move(local.graph);
  c.shardings = std::move(local.shardings);
  c.values = std::move(local.values);
  c.movements = std::move(local.movements);
}

// Each is spelled once it is known what of it a device has.
void unfold_pass(PassContext& c) {
  c.graph.become(rewrite_once(c.graph, [](const UOp& x) {
    if (x.op() == Op::Unfold) return spelled_unfold(x.src(0), unfold_arg(*x));
    if (x.op() == Op::UnfoldBackward) return spelled_unfold_backward(x.src(0), unfold_arg(*x));
    return UOp();
  }));
}

void empties_pass(PassContext& c) { c.graph.become(fold_empties(c.graph)); }
void attention_pass(PassContext& c) {
  c.graph.become(lower_attention(c.graph, c.library_supports));
}
void sorts_pass(PassContext& c) {
  c.graph.become(lower_scans(c.graph, c.library_supports, c.scans));
  c.graph.become(lower_sorts(c.graph, c.library_supports, c.sorts));
  // Before what they are made of, which a library may lack, becomes loops.
  c.graph.become(write_scatters(c.graph, c.library_supports));
  c.graph.become(lower_scatters(c.graph, c.library_supports));
}
void products_pass(PassContext& c) {
  c.graph.become(lower_products(c.graph,
                                c.products_by_library ? c.products_by_library : c.library_supports,
                                c.small_products));
  c.graph.become(spell(c.graph, keeps_none));  // of regions that are loops now
}

void add_found(std::vector<Replacement>& found, const PassContext& c, const RegionQuery& query,
               std::vector<Replacement> (LibraryProvider::*find)(const RegionQuery&) const) {
  for (const LibraryProvider* provider : c.providers) {
    std::vector<Replacement> more = (provider->*find)(query);
    std::ranges::move(more, std::back_inserter(found));
  }
}

void updates_pass(PassContext& c) {
  std::vector<Replacement> found;
  add_found(found, c, {c.graph, c.library_supports, tidy}, &LibraryProvider::find_in_place);
  c.graph.become(replaced(c.graph, found));
}
void scatters_pass(PassContext& c) {
  c.graph.become(gather_known_scatters(c.graph));
  c.graph.become(start_scatters(c.graph, c.library_supports));
  c.graph.become(write_scatters(c.graph, c.library_supports));
}
void operands_pass(PassContext& c) {
  if (c.worth_copying) c.graph.become(lay_along_sums(c.graph, c.worth_copying));
}
void split_pass(PassContext& c) { c.graph.become(split_reductions(c.graph, c.split)); }

void sparse_sums_pass(PassContext& c) { c.graph.become(gather_sparse_sums(c.graph)); }

void regather_pass(PassContext& c) { c.graph.become(gather_in_turns(c.graph)); }

void transpose_pass(PassContext& c) { c.graph.become(transpose_products(c.graph)); }

void epilogues_pass(PassContext& c) {
  const RegionQuery query(c.graph, c.library_supports, tidy);
  std::vector<Replacement> found = find_narrow_products(query);
  add_found(found, c, query, &LibraryProvider::find);
  c.graph.become(replaced(c.graph, found));
}

constexpr auto kPasses = std::to_array<Pass>({
    {"names", "tensors of equal values become one value", true, names_pass},
    {"program", "the passes of the program's own scopes; its own gradients end", true,
     program_pass},
    {"spell", "ops that others spell become these, but for those that libraries may take whole",
     true, spell_pass},
    {"tidy", "identities and constants that the user's code leaves behind", false, tidy_pass},
    {"plan", "what several ways lead to is chosen by what the whole graph takes", false, plan_pass},
    {"shard", "global values become local ones; collectives appear", true, shard_pass},
    {"unfold", "windows become views, and their sum back a sum of views", true, unfold_pass},
    {"empties", "what has no elements, or is made of nothing, becomes a constant", true,
     empties_pass},
    {"attention", "attention that no library takes becomes products and a softmax", true,
     attention_pass},
    {"sorts",
     "short rows, and sorts, scans and scattered reductions without a library, become kernels",
     true, sorts_pass},
    {"tidy_local", "the same for what sharding leaves behind", false, tidy_pass},
    {"sparse_sums", "sums over devices in which few rows take part gather these", false,
     sparse_sums_pass},
    {"regather", "parameters gathered on use are gathered again for the backward pass", false,
     regather_pass},
    {"transpose", "products that are only read transposed are computed transposed", false,
     transpose_pass},
    {"epilogues",
     "products do what follows them, as a library fuses it: a bias, GELU; they round, and send",
     false, epilogues_pass},
    {"spell_rest", "ops that no library took are spelled as well", true, spell_rest_pass},
    {"products", "products and convolutions that no library takes, and small ones, become loops",
     true, products_pass},
    {"updates",
     "products that are added to a storage do that themselves, as a library does it in place",
     false, updates_pass},
    {"scatters",
     "scattered sums read what is known, or start from what is added; a write is one item", false,
     scatters_pass},
    {"operands", "operands that a library reads faster in another order are copied", false,
     operands_pass},
    {"split_reductions", "long reductions with few results run in two steps, in parallel", false,
     split_pass},
});

struct Watcher {
  static std::string count(const PassContext& c) {
    // By a walk of its own: a pass looks for the order that it needs in its own time.
    return fmt::format("{} nodes", toposort(c.graph.roots()).size());
  }
  static std::string text(const PassContext& c) { return print(c.graph.roots()); }
  void verify(const PassContext& c, const Pass& pass) {
    if (pass.run == shard_pass) stage = Stage::Local;
    tinyshard::verify(c.graph.roots(), stage);
  }
  static bool done(const PassContext&) { return false; }
  static void ended(const PassContext& c, const Pass& pass) {
    if (c.after_pass) c.after_pass(pass.name, c);
  }

  Stage stage = Stage::Global;
};

}  // namespace

std::span<const Pass> passes() { return kPasses; }

void run_passes(PassContext& context) {
  const Options& o = options();
  if (o.spec >= 1) verify(context.graph.roots(), Stage::Global);
  const std::vector<UOp> asked = context.graph.roots();
  Watcher watcher;
  run_steps<PassContext>("pass", kPasses, context, watcher);
  std::vector<UOp> roots = context.graph.roots();
  for (size_t i = 0; i < asked.size(); ++i) {
    // A value that is asked for by itself must not become another name of an existing storage.
    UOp& root = roots[i];
    bool stored = root.op() == Op::Buffer || root.op() == Op::Assign;
    if (stored && asked[i].op() != root.op())
      root = UOp::make(Op::Contiguous, root.dtype(), {root});
  }
  context.graph.become(std::move(roots));
  if (o.spec >= 1) verify(context.graph.roots(), Stage::Scheduled);
}

void verify(std::span<const UOp> roots, Stage stage) {
  if (const std::optional<Misfit> misfit = find_misfit(roots, stage))
    throw InternalError(fmt::format("verifier: {}: {}", describe(*misfit->node), misfit->why));
}

std::optional<Misfit> find_misfit(std::span<const UOp> roots, Stage stage) {
  std::optional<Misfit> found;
  auto need = [&](bool holds, const UOp& x, const char* what) {
    if (!holds && !found) found = Misfit{x, what};
  };
  std::map<int64_t, const ProductRegion*> regions;
  for (const UOp& x : toposort(roots)) {
    const OpInfo& facts = info(x.op());
    if (found) return found;
    need(facts.op_class != OpClass::Kernel || own_kernel(x), x, "kernel op in a tensor graph");
    need(x.dtype() != DType::Index, x, "index type outside of a kernel");
    auto src = x->src();
    switch (facts.type_rule) {
      case TypeRule::SameAsFirst:
        need(x.dtype() == src[0].dtype(), x, "type differs from its source");
        break;
      case TypeRule::SameAsSecond:
        need(x.dtype() == src[1].dtype(), x, "type differs from its source");
        break;
      case TypeRule::Bool:
        need(x.dtype() == DType::Bool, x, "a comparison gives a bool");
        break;
      case TypeRule::Given:
        break;
    }
    if (facts.element.floats_only) need(is_float(src[0].dtype()), x, "defined for floats only");
    if (facts.op_class == OpClass::Elementwise && facts.arity == 2) {
      need(src[0].dtype() == src[1].dtype(), x, "sources of different types");
    }
    if (const ProductRegion* region = region_of(x)) {
      const auto [known, added] = regions.try_emplace(region->number, region);
      need(known->second == region, x, "two regions have this number");
    }
    if (x.op() == Op::Where) {
      need(src[0].dtype() == DType::Bool && src[1].dtype() == src[2].dtype(), x, "types of where");
    }
    if (x.op() == Op::Bitcast)
      need(itemsize(x.dtype()) == itemsize(src[0].dtype()), x, "sizes of bitcast");
    if (x.op() == Op::Sort)
      need(x.dtype() == DType::I32 && is_unsigned_int(src[0].dtype()), x,
           "places of unsigned keys");
    if (x.op() == Op::Scan)
      need(x.dtype() == (scan_arg(*x).places ? DType::I32 : src[0].dtype()), x, "type of a total");
    if (x.op() == Op::Decompose) need(is_float(x.dtype()), x, "factors of floats");
    if (x.op() == Op::Gather) need(is_int(src[1].dtype()), x, "the index is an integer");
    if (x.op() == Op::Gather && stage != Stage::Global)
      need(gather_sorting(*x) == Sorting::None, x, "left over from a sort");
    const bool by_hand = part_arg(*x) || own_collective_arg(*x);
    if (stage == Stage::Scheduled) need(x.op() != Op::Composite, x, "an op that is to be spelled");
    if (stage != Stage::Global) {
      need(x.op() != Op::Redistribute, x, "left over after sharding");
      need(x.op() != Op::Identity, x, "a name of the user's graph");
    }
    if (stage == Stage::Global) {
      need(
          by_hand || (x.op() != Op::Collective && x.op() != Op::CopyIn && x.op() != Op::ShardSlice),
          x, "local op in a global graph");
    } else {
      need(!by_hand, x, "left over from shard_map");
    }
  }
  return found;
}

}  // namespace tinyshard
