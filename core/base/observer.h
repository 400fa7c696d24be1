// The stream of events tells what the engine begins and what it ends, with the line of the user's
// program where that is known. DEBUG's text, TS_TRACE's file for a trace viewer and tests are
// observers of it. With none attached, an event costs a load and a branch.
//
//   compilation of a step:  pass*, schedule step*, compilation { load }, load
//   a run:                  run { launch { wait* } | copy | collective | wait ... }
//   within a compilation:   reshard in passes, tuning and listings in compilations and loads
//
// A replayed step is one run without events inside: its items are not begun by the host. Events of a
// run's items cost a few microseconds each, as they are described in words; an observer that takes
// item times is given numbers with the end of the run instead.
//
// Threads: events of one thread nest. Observers are called on the thread that works, several at
// once where several work.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "core/base/origin.h"
#include "core/base/stopwatch.h"
#include "core/base/ticket.h"

namespace tinyshard {

enum class EventKind : uint8_t {
  Pass,
  ScheduleStep,
  Compilation,
  Load,  // of compiled code: a GPU's machine code, programs onto devices
  Run,
  Launch,  // of a kernel or a library's call, on each local device
  Copy,
  Collective,  // its start on this rank
  Wait,        // until a collective is done, while nothing else runs here
  Tuning,      // candidates of a kernel, or a library's algorithms for a call, are timed
  Reshard,     // the sharding rewrite moves a value to other placements: no time passes
  Listing,     // of generated code, in `after`; only where some observer reads_listings()
  Record,      // of a plan, as JSON in `after`; only where some observer reads_records()
  Allocation,  // of memory of a storage or an arena, or its end: see `bytes`
};
const char* name(EventKind kind);  // "pass"

// An item of a run, or a wait for a collective, in the order of their ends.
struct ItemTime {
  int item = -1;  // its place in the schedule
  bool waits = false;
  std::chrono::steady_clock::time_point begun = {};
  std::chrono::nanoseconds took{};
};

struct ObservedEvent {
  EventKind kind = EventKind::Pass;
  uint64_t id = 0;      // the same at begin and end; increases
  std::string name;     // "tidy", "kernel map_64_64 (2 in, 1 out)"
  OriginId origin = 0;  // of what is made
  Ticket ticket = {};   // of a run and what is in it
  uint64_t plan = 0;    // of a run and what is in it: the number of its Record; 0: none was told
  int item = -1;        // of a launch, copy, collective or wait: its place in the schedule
  int64_t bytes = 0;    // of an allocation, on all devices of this process; below 0 at its end
  std::chrono::steady_clock::time_point begun = {};
  // Known at the end.
  std::chrono::nanoseconds took{};
  double processor_ms = 0;  // of passes, steps of the schedule, compilations and loads
  std::string after = {};   // what there is then: "48 nodes", "12 items"
  bool failed = false;      // it was left by an exception
  // The items of a run, where some observer takes_item_times().
  const std::vector<ItemTime>* items = nullptr;
  bool measured = false;  // a run that is replayed otherwise: each item was waited for
  double ms() const { return std::chrono::duration<double, std::milli>(took).count(); }
};

// The forms that code has on its way; each includes those before it.
enum class CodeForm : uint8_t { None, Graph, Llvm, Assembly };

// Which records an observer reads: plans, or their graphs after each pass and kernels as well.
enum class RecordForm : uint8_t { None, Plan, Graphs };

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void begin(const ObservedEvent& event) = 0;
  virtual void end(const ObservedEvent& event) noexcept = 0;
  // True if each item of a run has to be seen: steps are then not replayed as a whole, and an item
  // ends when the device has done it.
  virtual bool times_items() const { return false; }
  // True if the items of a run are read from the end of the run: no launch, copy, collective or wait is
  // told as an event. One run of a step that is replayed is made of single items then, and measured.
  virtual bool takes_item_times() const { return false; }
  virtual CodeForm reads_listings() const { return CodeForm::None; }
  virtual RecordForm reads_records() const { return RecordForm::None; }
};

// Attaches an observer for as long as the object lives. Not while an event is under way.
class Observing {
 public:
  explicit Observing(Observer& observer);
  ~Observing();
  Observing(const Observing&) = delete;
  Observing& operator=(const Observing&) = delete;

 private:
  Observer* observer_;
};

namespace detail {
extern std::atomic<int> observers;         // attached
extern std::atomic<int> item_readers;      // of these: those that read events of items
extern std::atomic<uint64_t> attachments;  // so far
extern constinit thread_local int muted;   // scopes in which this thread tells nothing
void begin_event(ObservedEvent& event);
void end_event(const ObservedEvent& event) noexcept;
}  // namespace detail

inline bool is_observed() {
  return detail::observers.load(std::memory_order_relaxed) > 0 && detail::muted == 0;
}
// For attempts that may come to nothing: this thread tells no events that begin in the scope.
class Unobserved {
 public:
  Unobserved() { ++detail::muted; }
  ~Unobserved() { --detail::muted; }
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;
};
// True if some observer reads launches, copies, collectives and waits as events.
inline bool items_are_events() {
  return detail::item_readers.load(std::memory_order_relaxed) > 0 && detail::muted == 0;
}
bool item_times_are_taken();   // by some observer
bool items_are_timed();        // by some observer
CodeForm listings_are_read();  // the last form that some observer reads
RecordForm records_are_read();
// Increases whenever an observer is attached: a record that was told before is told again to it.
inline uint64_t observer_attachments() {
  return detail::attachments.load(std::memory_order_relaxed);
}

// An event, from here to the end of the scope. `describe` gives an ObservedEvent and is called only
// when somebody looks; otherwise the event is not even constructed, since replays pass many scopes.
class ObservedScope {
 public:
  template <class Describe>
  explicit ObservedScope(const Describe& describe) {
    if (is_observed()) begin(describe());
  }
  ~ObservedScope() {
    if (seen_) end();
  }
  ObservedScope(const ObservedScope&) = delete;
  ObservedScope& operator=(const ObservedScope&) = delete;

  // Gives the event of a run its items, which live until the event has ended.
  void has(const std::vector<ItemTime>& items, bool measured) {
    if (!seen_) return;
    seen_->event.items = &items;
    seen_->event.measured = measured;
  }
  // Ends the event's time, then asks for its result in words: describing it is not part of the time.
  template <class After>
  void finish(const After& after) {
    if (!seen_) return;
    stop();
    seen_->event.after = after();
  }

 private:
  struct Seen {
    ObservedEvent event;
    int unwinding = 0;  // exceptions in flight when it began
    std::optional<ProcessorStopwatch> processor = {};
  };
  void begin(ObservedEvent event);
  void end() noexcept;
  void stop();

  std::optional<Seen> seen_;
};

// An event that takes no time: it begins and ends here. `describe` as above.
template <class Describe>
void observe(Describe&& describe) {
  if (!is_observed()) return;
  ObservedEvent event = std::forward<Describe>(describe)();
  detail::begin_event(event);
  event.begun = std::chrono::steady_clock::now();
  detail::end_event(event);
}

}  // namespace tinyshard
