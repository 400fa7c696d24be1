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
// Two phases: each rank copies the state, then all ranks say that they have, and only then is the
// copy before it given up. A rank that dies in between leaves the others with copies of one step or
// of two neighbouring ones; restore() takes the newest that all of them have.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/nn/commits.h"
#include "core/nn/state_dict.h"
#include "core/tensor/random.h"
#include "multi/local_box.h"

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

// Threads: one.
class Elastic {
 public:
  // Keeps the values that these tensors have, which it computes where they are not. All ranks call
  // it with the same progress, further than the last. CommError where a rank does not come: the step
  // may then be done again. RanksJoin behind a commit that all have. Tensors may be divided, and lie on devices of some
  // ranks alone, as those of a stage of a pipeline. UserError for a sum that is pending.
  void commit(const StateDict& tensors, const Progress& progress,
              Caller caller = Caller::current());

  // Writes what the newest commit that all ranks have kept over the tensors, and the state of the random numbers.
  // All ranks call it, those that joined later, too. The tensors may be divided otherwise than they were. Where
  // nobody has committed, nothing changes. UserError where the tensors are others than those; StateLost.
  Progress restore(const StateDict& tensors, Caller caller = Caller::current());

 private:
  struct Value {
    DType dtype;
    Dims shape;
    std::vector<std::vector<LocalBox>> boxes;  // of each rank, none twice
    bool whole = true;                         // on every rank
    std::vector<std::byte> own = {},
                           copy = {};  // own boxes behind each other; those of the rank before
  };
  struct Snapshot {
    Progress progress;
    int64_t number = 0;  // of the commits, those of restore() among them; the same on all ranks
    int rank = 0, ranks = 1;  // of the world that committed; rank kNewcomer: this one was not there
    std::map<std::string, Value> values;
    RandomState random;
    bool is_divided() const;
  };
  static Snapshot copy(const StateDict& tensors, const Progress& progress);
  int64_t agree_on_commit();
  const Snapshot* spread(const Snapshot* own, int64_t number, const std::vector<int>& left);
  bool keep(Snapshot now, int64_t number);
  void write(const Snapshot& from, const StateDict& tensors, const std::vector<int>& left);
  void find_lost(const Snapshot& from, const std::vector<int>& left);
  std::vector<std::vector<std::byte>> divide(const Value& from, const Tensor& into,
                                             const std::vector<int>& left);

  Commits<Snapshot> commits_;     // by their numbers
  int64_t committed_ = -1;        // step of the last one
  bool was_there_ = false;        // in a world that knew what was committed, if anything
  std::optional<Snapshot> told_;  // to a newcomer: what there is, without its bytes
  std::optional<Snapshot> next_;  // until the rank behind has its copy
  // The memory of a transfer that failed stays until the group that used it is gone.
  std::vector<std::vector<std::byte>> sent_, received_;
  std::string lost_;  // what StateLost said
};

}  // namespace tinyshard::nn
