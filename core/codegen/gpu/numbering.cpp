// Value numbering: the kernel's expressions are shared already, but what differs only in a range
// that stands for another one is equal too.
#include <map>

#include "core/codegen/gpu/gpu_plan.h"

namespace tinyshard::codegen::gpu {
namespace {

class Numbering {
 public:
  Numbering(const Graph& graph, std::span<const int> range_class)
      : graph_(graph), range_class_(range_class), same_(static_cast<size_t>(graph.size()), -1) {}

  std::vector<int> run() {
    for (int node = 0; node < graph_.size(); ++node) number(node);
    return std::move(same_);
  }

 private:
  int number(int node) {
    int& known = same_[static_cast<size_t>(node)];
    if (known >= 0) return known;
    std::vector<int64_t> key = key_of(node);
    return same_[static_cast<size_t>(node)] =
               first_.try_emplace(std::move(key), node).first->second;
  }

  std::vector<int64_t> key_of(int node) {
    const KernelNode& n = graph_[node];
    if (n.range >= 0) return {-1, range_class_[static_cast<size_t>(n.range)]};
    if (n.form >= 0) {
      const Form& form = graph_.form(node);
      if (form.terms.size() != 1 || form.terms[0].node != node) {
        std::map<int64_t, int64_t> terms;
        for (auto [term, coefficient] : form.terms) terms[number(term)] += coefficient;
        std::vector<int64_t> key{-2, form.constant};
        for (auto [term, coefficient] : terms) key.insert(key.end(), {term, coefficient});
        return key;
      }
    }
    std::vector<int64_t> key{static_cast<int64_t>(n.op), static_cast<int64_t>(n.dtype)};
    if (n.uop) {
      key.push_back(static_cast<int64_t>(n.uop->arg().size()));
      key.insert(key.end(), n.uop->arg().begin(), n.uop->arg().end());
    }
    if (n.op == Op::Fold) {  // its ranges by what they stand for
      key.push_back(number(graph_.source(node, 0)));
      for (int r : graph_.fold_ranges(node).ranges) {
        key.push_back(range_class_[static_cast<size_t>(r)]);
      }
      key.push_back(graph_.fold_ranges(node).empty);
      return key;
    }
    for (int source : graph_.sources(node)) key.push_back(number(source));
    return key;
  }

  const Graph& graph_;
  std::span<const int> range_class_;
  std::vector<int> same_;
  std::map<std::vector<int64_t>, int> first_;
};

}  // namespace

std::vector<int> number_values(const Graph& graph, std::span<const int> range_class) {
  return Numbering(graph, range_class).run();
}

}  // namespace tinyshard::codegen::gpu
