// Attention on a GPU by cuDNN: the scores of a few rows at a time stay in registers, forward and
// backward. The order in which rows add to the gradient of q is not fixed, so its last bits may
// differ from run to run.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "devices/cuda/cudnn_graph.h"
#include "devices/cuda/executor.h"

namespace tinyshard::cuda {

// A call as cuDNN sees it: four dims [batch, heads, rows, width] each.
struct AttentionCall {
  struct View {
    int64_t offset = 0;                // in elements
    std::array<int64_t, 4> strides{};  // in elements
  };
  bool backward = false, causal = false;
  DType dtype = DType::BF16;
  int64_t batch = 1, heads = 1, rows = 0, columns = 0, width = 0, values = 0;
  float scale = 1;
  std::vector<View> operands;  // those of the node
  // Result and statistics, or the gradients of q, k, v; what nobody reads has no place in `order`.
  std::array<View, 3> results;
  std::array<int, 3> order{-1, -1, -1};              // position among the results of the call
  size_t count() const { return backward ? 3 : 2; }  // of results
  std::pair<int64_t, int64_t> result_size(size_t which) const;  // its last two dims
  std::string shape() const;  // what decides whether there is an engine
  std::string key() const;    // equal for calls that one plan serves
};

// Nothing, with the reason, where cuDNN cannot express the call.
std::optional<AttentionCall> attention_call(const LibraryCall& call, std::string* why);

bool attention_has_engine(const AttentionCall& call, const DnnTarget& target);
// Throws DeviceError where cuDNN has no engine for the call.
std::unique_ptr<DnnPlanned> plan_attention(const AttentionCall& call, const DnnTarget& target);

bool attention_supports(const Gpu& gpu, const LibraryCall& call, std::string* why);
void prepare_attention(Gpu& gpu, const LibraryCall& call);
std::unique_ptr<Program> make_attention(Gpu& gpu, const LibraryCall& call);

}  // namespace tinyshard::cuda
