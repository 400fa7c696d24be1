// A kernel's expressions in a form that is quick to analyse: nodes by number, sources before users,
// each with the set of ranges it varies with; index expressions as affine forms. Built once per
// kernel, read only afterwards. Internal to core/codegen.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/codegen/kernel.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"

namespace tinyshard::codegen {

using RangeSet = uint64_t;  // bit r: range number r
inline RangeSet bit(int range) { return RangeSet{1} << range; }

// constant + sum of coefficient * value of node. Terms are Range nodes or index expressions that
// are not affine (a division, a gather), in ascending order of node.
struct Form {
  struct Term {
    int node;
    int64_t coefficient;
  };
  int64_t constant = 0;
  std::vector<Term> terms;
};

struct KernelNode {
  const Node* uop = nullptr;
  Op op = Op::Const;
  DType dtype = DType::F32;
  bool has_load = false;  // some source, however far, is a Load
  int source_begin = 0, source_count = 0;
  RangeSet varies = 0;        // ranges that the value depends on
  int range = -1;             // number of the range, for Op::Range of size > 1
  int scalar = -1;            // of a Const that comes with a call: its place behind the coordinates
  bool contracts = false;     // a product that only contracting sums read (KernelSource), or these
  int form = -1;              // for Index values
  int64_t low = 0, high = 0;  // bounds of an Index value
};

struct KernelRange {
  int node = -1;
  int64_t size = 1;
  bool fold = false;
};

class Graph {
 public:
  explicit Graph(const KernelSource& kernel);

  const KernelNode& operator[](int node) const { return nodes_[node]; }
  int size() const { return static_cast<int>(nodes_.size()); }
  std::span<const int> sources(int node) const {
    return {source_pool_.data() + nodes_[node].source_begin,
            static_cast<size_t>(nodes_[node].source_count)};
  }
  int source(int node, int i) const { return source_pool_[nodes_[node].source_begin + i]; }
  const Form& form(int node) const { return forms_[nodes_[node].form]; }
  const Node& node(int number) const { return *nodes_[number].uop; }

  const KernelRange& range(int r) const { return ranges_[r]; }
  int ranges() const { return static_cast<int>(ranges_.size()); }
  // Numbers of the Loop ranges with more than one value, in the scheduler's order.
  std::span<const int> loops() const { return loops_; }
  // Stores that happen at all: none of their loops is empty.
  std::span<const int> stores() const { return stores_; }
  // Numbers of a Fold's ranges with more than one value; `empty` when one has no value at all.
  struct FoldRanges {
    std::vector<int> ranges;
    bool empty = false;
  };
  const FoldRanges& fold_ranges(int fold) const { return fold_ranges_.at(fold); }

  // Pairs (outer, inner) of ranges that could be one range outer * size(inner) + inner: some access
  // walks through both without a gap, and they occur in the same stores or folds, and the same
  // folds vary with both.
  std::vector<std::pair<int, int>> mergeable() const;
  // Tells whether merging such a pair leaves every index and every Fold a function of the merged
  // range alone, so that nothing divides.
  bool merges_exactly(int outer, int inner) const;
  // Makes them one, with the number of `outer`. Indices that do not fit divide.
  void merge(int outer, int inner);

  const ParamInfo& param(int slot) const { return params_[slot]; }
  int params() const { return static_cast<int>(params_.size()); }
  // Slot of a Load or Store.
  int slot(int access) const { return static_cast<int>(slot_of(node(access))); }
  bool aliased(int slot) const;

  // Where the lanes of an index lie relative to lane 0, when `block` neighbouring values of
  // `range`, starting at a multiple of `block`, are computed side by side: one offset for each of
  // the first `lanes` of them. Nothing when the offsets are not the same for every block.
  using Pattern = std::vector<int64_t>;
  std::optional<Pattern> lane_pattern(int node, int range, int64_t block, int64_t lanes,
                                      int divisions = kDivisions) const;
  // The offset of lane 1 when all lanes are that far apart; nothing otherwise.
  std::optional<int64_t> lane_stride(int node, int range, int64_t block) const;
  // A number that divides the index at lane 0 under the same assumption; 0 when that is always 0.
  int64_t alignment(int node, int range, int64_t lanes, int divisions = kDivisions) const;

 private:
  // Limit of how deep both look through divisions within divisions. A quotient and a remainder of
  // one index, added up and divided again, double the questions at each level.
  static constexpr int kDivisions = 6;

  // Finds the products that are added without being rounded: KernelSource says which sums may.
  void mark_contractions();
  int visit(const UOp& root);
  int add(const UOp& x);
  int add_index(Op op, int range, std::initializer_list<int> sources, Form form);
  int64_t coefficient(const Form& form, int node) const;
  void make_form(int node);
  Form affine(int node) const;

  std::vector<KernelNode> nodes_;
  std::vector<int> source_pool_;
  std::vector<Form> forms_;
  std::vector<KernelRange> ranges_;
  std::vector<int> loops_, stores_;
  std::vector<ParamInfo> params_;
  std::unordered_map<int, FoldRanges> fold_ranges_;
  NodeMap<int> numbers_;
};

}  // namespace tinyshard::codegen
