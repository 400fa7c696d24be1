// The examples of docs/uops.md, as a stranger's program: it needs the installed headers alone, and ends with
// 1 where one of them does not do what the page says.
#include <tinyshard/tinyshard.h>
#include <tinyshard/uop.h>

using namespace tinyshard;

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  std::cout << (holds ? "ok: " : "wrong: ") << what << '\n';
  failures += holds ? 0 : 1;
}

using Floats = std::vector<float>;

void look_at_graphs() {
  Tensor a = Tensor::ones({2, 3}), b = Tensor::full({2, 3}, 2.0);
  UOp root = graph_of((a * b).sum(1));
  std::cout << root;
  for (const UOp& node : toposort(std::span(&root, 1))) {
    std::cout << info(node.op()).name << ' ' << name(node.dtype()) << ' ' << to_string(node.shape())
              << ", " << node->src().size() << " sources\n";
  }
  expect(root.op() == Op::Reshape, "a sum without its dim is a reshape of a reduction");
}

void rewrite_graphs() {
  const Pattern x = Pattern::any("x");
  const PatternMatcher rules({
      {"log of exp", Pattern(Op::Log2, {Pattern(Op::Exp2, {x})}),
       [](const Match& m) { return m["x"]; }},
      {"twice", Pattern(Op::Add, {x, x}), [](const Match& m) { return m["x"] * 2; }},
  });
  Tensor t = Tensor(Floats{100, 200});
  Tensor y = t.exp2().log2();              // infinite in f32
  Tensor exact = graph_rewrite(y, rules);  // t
  expect(exact.to_vector<float>() == Floats{100, 200}, "a rewritten graph");
}

void add_a_pass() {
  // A parabola in the place of exp2, for everything that is planned while the scope is open.
  const ProgramPass cheap(
      "cheap_exp", PatternMatcher({
                       {"exp", Pattern(Op::Exp2, {Pattern::any("x")}),
                        [](const Match& m) { return (m["x"] * 0.5 + 1) * (m["x"] * 0.5 + 1); }},
                   }));
  Jit step([](const Tensor& x) { return x.exp2(); });
  Tensor x = Tensor(Floats{0, 2});
  float exact = step(x).to_vector<float>()[1];  // 4
  float near = 0;
  {
    PassScope on(cheap);
    near = step(x + 0).to_vector<float>()[1];  // 4 again: (2 / 2 + 1)^2; planned anew
  }
  expect(exact == 4 && near == 4, "a pass within its scope");
  const ProgramPass other(
      "zero", PatternMatcher({
                  {"exp", Pattern(Op::Exp2), [](const Match& m) { return m.root() * 0; }},
              }));
  try {
    PassScope on(other);
    step(x).to_vector<float>();
    expect(false, "a rule that replaces itself by more of itself");
  } catch (const UserError& error) {
    std::cout << error.what() << '\n';
    expect(true, "a pass without an end is a UserError");
  }
}

// Rounds, and lets gradients through as if it had not.
struct StraightThrough : Function {
  Tensor forward(const std::vector<Tensor>& x) override { return x[0].round(); }
  std::vector<Tensor> backward(const Tensor& gradient) override { return {gradient}; }
};

// The square root of x, whose gradient is at most `most`.
struct BoundedSqrt : Function {
  explicit BoundedSqrt(double m) : most(m) {}
  Tensor forward(const std::vector<Tensor>& x) override { return root = x[0].sqrt(); }
  std::vector<Tensor> backward(const Tensor& gradient) override {
    return {gradient * (0.5 / root).minimum(most)};
  }
  double most;
  Tensor root;
};

void define_functions() {
  Tensor w = Tensor(Floats{0.2F, 1.7F}).is_param_();
  Tensor y = Function::apply<StraightThrough>({w});
  (y * y).sum().backward();
  expect(y.to_vector<float>() == Floats{0, 2}, "the value of a function");
  expect(w.grad().to_vector<float>() == Floats{0, 4}, "its own gradient");

  Mesh mesh = Mesh::of({"CPU:0", "CPU:1"}, "rows");
  Tensor x = Tensor(Floats{0, 1, 4, 16}).shard(mesh, {{"rows", Shard(0)}}).realize();
  Tensor g = Function::apply<BoundedSqrt>({x}, 0.25).sum().gradient({x})[0];
  expect(g.to_vector<float>() == Floats{0.25F, 0.25F, 0.25F, 0.125F}, "on sharded values");
  expect(g.sharding().placements[0] == Placement(Shard(0)), "whose gradient lies as they do");
}

// The sums of squares of rows, in one kernel.
Tensor row_squares(const Tensor& x) {
  return custom_kernel(
      "row_squares", {x}, {x.shape(0)}, DType::F32,
      [](KernelBuilder& k) {
        UOp column = k.range(k.shape_of(0)[1]);
        UOp v = k.load(0, {k.index(0), column});
        return k.fold(ReduceOp::Sum, v * v, {column});
      },
      [](const Tensor& gradient, const std::vector<Tensor>& in) {
        return std::vector<Tensor>{gradient.unsqueeze(1) * in[0] * 2};
      });
}

void write_a_kernel() {
  Tensor x = Tensor::arange(6.0).reshape({3, 2});
  expect(row_squares(x).to_vector<float>() == Floats{1, 13, 41}, "a kernel");
  expect(row_squares(x).sum().gradient({x})[0].to_vector<float>() == Floats{0, 2, 4, 6, 8, 10},
         "its gradient");

  Mesh mesh = Mesh::of({"CPU:0", "CPU:1", "CPU:2"}, "rows");
  auto divided =
      shard_map(mesh, row_squares, {.in = {{{"rows", Shard(0)}}}, .out = {{{"rows", Shard(0)}}}});
  expect(divided(x).to_vector<float>() == Floats{1, 13, 41}, "a kernel on each device's rows");
}

}  // namespace

int main() {
  look_at_graphs();
  rewrite_graphs();
  add_a_pass();
  define_functions();
  write_a_kernel();
  return failures == 0 ? 0 : 1;
}
