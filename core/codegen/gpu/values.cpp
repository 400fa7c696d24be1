// A thread computes each value once, in the outermost frame that knows its ranges, with an instance
// for each chunk and lane that it varies with.
#include <limits>

#include "core/base/error.h"
#include "core/codegen/gpu/gpu_emit.h"
#include "core/uop/args.h"

namespace tinyshard::codegen::gpu {

using llvm::Value;

Emitter::At::At(Emitter& e, int frame) : guard(e.b_) {
  if (auto* before = e.frames_[static_cast<size_t>(frame)].before) e.b_.SetInsertPoint(before);
}

// --- places and instances ------------------------------------------------------------------------

int Emitter::place(int node) const {
  RangeSet varies = graph_[node].varies;
  for (size_t f = 0; f < frames_.size(); ++f) {
    if (!(varies & ~frames_[f].open)) return static_cast<int>(f);
  }
  throw InternalError("a value outside of its loops: " + describe(*graph_[node].uop));
}

const Emitter::Frame* Emitter::lane_frame(int node) const {
  for (const Frame& frame : frames_) {
    if (frame.lanes > 1 && (graph_[node].varies & frame.lane_ranges) != 0) return &frame;
  }
  return nullptr;
}

int Emitter::lanes_of(int node) const {
  const Frame* frame = lane_frame(node);
  return frame ? frame->lanes : 1;
}

int Emitter::instances(int node) const {
  int count = lanes_of(node);
  for (size_t f = 0; f < frames_.size(); ++f) {
    if (chunked(node, f)) count *= frames_[f].chunks;
  }
  return count;
}

Emitter::Spot Emitter::spot_of(int node, int instance) const {
  Spot spot;
  spot.chunks.assign(frames_.size(), 0);
  int lanes = lanes_of(node);
  spot.lane = instance % lanes;
  instance /= lanes;
  for (size_t f = frames_.size(); f-- > 0;) {
    if (!chunked(node, f)) continue;
    spot.chunks[f] = instance % frames_[f].chunks;
    instance /= frames_[f].chunks;
  }
  return spot;
}

int Emitter::instance_at(int node, const Spot& spot) const {
  int instance = 0;
  for (size_t f = 0; f < frames_.size(); ++f) {
    if (chunked(node, f)) instance = instance * frames_[f].chunks + spot.chunks[f];
  }
  int lanes = lanes_of(node);
  return lanes > 1 ? instance * lanes + spot.lane : instance;
}

bool Emitter::narrow(int node) const {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  return !graph_[node].has_load && graph_[node].low >= -kLimit && graph_[node].high <= kLimit;
}

std::optional<Graph::Pattern> Emitter::lane_pattern(int index) const {
  const Frame* frame = lane_frame(index);
  if (!frame) return std::nullopt;
  RangeSet ranges = graph_[index].varies & frame->lane_ranges;
  int range = std::countr_zero(ranges);
  if (ranges != bit(range)) return std::nullopt;
  return graph_.lane_pattern(index, range, frame->lanes, frame->lanes);
}

// Bounds an index at one spot. The rounds of a section narrow it down further than the graph does.
Emitter::Bounds Emitter::bounds(int index, const Spot& spot) const {
  const KernelNode& n = graph_[index];
  Bounds whole{n.low, n.high};
  if (n.has_load) return {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  if (n.range >= 0) {
    size_t frame = static_cast<size_t>(place(index));
    auto known = frames_[frame].bounds.find(n.range);
    if (known == frames_[frame].bounds.end()) return whole;
    Bounds here = known->second[frames_[frame].chunks > 1 ? spot.chunks[frame] : 0];
    int lane = lane_frame(index) ? spot.lane : 0;
    return {here.low + lane, here.high + lane};
  }
  if (n.form < 0) return whole;
  const Form& form = graph_.form(index);
  if (form.terms.size() == 1 && form.terms[0].node == index) return whole;
  Bounds sum{form.constant, form.constant};
  for (auto [term, coefficient] : form.terms) {
    Bounds part = bounds(term, spot);
    sum.low += coefficient * (coefficient > 0 ? part.low : part.high);
    sum.high += coefficient * (coefficient > 0 ? part.high : part.low);
  }
  return {std::max(sum.low, whole.low), std::min(sum.high, whole.high)};
}

// Returns what a comparison of indices comes to wherever it is asked; null where that differs.
Value* Emitter::decided(int comparison, int instance) const {
  int left = graph_.source(comparison, 0), right = graph_.source(comparison, 1);
  if (graph_[comparison].op != Op::CmpLt || graph_[left].dtype != DType::Index ||
      graph_[left].has_load || graph_[right].has_load)
    return nullptr;
  Spot spot = spot_of(comparison, instance);
  Bounds a = bounds(left, spot), b = bounds(right, spot);
  auto& context = module_.getContext();
  if (a.high < b.low) return llvm::ConstantInt::getTrue(context);
  return a.low >= b.high ? llvm::ConstantInt::getFalse(context) : nullptr;
}

// --- values --------------------------------------------------------------------------------------

Emitter::Values Emitter::value(int node) {
  node = work_->same[static_cast<size_t>(node)];
  int at = place(node);
  auto& values = frames_[static_cast<size_t>(at)].values;
  if (auto found = values.find(node); found != values.end()) return found->second;
  check_internal(graph_[node].op != Op::Fold, "a fold is computed before it is used");
  make_below(node);
  Values made;
  {
    At inside(*this, at);
    made = make_value(node);
  }
  values[node] = made;
  return made;
}

// Makes what an elementwise op is computed from, sources first. Kernels are hundreds of nodes deep,
// and threads may have small stacks.
void Emitter::make_below(int node) {
  auto descends = [&](int x) {
    return is_elementwise(graph_[x].op) && graph_[x].dtype != DType::Index;
  };
  if (!descends(node)) return;
  std::vector<std::pair<int, size_t>> path{{node, 0}};
  while (!path.empty()) {
    auto& [x, next] = path.back();
    std::span<const int> sources = graph_.sources(x);
    if (next == sources.size()) {
      const int done = x;
      path.pop_back();
      if (!path.empty()) value(done);
      continue;
    }
    const int source = work_->same[static_cast<size_t>(sources[next++])];
    if (frames_[static_cast<size_t>(place(source))].values.contains(source)) continue;
    if (descends(source)) {
      path.emplace_back(source, 0);
    } else {
      value(source);
    }
  }
}

Value* Emitter::coordinate(int64_t place) const {
  return function_->getArg(static_cast<unsigned>(graph_.params() + place));
}

Emitter::Values Emitter::make_value(int node) {
  const KernelNode& n = graph_[node];
  if (n.op == Op::Load) return make_load(node);
  if (n.dtype == DType::Index) return make_index(node);
  if (n.scalar >= 0) return {arith_.from_bits(coordinate(n.scalar), n.dtype)};
  if (n.op == Op::Const) return {arith_.constant(n.dtype, const_bits(*n.uop))};
  return apply(node, false);
}

// An elementwise op over its sources; of lane 0 alone where the other lanes follow from it.
Emitter::Values Emitter::apply(int node, bool lane0) {
  const KernelNode& n = graph_[node];
  std::span<const int> sources = graph_.sources(node);
  llvm::SmallVector<Values, 3> operands;
  for (int source : sources) operands.push_back(value(source));
  Values results;
  int step = lane0 ? lanes_of(node) : 1;
  llvm::IRBuilder<>::FastMathFlagGuard flags(b_);
  if (n.contracts) b_.setFastMathFlags(contraction());
  for (int instance = 0; instance < instances(node); instance += step) {
    if (Value* known = decided(node, instance)) {
      results.push_back(known);
      continue;
    }
    llvm::SmallVector<Value*, 3> x;
    // Indices come in two widths: the widest of the operands, and that of the result, which may be
    // larger than all of them.
    unsigned width = n.dtype == DType::Index && !narrow(node) ? 64 : 0;
    for (size_t i = 0; i < sources.size(); ++i) {
      x.push_back(operands[i][static_cast<size_t>(instance_of(node, instance, sources[i]))]);
      if (graph_[sources[i]].dtype == DType::Index)
        width = std::max(width, x[i]->getType()->getScalarSizeInBits());
    }
    for (size_t i = 0; i < sources.size(); ++i) {
      if (graph_[sources[i]].dtype == DType::Index) x[i] = arith_.index_width(x[i], width);
    }
    Value* result;
    if ((n.op == Op::IDiv || n.op == Op::Mod) && n.dtype == DType::Index) {
      result = arith_.index_division(n.op, x[0], x[1],
                                     graph_[sources[0]].has_load ? -1 : graph_[sources[0]].low);
    } else {
      result = arith_.emit(n.op, n.dtype, graph_[sources[0]].dtype, x);
    }
    if (n.dtype == DType::Index) result = arith_.index_width(result, narrow(node) ? 32 : 64);
    results.push_back(result);
  }
  return results;
}

// constant + sum of terms: lane 0 of each chunk, and the other lanes at fixed distances where the
// index allows it.
Emitter::Values Emitter::make_index(int node) {
  const KernelNode& n = graph_[node];
  const Form& form = graph_.form(node);
  unsigned width = narrow(node) ? 32 : 64;
  if (n.op == Op::DeviceCoordinate) {
    return {arith_.index_width(coordinate(coordinate_arg(*n.uop).mesh_axis), width)};
  }
  int lanes = lanes_of(node);
  auto pattern = lanes > 1 ? lane_pattern(node) : std::nullopt;
  bool lane0 = pattern.has_value();
  auto number = [&](int64_t x) { return llvm::ConstantInt::getSigned(b_.getIntNTy(width), x); };
  Values results;
  if (n.range >= 0) {
    size_t frame = static_cast<size_t>(place(node));
    for (Value* digit : Values(frames_[frame].digits.at(n.range)))
      results.push_back(arith_.index_width(digit, width));
  } else if (form.terms.size() == 1 && form.terms[0].node == node) {
    results = apply(node, lane0);
  } else {
    llvm::SmallVector<Values, 4> terms;
    bool whole = !n.has_load && form.constant >= 0;  // and so is each part of the sum
    for (auto [term, coefficient] : form.terms) {
      terms.push_back(value(term));
      whole = whole && graph_[term].low >= 0 && coefficient >= 0;
    }
    auto times = [&](Value* x, Value* y) { return whole ? whole_mul(x, y) : b_.CreateMul(x, y); };
    auto plus = [&](Value* x, Value* y) { return whole ? whole_add(x, y) : b_.CreateAdd(x, y); };
    for (int instance = 0; instance < instances(node); instance += lane0 ? lanes : 1) {
      Value* sum = nullptr;
      for (size_t i = 0; i < terms.size(); ++i) {
        auto [term, coefficient] = form.terms[i];
        Value* x = terms[i][static_cast<size_t>(instance_of(node, instance, term))];
        x = arith_.index_width(x, width);
        if (coefficient != 1) x = times(x, number(coefficient));
        sum = sum ? plus(sum, x) : x;
      }
      if (!sum) {
        sum = number(form.constant);
      } else if (form.constant != 0) {
        sum = plus(sum, number(form.constant));
      }
      results.push_back(sum);
    }
  }
  if (!lane0) return results;
  Values all;
  for (Value* x : results) {
    for (int64_t offset : *pattern) all.push_back(offset ? b_.CreateAdd(x, number(offset)) : x);
  }
  return all;
}

}  // namespace tinyshard::codegen::gpu
