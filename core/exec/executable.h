// A schedule made ready to run: programs loaded, memory bound, every launch a pointer and a list of
// pointers. Running it touches no UOp and allocates nothing. On asynchronous devices a run returns
// when everything is queued, and from the second run on it is one recording per device (replay.h), or,
// where devices send to each other, one for each segment between two sends (segments.h).
// When the runtime ends it is lost: its schedule can still be read, to run it is a UserError.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/observer.h"
#include "core/exec/counters.h"
#include "core/exec/item_times.h"
#include "core/exec/kept_in_place.h"
#include "core/exec/replay.h"
#include "core/exec/runtime_part.h"
#include "core/exec/segments.h"
#include "core/exec/storage.h"
#include "core/runtime/communicator.h"
#include "core/schedule/schedule.h"

namespace tinyshard {

// Counts since the process started or `reset`, which GlobalCounters (counters.h) shows with the work
// of each device.
struct Counters {
  int64_t kernels = 0, library_calls = 0, collectives = 0, copies = 0, runs = 0;
  int64_t nanoseconds = 0;
  void reset() { *this = {}; }
};
Counters& counters();

struct BoxIn;

class Executable : public RuntimePart {
 public:
  // With several ranks and a collective in it, all ranks compare the schedule
  // first: UserError naming the methods that asked for it, or the first item that differs.
  explicit Executable(Schedule schedule, bool compare_ranks);
  ~Executable() override;

  // Gives each root a storage of its global shape, compiles, loads and binds. Once, before run().
  void prepare(std::span<const Sharding> shardings, std::span<const Dims> global_shapes);

  // Storages of the roots, in order: those of the buffers written, or new ones for outputs.
  const std::vector<std::shared_ptr<Storage>>& roots() const { return roots_; }
  const Schedule& schedule() const { return schedule_; }
  // Returns the use of the storages that the schedule names, and of those made for the roots.
  StorageUse storage_use() const;

  // Puts the memory of `actual`, which has the same shape and sharding, in the place of
  // `placeholder` from the next run on.
  void rebind(const Storage& placeholder, Storage& actual);

  void run();
  // Names the plan by its record (plan_record.h) in the events of its runs.
  void set_record(uint64_t number);
  void check_usable() const;  // UserError where it cannot run any more

 private:
  struct Launch {
    Program* program;
    Device* device;
    void** buffers;  // in pointers_
    const int64_t* coordinates;
  };
  struct Call {  // of one piece of a collective, with our participants' buffers
    Collective collective;
    std::vector<CommBuffer> send, recv;
    Work work;
  };
  struct Group {  // one communicator of a collective
    Communicator* communicator;
    std::vector<size_t> members;  // launches of our participants
    bool through_host;            // the communicator cannot touch their memory
    std::vector<Call> calls;
    std::vector<size_t> counts;  // of an exchange: what each participant sends to each
    // Set in the first group of each communicator that other ranks take part in: they are compared.
    std::optional<RunIdentity> identity;
    std::vector<int> ranks = {};  // with an identity: who takes part, sorted
    void wait();
  };
  struct Step {
    const Item* item;
    std::vector<Launch> launches;  // one per local device
    std::vector<Group> groups;
    // Set for a copy from each process's own device to several ranks: where these write down what
    // they bring, and what it is called.
    Ledger* ledger = nullptr;
    std::string about = {};
  };
  struct Arena {
    Device* device;
    void* memory;
    size_t bytes;
  };
  struct Binding {  // where a buffer's pointer stands
    int buffer, device;
    void** slot;
    int64_t offset;
    int step;
    void** list;    // that the slot is in
    bool launched;  // the list is one that a program is launched with
    bool leads;     // of one of the leading steps
    bool copied;    // of the source of a copy, whose storage is asked when it runs
  };

  struct ToldSegment : Segment {
    std::vector<Device*> on;  // sorted
    Replay replay;
  };

