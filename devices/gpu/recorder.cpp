// A recording as the driver's graph. After each launch the recorder looks at what the stream ends
// in: the nodes that are new belong to that launch. Example: kernel A, a library's product B that
// is a kernel and a memset, kernel C become A: [n0], B: [n1, n2], C: [n3]. When B's output moves,
// its call is captured once more by itself, and n1 and n2 take the new pointers; n0 and n3 stay.
#include "devices/gpu/recorder.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "devices/gpu/program.h"

namespace tinyshard::gpu {
namespace {

constexpr int kCapturing = 1;     // CU_STREAM_CAPTURE_STATUS_ACTIVE
constexpr unsigned kReplace = 1;  // CU_STREAM_SET_CAPTURE_DEPENDENCIES
constexpr int kPriority = 8;      // CU_LAUNCH_ATTRIBUTE_PRIORITY
// CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC: all blocks of the
// node before have said that others may begin, or have ended.
constexpr GraphEdge kBegun{.from_port = 1, .type = 1};
constexpr int kUrgent = -1;  // priority of a kernel; 0 is that of all others
constexpr int kRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED: libraries may allocate meanwhile

Tips tips(const Gpu& gpu, Stream stream) {
  int status = 0;
  uint64_t id = 0;
  Graph graph = nullptr;
  const GraphNode* nodes = nullptr;
  const GraphEdge* edges = nullptr;
  size_t count = 0;
  gpu.check(gpu.driver().capture_info(stream, &status, &id, &graph, &nodes, &edges, &count),
            "looking at a recording");
  if (status != kCapturing) return {};
  return {{nodes, count}, {edges, edges ? count : 0}};
}

// Returns the nodes that a node depends on directly; `whole`: only those that end before it begins.
std::vector<GraphNode> sources_of(const Gpu& gpu, GraphNode node, bool whole) {
  size_t count = 0;
  gpu.check(gpu.driver().node_dependencies(node, nullptr, nullptr, &count),
            "looking at a recording");
  std::vector<GraphNode> sources(count);
  std::vector<GraphEdge> edges(count);
  if (count == 0) return sources;
  gpu.check(gpu.driver().node_dependencies(node, sources.data(), edges.data(), &count),
            "looking at a recording");
  if (!whole) return sources;
  std::vector<GraphNode> ended;
  for (size_t i = 0; i < count; ++i) {
    if (edges[i].is_plain()) ended.push_back(sources[i]);
  }
  return ended;
}

// Adds the nodes behind `tip` that were not seen before, each after those it depends on.
void collect(const Gpu& gpu, GraphNode tip, std::unordered_set<GraphNode>& seen,
             std::vector<GraphNode>& nodes) {
  if (!seen.insert(tip).second) return;
  for (GraphNode source : sources_of(gpu, tip, false)) collect(gpu, source, seen, nodes);
  nodes.push_back(tip);
}

class GraphRecording final : public Recording {
 public:
  GraphRecording(Gpu& gpu, std::shared_ptr<RecordedGraph> graph,
                 std::vector<RecordedLaunch> launches)
      : gpu_(gpu), graph_(std::move(graph)), launches_(std::move(launches)) {
    const Driver& driver = gpu.driver();
    gpu.check(driver.graph_instantiate(&graph_->exec, graph_->graph, driver.maker().graph_flags),
              fmt::format("making a graph of {} launches", launches_.size()));
    for (size_t i = 0; i < launches_.size(); ++i) by_list_[launches_[i].buffers].push_back(i);
    if (driver.graph_upload) {
      gpu.check(driver.graph_upload(graph_->exec, gpu.stream(Queue::Compute)), "uploading a graph");
    }
  }

  void launch() override {
    auto lock = gpu_.in_order();
    gpu_.make_current();
    gpu_.check(gpu_.driver().graph_launch(exec(), gpu_.stream(Queue::Compute)),
               "launching a graph");
  }

  bool update(std::span<void* const* const> lists) override {
    auto lock = gpu_.in_order();
    gpu_.make_current();
    for (void* const* list : lists) {
      auto found = by_list_.find(list);
      if (found == by_list_.end()) continue;
      for (size_t launch : found->second) {
        if (!update(launches_[launch])) return false;
      }
    }
    return true;
  }

