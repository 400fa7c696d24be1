// Pipeline parallel training: the layers of a model on several groups of devices, one after the
// other, and a batch in micro-batches, so that all of them have work.
//
//   Mesh mesh = Mesh::world({{"data", -1}, {"pipe", 2}});
//   nn::Pipeline pipe(mesh, "pipe",
//                     {{[&](const Tensor& ids) { return model.first(ids); }, model.embed, model.a},
//                      {[&](const Tensor& x) { return model.last(x); }, model.b, model.head}},
//                     {.micro_batches = 8});
//   nn::fully_shard(model, mesh, "data");           // as without stages, and tensor_parallel, too
//   nn::optim::AdamW optim(nn::parameters(model));
//   Jit step = [&](const Tensor& ids, const Tensor& labels) {
//     TrainingMode on;
//     optim.zero_grad();
//     Tensor loss = pipe.backward(ids, labels, cross_entropy);
//     optim.step();
//     return loss;
//   };
//
// The stages work in the order that is known as 1F1B. With two stages and four micro-batches:
//
//   stage 0   f0 f1    b0 f2    b1 f3    b2    b3       f2: the forward pass of micro-batch 2,
//   stage 1      f0 b0    f1 b1    f2 b2    f3 b3       b2: its backward pass
//
// Of n stages, number s has what at most n - s micro-batches need for their backward passes, however
// many there are. Between stages travel the activations and their gradients, from each device to the
// one that stands where it stands. See docs/shard.md.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/nn/state_dict.h"

namespace tinyshard::nn {

// A part of a model: what it computes, and the layers that it has for that. A layer with TS_FIELDS
// that can be called, such as nn::Linear, is a stage by itself.
struct PipelineStage {
  template <class Forward, class... Layers>
    requires std::is_invocable_r_v<Tensor, const Forward&, const Tensor&>
  PipelineStage(const Forward& f, const Layers&... layers) : forward(f) {  // NOLINT
    if constexpr (sizeof...(Layers) > 0)
      tensors = state_dict(std::tie(layers...));
    else if constexpr (requires { f.for_each_field([](std::string_view, const auto&) {}); })
      tensors = state_dict(f);
  }

  // Computes the stage: from a micro-batch in the first stage, otherwise from the result of the
  // stage before, whose first dim is that of the micro-batch.
  std::function<Tensor(const Tensor&)> forward;
  StateDict tensors;
  PipelineStage() = default;
};

// Parts of a model, one after the other, as so many stages: neighbors join, as many in each as can
// be. For a model of many equal blocks, with what comes before and after them. UserError where there
// are fewer parts than stages.
std::vector<PipelineStage> join_stages(std::vector<PipelineStage> parts, int64_t stages,
                                       Caller caller = Caller::current());

struct PipelineOptions {
  // Into how many parts a batch is cut. With m of them n stages have work for m of m + n - 1 turns.
  int64_t micro_batches = 1;
};

class Pipeline {
 public:
  // The loss of a micro-batch by its targets: one number.
  using Loss = std::function<Tensor(const Tensor& result, const Tensor& targets)>;

  // A stage for each place along the axis. Puts the tensors of each on the devices of its place,
  // mesh.at(axis, stage), or a mesh of one device where no other axis is left: whole along the axes
  // that are left, or divided there as they were on `mesh`. A tensor that several stages name lies
  // on the first one; the others get its value, and the sum of its gradient goes back, once a step.
  // UserError where there are more or fewer stages than places, and for a tensor that lies on
  // another mesh, is divided over the axis, or was given to fully_shard before.
  Pipeline(const Mesh& mesh, const std::string& axis, std::vector<PipelineStage> stages,
           const PipelineOptions& options, Caller caller = Caller::current());

  // The loss of a batch, and its gradients added to those of the parameters, as by
  // Tensor::backward. It is the mean of the losses of the micro-batches, which is the loss of the
  // batch where that is a mean over rows. Row r belongs to micro-batch r modulo their number. The
  // batch and its targets lie on one device, on the mesh, or on the first and on the last stage.
  // The loss is on every device of the mesh. The first stages may have no parameter that is trained:
  // of them there are no backward passes. UserError where the micro-batches do not divide the rows of
  // both, for what lies elsewhere, for a stage whose result has no gradient, where no stage has
  // parameters to train, and for a parameter that a stage, or the loss, reads without having named it.
  Tensor backward(const Tensor& batch, const Tensor& targets, const Loss& loss,
                  Caller caller = Caller::current()) const;
  // The loss alone.
  Tensor loss(const Tensor& batch, const Tensor& targets, const Loss& loss,
              Caller caller = Caller::current()) const;
  // The results of the last stage for all rows of a batch, on its devices.
  Tensor operator()(const Tensor& batch, Caller caller = Caller::current()) const;

  int64_t stages() const { return int64_t(stages_.size()); }
  int64_t micro_batches() const { return micro_batches_; }
  // The devices of a stage.
  const Mesh& mesh(int64_t stage) const { return meshes_.at(size_t(stage)); }

 private:
  class Pass;
  struct Stage {
    std::function<Tensor(const Tensor&)> forward;
    std::vector<Tensor> own, borrowed;  // borrowed ones lie on an earlier stage
  };

  void put(const std::string& name, const Tensor& tensor, size_t stage);
  Tensor on_stage(const Tensor& x, size_t stage, const char* what) const;
  void check_rows(const Tensor& x, const char* what) const;

  Mesh mesh_;
  int axis_ = 0;
  std::vector<Mesh> meshes_;
  std::vector<Stage> stages_;
  int64_t micro_batches_;
};

}  // namespace tinyshard::nn
