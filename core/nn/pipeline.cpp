// A step is one graph, which is made in the order in which the stages work. What comes first on a
// stage is told to the graph by After: the input of each pass has to wait for all that the pass
// before it made there, gradients of parameters included.
//
//   stage 0 of 2:   f0    f1    b0 = after(gradient from stage 1, f1)    f2 = after(rows, b0)
//
// So the schedule cannot do otherwise, and what a micro-batch needs for its backward pass is gone
// before the next one of too many begins. Stages do not wait for each other but for what they send.
// The passes of a stage are differentiated one by one, from its result to its input, which is
// detached from the stage before; gradients move between stages by hand as activations do.
#include "core/nn/pipeline.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/exec/state.h"
#include "core/passes/gradient.h"
#include "core/tensor/value_internal.h"
#include "core/uop/node_map.h"

namespace tinyshard::nn {

using value::Value;

namespace {

Sharding without_pending(Sharding where) {
  std::ranges::replace_if(where.placements, &Placement::is_partial, Replicate);
  return where;
}

// The devices of a stage. One device is a mesh of the axis alone, so that what a stage closes over
// joins it as it joins several.
Mesh stage_at(const Mesh& mesh, int axis, int64_t place) {
  const std::string& name = mesh.axes()[size_t(axis)].name;
  const Mesh part = mesh.at(name, place);
  return part.is_single() ? Mesh({{name, 1}}, part.devices()) : part;
}

// A placement on the whole mesh as one on the devices of a stage.
Sharding on_stage_of(const Mesh& stage, Sharding whole, int axis) {
  if (stage.axes().size() == whole.mesh.axes().size()) return replicated(stage);
  whole.placements.erase(whole.placements.begin() + axis);
  return {stage, whole.placements};
}

// The value, once each of the others is there.
UOp after(UOp x, const std::vector<UOp>& others) {
  for (const UOp& other : others) x = UOp::make(Op::After, x.dtype(), {x, other});
  return x;
}

// Tells whether x is what Pass::received() makes, in this pass or in one before it: detached, it
// comes to `mesh` from other devices, where the nodes in `made` are not.
bool is_received(const UOp& x, const Mesh& mesh, const NodeMap<UOp>& made) {
  auto is_of = [&](const UOp& y) { return y->arg()[0] == mesh.id(); };
  if (x.op() != Op::Redistribute || !is_of(x)) return false;
  UOp sent = x.src(0);
  while (sent.op() == Op::Identity) sent = sent.src(0);
  if (sent.op() != Op::Detach) return false;
  std::vector<UOp> todo{sent};
  NodeMap<bool> seen;
  while (!todo.empty()) {
    const UOp y = todo.back();
    todo.pop_back();
    if (made.contains(y) || seen.contains(y)) continue;
    seen[y] = true;
    if (y.op() == Op::Redistribute) return !is_of(y);
    if (y.op() == Op::Buffer && y->payload)
      return !(static_cast<const Placed*>(y->payload.get())->sharding.mesh == mesh);
    for (const UOp& s : y->src()) todo.push_back(s);
  }
  return false;
}

// The graph of `root` with other nodes in place of some, below which nothing changes, nor does
// anything below what `mesh` has received.
UOp with_replaced(const UOp& root, const Mesh& mesh, NodeMap<UOp>& made) {
  std::vector<UOp> todo{root};
  while (!todo.empty()) {
    const UOp x = todo.back();
    if (made.contains(x)) {
      todo.pop_back();
      continue;
    }
    if (is_received(x, mesh, made)) {
      made[x] = x;
      continue;
    }
    const size_t before = todo.size();
    for (const UOp& s : x->src()) {
      if (!made.contains(s)) todo.push_back(s);
    }
    if (todo.size() > before) continue;
    std::vector<UOp> sources;
    for (const UOp& s : x->src()) sources.push_back(made.at(s));
    made[x] = x.with_src(sources);
    todo.pop_back();
  }
  return made.at(root);
}

// Row r of a batch is row r / n of micro-batch r modulo n: where rows are divided over devices, each
// device has its share of every micro-batch.
Tensor rows_of(const Tensor& batch, int64_t micro_batch, int64_t n) {
  Dims shape = batch.shape(), cut = shape;
  shape[0] /= n;
  cut[0] = shape[0];
  cut.insert(cut.begin() + 1, n);
  std::vector<std::pair<int64_t, int64_t>> box;
  for (int64_t size : cut) box.emplace_back(0, size);
  box[1] = {micro_batch, micro_batch + 1};
  return batch.reshape(cut).shrink(box).reshape(shape);
}

}  // namespace

std::vector<PipelineStage> join_stages(std::vector<PipelineStage> parts, int64_t stages,
                                       Caller caller) {
  Call call("join_stages", caller);
  const auto count = int64_t(parts.size());
  if (stages < 1 || count < stages)
    fail(fmt::format("{} parts do not make {} stages", count, stages));
  std::vector<PipelineStage> joined;
  for (int64_t s = 0; s < stages; ++s) {
    std::vector<std::function<Tensor(const Tensor&)>> functions;
    PipelineStage stage;
    for (int64_t p = s * count / stages; p < (s + 1) * count / stages; ++p) {
      PipelineStage& part = parts[size_t(p)];
      functions.push_back(std::move(part.forward));
      for (const auto& [name, tensor] : part.tensors)
        stage.tensors.emplace(fmt::format("{}.{}", p, name), tensor);
    }
    stage.forward = [functions](Tensor x) {
      for (const auto& f : functions) x = f(x);
      return x;
    };
    joined.push_back(std::move(stage));
  }
  return joined;
}

// --- placing -------------------------------------------------------------------------------------

Pipeline::Pipeline(const Mesh& mesh, const std::string& axis, std::vector<PipelineStage> stages,
                   const PipelineOptions& options, Caller caller)
    : mesh_(mesh), micro_batches_(options.micro_batches) {
  Call call("Pipeline", caller);
  axis_ = mesh.axis(axis);
  if (micro_batches_ < 1)
    fail(fmt::format("there are {} micro-batches; at least one is needed", micro_batches_));
  const int64_t places = mesh.axes()[size_t(axis_)].size;
  if (int64_t(stages.size()) != places)
    fail(fmt::format("{} stages were given for the {} places along \"{}\" of {}", stages.size(),
                     places, axis, mesh.to_string()));
  for (size_t s = 0; s < stages.size(); ++s) {
    meshes_.push_back(stage_at(mesh, axis_, int64_t(s)));
    stages_.push_back({std::move(stages[s].forward), {}, {}});
    for (const auto& [name, tensor] : stages[s].tensors) put(name, tensor, s);
  }
}

void Pipeline::put(const std::string& name, const Tensor& tensor, size_t stage) {
  auto is_here = [&](const Tensor& other) { return other.state() == tensor.state(); };
  for (size_t s = 0; s <= stage; ++s) {
    if (std::ranges::none_of(stages_[s].own, is_here)) continue;
    std::vector<Tensor>& borrowed = stages_[stage].borrowed;
    if (s < stage && std::ranges::none_of(borrowed, is_here)) borrowed.push_back(tensor);
    return;
  }
  stages_[stage].own.push_back(tensor);
  const Sharding now = tensor.sharding();
  if (now.mesh == meshes_[stage]) return;
  auto told = [&] {
    const std::string& label = tensor.state()->label;
    return fmt::format("{} of stage {}, {},", label.empty() ? name : label, stage,
                       tensor.describe());
  };
  Sharding where = replicated(meshes_[stage]);
  if (now.mesh == mesh_) {
    where = on_stage_of(meshes_[stage], now, axis_);
    if (now.placements[size_t(axis_)].is_shard())
      fail(fmt::format("{} is divided over \"{}\", the axis of the stages", told(),
                       mesh_.axes()[size_t(axis_)].name));
  } else if (now.mesh.size() > 1) {
    fail(fmt::format("{} lies on {}, not on {}", told(), now.mesh.to_string(),
                     meshes_[stage].to_string()));
  }
  if (tensor.state()->gather_on_use)
    fail(fmt::format("{} was given to fully_shard: that comes after the stages", told()));
  tensor.replace(tensor.shard_like(where));
}

Tensor Pipeline::on_stage(const Tensor& x, size_t stage, const char* what) const {
  Sharding where = x.sharding();
  if (where.mesh == meshes_[stage]) return x;
  if (where.mesh == mesh_) {
    where = on_stage_of(meshes_[stage], where, axis_);
  } else if (where.mesh.size() == 1) {
    where = replicated(meshes_[stage]);
  } else {
    fail(fmt::format("{}, {}, lie on {}: neither on {} nor on stage {}", what, x.describe(),
                     where.mesh.to_string(), mesh_.to_string(), stage));
  }
  return x.shard_like(without_pending(where));
}

void Pipeline::check_rows(const Tensor& x, const char* what) const {
  if (x.ndim() == 0 || x.shape(0) % micro_batches_ != 0)
    fail(fmt::format("{}, {}, do not divide into {} micro-batches", what, x.describe(),
                     micro_batches_));
}

// --- one pass over a batch -----------------------------------------------------------------------

class Pipeline::Pass {
 public:
  Pass(const Pipeline& pipe, const Tensor& batch, const Caller& caller)
      : pipe_(pipe), caller_(caller), work_(pipe.stages_.size()) {
    const Call call("Pipeline", caller);
    pipe.check_rows(batch, "the rows of the batch");
    batch_ = pipe.on_stage(batch, 0, "the rows of the batch");
    for (size_t s = 0; s < work_.size(); ++s) {
      work_[s].micro.resize(size_t(pipe.micro_batches_));
      for (const Tensor& t : pipe.stages_[s].own) work_[s].parameters.add(t, t);
      for (const Tensor& t : pipe.stages_[s].borrowed) {
        const Sharding there{pipe.meshes_[s], t.sharding().placements};
        const Tensor here = t.detach().shard_like(there);
        work_[s].copies.emplace_back(touch(*t.state()), here.uop());
        work_[s].parameters.add(t, here);
      }
    }
  }

