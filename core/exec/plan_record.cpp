// A record is made once for each different schedule, which its hash tells. Graphs are kept as roots
// while the passes run, and described only when the schedule turns out to be new. Nodes are immutable
// and have ids, so a pass is told by the nodes that it brought and those that it did away with.
#include "core/exec/plan_record.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/call.h"
#include "core/exec/explain.h"
#include "core/exec/plan_record_tables.h"
#include "core/exec/workspaces.h"
#include "core/schedule/memory.h"

namespace tinyshard {
namespace {

using nlohmann::json;
using Graphs = std::vector<std::pair<std::string, std::vector<UOp>>>;

constexpr size_t kMostNodes = 40'000;   // that a record describes
constexpr size_t kMostRules = 20'000;   // applications that it keeps
constexpr size_t kMostDevices = 1'024;  // of which it tells memory one by one

// The numbers of plans by the hash of their schedules, as long as the observers are the same.
class ToldPlans {
 public:
  // Returns the number, and whether the plan is new to them.
  std::pair<uint64_t, bool> number_of(uint64_t hash) {
    const std::lock_guard lock(mutex_);
    if (const uint64_t now = observer_attachments(); now != attachments_) {
      attachments_ = now;
      numbers_.clear();
    }
    const auto [there, is_new] = numbers_.try_emplace(hash, last_ + 1);
    if (is_new) ++last_;
    return {there->second, is_new};
  }

