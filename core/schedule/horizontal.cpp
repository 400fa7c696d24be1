// Horizontal fusion. Three kernels that update parameters of 768 elements by w -= rate * g, each
// too small to fill a GPU, become one kernel of three loops beside each other, and one launch:
//
//   for i0 of 768: w0[i0] -= rate * g0[i0]
//   for i1 of 768: w1[i1] -= rate * g1[i1]
//   for i2 of 768: w2[i2] -= rate * g2[i2]
//
// Members are alike (kind, size, loops), so that one compiled kernel serves all groups. A member of
// a group runs when the last of them can: kinds are chosen so that waiting keeps no memory longer.
#include "core/schedule/horizontal.h"

#include <algorithm>
#include <map>

#include "core/rewrite/pattern.h"
#include "core/schedule/limits.h"
#include "core/schedule/memory.h"
#include "core/schedule/schedule_state.h"
#include "core/schedule/turns.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

constexpr size_t kMaxMembers = 6;  // more save little, and the code of each takes time to compile
constexpr size_t kMaxBuffers = 160, kMaxNodes = 2400;
constexpr int64_t kSmallBuffer = 1 << 16;  // bytes
constexpr int64_t kIds = 1 << 12;          // of the ranges of one member
// Only so many groups that were begun last are looked at: of thousands alike, as the micro-batches of
// a pipeline have them, nearly all depend on each other.
constexpr size_t kNear = 32;

enum class Kind : uint8_t { None, FromStorages, IntoStorages, Little };

class Joiner {
 public:
  explicit Joiner(ScheduleState& state)
      : tasks_(state.tasks),
        buffers_(state.schedule.buffers),
        dependencies_(*state.dependencies),
        prepared_(prepared_turns(tasks_)),
        readers_(buffers_.size()) {
    for (int t = 0; t < int(tasks_.size()); ++t) {
      for (int b : tasks_[size_t(t)].reads) readers_[size_t(b)].push_back(t);
    }
  }

  void run() {
    // By likeness: kernels made of like members are equal themselves, and compiled once.
    std::map<std::vector<int64_t>, std::vector<Group>> open;
    for (int t : dependencies_.order(tasks_)) {
      Kind kind = kind_of(t);
      if (kind == Kind::None) continue;
      Group mine = alone(t);
      auto& groups = open[likeness(t, kind, mine)];
      auto fits = [&](Group& group) { return join(group, mine); };
      const auto joined = std::ranges::find_if(groups, fits);
      if (joined == groups.end()) {
        groups.push_back(mine);
        if (groups.size() > kNear) groups.erase(groups.begin());
      } else if (joined->members == kMaxMembers) {
        groups.erase(joined);
      }
    }
  }

 private:
  struct Group {
    int task;
    size_t members, nodes;
  };

  Group alone(int t) const {
    const NodeOrder all = all_nodes(*tasks_[size_t(t)].draft);
    return {t, 1, all.size()};
  }

  std::vector<int64_t> likeness(int t, Kind kind, const Group& mine) const {
    const Task& task = tasks_[size_t(t)];
    std::vector<int64_t> key{int64_t(kind), prepared_[size_t(t)], int64_t(mine.nodes),
                             int64_t(task.reads.size())};
    for (const auto& out : task.draft->outputs)
      key.push_back(int64_t(buffers_[size_t(out.buffer)].dtype));
    for (const UOp& r : task.draft->loops) key.push_back(range_arg(*r).size);
    return key;
  }

  bool in_storage(int b) const {
    return buffers_[size_t(memory_holder(buffers_, b))].storage != nullptr;
  }
  // Read by collectives only: a part of a parameter on its way to the other devices.
  bool is_sent(int b) const {
    return std::ranges::all_of(readers_[size_t(b)], [&](int t) {
      return tasks_[size_t(t)].kind() == Item::Kind::Collective;
    });
  }
  bool is_little(int b) const { return buffers_[size_t(b)].bytes() <= kSmallBuffer; }