  void set_targets(const Tensor& targets, const Loss& loss) {
    const Call call("Pipeline", caller_);
    pipe_.check_rows(targets, "the targets");
    targets_ = pipe_.on_stage(targets, work_.size() - 1, "the targets");
    loss_ = &loss;
  }

  // Forward passes alone, each micro-batch through all stages.
  void forward() {
    for (int64_t m = 0; m < pipe_.micro_batches_; ++m) {
      for (size_t s = 0; s < work_.size(); ++s) {
        work_[s].made.clear();
        forward(s, m);
      }
    }
  }

  // Each stage does what is next there as soon as it has what that needs.
  void forward_and_backward() {
    trains_ = true;
    if (!has_gradient(work_.size() - 1)) refuse("no stage has a parameter that is trained");
    const int64_t n = pipe_.micro_batches_, stages = pipe_.stages();
    for (int64_t left = 2 * n * stages; left > 0;) {
      for (int64_t s = 0; s < stages; ++s) {
        Work& w = work_[size_t(s)];
        const int64_t ahead = std::min(n, w.backward + stages - s);
        if (w.forward < ahead) {
          if (s > 0 && w.forward == work_[size_t(s) - 1].forward) continue;
          forward(size_t(s), w.forward++);
        } else {
          if (s + 1 < stages && w.backward == work_[size_t(s) + 1].backward) continue;
          if (w.backward == n) continue;
          backward(size_t(s), w.backward++);
        }
        --left;
      }
    }
    for (size_t s = 0; s < work_.size(); ++s) work_[s].parameters.give(pipe_.meshes_[s]);
  }