 private:
  std::mutex mutex_;
  uint64_t attachments_ = 0, last_ = 0;
  std::unordered_map<uint64_t, uint64_t> numbers_;
};
ToldPlans& told_plans() {
  static ToldPlans& plans = *new ToldPlans;  // outlives every static tensor
  return plans;
}

constinit thread_local CaughtRecord* caught = nullptr;

RecordForm wanted_form() { return caught != nullptr ? RecordForm::Graphs : records_are_read(); }

json ids_of(const std::vector<uint64_t>& ids) { return ids; }

// Describes each node where it first appears, and each pass by what differs from the graph before it.
void put_graphs(json& record, const Graphs& graphs, RecordTables& tables) {
  json nodes = json::array(), passes = json::array();
  std::unordered_set<uint64_t> described, before;
  size_t left_out = 0;
  for (const auto& [pass, roots] : graphs) {
    std::vector<uint64_t> added, removed, of_roots;
    std::unordered_set<uint64_t> now;
    for (const UOp& x : toposort(roots)) {
      now.insert(x->id);
      if (!before.contains(x->id)) added.push_back(x->id);
      if (!described.insert(x->id).second) continue;
      if (nodes.size() >= kMostNodes) {
        ++left_out;
        continue;
      }
      std::vector<uint64_t> sources;
      for (const UOp& s : x->src()) sources.push_back(s->id);
      nodes.push_back({x->id, describe(*x), std::move(sources), tables.of(origin_id(x))});
    }
    for (uint64_t id : before) {
      if (!now.contains(id)) removed.push_back(id);
    }
    std::ranges::sort(removed);
    for (const UOp& root : roots) of_roots.push_back(root->id);
    passes.push_back({{"name", pass},
                      {"nodes", now.size()},
                      {"added", ids_of(added)},
                      {"removed", ids_of(removed)},
                      {"roots", ids_of(of_roots)}});
    before = std::move(now);
  }
  record["nodes"] = std::move(nodes);
  record["passes"] = std::move(passes);
  if (left_out > 0) record["nodes_left_out"] = left_out;
}

using RulesMade = std::vector<std::pair<size_t, RuleLog::Entry>>;

// Equal layers are rewritten alike: such applications are one row with a count.
void put_rules(json& record, const RulesMade& made, size_t left_out, RecordTables& tables) {
  std::map<std::tuple<size_t, std::string, std::string, std::string, int>, std::pair<uint64_t, int>>
      rows;
  for (const auto& [pass, entry] : made) {
    auto key = std::tuple(pass, entry.rule, describe(*entry.node), describe(*entry.by),
                          tables.of(origin_id(entry.node)));
    ++rows.try_emplace(std::move(key), entry.node->id, 0).first->second.second;
  }
  json list = json::array();
  for (const auto& [key, row] : rows) {
    const auto& [pass, rule, before, after, origin] = key;
    list.push_back({pass, rule, row.first, before, after, origin, row.second});
  }
  record["rules"] = std::move(list);
  if (left_out > 0) record["rules_left_out"] = left_out;
}

std::string label_of(const UOp& x) {
  if (x.op() != Op::Buffer || !x->payload) return {};
  return static_cast<const Placed*>(x->payload.get())->label;
}

json choices_of(const PlacedValue& value) {
  json list = json::array();
  for (const WayChoice& choice : value.choices) {
    json options = json::array();
    for (const WayChoice::Option& o : choice.options) options.push_back({o.label, o.seconds * 1e6});
    list.push_back({choice.taken, std::move(options)});
  }
  return list;
}

void put_values(json& record, const std::vector<PlacedValue>& values,
                const std::vector<Movement>& movements, RecordTables& tables) {
  json list = json::array(), moves = json::array();
  for (const PlacedValue& v : values) {
    if (list.size() >= kMostNodes) break;
    const DimSpan shape = v.node.shape();
    json row = {v.node->id,
                name(v.node.dtype()),
                Dims(shape.begin(), shape.end()),
                tables.of(v.where.mesh),
                recorded(v.where.placements),
                tables.of(v.origin),
                label_of(v.node)};
    if (!v.choices.empty()) row.push_back(choices_of(v));
    list.push_back(std::move(row));
  }
  for (const Movement& m : movements) {
    moves.push_back({{"dtype", name(m.dtype)},
                     {"shape", m.shape},
                     {"mesh", tables.of(m.mesh)},
                     {"from", recorded(m.from)},
                     {"to", recorded(m.to)},
                     {"bytes", m.bytes},
                     {"s", m.seconds},
                     {"o", tables.of(m.origin)},
                     {"reader", m.reader}});
  }
  record["values"] = std::move(list);
  record["moves"] = std::move(moves);
}

std::string label_of(const VirtualBuffer& buffer) {
  return buffer.storage ? static_cast<const Placed*>(buffer.storage.get())->label : std::string();
}

// Optimizers name their states after parameters: "m.in.weight" is one beside "in.weight".
bool is_named_after(const std::string& label, const std::set<std::string>& labels) {
  for (size_t dot = label.find('.'); dot != std::string::npos; dot = label.find('.', dot + 1)) {
    if (labels.contains(label.substr(dot + 1))) return true;
  }
  return false;
}

// Says who owns each buffer: parameters have labels, states are named after them, or are written over
// and have none.
std::vector<std::string> owners_of(const Schedule& schedule) {
  const std::vector<VirtualBuffer>& buffers = schedule.buffers;
  std::vector<bool> sent(buffers.size()), written_over(buffers.size());
  for (const Item& item : schedule.items) {
    if (item.kind != Item::Kind::Collective) continue;
    for (int b : item.buffers) sent[size_t(b)] = true;
  }
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].previous >= 0) written_over[size_t(earliest_version(buffers, int(b)))] = true;
  }
  std::set<std::string> labels;
  for (const VirtualBuffer& b : buffers) labels.insert(label_of(b));
  labels.erase("");
  std::vector<std::string> owners;
  for (size_t b = 0; b < buffers.size(); ++b) {
    const VirtualBuffer& buffer = buffers[b];
    const std::string label = label_of(buffer);
    const bool gradient = label.starts_with("the gradient of ") ||
                          origin_of(buffer.origin).about.starts_with("gradient of ");
    const bool temporary = !buffer.storage && !buffer.output;
    owners.emplace_back(gradient && !(temporary && sent[b]) ? "gradient"
                        : temporary ? sent[b] ? "communication" : "activation"
                        : !label.empty() && is_named_after(label, labels) ? "state"
                        : !label.empty()                                  ? "parameter"
                        : written_over[b]                                 ? "state"
                        : buffer.storage                                  ? "input"
                                                                          : "result");
  }
  return owners;
}

