// Runs a schedule on labelled bytes. Each byte of the arena, of a storage or of an output holds the
// number of the buffer whose value it is; buffers are versions, so each is written once.
//
//   kernel map     reads 3, writes 4 = 3's successor    bytes [0, 64) of the arena: 3 -> 4
//   library dot    reads 3                              finds 4: "item 2 reads buffer 3 after ..."
//
// Each device has an arena. Devices that are in the same meshes hold the same in theirs, so one
// arena stands for all of them. A buffer whose mesh has devices of several such kinds lies in
// several arenas.
//
// A buffer that no item writes, but that has a container (VirtualBuffer::container), is a further
// name: of the bytes below it as they were before any write, or of the one buffer that lies there.
#include "core/schedule/verify.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/schedule/results.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

constexpr int kInitial = -1;  // what a storage holds before the run
constexpr int kNothing = -2;  // memory that nobody has written

struct Bytes {
  std::vector<int> memories;  // ascending
  int64_t begin = 0, end = 0;
  bool operator==(const Bytes&) const = default;
  bool meets(const Bytes& other) const {
    auto holds_too = [&](int memory) { return std::ranges::binary_search(other.memories, memory); };
    return begin < other.end && other.begin < end && std::ranges::any_of(memories, holds_too);
  }
};

// The labels of one memory, in stretches.
class Labels {
 public:
  explicit Labels(int label) { starts_[INT64_MIN] = label; }

  void fill(int64_t begin, int64_t end, int label) {
    int after = at(end);
    starts_.erase(starts_.lower_bound(begin), starts_.upper_bound(end));
    starts_[begin] = label;
    starts_[end] = after;
  }
  // A label in [begin, end) that is not `wanted`; `wanted` when there is none.
  int other_than(int wanted, int64_t begin, int64_t end) const {
    for (auto s = std::prev(starts_.upper_bound(begin)); s != starts_.end() && s->first < end;
         ++s) {
      if (s->second != wanted) return s->second;
    }
    return wanted;
  }

 private:
  int at(int64_t byte) const { return std::prev(starts_.upper_bound(byte))->second; }
  std::map<int64_t, int> starts_;  // each label holds up to the next start
};

class Verifier {
 public:
  explicit Verifier(const Schedule& schedule)
      : schedule_(schedule), writer_(schedule.buffers.size(), -1) {
    find_arenas();
    for (int b = 0; b < int(schedule.buffers.size()); ++b) places_.push_back(find_place(b));
  }

  void run() {
    for (int i = 0; i < int(schedule_.items.size()); ++i) {
      const Item& item = schedule_.items[size_t(i)];
      std::vector<int> reads, writes;
      accesses(item, reads, writes);
      std::erase_if(on_the_way_, [&](const OnTheWay& c) { return contains(item.waits, c.item); });
      for (int b : reads) check_free(i, b, false);
      for (int b : writes) check_free(i, b, true);
      for (int b : reads) check_holds(b, item_text(i) + " reads");
      check_in_place(i, reads, writes);
      for (int b : writes) write(i, b);
      if (item.kind == Item::Kind::Collective) on_the_way_.push_back({i, reads, writes});
    }
    for (int b : schedule_.roots) {
      if (bytes_of(b) > 0) check_holds(b, "the caller reads");
    }
  }

 private:
  struct OnTheWay {  // a collective that nobody has waited for
    int item;
    std::vector<int> reads, writes;
  };

  static bool contains(const std::vector<int>& list, int value) {
    return std::ranges::find(list, value) != list.end();
  }
  const VirtualBuffer& buffer(int b) const { return schedule_.buffers[size_t(b)]; }
  const Bytes& place(int b) const { return places_[size_t(b)]; }
  int64_t bytes_of(int b) const { return place(b).end - place(b).begin; }

  std::string buffer_text(int b) const {
    const VirtualBuffer& v = buffer(b);
    return fmt::format("buffer {} ({}{}, bytes {} to {} of memory {})", b, name(v.dtype),
                       to_string(v.shape), place(b).begin, place(b).end,
                       fmt::join(place(b).memories, ", "));
  }
  std::string item_text(int i) const {
    return fmt::format("item {} ({})", i, schedule_.items[size_t(i)].describe());
  }
  [[noreturn]] static void fail(const std::string& text) {
    throw InternalError("the memory of a schedule: " + text);
  }

