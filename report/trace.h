// What the engine did, and when, in a file for trace viewers (chrome://tracing, ui.perfetto.dev):
// passes, compilations, runs, launches, copies and collectives, with source lines.
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
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

 private:
  class Writer;
  std::unique_ptr<Writer> writer_;
};

}  // namespace tinyshard