void put_buffers(json& record, const Schedule& schedule, RecordTables& tables) {
  const std::vector<std::string> owners = owners_of(schedule);
  std::map<int, Life> lives;
  for (const Life& life : arena_lives(schedule)) lives.try_emplace(life.buffer, life);
  json list = json::array();
  for (size_t b = 0; b < schedule.buffers.size(); ++b) {
    const VirtualBuffer& buffer = schedule.buffers[b];
    const std::string label = label_of(buffer);
    const auto life = lives.find(int(b));
    const bool in_arena = life != lives.end();
    list.push_back({name(buffer.dtype), buffer.shape, tables.of(buffer.mesh), buffer.bytes(),
                    owners[b], label, tables.of(buffer.origin),
                    memory_holder(schedule.buffers, int(b)), in_arena ? life->second.first : -1,
                    in_arena ? life->second.last : -1, buffer.arena_offset,
                    int(buffer.storage || buffer.output)});
  }
  record["buffers"] = std::move(list);
}

json collective_of(const Item& item, const CollectiveItem& told) {
  json call = {{"op", told.op},           {"axis", told.axis},
               {"bytes", told.bytes},     {"s", told.seconds},
               {"number", item.sequence}, {"dtype", name(item.collective.dtype)},
               {"along", item.mesh_axis}};
  if (item.transfers.empty()) return call;
  constexpr size_t kMost = 256;
  json transfers = json::array();
  for (const Item::Transfer& t : item.transfers) {
    if (transfers.size() >= kMost) break;
    transfers.push_back({t.from, t.to, t.count * int64_t(itemsize(item.collective.dtype))});
  }
  call["transfers"] = std::move(transfers);
  return call;
}

void put_items(json& record, const Schedule& schedule, const PlanSummary& summary, RecordForm form,
               RecordTables& tables) {
  constexpr const char* kKinds[] = {"kernel", "library", "collective", "copy"};
  json list = json::array();
  size_t next = 0;
  for (const Item& item : schedule.items) {
    const ItemWork work = work_of(schedule, item);
    const ItemOrigin origin = origin_of_item(schedule, item);
    json row = {{"kind", kKinds[size_t(item.kind)]},
                {"name", item.describe()},
                {"mesh", tables.of(item.mesh)},
                {"reads", item.reads},
                {"writes", item.writes},
                {"read", work.bytes_read},
                {"written", work.bytes_written},
                {"ops", work.operations}};
    if (!origin.purpose.empty()) row["purpose"] = origin.purpose;
    if (!origin.source.empty()) row["source"] = origin.source;
    if (!item.writes.empty()) row["o"] = tables.of(schedule.buffers[size_t(item.writes[0])].origin);
    if (!item.waits.empty()) row["waits"] = item.waits;
    if (const int64_t kept = workspace_bytes(item); kept > 0) row["workspace"] = kept;
    if (item.kind == Item::Kind::Collective)
      row["collective"] = collective_of(item, summary.collective_items[next++]);
    if (item.kind == Item::Kind::Kernel && form == RecordForm::Graphs) {
      if (const int code = tables.of_kernel(item.kernel); code >= 0) row["code"] = code;
    }
    list.push_back(std::move(row));
  }
  record["items"] = std::move(list);
}

void put_summary(json& record, const PlanSummary& s) {
  json memory = json::array();
  for (const DeviceMemory& m : s.memory) {
    if (memory.size() >= kMostDevices) break;
    memory.push_back({m.device, m.held_bytes, m.arena_bytes, m.workspace_bytes});
  }
  record["memory"] = std::move(memory);
  record["kernels"] = s.kernels;
  record["library_calls"] = s.library_calls;
  record["collectives"] = s.collectives;
  record["copies"] = s.copies;
  record["devices"] = s.devices;
  record["sent"] = s.collective_bytes;
  record["operations"] = s.operations;
  record["held"] = s.held_bytes;
  record["arena"] = s.arena_bytes;
  record["workspace"] = s.workspace_bytes;
}

