// Records the engine's work, with times, in a file for trace viewers (chrome://tracing,
// ui.perfetto.dev): passes, compilations, runs, launches, copies and collectives, with source
// lines. Each event is in the file as soon as it has ended; a child of fork writes nothing there.
//
//   TraceFile trace("trace.json");        // from here
//   for (...) step(batch);
//                                         // to the end of its life
#pragma once
#include <memory>
#include <string>

namespace tinyshard {

class TraceFile {
 public:
  // `items`: each item of a run is waited for and timed, and steps are not replayed as a whole;
  // otherwise a replayed step is one event. UserError where the file cannot be written.
  explicit TraceFile(const std::string& path, bool items = false);
  ~TraceFile();
  // Ends the file. What happens later is not in it.
  void finish() noexcept;
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

 private:
  class Writer;
  std::unique_ptr<Writer> writer_;
};

// TS_TRACE=FILE: the same for all of a program without a line of it changed, from here to the exit of
// the process. Of several ranks each writes a file of its own: trace.json becomes trace.rank2.json.
// Another value than at the last call ends that file. UserError where the file cannot be written.
void follow_trace_option(int rank, int ranks);

}  // namespace tinyshard