  // Devices by the meshes that they are in: those in the same ones share an arena here.
  void find_arenas() {
    std::map<int64_t, Mesh> meshes;
    for (const VirtualBuffer& v : schedule_.buffers) {
      if (v.arena_offset >= 0) meshes.emplace(v.mesh.id(), v.mesh);
    }
    using Name = std::pair<std::string, int>;  // kind and number
    std::map<Name, std::set<int>> ranks;
    for (const auto& [id, mesh] : meshes) {
      for (const DeviceRef& d : mesh.devices()) ranks[{d.kind, d.index}].insert(d.rank);
    }
    std::map<std::pair<Name, int>, std::set<int64_t>> meshes_of;
    for (const auto& [id, mesh] : meshes) {
      for (const DeviceRef& d : mesh.devices()) {
        const Name name{d.kind, d.index};
        if (d.rank != DeviceRef::kHere) meshes_of[{name, d.rank}].insert(id);
        // A device of this process, whichever that is, belongs to every rank.
        for (int rank : d.rank == DeviceRef::kHere ? ranks.at(name) : std::set<int>())
          meshes_of[{name, rank}].insert(id);
      }
    }
    std::map<std::set<int64_t>, int> arenas;
    for (const auto& [device, in] : meshes_of) {
      if (!arenas.emplace(in, int(memories_.size())).second) continue;
      for (int64_t mesh : in) arenas_of_[mesh].push_back(int(memories_.size()));
      memories_.emplace_back(kNothing);
    }
  }

  Bytes find_place(int b) {
    int owner = b;
    int64_t offset = 0;
    for (size_t steps = 0; buffer(owner).previous >= 0 || buffer(owner).container >= 0; ++steps) {
      const VirtualBuffer& v = buffer(owner);
      if (v.previous >= 0 && v.container >= 0)
        fail(fmt::format("buffer {} is a version and lies inside of another one", owner));
      if (steps > schedule_.buffers.size()) fail(fmt::format("buffer {} lies in itself", b));
      offset += v.container >= 0 ? v.container_offset : 0;
      owner = v.container >= 0 ? v.container : v.previous;
    }
    const VirtualBuffer& v = buffer(owner);
    int64_t size = v.numel() * int64_t(itemsize(v.dtype));
    Bytes found;
    if (v.storage) {
      found.memories = {memory_of(v.storage.get(), kInitial)};
    } else if (v.output || v.arena_offset < 0) {
      found.memories = {memory_of(&v, kNothing)};
      if (!v.output) size = 0;  // no memory at all
    } else {
      found.memories = arenas_of_.at(v.mesh.id());
      if (v.arena_offset + size > schedule_.arena_bytes)
        fail(fmt::format("buffer {} ends beyond the arena of {} bytes", b, schedule_.arena_bytes));
      offset += v.arena_offset;
    }
    found.begin = offset;
    found.end = offset + buffer(b).numel() * int64_t(itemsize(buffer(b).dtype));
    const bool in_arena = !v.storage && !v.output && v.arena_offset >= 0;
    const int64_t begin_of_owner = in_arena ? v.arena_offset : 0;
    inside_.push_back(found.begin == found.end || found.end <= begin_of_owner + size);
    return found;
  }

  int memory_of(const void* key, int label) {
    auto [found, added] = numbers_.try_emplace(key, int(memories_.size()));
    if (added) memories_.emplace_back(label);
    return found->second;
  }

  // A kernel's from its expressions, in which a slot stands for a buffer.
  void accesses(const Item& item, std::vector<int>& reads, std::vector<int>& writes) const {
    auto add = [&](std::vector<int>& list, int b) {
      if (bytes_of(b) > 0 && !contains(list, b)) list.push_back(b);
    };
    if (item.kind != Item::Kind::Kernel) {
      for (int b : item.reads) add(reads, b);
      for (int b : item.writes) add(writes, b);
      return;
    }
    for (const UOp& x : toposort(std::span(&item.kernel.sink, 1))) {
      if (x.op() == Op::Load) add(reads, item.buffers[size_t(slot_of(*x))]);
      if (x.op() == Op::Store) add(writes, item.buffers[size_t(slot_of(*x))]);
    }
  }

  // Whose value the bytes of b hold when b can be read.
  int value_of(int b) const {
    while (writer_[size_t(b)] < 0 && buffer(b).container >= 0) b = buffer(b).container;
    if (writer_[size_t(b)] >= 0) return b;
    return buffer(b).storage ? kInitial : b;
  }

  void check_memory(int b) const {
    if (!inside_[size_t(b)]) fail(fmt::format("{} has no memory of that size", buffer_text(b)));
  }

  void check_holds(int b, const std::string& who) const {
    check_memory(b);
    int wanted = value_of(b), found = wanted;
    for (int memory : place(b).memories) {
      if (found != wanted) break;
      found = memories_[size_t(memory)].other_than(wanted, place(b).begin, place(b).end);
    }
    if (found == wanted) return;
    if (found < 0 || (wanted >= 0 && writer_[size_t(wanted)] < 0))
      fail(fmt::format("{} {} before anybody has written it", who, buffer_text(b)));
    fail(fmt::format("{} {} after {} has written {} over it", who, buffer_text(b),
                     item_text(writer_[size_t(found)]), buffer_text(found)));
  }

