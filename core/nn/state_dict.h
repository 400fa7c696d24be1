// The tensors of a model by name: listing them, copying values into them, and safetensors files.
// Threads: as Tensor.
#pragma once
#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/base/file_jobs.h"
#include "core/nn/fields.h"

namespace tinyshard::nn {

using StateDict = std::map<std::string, Tensor>;

// Every tensor of a model, by its name behind `prefix`.
template <class Model>
StateDict state_dict(const Model& model, const std::string& prefix = {}) {
  StateDict dict;
  for_each_tensor(model, prefix,
                  [&](const std::string& name, const Tensor& t) { dict.emplace(name, t); });
  return dict;
}

// Every tensor of a model, once each, in the order of its fields: what optimizers are given. They
// train those that are parameters (Tensor::is_param) and keep the others, such as running
// statistics, up to date with them. Plans and errors know the tensors by their names from then on.
template <class Model>
std::vector<Tensor> parameters(const Model& model) {
  std::vector<Tensor> list;
  for_each_tensor(model, {}, [&](const std::string& name, const Tensor& t) {
    for (const Tensor& seen : list) {
      if (seen.state() == t.state()) return;  // tied weights
    }
    t.state()->set_label(name);
    list.push_back(t);
  });
  return list;
}

struct LoadOptions {
  bool strict = true;  // every tensor of the model has a value, and every value a tensor
  bool ignore_unexpected = false;  // values without a tensor are passed over, strict or not
  // How far this process is: ByteProgress(done, total), such as byte_bar("load") of
  // report/progress.h.
  ByteProgress progress = {};
  // Compares what is read of a checkpoint with the digests that were saved. For that, slices of
  // which a process needs a part are read whole; without it, only the parts are.
  bool check_digests = true;
};

// Names that differed, sorted. Both are empty after a strict load.
struct LoadReport {
  std::vector<std::string> missing;     // tensors that have kept their values
  std::vector<std::string> unexpected;  // values that went nowhere
};

// Writes the values of `from` over the tensors of `into`, converted to their types and placed as
// they are. Values may be tensors of `into`, or computed from them: all are those before the call.
// All differences in names and shapes are in one UserError, and then nothing is written; so is that
// not a single name is known, strict or not.
//
// Tied weights, which have several names, need a value under one of them; two values that differ are
// an error. What an optimizer keeps of a parameter is found by the parameter's name, or where a file
// has numbers instead, as older ones do, by its number.
//
// What is still in a file goes straight to its place: each process reads the parts of its own
// devices, in parallel, and holds nothing else; a value whose type differs takes its part in the
// file's type beside it. Values that are computed from a file, and others, are written in runs that
// take 64 MiB of a device beside the model, or one tensor where that is larger.
LoadReport load(const StateDict& into, const StateDict& from, const LoadOptions& options = {},
                Caller caller = Caller::current());

template <class Model>
LoadReport load_state_dict(const Model& model, const StateDict& from,
                           const LoadOptions& options = {}, Caller caller = Caller::current()) {
  return load(state_dict(model), from, options, caller);
}

// A safetensors file, an index of several, or a folder with one of these. Values stay in the files,
// which must not change, until something uses them: see load_from. A tensor of a type that is not
// known is refused when it is used. UserError for a checkpoint whose files hold parts of tensors:
// load_checkpoint puts these together.
StateDict safe_load(const std::filesystem::path& path, Caller caller = Caller::current());
// Load a file that is in memory, from its bytes or a tensor of u8. The bytes are copied.
StateDict safe_load(std::span<const std::byte> bytes, Caller caller = Caller::current());
StateDict safe_load(const Tensor& bytes, Caller caller = Caller::current());
// The texts under "__metadata__" of a file, or those of the index.
std::map<std::string, std::string> safe_load_metadata(const std::filesystem::path& path,
                                                      Caller caller = Caller::current());

}  // namespace tinyshard::nn

namespace tinyshard {
using nn::safe_load;
using nn::safe_load_metadata;
}  // namespace tinyshard
