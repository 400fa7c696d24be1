// Cost of the graph itself: interning, order, rewriting, simplification of index expressions.
// Budgets: 50 ns to intern, 200 ns per visited node of a rewrite, 5 us for a hard expression.
#include <benchmark/benchmark.h>

#include "core/rewrite/affine.h"
#include "core/rewrite/pattern.h"
#include "core/rewrite/symbolic.h"
#include "core/uop/uop.h"

namespace tinyshard {
namespace {

UOp add(const UOp& a, const UOp& b) { return binary(Op::Add, a, b); }
UOp mul(const UOp& a, const UOp& b) { return binary(Op::Mul, a, b); }
UOp mul(const UOp& a, int64_t c) { return mul(a, index_const(c)); }
UOp div(const UOp& a, int64_t c) { return binary(Op::IDiv, a, index_const(c)); }
UOp mod(const UOp& a, int64_t c) { return binary(Op::Mod, a, index_const(c)); }
UOp loop(int64_t id, int64_t size) { return range(id, size, RangeKind::Loop); }

// A node that exists already.
void intern_hit(benchmark::State& state) {
  UOp a = loop(0, 64), b = loop(1, 64), kept = add(a, b);
  for (auto _ : state) benchmark::DoNotOptimize(UOp::make(Op::Add, DType::Index, {a, b}));
}
BENCHMARK(intern_hit);

// A new node each time, and its release with the others at the end of a batch.
void intern_miss(benchmark::State& state) {
  constexpr int kBatch = 4096;
  UOp a = loop(0, 64);
  std::vector<UOp> constants, made(kBatch);
  for (int i = 0; i < kBatch; ++i) constants.push_back(index_const(i));
  for (auto _ : state) {
    for (int i = 0; i < kBatch; ++i) made[i] = UOp::make(Op::Add, DType::Index, {a, constants[i]});
    state.PauseTiming();
    made.assign(kBatch, UOp());
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
  state.counters["per_node"] = benchmark::Counter(
      double(kBatch), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(intern_miss);

void make_and_drop(benchmark::State& state) {
  UOp a = loop(0, 64), b = loop(1, 64);
  for (auto _ : state) benchmark::DoNotOptimize(UOp::make(Op::Mul, DType::Index, {a, b}));
}
BENCHMARK(make_and_drop);

// A graph of elementwise layers, as wide as it is shared.
std::vector<UOp> layers(int depth) {
  std::vector<UOp> row;
  Dims shape{64, 64};
  for (int i = 0; i < 8; ++i) {
    row.push_back(UOp::make(Op::Buffer, DType::F32, {}, Dims{1000 + i, 64, 64}));
  }
  for (int d = 0; d < depth; ++d) {
    std::vector<UOp> next;
    for (size_t i = 0; i < row.size(); ++i) {
      Op op = (d + i) % 3 == 0 ? Op::Mul : (d + i) % 3 == 1 ? Op::Add : Op::Max;
      next.push_back(binary(op, row[i], row[(i + 1) % row.size()]));
    }
    row = std::move(next);
  }
  return row;
}

void per_node(benchmark::State& state, size_t nodes) {
  state.counters["nodes"] = double(nodes);
  state.counters["per_node"] = benchmark::Counter(
      double(nodes), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void toposort_layers(benchmark::State& state) {
  std::vector<UOp> roots = layers(static_cast<int>(state.range(0)));
  size_t nodes = toposort(roots).size();
  for (auto _ : state) benchmark::DoNotOptimize(toposort(roots));
  per_node(state, nodes);
}
BENCHMARK(toposort_layers)->Arg(16)->Arg(1024);

void hash_layers(benchmark::State& state) {
  std::vector<UOp> roots = layers(1024);
  size_t nodes = toposort(roots).size();
  for (auto _ : state) benchmark::DoNotOptimize(structural_hash(roots));
  per_node(state, nodes);
}
BENCHMARK(hash_layers);

// Rules that look at every node and never match.
void rewrite_nothing(benchmark::State& state) {
  auto never = [](const UOp& x) { return x.src(0) == x.src(1) ? x.src(0) : UOp(); };
  RuleSet rules({{"a", Op::Add, {}, never},
                 {"b", Op::Mul, {}, never},
                 {"c", Op::Max, {}, never},
                 {"d", Op::Add, op_set(Op::Neg), never},
                 {"e", Op::Mul, op_set(Op::Recip), never}});
  std::vector<UOp> roots = layers(static_cast<int>(state.range(0)));
  size_t nodes = toposort(roots).size();
  for (auto _ : state) benchmark::DoNotOptimize(rewrite(roots, rules));
  per_node(state, nodes);
}
BENCHMARK(rewrite_nothing)->Arg(16)->Arg(1024);

// Every third node changes, and with it everything above.
void rewrite_everything(benchmark::State& state) {
  RuleSet rules({{"max_to_add", Op::Max, {}, [](const UOp& x) {
                    return binary(Op::Sub, x.src(0), x.src(1));
                  }}});
  std::vector<UOp> roots = layers(static_cast<int>(state.range(0)));
  size_t nodes = toposort(roots).size();
  for (auto _ : state) benchmark::DoNotOptimize(rewrite(roots, rules));
  per_node(state, nodes);
}
BENCHMARK(rewrite_everything)->Arg(16)->Arg(1024);

void substitute_leaf(benchmark::State& state) {
  std::vector<UOp> roots = layers(1024);
  std::vector<UOp> order = toposort(roots);
  NodeMap<UOp> map;
  UOp other = UOp::make(Op::Buffer, DType::F32, {}, Dims{2000, 64, 64});
  map[order[0]] = other;
  for (auto _ : state) benchmark::DoNotOptimize(substitute(roots, map));
  per_node(state, order.size());
}
BENCHMARK(substitute_leaf);

// --- index expressions ---------------------------------------------------------------------------

// Split and merged again: reduces to the range.
UOp reshape_chain() {
  UOp x = loop(0, 4608);
  UOp a = div(x, 576), b = mod(div(x, 64), 9), c = mod(x, 64);
  UOp flat = add(add(mul(a, 576), mul(b, 64)), c);
  UOp d = div(flat, 72), e = mod(flat, 72);
  return add(mul(d, 72), e);
}

// The operand of a padded 3x3 convolution lowered to a product: five ranges, pads and a transpose.
UOp convolution() {
  UOp row = loop(0, 64 * 28 * 28), inner = loop(1, 32 * 9);
  UOp n = div(row, 784), y = mod(div(row, 28), 28), x = mod(row, 28);
  UOp c = div(inner, 9), i = mod(div(inner, 3), 3), j = mod(inner, 3);
  UOp yy = add(y, i), xx = add(x, j);
  UOp flat = add(mul(add(mul(add(mul(n, 32), c), 30), yy), 30), xx);
  // and a read of the padded image as one run of numbers
  UOp py = mod(div(flat, 30), 30), px = mod(flat, 30), rest = div(flat, 900);
  UOp sy = add(py, index_const(-1)), sx = add(px, index_const(-1));
  return add(mul(add(mul(rest, 28), sy), 28), sx);
}

// Heads of attention: split, transpose, merge, split in another way.
UOp attention() {
  UOp b = loop(0, 8), t = loop(1, 128), e = loop(2, 768);
  UOp flat = add(mul(add(mul(b, 128), t), 768), e);
  UOp size = mod(flat, 64), head = mod(div(flat, 64), 12), time = mod(div(flat, 768), 128),
      batch = div(flat, 98304);
  UOp swapped = add(mul(add(mul(add(mul(batch, 12), head), 128), time), 64), size);
  UOp s2 = mod(swapped, 64), t2 = mod(div(swapped, 64), 128), h2 = div(swapped, 8192);
  return add(add(mul(h2, 8192), mul(t2, 64)), s2);
}

void simplify_expression(benchmark::State& state, UOp (*make)()) {
  UOp x = make();
  size_t nodes = toposort(std::span(&x, 1)).size();
  for (auto _ : state) benchmark::DoNotOptimize(simplify(x));
  UOp result = simplify(x);
  state.counters["before"] = double(nodes);
  state.counters["after"] = double(toposort(std::span(&result, 1)).size());
}
BENCHMARK_CAPTURE(simplify_expression, reshape_chain, reshape_chain);
BENCHMARK_CAPTURE(simplify_expression, convolution, convolution);
BENCHMARK_CAPTURE(simplify_expression, attention, attention);

// A pass uses one Simplifier for all of its expressions.
void simplify_with_memo(benchmark::State& state) {
  Simplifier simplifier;
  std::vector<UOp> expressions{reshape_chain(), convolution(), attention()};
  for (auto _ : state) {
    for (const UOp& x : expressions) benchmark::DoNotOptimize(simplifier(x));
  }
  state.SetItemsProcessed(state.iterations() * 3);
}
BENCHMARK(simplify_with_memo);

void find_strides(benchmark::State& state) {
  UOp x = simplify(attention());
  for (auto _ : state) benchmark::DoNotOptimize(as_affine(x));
}
BENCHMARK(find_strides);

}  // namespace
}  // namespace tinyshard

BENCHMARK_MAIN();