  Tensor loss() const {
    Value sum = losses_[0];
    for (size_t m = 1; m < losses_.size(); ++m) sum = sum + Value(losses_[m]);
    const Value mean = sum * (1.0 / double(pipe_.micro_batches_));
    return Tensor(place(mean.node(), replicated(pipe_.mesh_)));
  }

  std::vector<Tensor> results() const {
    std::vector<Tensor> all;
    for (const Micro& m : work_.back().micro) all.push_back(m.result);
    return all;
  }

 private:
  // The parameters of a stage, as they are there, and the sums of their gradients.
  struct Parameters {
    std::vector<Tensor> given;
    std::vector<UOp> nodes, sums;
    std::vector<int64_t> names;

    void add(const Tensor& t, const Tensor& here) {
      if (!t.is_param()) return;
      given.push_back(t);
      nodes.push_back(touch(*here.state()));
      names.push_back(here.state()->name);
      sums.emplace_back();
    }
    void take(size_t i, const UOp& gradient) {
      if (!gradient) return;
      const Tensor& t = given[i];
      // A parameter that is whole only while it is read has a sum that is never whole.
      Value g = t.state()->gather_on_use ? Value(place(gradient, t.sharding())) : Value(gradient);
      g = value::cast(g, accumulator(t.dtype()));
      sums[i] = sums[i] ? (Value(sums[i]) + g).node() : g.node();
    }
    // `mesh`: of the stage, where the sums lie. Those of a borrowed parameter go to its own stage.
    void give(const Mesh& mesh) const {
      for (size_t i = 0; i < given.size(); ++i) {
        if (!sums[i]) continue;
        const Tensor& t = given[i];
        const Sharding home = t.sharding();
        Tensor sum(value::cast(sums[i], t.dtype()).node());
        if (!(home.mesh == mesh)) sum = sum.shard_like(home);
        t.set_grad(t.grad().defined() ? t.grad() + sum : sum);
      }
    }
  };
  struct Micro {
    Tensor input, result;
    UOp gradient;  // of the result, as it came from the next stage
  };
  struct Work {
    std::vector<Micro> micro;
    Parameters parameters;
    std::vector<std::pair<UOp, UOp>> copies;  // of borrowed tensors, what stands for them here
    std::optional<Sharding> input;            // where activations arrive
    int64_t forward = 0, backward = 0;        // passes that are done
    std::vector<UOp> made;                    // by the latest of them
  };

