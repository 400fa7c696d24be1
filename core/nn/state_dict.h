// The tensors of a model by name: listing them, copying values into them, and safetensors files.
// Threads: as Tensor.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

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
// statistics, up to date with them.
template <class Model>
std::vector<Tensor> parameters(const Model& model) {
  std::vector<Tensor> list;
  for_each_tensor(model, {}, [&](const std::string&, const Tensor& t) {
    for (const Tensor& seen : list) {
      if (seen.state() == t.state()) return;  // tied weights
    }
    list.push_back(t);
  });
  return list;
}

struct LoadOptions {
  bool strict = true;  // every tensor of the model has a value, and every value a tensor
};

// Writes the values of `from` over the tensors of `into`, converted to their types and placed as
// they are. All differences in names and shapes are in one UserError, and then nothing is written.
void load(const StateDict& into, const StateDict& from, const LoadOptions& options = {},
          Caller caller = Caller::current());

template <class Model>
void load_state_dict(const Model& model, const StateDict& from, const LoadOptions& options = {},
                     Caller caller = Caller::current()) {
  load(state_dict(model), from, options, caller);
}

// A safetensors file, an index of several, or a folder with one of these.
StateDict safe_load(const std::filesystem::path& path);

// Writes a safetensors file, whole or not at all. In a job of several ranks all of them call it
// with the same tensors and rank 0 writes.
void safe_save(const StateDict& tensors, const std::filesystem::path& path,
               const std::map<std::string, std::string>& metadata = {});

}  // namespace tinyshard::nn

namespace tinyshard {
using nn::safe_load;
using nn::safe_save;
}  // namespace tinyshard
