// Recording by stream capture. A Recorder is there while a GPU records; what it leaves is a graph
// that knows which of its nodes each launch became, so that a launch with other pointers is a
// change of a few nodes.
#pragma once
#include <span>
#include <unordered_set>
#include <vector>

#include "devices/gpu/gpu.h"

namespace tinyshard::gpu {

struct RecordedLaunch {
  GpuProgram* program;
  void* const* buffers;
  const int64_t* coordinates;
  const void* scratch;           // of the program, when it was ordered
  int step;                      // that it is a part of; -1 without steps
  std::vector<GraphNode> nodes;  // in the order in which they were added
};

// The parts of a recording. Empty once somebody took it.
struct RecordedGraph {
  explicit RecordedGraph(const Gpu& gpu) : driver(gpu.driver()), context(gpu.context()) {}
  ~RecordedGraph();
  RecordedGraph(const RecordedGraph&) = delete;
  const Driver& driver;
  Context context;
  Graph graph = nullptr;  // nodes are named by those of the graph that `exec` came from
  GraphExec exec = nullptr;
};

// The nodes that the next operation on a stream will depend on, and how; none where it does not
// capture.
struct Tips {
  std::span<const GraphNode> nodes;
  std::span<const GraphEdge> edges;  // of each node, or none: all plain
};

class Recorder {
 public:
  explicit Recorder(Gpu& gpu);  // begins to capture the compute stream
  ~Recorder();                  // ends it, if nobody did
  Recorder(const Recorder&) = delete;

  // Makes a step of the calls that follow: Device::record_step.
  void step(std::span<const int> after, bool urgent);
  void before(const GpuProgram& program);
  void after(GpuProgram& program, void* const* buffers, const int64_t* coordinates);
  // After the stream was told to wait for an event: what the event implies need not be waited for
  // as well. A chain of collectives, each of which comes back to the compute stream, would depend
  // on all the earlier ones otherwise, which takes the GPU longer to see than a small one to run.
  void waited(Stream stream);
  void has_collective() { collective_ = true; }
  bool holds_collective() const { return collective_; }
  // `graph`, if not null, is set to what the recording consists of.
  std::unique_ptr<Recording> finish(std::weak_ptr<RecordedGraph>* graph);

 private:
  struct Step {
    bool urgent;
    std::vector<GraphNode> tips;  // what ends it, once the next one begins
  };
  void begin_early(Stream stream, const Tips& all);
  void end_step();
  void prioritize();

  Gpu& gpu_;
  bool capturing_ = false, collective_ = false;
  std::vector<Step> steps_;
  bool in_step_ = false;
  std::unordered_set<GraphNode> seen_, waiting_;  // waiting: for what is before, in their code
  std::vector<RecordedLaunch> launches_;
};

template <class Enqueue>
void Gpu::launch(GpuProgram& program, void* const* buffers, const int64_t* coordinates,
                 Enqueue&& enqueue) {
  auto lock = in_order();
  if (recorder_) recorder_->before(program);
  enqueue();
  if (recorder_) recorder_->after(program, buffers, coordinates);
}

}  // namespace tinyshard::gpu