 private:
  GraphExec exec() const {
    if (!graph_->exec)
      throw DeviceError(fmt::format("{}: this step was recorded with a communicator that has ended",
                                    gpu_.name()));
    return graph_->exec;
  }

  bool update(const RecordedLaunch& launch) {
    KernelNodeParams params;
    if (launch.nodes.size() == 1 &&
        launch.program->kernel(launch.buffers, launch.coordinates, &params))
      return gpu_.driver().kernel_node_set(exec(), launch.nodes[0], &params) == kSuccess;
    return changes_libraries() && record_again(launch);
  }

  bool changes_libraries() const {
    const Driver& driver = gpu_.driver();
    return driver.node_type && driver.kernel_node_get && driver.memset_node_get &&
           driver.memset_node_set;
  }

  // Launches of a library cannot be changed from here: the call is captured once more, by itself,
  // and its nodes, which are the same but for pointers, are put in place of the old ones.
  bool record_again(const RecordedLaunch& launch) {
    const Driver& driver = gpu_.driver();
    Stream stream = gpu_.stream(Queue::Compute);
    gpu_.check(driver.begin_capture(stream, kRelaxed), "recording a library call");
    RecordedGraph graph(gpu_);
    std::vector<GraphNode> nodes;
    try {
      launch.program->enqueue(launch.buffers, launch.coordinates);
      std::unordered_set<GraphNode> seen;
      for (GraphNode tip : tips(gpu_, stream).nodes) collect(gpu_, tip, seen, nodes);
    } catch (...) {
      driver.end_capture(stream, &graph.graph);
      throw;
    }
    gpu_.check(driver.end_capture(stream, &graph.graph), "recording a library call");
    // With other pointers it may need memory that it did not: others would have to make room.
    if (nodes.size() != launch.nodes.size() || launch.program->scratch() != launch.scratch)
      return false;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (!replace(launch.nodes[i], nodes[i])) return false;
    }
    return true;
  }

  bool replace(GraphNode old, GraphNode now) {
    const Driver& driver = gpu_.driver();
    NodeType types[2];
    if (driver.node_type(old, &types[0]) != kSuccess ||
        driver.node_type(now, &types[1]) != kSuccess || types[0] != types[1])
      return false;
    if (types[0] == NodeType::Kernel) {
      KernelNodeParams params;
      return driver.kernel_node_get(now, &params) == kSuccess &&
             driver.kernel_node_set(exec(), old, &params) == kSuccess;
    }
    if (types[0] == NodeType::Memset) {
      MemsetNodeParams params;
      return driver.memset_node_get(now, &params) == kSuccess &&
             driver.memset_node_set(exec(), old, &params, gpu_.context()) == kSuccess;
    }
    return false;
  }

  Gpu& gpu_;
  std::shared_ptr<RecordedGraph> graph_;
  std::vector<RecordedLaunch> launches_;
  std::unordered_map<void* const*, std::vector<size_t>> by_list_;
};

}  // namespace

RecordedGraph::~RecordedGraph() {
  driver.set_current(context);
  if (exec) driver.graph_exec_destroy(exec);
  if (graph) driver.graph_destroy(graph);
}

Recorder::Recorder(Gpu& gpu) : gpu_(gpu) {
  gpu.make_current();
  gpu.check(gpu.driver().begin_capture(gpu.stream(Queue::Compute), kRelaxed),
            "beginning to record");
  capturing_ = true;
}

Recorder::~Recorder() {
  if (!capturing_) return;
  gpu_.driver().set_current(gpu_.context());
  RecordedGraph graph(gpu_);
  gpu_.driver().end_capture(gpu_.stream(Queue::Compute), &graph.graph);
}

void Recorder::end_step() {
  if (!in_step_) return;
  in_step_ = false;
  Tips all = tips(gpu_, gpu_.stream(Queue::Compute));
  steps_.back().tips.assign(all.nodes.begin(), all.nodes.end());
}

void Recorder::step(std::span<const int> after, bool urgent) {
  end_step();
  in_step_ = true;
  steps_.push_back({urgent, {}});
  std::vector<GraphNode> nodes;
  for (int step : after) {
    for (GraphNode node : steps_.at(size_t(step)).tips) {
      if (std::ranges::find(nodes, node) == nodes.end()) nodes.push_back(node);
    }
  }
  gpu_.check(gpu_.driver().capture_set(gpu_.stream(Queue::Compute), nodes.data(), nullptr,
                                       nodes.size(), kReplace),
             "ordering a recording");
}

