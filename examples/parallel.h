// How the programs that train language models divide them over devices, and the optimizer that they
// have.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace training {

using namespace tinyshard;

// --- devices -------------------------------------------------------------------------------------

// Devices: "data" x "pipe" x "fsdp" x "model". Batches are divided over the first and the third,
// layers over the second, parameters over the last two; "data" is what the others leave.
struct MeshFlags {
  int64_t fsdp = 1, tp = 1, pp = 1;
  int64_t micro_batches = 0;  // of a batch that goes through stages; 0: four for each stage
  int64_t micro() const { return micro_batches > 0 ? micro_batches : pp > 1 ? 4 * pp : 1; }
};

inline Mesh mesh_of(const MeshFlags& f) {
  const auto devices = int64_t(world().devices.size());
  if (devices % f.fsdp != 0 || devices / f.fsdp % f.tp != 0 || devices / f.fsdp / f.tp % f.pp != 0)
    throw UserError(fmt::format("--fsdp {} x --tp {} x --pp {} does not divide {} devices", f.fsdp,
                                f.tp, f.pp, devices));
  std::vector<MeshAxis> axes{{"data", -1}};
  if (f.pp > 1) axes.push_back({"pipe", f.pp});
  if (f.fsdp > 1) axes.push_back({"fsdp", f.fsdp});
  if (f.tp > 1) axes.push_back({"model", f.tp});
  return Mesh::world(axes);
}

// A batch on the mesh, its rows divided.
inline Tensor by_rows(const Tensor& batch, const Mesh& mesh) {
  std::vector<AxisPlacement> rows;
  for (const MeshAxis& axis : mesh.axes())
    if (axis.name == "data" || axis.name == "fsdp") rows.emplace_back(axis.name, Shard(0));
  return batch.shard(mesh, rows);
}

inline void check_batch(int64_t batch, const Mesh& mesh, const MeshFlags& f) {
  const int64_t parts = mesh.size() / f.tp / f.pp;
  if (batch % (parts * f.micro()) == 0) return;
  throw UserError(fmt::format("--batch {} does not divide among {} devices{}", batch, parts,
                              f.pp > 1 ? fmt::format(" in --micro-batches {}", f.micro()) : ""));
}

inline void add_mesh_options(CLI::App& app, MeshFlags& f) {
  app.add_option("--fsdp", f.fsdp,
                 "Devices that keep one copy of parameters, gradients and optimizer state together")
      ->check(CLI::PositiveNumber);
  app.add_option("--tp", f.tp, "Devices among which each layer is divided")
      ->check(CLI::PositiveNumber);
  app.add_option("--pp", f.pp, "Stages on devices of their own, with some of the layers each")
      ->check(CLI::PositiveNumber);
  app.add_option("--micro-batches", f.micro_batches,
                 "Parts in which a batch goes through the stages; 0: four for each")
      ->check(CLI::NonNegativeNumber);
}

// --- the optimizer -------------------------------------------------------------------------------

struct OptimizerFlags {
  double lr = 6e-4, weight_decay = 0.1, clip = 1;
  std::string reduce_dtype;  // in which gradients travel between devices; empty: their own
  bool shard_optimizer = false;
};

// Without the learning rate, of which a program has a schedule, and what is for memory.
inline void add_optimizer_options(CLI::App& app, OptimizerFlags& f) {
  app.add_option("--weight-decay", f.weight_decay, "Of matrices")->check(CLI::NonNegativeNumber);
  app.add_option("--clip", f.clip, "Largest norm of all gradients")->check(CLI::PositiveNumber);
  app.add_option("--reduce-dtype", f.reduce_dtype,
                 "In which gradients travel between devices, where they are wider [their own type]")
      ->check(CLI::IsMember({"f64", "f32", "bf16", "f16"}));
}

// AdamW that decays matrices only, after clipping.
class Optimizer {
 public:
  Optimizer(const std::vector<Tensor>& parameters, const OptimizerFlags& f)
      : clip_(f.clip),
        decayed_(of_rank(parameters, true), options(f, f.weight_decay)),
        others_(of_rank(parameters, false), options(f, 0)),
        all_(decayed_, others_) {
    if (!f.reduce_dtype.empty()) reduce_type_ = dtype_from_name(f.reduce_dtype);
  }

  std::vector<Tensor> params() const { return all_.params(); }
  nn::StateDict state() const {
    nn::StateDict state = nn::state_dict(decayed_, "optimizer.decayed");
    state.merge(nn::state_dict(others_, "optimizer.others"));
    return state;
  }
  void set_lr(double lr) const {
    decayed_.set_lr(lr);
    others_.set_lr(lr);
  }
  void zero_grad() const { all_.zero_grad(); }
  // Returns the norm of all gradients before clipping.
  Tensor step() {
    all_.place_grad(reduce_type_);
    Tensor norm = nn::clip_grad_norm(params(), clip_);
    all_.step();
    return norm;
  }

 private:
  static std::vector<Tensor> of_rank(std::vector<Tensor> list, bool matrices) {
    std::erase_if(list, [&](const Tensor& p) { return (p.ndim() >= 2) != matrices; });
    return list;
  }
  static nn::optim::AdamWOptions options(const OptimizerFlags& f, double decay) {
    return {.lr = f.lr,
            .b1 = 0.9,
            .b2 = 0.95,
            .weight_decay = decay,
            .shard_axis = f.shard_optimizer ? "data" : ""};
  }

  double clip_;
  std::optional<DType> reduce_type_;
  nn::optim::AdamW decayed_, others_;
  nn::optim::OptimizerGroup all_;
};

}  // namespace training
