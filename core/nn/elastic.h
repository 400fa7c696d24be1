// Training that goes on when ranks die: the state of the last step, kept in each rank's memory, from
// which those that are left go on in a smaller world. Of a model and an optimizer that lie whole on
// each device, as data parallelism has them: whoever is left has all of it.
//
//   nn::Elastic elastic;
//   for (;;) {
//     Tensor::manual_seed(1);                           // the same weights in each world
//     Net net;
//     nn::data_parallel(net, Mesh::world({{"data", -1}}), "data");
//     auto optim = nn::optim::AdamW(nn::parameters(net));
//     nn::StateDict state = nn::state_dict(net, "net");
//     state.merge(nn::state_dict(optim, "optim"));
//     try {
//       nn::Progress at = elastic.restore(state);       // of zeros at first
//       while (at.step < steps) {
//         // this rank takes samples [at.samples + rank * each, ... + each) of the order of the epoch
//         step(...);
//         at = {at.step + 1, at.samples + each * Runtime::get().ranks()};
//         elastic.commit(state, at);
//       }
//       return;
//     } catch (const CommError&) {
//       Runtime::reform();
//     }
//   }
//
// Two phases: each rank copies the state, then all ranks say that they have, and only then is the
// copy before it given up. A rank that dies in between leaves the others with copies of one step or
// of two neighbouring ones; restore() takes the newest that all of them have.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/nn/commits.h"
#include "core/nn/state_dict.h"
#include "core/tensor/random.h"

namespace tinyshard::nn {

// How far a training run is. It depends on the steps and on the sizes of their worlds, on nothing
// else: so each sample is taken once, whoever dies.
struct Progress {
  int64_t step = 0;     // steps that are done
  int64_t samples = 0;  // that they took, of all epochs
  bool operator==(const Progress&) const = default;
};

// Threads: one.
class Elastic {
 public:
  // Keeps the values that these tensors have, which it computes where they are not. All ranks call
  // it with the same progress, further than the last. CommError where a rank does not come: the step
  // may then be done again. UserError for a tensor that is split over devices.
  void commit(const StateDict& tensors, const Progress& progress,
              Caller caller = Caller::current());

  // Writes what the newest commit that all ranks have kept over the tensors, and the state of the
  // random numbers. All ranks call it. Where nobody has committed, nothing changes. UserError where
  // the tensors are others than those.
  Progress restore(const StateDict& tensors, Caller caller = Caller::current());

 private:
  struct Value {
    DType dtype;
    Dims shape;
    std::vector<std::byte> bytes;
  };
  struct Snapshot {
    Progress progress;
    std::map<std::string, Value> values;
    RandomState random;
  };
  static Snapshot copy(const StateDict& tensors, const Progress& progress);
  static void write(const Snapshot& from, const StateDict& tensors);

  Commits<Snapshot> commits_;
};

}  // namespace tinyshard::nn