  Kind kind_of(int t) const {
    const Task& task = tasks_[size_t(t)];
    if (!task.draft || task.reads.empty()) return Kind::None;
    auto stored = [&](int b) { return in_storage(b); };
    auto stored_or_sent = [&](int b) { return in_storage(b) || is_sent(b); };
    if (std::ranges::all_of(task.writes, stored_or_sent) &&
        std::ranges::any_of(task.writes, stored))
      return Kind::IntoStorages;
    if (std::ranges::all_of(task.reads, stored)) return Kind::FromStorages;
    auto little = [&](int b) { return is_little(b); };
    return std::ranges::all_of(task.writes, little) ? Kind::Little : Kind::None;
  }

  // Tells whether somebody reads what t reads after the group and t: waiting for the group then
  // keeps nothing longer.
  bool is_read_later(int t, int group) const {
    return std::ranges::all_of(tasks_[size_t(t)].reads, [&](int b) {
      if (in_storage(b) || is_little(b)) return true;
      return std::ranges::any_of(readers_[size_t(b)], [&](int reader) {
        return dependencies_.reaches(group, reader) && dependencies_.reaches(t, reader);
      });
    });
  }

  bool join(Group& group, const Group& mine) {
    int t = mine.task;
    Task &into = tasks_[size_t(group.task)], &from = tasks_[size_t(t)];
    if (!(into.draft->mesh == from.draft->mesh)) return false;
    if (group.members == kMaxMembers || group.nodes + mine.nodes > kMaxNodes) return false;
    if (into.reads.size() + into.writes.size() + from.reads.size() + from.writes.size() >
        kMaxBuffers)
      return false;
    if (dependencies_.reaches(group.task, t) || dependencies_.reaches(t, group.task)) return false;
    if (kind_of(t) == Kind::Little &&
        !(is_read_later(t, group.task) && is_read_later(group.task, t)))
      return false;
    KernelDraft joined = *into.draft;
    append(joined, *from.draft, int64_t(group.members) * kIds);
    const NodeOrder nodes = all_nodes(joined);
    if (!fits_a_kernel(joined, nodes) || !in_place_is_safe(joined, nodes, buffers_)) return false;
    for (int b : from.reads) {
      std::erase(readers_[size_t(b)], t);
      readers_[size_t(b)].push_back(group.task);
    }
    into.draft = std::move(joined);
    update_accesses(into, nodes);
    into.position = std::max(into.position, from.position);
    from.gone = true;
    from.draft.reset();
    from.reads.clear();
    from.writes.clear();
    dependencies_.merge(t, group.task);
    group.nodes += mine.nodes;
    ++group.members;
    return true;
  }

  // The member's ranges and slots get numbers of their own.
  static void append(KernelDraft& to, const KernelDraft& member, int64_t first_id) {
    NodeMap<UOp> renamed;
    auto rename = [&](const UOp& r) {
      const RangeArg old = range_arg(*r);
      renamed[r] = range(first_id + old.id, old.size, old.kind);
    };
    const NodeOrder nodes = all_nodes(member);
    for (const UOp& x : nodes) {
      if (x.op() == Op::Range) rename(x);
    }
    rename_slots(nodes, to.slots_for(member), renamed);
    for (const UOp& r : member.loops) {
      if (!renamed.contains(r)) rename(r);
      to.loops.push_back(renamed.at(r));
    }
    for (const auto& out : member.outputs) {
      to.outputs.push_back({out.buffer, substitute(out.index, renamed),
                            substitute(out.value, renamed),
                            out.valid ? substitute(out.valid, renamed) : UOp()});
    }
  }

  std::vector<Task>& tasks_;
  const std::vector<VirtualBuffer>& buffers_;
  Dependencies& dependencies_;
  const std::vector<int64_t> prepared_;    // what is sent for one turn is made for that turn
  std::vector<std::vector<int>> readers_;  // tasks, by buffer
};

}  // namespace

void fuse_horizontally(ScheduleState& state) {
  if (state.options.join_kernels) Joiner(state).run();
}

}  // namespace tinyshard