  void release() noexcept;
  void runtime_ends() noexcept override;
  void make_steps();
  void add_work(const Item& item);
  void check_extents(const Item& item) const;
  void bind_all();
  void bind(const Binding& binding, void* base) {
    *binding.slot = static_cast<char*>(base) + binding.offset;
  }
  std::pair<int, int64_t> base_of(int buffer) const;  // buffer that owns the memory, offset in it
  void* base_pointer(int buffer, int device);
  Device& source_device(const Item& copy, size_t from) const;
  Device& source_of(const Item& copy, size_t local) const;
  bool can_hold(const Step& step) const;  // in a recording
  bool can_record() const;
  void make_segments();
  void drop_recordings();
  void pointers_changed(const Binding& binding);
  void run_recorded();
  void run_segment(const Segment& segment, std::span<const std::vector<int>> orders);
  void run_segments();
  std::vector<int> behind_leading() const;  // numbers of these steps
  // Returns for each of these steps which of them it must come after when they run side by side,
  // counted from the first of them. Empty if they have to run in order.
  std::vector<std::vector<int>> orders(std::span<const int> which) const;
  void run_item(Step& step);
  void launch_compared(const Step& step, const Launch& launch);  // TS_CHECK=values
  void wait_for(Step& collective);
  void wait_for_collectives(std::span<Step> steps);
  void run_shuffled();  // those behind the leading ones
  // With `orders`, these are steps of a recording.
  void run_items(std::span<Step> steps, std::span<const std::vector<int>> orders = {});
  // Runs all steps, and tells watches of state when the first of them writes to a storage.
  void run_watched(KeptInPlace::Run& watched);
  std::vector<const Storage*> storages_written() const;
  void copy(const Step& step);
  void copy_from_places(const Step& step);
  struct CopyLoad {           // of some copies, in bytes
    int64_t from_files = 0;   // to all devices
    int64_t from_memory = 0;  // to each
    void add(const Executable& of, const Step& step);
    bool is_bulk() const;  // worth several threads
  };
  // Returns what each device gets of copies from the host; empty where the host cannot read the source.
  std::vector<BoxIn> boxes_of(const Step& step);
  void find_bulk_copies();
  // Does the copies that begin here and touch nothing of each other at once; how many there were.
  size_t run_bulk_copies(std::span<Step> steps);
  void* source_pointer(const Step& step, size_t local);
  void start(Step& step);
  int place_of(int buffer, const Item& item, int d) const;
  CollectiveSite site_of(const Item& collective) const;
  ObservedEvent event_of(const Step& step) const;
  bool is_measured(bool replays);
  void identify_groups();
  void begin_run();  // gives the groups their identity, for the comparison with other ranks
  void announce();   // to the ranks of calls that devices make without the host
  void end_run();
  // Finds out what the ranks have to give alike: see ledger.h.
  void know_ledgers();
  void note(const Given& given);
  void note_copied(const Step& copy, Device& source, const void* from);
  std::string draws_text() const;
  std::string_view asked();

  Schedule schedule_;
  bool captured_ = false, executes_ = true;
  std::vector<std::shared_ptr<Storage>> owned_;  // by buffer: external and output storages
  std::vector<std::shared_ptr<Storage>> roots_;
  std::vector<Arena> arenas_;
  bool crosses_ranks_ = false;    // has collectives among devices of several ranks
  uint64_t hash_ = 0;             // of the schedule, where other ranks run it, too
  Ticket ticket_;                 // of the latest run
  std::vector<Storage*> inputs_;  // by buffer: what the host may have written; or null
  std::vector<Ledger*> changes_;  // of ranks whose values the run writes over
  bool compares_ = false;         // takes part in what several ranks hold
  bool binds_ = false;            // all of them run it, as something in it shows
  bool writes_down_ = false;      // and this run does so in the thread that keeps ledgers
  std::vector<Given> given_;      // by this run, which does not
  std::pair<OriginId, std::string> asked_;
  std::vector<std::shared_ptr<Program>> programs_;  // of the launches of the steps
  std::vector<Step> steps_;
  std::vector<Group*> identified_;
  std::vector<Binding> bindings_;  // sorted by owning buffer
  std::vector<std::vector<void*>> pointers_;
  std::vector<std::vector<int64_t>> coordinates_;
  Counters counts_;                           // of one run
  std::vector<DeviceCounters> work_;          // of one run, by device
  std::vector<DeviceCounters*> work_so_far_;  // of the process, of the same devices
  size_t leading_ = 0;                        // steps at the front that are never recorded
  std::vector<Device*> devices_;              // that launch something behind those
  std::vector<size_t> bulk_;  // by step: how many copies from here on are done at once; or 0
  uint64_t record_ = 0, record_told_to_ = 0;  // the observers that were attached when it was told
  ItemTimes times_;                           // of the run under way
  bool waits_for_items_ = false;              // it ends each item before the next one
  uint64_t measured_for_ = 0;                 // the observers that were told a measured run
  bool can_record_ = false, ran_ = false;
  bool compares_values_ = false;  // TS_CHECK=values, as the latest run found it
  // An input aliases a storage that the schedule captured: the step is recorded in one chain.
  bool in_chain_ = false;
  // Before everything that they were recorded from goes: one of all steps behind the leading ones, or
  // one of each segment that is recorded.
  Replay replay_;
  std::vector<ToldSegment> segments_;
  std::vector<int> segment_of_;  // by step; -1 for leading ones
  bool in_segments_ = false;     // the run under way
};

}  // namespace tinyshard
