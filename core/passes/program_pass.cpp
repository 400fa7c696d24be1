// Scopes are a list that a lock guards; a run takes a copy of it, so that a pass may open scopes itself.
// The graph that a pass leaves is verified before anything else reads it. The rule to blame is looked for only
// if that fails: its replacement holds the misfit, and the node that it replaced does not.
#include "core/passes/program_pass.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/observer.h"
#include "core/passes/own_gradient.h"
#include "core/passes/passes.h"
#include "core/rewrite/pattern.h"
#include "core/uop/graph.h"
#include "core/uop/user_code.h"

namespace tinyshard {

struct ProgramPass::Data {
  std::string name;
  uint64_t number;  // no other pass has it
  Rewrite rewrite;
};

namespace {

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

struct Open {
  uint64_t scope;
  std::shared_ptr<const ProgramPass::Data> pass;
};

struct Scopes {
  std::mutex lock;
  std::vector<Open> open;
  std::atomic<size_t> count{0};  // for each call of a captured step, which asks without the lock
};
Scopes& scopes() {
  static Scopes& all = *new Scopes;  // scopes of static objects end after main
  return all;
}

thread_local uint64_t opened_here = 0;

std::vector<Open> open_scopes() {
  if (scopes().count.load(std::memory_order_acquire) == 0) return {};
  std::lock_guard held(scopes().lock);
  return scopes().open;
}

bool holds(const UOp& root, const UOp& node) {
  const NodeOrder all = toposort(std::span(&root, 1));
  return std::ranges::find(all, node) != all.end();
}

std::string blamed_rule(const std::vector<Replacing>& replaced, const UOp& node) {
  for (const Replacing& r : replaced) {
    if (holds(r.by, node) && !holds(r.node, node))
      return fmt::format(", rule \"{}\" at {}", r.rule, describe(*r.node));
  }
  return "";
}

// The number of the value that a root stands for: a storage that is written stays the one written.
const Node* written_by(const UOp& root) {
  return root.op() == Op::Assign ? storage_node(root).get() : nullptr;
}

void check_roots(const std::string& place, std::span<const UOp> asked, std::span<const UOp> given) {
  if (asked.size() != given.size())
    throw UserError(
        fmt::format("{}: {} roots came back for {}", place, given.size(), asked.size()));
  for (size_t i = 0; i < asked.size(); ++i) {
    const UOp &was = asked[i], &now = given[i];
    if (!now) throw UserError(fmt::format("{}: root {} came back null", place, i));
    if (now.dtype() != was.dtype() || !std::ranges::equal(now.shape(), was.shape())) {
      throw UserError(fmt::format("{}: root {} was {} and came back as {}: another type or shape",
                                  place, i, describe(*was), describe(*now)));
    }
    if (written_by(was) != written_by(now)) {
      throw UserError(
          fmt::format("{}: root {}, {}, writes to a storage, and {} does not write there", place, i,
                      describe(*was), describe(*now)));
    }
  }
}

}  // namespace

ProgramPass::ProgramPass(std::string name, PatternMatcher rules)
    : ProgramPass(std::move(name), [rules = std::move(rules)](std::span<const UOp> roots) {
        return graph_rewrite(roots, rules);
      }) {}

ProgramPass::ProgramPass(std::string name, Rewrite rewrite) {
  if (!rewrite) throw UserError(fmt::format("pass \"{}\" has no function", name));
  data_ = std::make_shared<const Data>(Data{std::move(name), next_number(), std::move(rewrite)});
}

const std::string& ProgramPass::name() const { return data_->name; }

PassScope::PassScope(const ProgramPass& pass) : number_(next_number()) {
  ++opened_here;
  std::lock_guard held(scopes().lock);
  scopes().open.push_back({number_, pass.data()});
  scopes().count.store(scopes().open.size(), std::memory_order_release);
}

PassScope::~PassScope() {
  std::lock_guard held(scopes().lock);
  std::erase_if(scopes().open, [&](const Open& o) { return o.scope == number_; });
  scopes().count.store(scopes().open.size(), std::memory_order_release);
}

std::vector<uint64_t> program_passes() {
  std::vector<uint64_t> numbers;
  for (const Open& open : open_scopes()) numbers.push_back(open.pass->number);
  return numbers;
}

uint64_t pass_scopes_opened() { return opened_here; }

void run_program_passes(Graph& graph) {
  graph.become(without_own_gradients(graph));
  for (const Open& open : open_scopes()) {
    const ProgramPass::Data& pass = *open.pass;
    const std::string place = fmt::format("pass \"{}\"", pass.name);
    ObservedScope event(
        [&] { return ObservedEvent{.kind = EventKind::Pass, .name = "program: " + pass.name}; });
    const ReplacingLog replaced;
    std::vector<UOp> roots =
        in_user_code([&] { return pass.rewrite(graph.roots()); },
                     [&](const std::string& text) { return fmt::format("{}: {}", place, text); });
    check_roots(place, graph.roots(), roots);
    // Replacements may be made of tensors, whose values have names.
    Graph next(std::move(roots));
    next.become(without_names(next));
    next.become(without_own_gradients(next));
    if (const std::optional<Misfit> misfit = find_misfit(next.roots(), Stage::Global)) {
      throw UserError(fmt::format("{}{}: {} cannot be there: {}", place,
                                  blamed_rule(replaced.entries(), misfit->node),
                                  describe(*misfit->node), misfit->why));
    }
    event.finish([&] { return fmt::format("{} nodes", next.order().size()); });
    graph = std::move(next);
  }
}

std::vector<UOp> without_own_gradients(const Graph& graph) {
  if (std::ranges::none_of(graph.order(), [](const UOp& x) { return own_gradient(x) != nullptr; }))
    return graph.roots();
  return rewrite_once(graph, [](const UOp& x) { return own_gradient(x) ? x.src(0) : UOp(); });
}

}  // namespace tinyshard