  [[noreturn]] void refuse(const std::string& text) const {
    Call call("Pipeline", caller_);
    fail(text);
  }

  // Tells whether there is something to differentiate in this stage or before it. The first stages
  // may be frozen: a backward pass ends at the first one that is not.
  bool has_gradient(size_t stage) const {
    return std::any_of(work_.begin(), work_.begin() + int64_t(stage) + 1,
                       [](const Work& w) { return !w.parameters.given.empty(); });
  }

  // The result of the stage before, moved to the devices of this one.
  UOp received(size_t stage, const Tensor& sent) {
    Work& w = work_[stage];
    if (!w.input) {
      const Sharding from = sent.sharding();
      if (!(from.mesh == pipe_.meshes_[stage - 1]))
        refuse(fmt::format("stage {} gives {}, which lies on {}, not on its own {}", stage - 1,
                           sent.describe(), from.mesh.to_string(),
                           pipe_.meshes_[stage - 1].to_string()));
      w.input = without_pending({pipe_.meshes_[stage], from.placements});
    }
    return place(sent.detach().uop(), *w.input);
  }

  void forward(size_t stage, int64_t m) {
    Work& w = work_[stage];
    Micro& micro = w.micro[size_t(m)];
    if (stage == 0)
      micro.input = rows_of(Tensor(after(batch_.uop(), w.made)), m, pipe_.micro_batches_);
    else
      micro.input =
          Tensor(after(received(stage, work_[stage - 1].micro[size_t(m)].result), w.made));
    const uint64_t before = newest_value();
    micro.result = pipe_.stages_[stage].forward(micro.input);
    if (!micro.result.defined()) refuse(fmt::format("stage {} gives no value", stage));
    const bool last = stage + 1 == work_.size();
    if (trains_ && has_gradient(stage) && !is_float(micro.result.dtype()))
      refuse(
          fmt::format("stage {} gives {}, which has no gradient", stage, micro.result.describe()));
    Tensor end = micro.result;
    if (last && loss_ != nullptr) {
      end = (*loss_)(micro.result, rows_of(targets_, m, pipe_.micro_batches_));
      if (!end.defined() || end.numel() != 1)
        refuse(fmt::format("the loss of a micro-batch is {}, not one number",
                           end.defined() ? end.describe() : "no value"));
    }
    if (!w.copies.empty()) {
      NodeMap<UOp> here;
      for (const auto& [node, copy] : w.copies) {
        here[node] = copy;
        here[copy] = copy;
      }
      here[micro.input.uop()] = micro.input.uop();
      const Mesh& mesh = pipe_.meshes_[stage];
      // Other values that the stage has made read its copies, too: those that it assigned, and
      // those that it left outside.
      for (const LiveValue& made : given_since(before))
        made.state->set(with_replaced(made.value, mesh, here));
      end = Tensor(with_replaced(end.uop(), mesh, here));
      micro.result = last && loss_ != nullptr ? micro.result : end;
    }
    if (last && loss_ != nullptr) losses_.push_back(end.uop());
    w.made = {end.uop()};
  }

