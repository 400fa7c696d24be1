// Training that goes on when ranks die: the state of the last step, kept in each rank's memory, from
// which those that are left go on in a smaller world. Each rank keeps the boxes that its devices hold
// and, of tensors that are divided over ranks (fully_shard, tensor_parallel), a copy of the boxes of
// the rank before it: the boxes of a rank that has died are its neighbour's to give.
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
//     } catch (const nn::StateLost&) {                  // two neighbours died at once
//       throw;                                          // or load the last checkpoint and commit it
//     } catch (const CommError&) {                    // also where ranks wait to join: RanksJoin
//       Runtime::reform();
//     }
//   }
//
// An update counts once all ranks have agreed that the sums of its step are complete: the flag travels
// beside the next step, and agreed() tells how far it has come. A rank that dies before leaves the others
// with two neighbouring steps, and restore() takes
//
//   whole state      the newer one, from a rank that has it
//   divided state    the newest that all have, for which each keeps one copy more
//
// Whole state is not copied where that can be: as long as all that a step writes is written behind all of
// its sums, the ranks that are left hold the state themselves. It needs no more than a step that is captured as
// a whole, on CPUs, and a commit behind each. Where a step is otherwise, the state is copied at each commit.
#pragma once
#include <cstdint>
#include <memory>

#include "core/base/error.h"
#include "core/nn/state_dict.h"

namespace tinyshard::nn {

// How far a training run is. It depends on the steps and on the sizes of their worlds, on nothing
// else: so each sample is taken once, whoever dies.
struct Progress {
  int64_t step = 0;     // steps that are done
  int64_t samples = 0;  // that they took, of all epochs
  bool operator==(const Progress&) const = default;
};

// The ranks that held a part of the state, and its copy, are gone: only a checkpoint has it. All
// ranks that are left get it from restore(), and a UserError if they restore again before something
// is committed.
class StateLost : public CommError {
 public:
  using CommError::CommError;
};

// The step is committed on all ranks; ranks that were started later wait to be taken in, which
// Runtime::reform() does. restore() gives them the state.
class RanksJoin : public CommError {
 public:
  using CommError::CommError;
};

struct ElasticOptions {
  // The last one of so many steps is committed, and the others are done again after a loss. Commits
  // that copy nothing come with each step all the same.
  int64_t every = 1;
  // Copies also what other ranks hold: restore() may then undo steps although nobody was lost.
  bool copies = false;
};

// Threads: one.
class Elastic {
 public:
  // UserError for `every` below 1.
  explicit Elastic(ElasticOptions options = {}, Caller caller = Caller::current());
  ~Elastic();
  Elastic(const Elastic&) = delete;
  Elastic& operator=(const Elastic&) = delete;

  // Keeps the values that these tensors have, which it computes where they are not. All ranks call
  // it with the same progress, further than the last. It waits for what the commit before it began, and for no
  // rank else. CommError where one does not come: the step may then be done again. RanksJoin behind a commit that all
  // have. Tensors may be divided, and lie on devices of some ranks alone, as those of a stage of a pipeline. UserError
  // for a sum that is pending.
  void commit(const StateDict& tensors, const Progress& progress,
              Caller caller = Caller::current());

  // The newest commit that all ranks are known to have; zeros where there is none. No step up to it is done
  // again, whoever dies, as long as somebody has its state.
  Progress agreed() const;

  // Writes what the newest commit that can be had holds over the tensors, and the state of the random numbers.
  // All ranks call it, those that joined later, too. The tensors may be divided otherwise than they were. Where
  // nobody has committed, nothing changes. UserError where the tensors are others than those; StateLost.
  Progress restore(const StateDict& tensors, Caller caller = Caller::current());

 private:
  class Ranks;
  std::unique_ptr<Ranks> ranks_;
};

}  // namespace tinyshard::nn