void Recorder::before(const GpuProgram& program) {
  Stream stream = gpu_.stream(Queue::Compute);
  Tips all = tips(gpu_, stream);
  seen_.insert(all.nodes.begin(), all.nodes.end());
  if (program.waits_itself() && gpu_.driver().maker().early_launches) begin_early(stream, all);
}

// Lets the next launch begin before kernels end whose ends it waits for itself. Kernels of
// libraries say too late that others may begin: those would only take room from what runs beside.
void Recorder::begin_early(Stream stream, const Tips& all) {
  std::vector<GraphNode> nodes(all.nodes.begin(), all.nodes.end());
  std::vector<GraphEdge> edges(all.edges.begin(), all.edges.end());
  edges.resize(nodes.size());
  bool any = false;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!waiting_.contains(nodes[i])) continue;
    edges[i] = kBegun;
    any = true;
  }
  // Where the driver refuses, the recording is right as it is, and slower.
  if (any) gpu_.driver().capture_set(stream, nodes.data(), edges.data(), nodes.size(), kReplace);
}

void Recorder::after(GpuProgram& program, void* const* buffers, const int64_t* coordinates) {
  RecordedLaunch launch{&program, buffers, coordinates, program.scratch(), int(steps_.size()) - 1,
                        {}};
  for (GraphNode tip : tips(gpu_, gpu_.stream(Queue::Compute)).nodes)
    collect(gpu_, tip, seen_, launch.nodes);
  if (program.waits_itself()) waiting_.insert(launch.nodes.begin(), launch.nodes.end());
  launches_.push_back(std::move(launch));
}

void Recorder::waited(Stream stream) {
  Tips all = tips(gpu_, stream);
  if (all.nodes.size() < 2) return;
  std::vector<GraphNode> nodes(all.nodes.begin(), all.nodes.end());
  std::vector<GraphEdge> edges(all.edges.begin(), all.edges.end());
  std::unordered_set<GraphNode> implied;
  for (GraphNode node : nodes) {
    for (GraphNode source : sources_of(gpu_, node, true)) implied.insert(source);
  }
  size_t kept = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (implied.contains(nodes[i])) continue;
    if (!edges.empty()) edges[kept] = edges[i];
    nodes[kept++] = nodes[i];
  }
  if (kept == nodes.size()) return;
  // Where the driver refuses, the recording is right as it is, and longer.
  gpu_.driver().capture_set(stream, nodes.data(), edges.empty() ? nullptr : edges.data(), kept,
                            kReplace);
}

void Recorder::prioritize() {
  if (!gpu_.driver().kernel_node_attribute || !gpu_.driver().node_type) return;
  const LaunchAttribute urgent{.priority = kUrgent, .others = {}};
  for (const RecordedLaunch& launch : launches_) {
    if (launch.step < 0 || !steps_[size_t(launch.step)].urgent) continue;
    for (GraphNode node : launch.nodes) {
      NodeType type;
      gpu_.check(gpu_.driver().node_type(node, &type), "looking at a recording");
      if (type != NodeType::Kernel) continue;
      gpu_.check(gpu_.driver().kernel_node_attribute(node, kPriority, &urgent),
                 "a priority in a recording");
    }
  }
}

std::unique_ptr<Recording> Recorder::finish(std::weak_ptr<RecordedGraph>* graph) {
  gpu_.make_current();
  if (!steps_.empty()) {  // all that the steps told belongs to what ends here
    end_step();
    prioritize();
    std::vector<int> steps(steps_.size());
    std::iota(steps.begin(), steps.end(), 0);
    step(steps, false);
  }
  auto recorded = std::make_shared<RecordedGraph>(gpu_);
  capturing_ = false;
  gpu_.check(gpu_.driver().end_capture(gpu_.stream(Queue::Compute), &recorded->graph),
             "recording a step");
  if (!recorded->graph)
    throw DeviceError(fmt::format("{}: recording a step gave no graph", gpu_.name()));
  if (graph) *graph = recorded;
  return std::make_unique<GraphRecording>(gpu_, std::move(recorded), std::move(launches_));
}

}  // namespace tinyshard::gpu