  // Parameters that a stage, or the loss behind the last one, reads without having named them.
  static std::vector<StatePtr> unnamed_parameters(const Work& w, const UOp& root) {
    std::vector<StatePtr> found = parameters_of(Graph(std::span(&root, 1)));
    std::erase_if(found, [&](const StatePtr& state) {
      return std::ranges::any_of(w.parameters.given,
                                 [&](const Tensor& t) { return t.state() == state; });
    });
    return found;
  }

  [[noreturn]] void refuse_unnamed(size_t stage, TensorState& state) const {
    const bool last = stage + 1 == work_.size();
    refuse(fmt::format(
        "stage {}{} reads the parameter {}, which the stage does not name, so that it would get no "
        "gradient: name it beside the layers of the stage, or detach() it",
        stage, last ? ", or the loss behind it," : "",
        state.label.empty() ? value::text_of(touch(state)) : state.label));
  }

  void backward(size_t stage, int64_t m) {
    Work& w = work_[stage];
    Micro& micro = w.micro[size_t(m)];
    if (!has_gradient(stage)) {  // the next forward pass waits for the one before it
      micro = {};
      return;
    }
    const bool last = stage + 1 == work_.size(), sends = stage > 0 && has_gradient(stage - 1);
    const UOp root = last ? losses_.at(size_t(m)) : micro.result.uop();
    const UOp seed =
        last
            ? value::constant(root.dtype(), 1.0 / double(pipe_.micro_batches_), root.shape()).node()
            : after(micro.gradient, w.made);
    std::vector<UOp> targets = w.parameters.nodes;
    std::vector<int64_t> names = w.parameters.names;
    if (sends) {
      targets.push_back(touch(*micro.input.state()));
      names.push_back(micro.input.state()->name);
    }
    std::vector<StatePtr> unnamed;  // the same for each micro-batch
    if (m == 0) unnamed = unnamed_parameters(w, root);
    for (const StatePtr& state : unnamed) {
      targets.push_back(touch(*state));
      names.push_back(state->name);
    }
    std::vector<UOp> gradients = gradient(std::span(&root, 1), std::span(&seed, 1), targets, names);
    for (size_t i = unnamed.size(); i-- > 0; gradients.pop_back()) {
      if (gradients.back()) refuse_unnamed(stage, *unnamed[i]);
    }
    w.made.clear();
    for (size_t i = 0; i < w.parameters.nodes.size(); ++i) {
      w.parameters.take(i, gradients[i]);
      if (gradients[i]) w.made.push_back(w.parameters.sums[i]);
    }
    if (sends) {
      if (!gradients.back())
        refuse(fmt::format("the result of stage {} does not depend on what the stage is given",
                           stage));
      w.made.push_back(gradients.back());
      work_[stage - 1].micro[size_t(m)].gradient =
          place(gradients.back(), {pipe_.meshes_[stage - 1], w.input->placements});
    }
    if (w.made.empty())
      refuse(fmt::format("the result of stage {} depends on none of its parameters", stage));
    micro = {};
  }

  const Pipeline& pipe_;
  Caller caller_;
  Tensor batch_, targets_;
  const Loss* loss_ = nullptr;
  bool trains_ = false;
  std::vector<Work> work_;
  std::vector<UOp> losses_;  // of the micro-batches
};

Tensor Pipeline::backward(const Tensor& batch, const Tensor& targets, const Loss& loss,
                          Caller caller) const {
  Pass pass(*this, batch, caller);
  pass.set_targets(targets, loss);
  pass.forward_and_backward();
  return pass.loss();
}

Tensor Pipeline::loss(const Tensor& batch, const Tensor& targets, const Loss& loss,
                      Caller caller) const {
  Pass pass(*this, batch, caller);
  pass.set_targets(targets, loss);
  pass.forward();
  return pass.loss();
}

Tensor Pipeline::operator()(const Tensor& batch, Caller caller) const {
  Pass pass(*this, batch, caller);
  pass.forward();
  const Tensor joined = stack(pass.results(), 1);
  Dims shape = joined.shape();
  shape[0] *= shape[1];
  shape.erase(shape.begin() + 1);
  return joined.reshape(shape);
}

}  // namespace tinyshard::nn