struct Story {
  OriginId origin;
  const Graphs* graphs;
  const std::vector<PlacedValue>* values;
  const std::vector<Movement>* movements;
  const RulesMade* rules;
  size_t rules_left_out = 0;
};

std::string text_of(const Schedule& schedule, uint64_t number, uint64_t hash, RecordForm form,
                    const Story& story) {
  RecordTables tables;
  const Origin& asked = origin_of(story.origin);
  json record = {{"plan", number},
                 {"hash", fmt::format("{:016x}", hash)},
                 {"for", asked.op + (asked.source().empty() ? "" : ", " + asked.source())}};
  const PlanSummary summary = summarize(schedule);
  put_values(record, *story.values, *story.movements, tables);
  if (form == RecordForm::Graphs) {
    put_graphs(record, *story.graphs, tables);
    put_rules(record, *story.rules, story.rules_left_out, tables);
  }
  put_buffers(record, schedule, tables);
  put_items(record, schedule, summary, form, tables);
  put_summary(record, summary);
  if (const Speeds* speeds = speeds_of(schedule))
    record["speeds"] = {speeds->memory_bytes_per_s, speeds->operations_per_s};
  tables.put(record);
  // A name of the user's may be no UTF-8.
  return record.dump(-1, ' ', false, json::error_handler_t::replace);
}

uint64_t tell_as(const Schedule& schedule, RecordForm form, const Story& story) {
  if (form == RecordForm::None) return 0;
  const uint64_t hash = schedule.hash();
  if (caught != nullptr) {
    caught->text = text_of(schedule, 0, hash, form, story);
    return 0;
  }
  const auto [number, is_new] = told_plans().number_of(hash);
  if (!is_new) return number;
  observe([&, number = number] {
    return ObservedEvent{.kind = EventKind::Record,
                         .name = "plan",
                         .plan = number,
                         .after = text_of(schedule, number, hash, form, story)};
  });
  return number;
}

}  // namespace

CaughtRecord::CaughtRecord() : outer_(caught) {
  caught = this;
  ++MovementLog::wanted_here;
}

CaughtRecord::~CaughtRecord() {
  caught = outer_;
  --MovementLog::wanted_here;
}

PlanRecorder::PlanRecorder(std::span<const UOp> roots) : form_(wanted_form()) {
  if (!is_read()) return;
  origin_ = origin_of_call();
  after("program", roots);
  if (form_ == RecordForm::Graphs) log_ = std::make_unique<RuleLog>(kMostRules);
}

PlanRecorder::~PlanRecorder() = default;

void PlanRecorder::after(std::string_view pass, std::span<const UOp> roots) {
  if (form_ != RecordForm::Graphs) return;
  if (log_) {
    for (RuleLog::Entry& entry : log_->take())
      rules_made_.emplace_back(graphs_.size(), std::move(entry));
  }
  graphs_.emplace_back(pass, std::vector<UOp>(roots.begin(), roots.end()));
}

void PlanRecorder::lie(std::vector<PlacedValue> values, std::vector<Movement> movements) {
  values_ = std::move(values);
  movements_ = std::move(movements);
}

uint64_t PlanRecorder::tell(const Schedule& schedule) {
  return tell_as(schedule, form_,
                 {.origin = origin_,
                  .graphs = &graphs_,
                  .values = &values_,
                  .movements = &movements_,
                  .rules = &rules_made_,
                  .rules_left_out = log_ ? log_->left_out() : 0});
}

uint64_t tell_plan(const Schedule& schedule) {
  const Graphs graphs;
  const std::vector<PlacedValue> values;
  const std::vector<Movement> movements;
  const RulesMade rules;
  return tell_as(schedule, wanted_form(),
                 {.origin = origin_of_call(),
                  .graphs = &graphs,
                  .values = &values,
                  .movements = &movements,
                  .rules = &rules});
}

}  // namespace tinyshard
