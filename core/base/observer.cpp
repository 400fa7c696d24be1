// The list of attached observers, under a lock that events share and attaching takes alone.
#include "core/base/observer.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <vector>

namespace tinyshard {
namespace {

struct Attached {
  std::shared_mutex mutex;
  std::vector<Observer*> list;
  std::atomic<uint64_t> next{1};
};

Attached& attached() {
  static Attached& all = *new Attached;  // outlives every static user
  return all;
}

bool is_of_an_item(EventKind kind) {
  return kind == EventKind::Launch || kind == EventKind::Copy || kind == EventKind::Collective ||
         kind == EventKind::Wait;
}

bool is_told(const Observer& observer, const ObservedEvent& event) {
  return !is_of_an_item(event.kind) || !observer.takes_item_times();
}

// A look at the processor's clock costs more than most events.
bool is_counted(EventKind kind) {
  return kind == EventKind::Pass || kind == EventKind::ScheduleStep ||
         kind == EventKind::Compilation || kind == EventKind::Load;
}

}  // namespace

std::atomic<int> detail::observers{0};
std::atomic<int> detail::item_readers{0};
std::atomic<uint64_t> detail::attachments{0};
constinit thread_local int detail::muted = 0;

const char* name(EventKind kind) {
  constexpr const char* kNames[] = {
      "pass",       "schedule step", "compilation", "load",    "run",     "launch", "copy",
      "collective", "wait",          "tuning",      "reshard", "listing", "record", "allocation"};
  return kNames[size_t(kind)];
}

Observing::Observing(Observer& observer) : observer_(&observer) {
  std::unique_lock lock(attached().mutex);
  attached().list.push_back(observer_);
  detail::attachments.fetch_add(1);
  detail::observers.fetch_add(1);
  if (!observer_->takes_item_times()) detail::item_readers.fetch_add(1);
}

Observing::~Observing() {
  std::unique_lock lock(attached().mutex);
  std::erase(attached().list, observer_);
  detail::observers.fetch_sub(1);
  if (!observer_->takes_item_times()) detail::item_readers.fetch_sub(1);
}

bool item_times_are_taken() {
  if (!is_observed()) return false;
  std::shared_lock lock(attached().mutex);
  return std::ranges::any_of(attached().list,
                             [](const Observer* o) { return o->takes_item_times(); });
}

bool items_are_timed() {
  if (!is_observed()) return false;
  std::shared_lock lock(attached().mutex);
  return std::ranges::any_of(attached().list, [](const Observer* o) { return o->times_items(); });
}

CodeForm listings_are_read() {
  CodeForm last = CodeForm::None;
  if (!is_observed()) return last;
  std::shared_lock lock(attached().mutex);
  for (const Observer* o : attached().list) last = std::max(last, o->reads_listings());
  return last;
}

RecordForm records_are_read() {
  RecordForm most = RecordForm::None;
  if (!is_observed()) return most;
  std::shared_lock lock(attached().mutex);
  for (const Observer* o : attached().list) most = std::max(most, o->reads_records());
  return most;
}

void detail::begin_event(ObservedEvent& event) {
  event.id = attached().next.fetch_add(1, std::memory_order_relaxed);
  std::shared_lock lock(attached().mutex);
  for (Observer* o : attached().list) {
    if (is_told(*o, event)) o->begin(event);
  }
}

void detail::end_event(const ObservedEvent& event) noexcept {
  std::shared_lock lock(attached().mutex);
  for (Observer* o : attached().list) {
    if (is_told(*o, event)) o->end(event);
  }
}

void ObservedScope::begin(ObservedEvent event) {
  seen_.emplace(Seen{.event = std::move(event), .unwinding = std::uncaught_exceptions()});
  detail::begin_event(seen_->event);
  seen_->event.begun = std::chrono::steady_clock::now();
  if (is_counted(seen_->event.kind)) seen_->processor.emplace();
}

void ObservedScope::end() noexcept {
  stop();
  seen_->event.failed = std::uncaught_exceptions() > seen_->unwinding;
  detail::end_event(seen_->event);
}

void ObservedScope::stop() {
  ObservedEvent& event = seen_->event;
  if (event.took.count() != 0) return;
  event.took = std::chrono::steady_clock::now() - event.begun;
  if (seen_->processor) event.processor_ms = seen_->processor->ms();
}

}  // namespace tinyshard