  void check_free(int i, int b, bool written) const {
    for (const OnTheWay& c : on_the_way_) {
      auto meets = [&](int other) { return place(b).meets(place(other)); };
      bool read = written && std::ranges::any_of(c.reads, meets);
      if (read || std::ranges::any_of(c.writes, meets)) {
        fail(fmt::format("{} {} {} without waiting for {}, which {} it", item_text(i),
                         written ? "writes" : "reads", buffer_text(b), item_text(c.item),
                         read ? "reads" : "writes"));
      }
    }
  }

  void write(int i, int b) {
    check_memory(b);
    int& writer = writer_[size_t(b)];
    if (writer >= 0)
      fail(fmt::format("{} and {} write {}", item_text(writer), item_text(i), buffer_text(b)));
    writer = i;
    for (int memory : place(b).memories)
      memories_[size_t(memory)].fill(place(b).begin, place(b).end, b);
  }

  void check_in_place(int i, const std::vector<int>& reads, const std::vector<int>& writes) const {
    const Item& item = schedule_.items[size_t(i)];
    for (size_t a = 0; a < writes.size(); ++a) {
      for (size_t c = 0; c < a; ++c) {
        if (place(writes[a]).meets(place(writes[c])))
          fail(fmt::format("{} writes {} and {}, which overlap", item_text(i),
                           buffer_text(writes[a]), buffer_text(writes[c])));
      }
    }
    if (item.kind == Item::Kind::Kernel) {
      check_kernel(i);
      return;
    }
    for (int w : writes) {
      for (int r : reads) {
        if (place(w).meets(place(r)) && !may_write_over(item, r, w))
          fail(fmt::format("{} writes {} over its operand, {}", item_text(i), buffer_text(w),
                           buffer_text(r)));
      }
    }
  }

  // A reduction over devices is done in place; a product that updates a storage adds to what is
  // there, and so does a scatter, or writes over it. All find operand and result in the same bytes,
  // and nothing else of the item there.
  bool may_write_over(const Item& item, int operand, int result) const {
    if (!(place(operand) == place(result))) return false;
    if (item.kind == Item::Kind::Collective) return item.collective.op == CollectiveOp::AllReduce;
    bool updates = item.kind == Item::Kind::Library && starts_from_third(item.call.node);
    if (!updates || item.buffers[2] != operand) return false;
    // Factors and scale: all operands but the third; the result is the last buffer.
    for (size_t i = 0; i + 1 < item.buffers.size(); ++i) {
      if (i != 2 && place(item.buffers[i]).meets(place(result))) return false;
    }
    return true;
  }

  void check_kernel(int i) const {
    const Item& item = schedule_.items[size_t(i)];
    const std::vector<ParamInfo>& params = item.kernel.params;
    if (params.size() != item.buffers.size())
      fail(fmt::format("{} has {} parameters for {} buffers", item_text(i), params.size(),
                       item.buffers.size()));
    auto first = [&](size_t slot) {  // of those that the code generator takes for one memory
      while (params[slot].alias >= 0) slot = size_t(params[slot].alias);
      return slot;
    };
    SharedParams share(params.size(), std::vector<bool>(params.size()));
    bool any = false;
    for (size_t a = 0; a < params.size(); ++a) {
      for (size_t b = 0; b < params.size(); ++b) {
        const int one = item.buffers[a], other = item.buffers[b];
        if (!params[a].written || !place(one).meets(place(other))) continue;
        if (a != b && (!(place(one) == place(other)) || first(a) != first(b)))
          fail(fmt::format("{} writes {} over {} and was not told so", item_text(i),
                           buffer_text(one), buffer_text(other)));
        share[a][b] = share[b][a] = any = true;
      }
    }
    if (!any) return;
    try {
      verify_in_place(item.kernel, share);
    } catch (const InternalError& e) {
      fail(fmt::format("{}: {}; its buffers are {}", item_text(i), e.what(),
                       fmt::join(item.buffers, ", ")));
    }
  }

  const Schedule& schedule_;
  std::map<const void*, int> numbers_;  // of memories, by storage or output
  std::vector<Labels> memories_;
  std::map<int64_t, std::vector<int>> arenas_of_;  // meshes, by their ids
  std::vector<Bytes> places_;                      // by buffer
  std::vector<bool> inside_;  // whether the memory that a buffer lies in is large enough
  std::vector<int> writer_;   // items
  std::vector<OnTheWay> on_the_way_;
};

}  // namespace

void verify_memory(const Schedule& schedule) { Verifier(schedule).run(); }

}  // namespace tinyshard
