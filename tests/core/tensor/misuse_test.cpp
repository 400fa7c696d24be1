// Random calls of the whole API with arguments that nobody should give: sizes of 0, 1, 2^31, 2^62,
// negative and extreme ones, dims out of range, scalars, empty and undefined tensors, all types,
// NaN and infinities. Only UserError may come out, or DeviceError for memory that there is not; the
// process goes on, and nothing hangs.
//
//   tensor_misuse_test                              a short run, with a new seed that it prints
//   tensor_misuse_test --calls 100000 --seed 7      a long one
//   tensor_misuse_test --seed 7 --episode 12        one episode again, with its calls
//
// Calls come in episodes of a dozen that share tensors; an episode follows from seed and number
// alone. What a program would compute is bounded: only results of little work are realized.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/context.h"
#include "core/tensor/tensor.h"
#include "core/tensor/variable.h"

namespace tinyshard {
namespace {

constexpr int64_t kMostBytes = 1 << 20;  // of any value that is computed
constexpr int64_t kMostWork = 1 << 22;   // elements of all values together
constexpr size_t kMostNodes = 3000;      // of a graph
constexpr unsigned kSeconds = 60;        // for one call
constexpr int kCallsOfEpisode = 12;

// The calls of the episode so far: shown when a signal ends the process.
char history[1 << 16];
size_t history_size = 0;

void record(const std::string& text) {
  size_t n = std::min(text.size(), sizeof(history) - history_size);
  std::memcpy(history + history_size, text.data(), n);
  history_size += n;
}

void say(const char* text, size_t size) {
  while (size > 0) {
    ssize_t n = ::write(STDERR_FILENO, text, size);
    if (n <= 0) return;
    text += n, size -= size_t(n);
  }
}

void on_signal(int signal) {
  constexpr char kHang[] = "\nmisuse: a call does not end\n",
                 kCrash[] = "\nmisuse: a call crashed\n";
  if (signal == SIGALRM)
    say(kHang, sizeof(kHang) - 1);
  else
    say(kCrash, sizeof(kCrash) - 1);
  say(history, history_size);
  say("\n", 1);
  std::signal(signal == SIGALRM ? SIGABRT : signal, SIG_DFL);
  std::raise(signal == SIGALRM ? SIGABRT : signal);
}

class Episode {
 public:
  Episode(uint64_t seed, uint64_t number) : random_(seed * 1000003 + number) {
    history_size = 0;
    record("seed " + std::to_string(seed) + ", episode " + std::to_string(number) + ":");
    for (int i = 0; i < 3; ++i) keep(leaf());
  }

  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  template <class T>
  const T& one_of(const std::vector<T>& values) {
    return values[size_t(pick(0, int64_t(values.size()) - 1))];
  }

  // --- arguments, each noted down ------------------------------------------------------------
  template <class T>
  T noted(const T& value) {
    std::ostringstream text;
    text << " " << value;
    record(text.str());
    return value;
  }
  int64_t absurd() {
    static const std::vector<int64_t> values{-1,
                                             -2,
                                             -7,
                                             31,
                                             64,
                                             65,
                                             1000,
                                             65536,
                                             (1L << 31) - 1,
                                             1L << 31,
                                             1L << 32,
                                             (1L << 32) + 1,
                                             1L << 40,
                                             1L << 53,
                                             1L << 59,
                                             1L << 61,
                                             (1L << 62) - 1,
                                             1L << 62,
                                             -(1L << 31),
                                             -(1L << 62),
                                             INT64_MAX,
                                             INT64_MAX - 1,
                                             INT64_MIN,
                                             INT64_MIN + 1};
    return one_of(values);
  }
  int64_t raw_size() { return chance(0.06) ? absurd() : chance(0.15) ? pick(0, 1) : pick(0, 6); }
  int64_t size() { return noted(raw_size()); }
  int64_t positive() { return noted(chance(0.06) ? absurd() : pick(1, 4)); }
  int64_t dim() { return noted(chance(0.08) ? absurd() : pick(-3, 2)); }
  bool yes() { return noted(chance(0.5)); }
  Dims dims(int64_t rank) {
    Dims out;
    for (int64_t i = 0; i < rank; ++i) out.push_back(raw_size());
    return noted_dims(out);
  }
  int64_t rank() {
    return chance(0.01) ? one_of(std::vector<int64_t>{63, 64, 65, 70000}) : pick(0, 4);
  }
  Dims shape() {
    int64_t n = rank();
    return n > 4 ? noted_dims(Dims(size_t(n), pick(0, 2))) : dims(n);
  }
  Dims noted_dims(const Dims& d) {
    record(d.size() > 8 ? " {" + std::to_string(d[0]) + " x " + std::to_string(d.size()) + "}"
                        : " " + tinyshard::to_string(d));
    return d;
  }
  // As many sizes as the tensor has dims, more or less.
  Dims sizes_for(const Tensor& x) {
    int64_t n = x.defined() && chance(0.9) ? std::min<int64_t>(x.ndim(), 6) : rank();
    return n > 6 ? Dims(size_t(n), 1) : dims(n);
  }
  // A shape that x may be reshaped or expanded to.
  Dims shape_for(const Tensor& x) {
    if (!x.defined() || chance(0.3)) return shape();
    Dims s = x.shape();
    if (!s.empty() && chance(0.5))
      s[size_t(pick(0, int64_t(s.size()) - 1))] = chance(0.5) ? -1 : raw_size();
    if (chance(0.3)) s.insert(s.begin(), raw_size());
    if (chance(0.2)) s = {-1};
    return noted_dims(s);
  }
  Axes axes() {
    if (chance(0.3)) return {};
    Dims d;
    for (int64_t n = pick(0, 3); n > 0; --n) d.push_back(chance(0.05) ? absurd() : pick(-3, 2));
    return Axes(noted_dims(d));
  }
  std::optional<int64_t> maybe_dim() { return chance(0.3) ? std::nullopt : std::optional(dim()); }
  DType dtype() {
    if (chance(0.01)) return DType(noted(int(pick(kDTypes, 255))));
    auto type = DType(pick(0, kDTypes - 2));
    record(" " + std::string(name(type)));
    return type;
  }
  DType float_dtype() {
    if (chance(0.1)) return dtype();
    static const std::vector<DType> floats{DType::F16, DType::BF16, DType::F32, DType::F64};
    DType type = one_of(floats);
    record(" " + std::string(name(type)));
    return type;
  }
  std::optional<DType> maybe_dtype() { return chance(0.6) ? std::nullopt : std::optional(dtype()); }
  double real() {
    static const std::vector<double> values{
        0,      -0.0,  1,        -1,        0.5, 2,      1e-5,    3.7,  1e300, -1e300,
        1e-310, 65536, INFINITY, -INFINITY, NAN, 9.3e18, -9.3e18, 1e15, 5e9};
    return noted(chance(0.5) ? double(pick(-3, 3)) : one_of(values));
  }
  Scalar scalar() {
    switch (pick(0, 3)) {
      case 0:
        return Scalar(yes());
      case 1:
        return Scalar(real());
      default:
        return Scalar(noted(chance(0.15) ? absurd() : pick(-3, 9)));
    }
  }
  Pairs pairs(const Tensor& x) {
    Pairs out;
    size_t n =
        x.defined() && chance(0.92) ? std::min<size_t>(x.shape().size(), 8) : size_t(pick(0, 3));
    Dims flat;
    for (size_t i = 0; i < n; ++i) {
      auto one = [&] { return chance(0.05) ? absurd() : pick(-2, 3); };
      out.emplace_back(one(), one());
      flat.insert(flat.end(), {out.back().first, out.back().second});
    }
    noted_dims(flat);
    return out;
  }
  const Tensor& tensor() {
    static const Tensor none;
    if (chance(0.02)) {
      record(" (undefined)");
      return none;
    }
    size_t i = size_t(pick(0, int64_t(pool_.size()) - 1));
    record(" t" + std::to_string(i));
    return pool_[i];
  }
  // Keeps its operand alive, as Operand borrows.
  Operand operand() {
    if (chance(0.25)) return Operand(scalar());
    return Operand(tensor());
  }
  // Integers, often right as an index into x.
  Tensor index_for(const Tensor& x) {
    if (chance(0.2)) return tensor();
    Dims s = x.defined() && x.ndim() <= 6 && chance(0.7) ? x.shape() : Dims(size_t(pick(0, 3)), 2);
    if (!s.empty() && chance(0.5)) s[size_t(pick(0, int64_t(s.size()) - 1))] = pick(0, 3);
    int64_t n = 1;
    for (int64_t d : s) n *= std::min<int64_t>(d, 1 << 20);
    if (n > 5000) s = {2}, n = 2;
    std::vector<int64_t> values(static_cast<size_t>(n));
    for (int64_t& v : values) v = chance(0.05) ? absurd() : pick(-2, 5);
    Tensor out(values, s);
    noted_dims(s);
    if (chance(0.3)) return out;
    static const std::vector<DType> ints{DType::I8,  DType::U8,  DType::I16, DType::U16,
                                         DType::I32, DType::U32, DType::U64};
    return out.cast(one_of(ints));
  }
  std::vector<Tensor> tensors() {
    std::vector<Tensor> out;
    for (int64_t n = chance(0.1) ? 0 : pick(1, 3); n > 0; --n) out.push_back(tensor());
    return out;
  }
  Slice slice() {
    auto end = [&] {
      return chance(0.3) ? std::nullopt : std::optional(chance(0.05) ? absurd() : pick(-4, 6));
    };
    auto first = end(), last = end();
    int64_t step = chance(0.5) ? 1 : chance(0.1) ? absurd() : pick(-3, 3);
    record(" " + (first ? std::to_string(*first) : "") + ":" + (last ? std::to_string(*last) : "") +
           ":" + std::to_string(step));
    return {first, last, step};
  }
  // The tensors that an index borrows stay in `kept`.
  std::vector<Index> index(const Tensor& x, std::vector<Tensor>& kept) {
    std::vector<Index> out;
    kept.reserve(8);
    for (int64_t n = pick(0, 4); n > 0; --n) {
      switch (pick(0, 6)) {
        case 0:
          out.emplace_back(kNewAxis);
          record(" newaxis");
          break;
        case 1:
          out.emplace_back(kEllipsis);
          record(" ...");
          break;
        case 2:
        case 3:
          out.emplace_back(slice());
          break;
        case 4:
          kept.push_back(index_for(x));
          out.emplace_back(kept.back());
          break;
        default:
          out.emplace_back(dim());
      }
    }
    return out;
  }
  std::vector<AxisPlacement> placements(const Mesh& mesh) {
    std::vector<AxisPlacement> out;
    for (const MeshAxis& axis : mesh.axes()) {
      if (chance(0.4)) continue;
      int d = chance(0.05) ? one_of(std::vector<int>{-9, 99, INT_MAX, INT_MIN}) : int(pick(-2, 2));
      out.emplace_back(chance(0.03) ? "nobody" : axis.name, chance(0.9) ? Shard(d) : Replicate);
      record(" " + axis.name + ":" + out.back().second.to_string());
    }
    return out;
  }
  Mesh mesh() {
    switch (pick(0, 2)) {
      case 0:
        record(" mesh 2");
        return Mesh({{"a", 2}});
      case 1:
        record(" mesh 4");
        return Mesh({{"a", 4}});
      default:
        record(" mesh 2x2");
        return Mesh({{"a", 2}, {"b", 2}});
    }
  }
  Ints ints(size_t most = 3) {
    Dims out;
    for (int64_t n = pick(1, int64_t(most)); n > 0; --n)
      out.push_back(chance(0.06) ? absurd() : pick(0, 3));
    return Ints(noted_dims(out));
  }

  Tensor leaf() {
    Dims s;
    for (int64_t n = pick(0, 3); n > 0; --n)
      s.push_back(chance(0.12) ? 0 : chance(0.2) ? 1 : pick(2, 5));
    noted_dims(s);
    std::vector<double> values(static_cast<size_t>(product(s)));
    for (double& v : values) v = chance(0.05) ? real() : double(pick(-4, 9));
    Tensor out = Tensor(values, s);
    // NaN and infinities have no integers of their own, only what the conversion makes of them.
    if (chance(0.85)) out = out.cast(dtype());
    if (chance(0.15)) out = Tensor::full(s, scalar(), dtype());
    if (chance(0.2)) {
      Mesh m = mesh();
      out = out.shard(m, placements(m));
    }
    return out;
  }

  void keep(const Tensor& x) {
    if (!x.defined()) return;
    record(" -> t" + std::to_string(pool_.size()) + " " + x.describe());
    pool_.push_back(x);
  }
  void keep(const std::pair<Tensor, Tensor>& x) { keep(x.first), keep(x.second); }
  void keep(const std::vector<Tensor>& all) {
    for (size_t i = 0; i < std::min<size_t>(all.size(), 2); ++i) keep(all[i]);
  }

  // Returns whether computing x is little work.
  static bool is_small(const Tensor& x) {
    std::vector<UOp> order = toposort(std::span(&x.uop(), 1));
    if (order.size() > kMostNodes) return false;
    int64_t work = 0;
    for (const UOp& node : order) {
      int64_t n = node->numel();
      if (node.op() == Op::Dot) n *= node.src(0).shape().back();
      if (n > kMostBytes / int64_t(itemsize(node.dtype()))) return false;
      work += n;
    }
    return work < kMostWork;
  }

  std::vector<Tensor>& pool() { return pool_; }

 private:
  std::mt19937_64 random_;
  std::vector<Tensor> pool_;
};

struct ApiCall {
  const char* name;
  std::function<void(Episode&)> run;
};

#define CALL(name, ...)                   \
  ApiCall {                               \
    name, [](Episode& e) { __VA_ARGS__; } \
  }
#define UNARY(method) CALL(#method, e.keep(e.tensor().method()))
#define BINARY(method) CALL(#method, const Tensor& x = e.tensor(); e.keep(x.method(e.operand())))
#define OPERATOR(symbol) CALL(#symbol, const Tensor& a = e.tensor(); e.keep(a symbol e.operand()))
#define REDUCTION(method) \
  CALL(#method, const Tensor& x = e.tensor(); Axes axes = e.axes(); e.keep(x.method(axes, e.yes())))
#define ALONG(method) CALL(#method, const Tensor& x = e.tensor(); e.keep(x.method(e.dim())))

// clang-format off
const std::vector<ApiCall>& calls() {
  static const std::vector<ApiCall> table{
    // making
    CALL("empty", e.keep(Tensor::empty(e.shape(), e.dtype()))),
    CALL("full", Dims s = e.shape(); Scalar v = e.scalar(); e.keep(e.chance(0.5) ? Tensor::full(s, v) : Tensor::full(s, v, e.dtype()))),
    CALL("zeros", e.keep(Tensor::zeros(e.shape(), e.dtype()))),
    CALL("ones", e.keep(Tensor::ones(e.shape(), e.dtype()))),
    CALL("full_like", const Tensor& x = e.tensor(); e.keep(x.full_like(e.scalar(), e.maybe_dtype()))),
    CALL("arange", Scalar a = e.scalar(), b = e.scalar(), c = e.scalar(); e.keep(Tensor::arange(a, b, c, e.maybe_dtype()))),
    CALL("linspace", Scalar a = e.scalar(), b = e.scalar(); int64_t n = e.size(); e.keep(Tensor::linspace(a, b, n, e.maybe_dtype()))),
    CALL("eye", int64_t n = e.size(); std::optional<int64_t> m; if (e.yes()) m = e.size(); e.keep(Tensor::eye(n, m, e.dtype()))),
    CALL("meshgrid", auto x = e.tensors(); e.keep(Tensor::meshgrid(x, e.yes()))),
    CALL("of_bytes", Dims s = e.shape(); DType d = e.dtype(); std::vector<std::byte> bytes(size_t(e.pick(0, 40))); e.keep(Tensor(std::span<const std::byte>(bytes), s, d))),
    CALL("of_vector", Dims s = e.shape(); std::vector<float> v(size_t(e.pick(0, 12)), 1.0f); e.keep(Tensor(v, s))),
    CALL("rand", e.keep(Tensor::rand(e.shape(), e.float_dtype()))),
    CALL("randn", e.keep(Tensor::randn(e.shape(), e.float_dtype()))),
    CALL("uniform", Dims s = e.shape(); double a = e.real(), b = e.real(); e.keep(Tensor::uniform(s, a, b, e.float_dtype()))),
    CALL("normal", Dims s = e.shape(); double a = e.real(), b = e.real(); e.keep(Tensor::normal(s, a, b, e.float_dtype()))),
    CALL("randint", Dims s = e.shape(); int64_t a = e.dim(), b = e.dim(); e.keep(Tensor::randint(s, a, b, e.dtype()))),
    CALL("scaled_uniform", e.keep(Tensor::scaled_uniform(e.shape(), e.float_dtype()))),
    CALL("glorot_uniform", e.keep(Tensor::glorot_uniform(e.shape(), e.float_dtype()))),
    CALL("kaiming_uniform", Dims s = e.shape(); double a = e.real(); e.keep(Tensor::kaiming_uniform(s, a, e.float_dtype()))),
    CALL("kaiming_normal", Dims s = e.shape(); double a = e.real(); e.keep(Tensor::kaiming_normal(s, a, e.float_dtype()))),
    CALL("randperm", int64_t n = e.size(); e.keep(Tensor::randperm(n, e.dtype()))),
    CALL("rand_like", const Tensor& x = e.tensor(); e.keep(x.rand_like(e.maybe_dtype()))),
    CALL("randn_like", const Tensor& x = e.tensor(); e.keep(x.randn_like(e.maybe_dtype()))),
    CALL("multinomial", const Tensor& x = e.tensor(); int64_t n = e.size(); e.keep(x.multinomial(n, e.yes()))),
    CALL("variable", int64_t a = e.dim(), b = e.dim(); Variable v("v", a, b); if (e.yes()) v = v.bind(e.dim()); const Tensor& x = e.tensor(); e.keep(x + v)),
    // what it is
    CALL("facts", const Tensor& x = e.tensor(); (void)x.describe(); (void)x.shape(e.dim()); (void)x.nbytes(); (void)x.ndim(); (void)x.dtype()),
    CALL("sharding", const Tensor& x = e.tensor(); (void)x.sharding().to_string()),
    CALL("item", const Tensor& x = e.tensor(); if (x.defined() && x.numel() == 1 && !Episode::is_small(x)) return; (void)x.item<double>()),
    CALL("print", const Tensor& x = e.tensor(); if (x.defined() && !Episode::is_small(x)) return; std::ostringstream out; out << x),
    CALL("print_large", Dims s = e.shape(); Scalar v = e.scalar(); std::ostringstream out; out << Tensor::full(s, v, e.dtype())),
    // storage
    UNARY(contiguous), UNARY(clone), UNARY(detach), UNARY(contiguous_backward),
    CALL("assign", const Tensor& x = e.tensor(); e.keep(x.assign(e.operand()))),
    CALL("replace", const Tensor& x = e.tensor(); e.keep(x.replace(e.tensor()))),
    CALL("setitem", const Tensor& x = e.tensor(); std::vector<Tensor> kept; auto i = e.index(x, kept); x.setitem(i, e.operand())),
    CALL("+=", const Tensor& x = e.tensor(); x += e.operand()),
    CALL("is_param_", const Tensor& x = e.tensor(); e.keep(x.is_param_(e.yes()))),
    CALL("set_grad", const Tensor& x = e.tensor(); x.set_grad(e.tensor())),
    CALL("gradient", const Tensor& x = e.tensor(); auto t = e.tensors(); e.keep(e.yes() ? x.gradient(t, e.tensor()) : x.sum().gradient(t))),
    CALL("backward", const Tensor& x = e.tensor(); e.keep(e.yes() ? x.sum().backward() : x.backward(e.tensor())); e.keep(e.tensor().grad())),
    // where it lives
    CALL("shard", const Tensor& x = e.tensor(); Mesh m = e.mesh(); e.keep(x.shard(m, e.placements(m)))),
    CALL("shard_names", const Tensor& x = e.tensor(); std::vector<std::string> n; for (int64_t i = e.pick(0, 3); i > 0; --i) n.push_back(e.chance(0.9) ? "CPU:" + std::to_string(e.pick(0, 5)) : e.chance(0.5) ? "XPU" : "CPU:" + std::to_string(e.absurd())); for (auto& t : n) e.noted(t); e.keep(x.shard(n, e.maybe_dim()))),
    CALL("shard_like", const Tensor& x = e.tensor(); e.keep(x.shard_like(e.tensor()))),
    CALL("to", const Tensor& x = e.tensor(); static const std::vector<std::string> names{"CPU", "CPU:0", "CPU:3", "CPU:7", "CPU:-1", "CPU:99999999999999999999", "CPU:x", "", "NOPE", ":", "CPU:"}; e.keep(x.to(e.noted(e.one_of(names))))),
    // types
    CALL("cast", const Tensor& x = e.tensor(); e.keep(x.cast(e.dtype()))),
    CALL("bitcast", const Tensor& x = e.tensor(); e.keep(x.bitcast(e.dtype()))),
    // movement
    CALL("reshape", const Tensor& x = e.tensor(); e.keep(x.reshape(e.shape_for(x)))),
    CALL("view", const Tensor& x = e.tensor(); e.keep(x.view(e.shape_for(x)))),
    CALL("flatten", const Tensor& x = e.tensor(); int64_t a = e.dim(); e.keep(x.flatten(a, e.dim()))),
    CALL("unflatten", const Tensor& x = e.tensor(); int64_t a = e.dim(); e.keep(x.unflatten(a, e.shape_for(x)))),
    CALL("squeeze", const Tensor& x = e.tensor(); e.keep(x.squeeze(e.maybe_dim()))),
    ALONG(unsqueeze),
    CALL("permute", const Tensor& x = e.tensor(); e.keep(x.permute(e.ints()))),
    CALL("transpose", const Tensor& x = e.tensor(); int64_t a = e.dim(); e.keep(x.transpose(a, e.dim()))),
    UNARY(T),
    CALL("expand", const Tensor& x = e.tensor(); e.keep(x.expand(e.shape_for(x)))),
    CALL("repeat", const Tensor& x = e.tensor(); e.keep(x.repeat(e.sizes_for(x)))),
    CALL("repeat_interleave", const Tensor& x = e.tensor(); int64_t n = e.size(); e.keep(x.repeat_interleave(n, e.maybe_dim()))),
    CALL("shrink", const Tensor& x = e.tensor(); e.keep(x.shrink(e.pairs(x)))),
    CALL("pad", const Tensor& x = e.tensor(); Pairs p = e.pairs(x); Scalar v = e.scalar(); e.keep(x.pad(p, v, PadMode(e.pick(0, 3))))),
    CALL("flip", const Tensor& x = e.tensor(); e.keep(x.flip(e.ints()))),
    CALL("roll", const Tensor& x = e.tensor(); Ints s = e.ints(); Axes a = e.chance(0.5) ? Axes(Dims(s.size(), 0)) : e.axes(); e.keep(x.roll(s, a))),
    CALL("split", const Tensor& x = e.tensor(); int64_t n = e.size(); e.keep(x.split(n, e.dim()))),
    CALL("split_sizes", const Tensor& x = e.tensor(); Dims n = e.ints().values; e.keep(x.split(n, e.dim()))),
    CALL("chunk", const Tensor& x = e.tensor(); int64_t n = e.positive(); e.keep(x.chunk(n, e.dim()))),
    CALL("cat", auto x = e.tensors(); e.keep(cat(x, e.dim()))),
    CALL("cat_same", auto& x = e.tensor(); e.keep(cat({x, x, x, x}, e.dim()))),
    CALL("stack", auto x = e.tensors(); e.keep(stack(x, e.dim()))),
    UNARY(diag),
    CALL("diagonal", const Tensor& x = e.tensor(); int64_t o = e.dim(), a = e.dim(); e.keep(e.yes() ? x.diagonal(o) : x.diagonal(o, a, e.dim()))),
    CALL("unfold", const Tensor& x = e.tensor(); int64_t d = e.dim(), n = e.size(); e.keep(x.unfold(d, n, e.positive()))),
    CALL("rearrange", const Tensor& x = e.tensor();
         static const std::vector<std::string> formulas{"a b -> b a", "a b -> (a b)", "(a b) -> b a", "(a b) c -> c b a", "... a -> a ...", "a -> a 1", "a b c -> (c b) a", "a ->", "-> a", "( -> a", "a b -> a", "... -> (...)", "(... a) -> a", "a a -> a", "", "->->", ") ( -> a", "... ... -> ...", "(a b c) -> a b c"};
         const std::string& f = e.noted(e.one_of(formulas)); std::vector<std::pair<std::string, int64_t>> sizes; if (e.yes()) sizes.emplace_back("a", e.size()); if (e.chance(0.2)) sizes.emplace_back("b", e.size()); e.keep(x.rearrange(f, sizes))),
    ALONG(triu), ALONG(tril),
    CALL("getitem", const Tensor& x = e.tensor(); std::vector<Tensor> kept; auto i = e.index(x, kept); e.keep(x.at(i))),
    // elementwise
    UNARY(neg), UNARY(abs), UNARY(sign), UNARY(square), UNARY(sqrt), UNARY(rsqrt), UNARY(reciprocal), UNARY(exp), UNARY(exp2), UNARY(log), UNARY(log2), UNARY(log10), UNARY(sin), UNARY(cos), UNARY(tan),
    UNARY(asin), UNARY(acos), UNARY(atan), UNARY(sinh), UNARY(cosh), UNARY(tanh), UNARY(asinh), UNARY(acosh), UNARY(atanh), UNARY(erf), UNARY(ceil), UNARY(floor), UNARY(round), UNARY(trunc), UNARY(isnan),
    UNARY(isinf), UNARY(isfinite), UNARY(logical_not), UNARY(bitwise_not), UNARY(relu), UNARY(sigmoid), UNARY(logsigmoid), UNARY(relu6), UNARY(hardswish), UNARY(hardsigmoid), UNARY(hardtanh), UNARY(leaky_relu),
    UNARY(quick_gelu), UNARY(gelu), UNARY(silu), UNARY(elu), UNARY(celu), UNARY(selu), UNARY(softplus), UNARY(mish), UNARY(softsign),
    CALL("clamp", const Tensor& x = e.tensor(); std::optional<Scalar> a, b; if (e.yes()) a = e.scalar(); if (e.yes()) b = e.scalar(); e.keep(x.clamp(a, b))),
    CALL("leaky_relu_by", const Tensor& x = e.tensor(); e.keep(x.leaky_relu(e.real()))),
    CALL("softplus_by", const Tensor& x = e.tensor(); e.keep(x.softplus(e.real()))),
    CALL("celu_by", const Tensor& x = e.tensor(); e.keep(x.celu(e.real()))),
    BINARY(add), BINARY(sub), BINARY(mul), BINARY(div), BINARY(floor_div), BINARY(mod), BINARY(fmod), BINARY(pow), BINARY(eq), BINARY(ne), BINARY(lt), BINARY(gt), BINARY(le), BINARY(ge), BINARY(bitwise_and), BINARY(bitwise_or),
    BINARY(bitwise_xor), BINARY(lshift), BINARY(rshift), BINARY(maximum), BINARY(minimum), BINARY(copysign), BINARY(logaddexp), BINARY(isclose),
    OPERATOR(+), OPERATOR(-), OPERATOR(*), OPERATOR(/), OPERATOR(%), OPERATOR(&), OPERATOR(<), OPERATOR(==),
    CALL("where", const Tensor& c = e.tensor(); Operand a = e.operand(); e.keep(c.where(a, e.operand()))),
    CALL("masked_fill", const Tensor& x = e.tensor(); const Tensor& m = e.tensor(); e.keep(x.masked_fill(m, e.operand()))),
    CALL("lerp", const Tensor& x = e.tensor(); Operand a = e.operand(); e.keep(x.lerp(a, e.operand()))),
    // reductions and scans
    REDUCTION(sum), REDUCTION(prod), REDUCTION(max), REDUCTION(min), REDUCTION(any), REDUCTION(all), REDUCTION(mean), REDUCTION(var), REDUCTION(std), REDUCTION(var_mean), REDUCTION(std_mean), REDUCTION(logsumexp),
    CALL("sum_dtype", const Tensor& x = e.tensor(); Axes a = e.axes(); e.keep(x.sum(a, false, e.dtype()))),
    CALL("var_correction", const Tensor& x = e.tensor(); Axes a = e.axes(); e.keep(x.var(a, false, e.dim()))),
    ALONG(softmax), ALONG(log_softmax), ALONG(softmin), ALONG(cumsum), ALONG(cumprod), ALONG(cummax), ALONG(cummin), ALONG(logcumsumexp),
    CALL("softmax_dtype", const Tensor& x = e.tensor(); int64_t d = e.dim(); e.keep(x.softmax(d, e.dtype()))),
    CALL("normalize", const Tensor& x = e.tensor(); double p = e.real(); int64_t d = e.dim(); e.keep(x.normalize(p, d, e.real()))),
    CALL("argmax", const Tensor& x = e.tensor(); auto d = e.maybe_dim(); e.keep(x.argmax(d, e.yes()))),
    CALL("argmin", const Tensor& x = e.tensor(); auto d = e.maybe_dim(); e.keep(x.argmin(d, e.yes()))),
    // products
    CALL("matmul", const Tensor& x = e.tensor(); const Tensor& w = e.tensor(); e.keep(x.matmul(w, e.maybe_dtype()))),
    CALL("matmul_T", const Tensor& x = e.tensor(); e.keep(x.matmul(x.transpose(-1, -2), e.maybe_dtype()))),
    CALL("linear", const Tensor& x = e.tensor(); const Tensor& w = e.tensor(); const Tensor& b = e.tensor(); e.keep(x.linear(w, b, e.maybe_dtype()))),
    CALL("einsum", static const std::vector<std::string> formulas{"ij,jk->ik", "ij->ji", "i,i->", "i,j->ij", "...i,...i->...", "ii->i", "ij", "i", "", "->", "i,j,k->kji", "ij->", "a!->a", "i...->...", "ij,ij->", "ij,ij", "...", "......->...", "..", ",->", "iii->"};
         const std::string& f = e.noted(e.one_of(formulas)); std::vector<Tensor> x; for (int64_t n = e.chance(0.1) ? 0 : 1 + std::count(f.begin(), f.begin() + int64_t(std::min(f.find("->"), f.size())), ','); n > 0; --n) x.push_back(e.tensor()); e.keep(Tensor::einsum(f, x, e.maybe_dtype()))),
    CALL("conv2d", Tensor x = e.tensor(); Tensor w = e.tensor(); if (e.yes()) { int64_t c = e.raw_size(); Dims xs{e.pick(0, 2), c, e.raw_size(), e.raw_size()}, ws{e.pick(0, 3), c, e.raw_size(), e.raw_size()}; e.noted_dims(xs); e.noted_dims(ws); x = Tensor::ones(xs); w = Tensor::ones(ws); }
         ConvOptions o; o.groups = e.positive(); o.stride = e.ints(2); o.dilation = e.ints(2); o.padding = e.ints(4); if (e.chance(0.2)) o.dtype = e.dtype(); if (e.chance(0.5)) o = {}; Tensor b; if (e.chance(0.3)) b = e.tensor(); e.keep(x.conv2d(w, b, o))),
    CALL("conv_transpose2d", Tensor x = e.tensor(); Tensor w = e.tensor(); if (e.yes()) { int64_t c = e.raw_size(); Dims xs{e.pick(0, 2), c, e.raw_size(), e.raw_size()}, ws{c, e.pick(0, 3), e.raw_size(), e.raw_size()}; e.noted_dims(xs); e.noted_dims(ws); x = Tensor::ones(xs); w = Tensor::ones(ws); }
         ConvTransposeOptions o; o.groups = e.positive(); o.stride = e.ints(2); o.dilation = e.ints(2); o.padding = e.ints(4); o.output_padding = e.ints(2); if (e.chance(0.5)) o = {}; Tensor b; if (e.chance(0.3)) b = e.tensor(); e.keep(x.conv_transpose2d(w, b, o))),
    CALL("max_pool2d", const Tensor& x = e.tensor(); Ints k = e.ints(2); PoolOptions o; if (e.yes()) { o.stride = e.ints(2); o.dilation = e.ints(2); o.padding = e.ints(4); o.ceil_mode = e.yes(); } e.keep(x.max_pool2d(k, o))),
    CALL("max_pool2d_with_indices", const Tensor& x = e.tensor(); Ints k = e.ints(2); PoolOptions o; if (e.yes()) { o.stride = e.ints(2); o.padding = e.ints(2); o.ceil_mode = e.yes(); } e.keep(x.max_pool2d_with_indices(k, o))),
    CALL("max_unpool2d", const Tensor& x = e.tensor(); const Tensor& i = e.tensor(); Ints k = e.ints(2); PoolOptions o; std::optional<Ints> s; if (e.yes()) s = e.ints(); if (e.yes()) o.stride = e.ints(2); if (e.yes()) o.padding = e.ints(2); e.keep(x.max_unpool2d(e.yes() ? i : x.cast(DType::I32), k, o, s))),
    CALL("avg_pool2d", const Tensor& x = e.tensor(); Ints k = e.ints(2); PoolOptions o; if (e.yes()) { o.stride = e.ints(2); o.dilation = e.ints(2); o.padding = e.ints(4); o.ceil_mode = e.yes(); o.count_include_pad = e.yes(); } e.keep(x.avg_pool2d(k, o))),
    CALL("interpolate", const Tensor& x = e.tensor(); Ints s = e.ints(2); e.keep(x.interpolate(s, Interpolation(e.pick(0, 2)), e.yes()))),
    CALL("qr", const Tensor& x = e.tensor(); if (x.defined() && !Episode::is_small(x)) return; e.keep(x.qr())),
    CALL("svd", const Tensor& x = e.tensor(); if (x.defined() && !Episode::is_small(x)) return; e.keep(x.svd(e.yes()).s)),
    CALL("newton_schulz", const Tensor& x = e.tensor(); int64_t n = e.chance(0.1) ? e.absurd() : e.pick(0, 3); std::vector<double> c(size_t(e.pick(0, 3)), 1.0); e.keep(x.newton_schulz(e.noted(n), c, e.real()))),
    // indices, sorting
    CALL("gather", const Tensor& x = e.tensor(); int64_t d = e.dim(); e.keep(x.gather(d, e.index_for(x)))),
    CALL("embedding", const Tensor& x = e.tensor(); e.keep(x.embedding(e.index_for(x)))),
    CALL("scatter", const Tensor& x = e.tensor(); int64_t d = e.dim(); Tensor i = e.index_for(x); Tensor src = e.yes() && x.defined() && i.defined() ? i.cast(x.dtype()) : e.tensor(); e.keep(e.chance(0.2) ? x.scatter(d, i, e.scalar()) : x.scatter(d, i, src))),
    CALL("scatter_reduce", const Tensor& x = e.tensor(); int64_t d = e.dim(); Tensor i = e.index_for(x); Tensor src = e.yes() && x.defined() && i.defined() ? i.cast(x.dtype()) : e.tensor(); e.keep(x.scatter_reduce(d, i, src, ScatterReduce(e.pick(0, 4)), e.yes()))),
    CALL("masked_select_size", const Tensor& x = e.tensor(); const Tensor& m = e.tensor(); int64_t n = e.size(); e.keep(x.masked_select(e.yes() ? m : m.cast(DType::Bool), n, e.scalar()))),
    CALL("masked_select", const Tensor& x = e.tensor(); const Tensor& m = e.tensor(); if (x.defined() && m.defined() && !(Episode::is_small(x) && Episode::is_small(m))) return; e.keep(x.masked_select(e.yes() ? m : m.cast(DType::Bool)))),
    CALL("nonzero_size", const Tensor& x = e.tensor(); int64_t n = e.size(); e.keep(x.nonzero(n, e.scalar()))),
    CALL("nonzero", const Tensor& x = e.tensor(); if (x.defined() && !Episode::is_small(x)) return; e.keep(x.nonzero())),
    CALL("sort", const Tensor& x = e.tensor(); int64_t d = e.dim(); e.keep(x.sort(d, e.yes()))),
    CALL("argsort", const Tensor& x = e.tensor(); int64_t d = e.dim(); e.keep(x.argsort(d, e.yes()))),
    CALL("topk", const Tensor& x = e.tensor(); int64_t k = e.size(), d = e.dim(); e.keep(x.topk(k, d, e.yes(), e.chance(0.95)))),
    CALL("one_hot", const Tensor& x = e.tensor(); e.keep(x.one_hot(e.size()))),
    // layers and losses
    CALL("layernorm", const Tensor& x = e.tensor(); Axes a = e.axes(); e.keep(x.layernorm(a, e.real()))),
    CALL("batchnorm", const Tensor& x = e.tensor(); const Tensor& w = e.tensor(); const Tensor& b = e.tensor(); const Tensor& m = e.tensor(); const Tensor& s = e.tensor(); e.keep(x.batchnorm(w, b, m, s, e.axes()))),
    CALL("dropout", TrainingMode training(e.yes()); const Tensor& x = e.tensor(); e.keep(x.dropout(e.real()))),
    CALL("attention", const Tensor& q = e.tensor(); const Tensor& k = e.tensor(); const Tensor& v = e.tensor(); Tensor m; if (e.chance(0.3)) m = e.tensor(); AttentionOptions o; o.is_causal = e.yes(); o.enable_gqa = e.chance(0.2); o.dropout_p = e.chance(0.2) ? e.real() : 0; bool own = e.yes(); e.keep(q.scaled_dot_product_attention(own ? q : k, own ? q : v, m, o))),
    CALL("binary_crossentropy", const Tensor& x = e.tensor(); const Tensor& y = e.tensor(); e.keep(x.binary_crossentropy(y, Reduction(e.pick(0, 2))))),
    CALL("binary_crossentropy_logits", const Tensor& x = e.tensor(); const Tensor& y = e.tensor(); e.keep(x.binary_crossentropy_logits(y, Reduction(e.pick(0, 2)), e.chance(0.3) ? e.tensor() : Tensor()))),
    CALL("sparse_categorical_crossentropy", const Tensor& x = e.tensor(); Tensor y = e.index_for(x); e.keep(x.sparse_categorical_crossentropy(y, {e.dim(), e.chance(0.3) ? e.real() : 0, Reduction(e.pick(0, 2))}))),
    CALL("cross_entropy", const Tensor& x = e.tensor(); Tensor y = e.index_for(x); e.keep(x.cross_entropy(y, {e.dim(), e.chance(0.3) ? e.real() : 0, Reduction(e.pick(0, 2))}))),
    CALL("nll_loss", const Tensor& x = e.tensor(); Tensor y = e.index_for(x); std::optional<int64_t> g; if (e.yes()) g = e.dim(); e.keep(x.nll_loss(y, e.chance(0.3) ? e.tensor() : Tensor(), g, Reduction(e.pick(0, 2))))),
  };
  return table;
}
// clang-format on

#undef CALL
#undef UNARY
#undef BINARY
#undef OPERATOR
#undef REDUCTION
#undef ALONG

struct Counts {
  int64_t calls = 0, fine = 0, refused = 0, out_of_memory = 0, computed = 0;
  std::vector<std::string> failures;
};

// Runs one call and whatever it hands back; tells what came out of it.
void attempt(Counts& counts, const std::function<void()>& run) {
  alarm(kSeconds);
  try {
    run();
    ++counts.fine;
  } catch (const UserError&) {
    ++counts.refused;
  } catch (const DeviceError& error) {
    ++counts.out_of_memory;
  } catch (const std::exception& error) {
    counts.failures.push_back(std::string(error.what()) + "\n" +
                              std::string(history, history_size));
    std::cerr << "misuse: " << counts.failures.back() << std::endl;
  }
  alarm(0);
}

void run_episode(Counts& counts, uint64_t seed, uint64_t number) {
  attempt(counts, [&] {
    Episode e(seed, number);
    for (int i = 0; i < kCallsOfEpisode; ++i) {
      const ApiCall& call = e.one_of(calls());
      size_t known = e.pool().size();
      ++counts.calls;
      record(std::string("\n  ") + call.name);
      attempt(counts, [&] { call.run(e); });
      // Half of the results are computed at once, the others only as operands of later ones.
      if (e.pool().size() > known && e.chance(0.5)) {
        Tensor x = e.pool()[known];
        if (!Episode::is_small(x)) continue;
        record("\n  read t" + std::to_string(known));
        attempt(counts, [&] {
          if (x.data().size() != x.nbytes()) throw std::logic_error("bytes of another size");
          ++counts.computed;
        });
      }
    }
  });
}

struct Arguments {
  int64_t calls = 0;
  double seconds = 8;
  uint64_t seed = 0;
  std::optional<uint64_t> episode;
} arguments;

TEST(Misuse, OnlyUserErrorsComeOut) {
  Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 4});
  for (int signal : {SIGSEGV, SIGFPE, SIGBUS, SIGILL, SIGABRT, SIGALRM})
    std::signal(signal, on_signal);
  Counts counts;
  if (arguments.episode) {
    run_episode(counts, arguments.seed, *arguments.episode);
    std::cout << std::string(history, history_size) << "\n";
  } else {
    auto start = std::chrono::steady_clock::now();
    auto goes_on = [&] {
      if (arguments.calls > 0) return counts.calls < arguments.calls;
      return std::chrono::steady_clock::now() - start <
             std::chrono::duration<double>(arguments.seconds);
    };
    for (uint64_t number = 0; goes_on(); ++number) run_episode(counts, arguments.seed, number);
  }
  // The process goes on: what is right is still computed.
  EXPECT_EQ((Tensor{1, 2} + 1).to_vector<int>(), (std::vector<int>{2, 3}));
  std::cout << counts.calls << " calls with seed " << arguments.seed << ": " << counts.fine
            << " fine, " << counts.refused << " refused, " << counts.out_of_memory
            << " out of memory; " << counts.computed << " results computed\n";
  EXPECT_TRUE(counts.failures.empty())
      << counts.failures.size() << " calls ended otherwise, first:\n"
      << (counts.failures.empty() ? "" : counts.failures[0]);
}

}  // namespace
}  // namespace tinyshard

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  auto& a = tinyshard::arguments;
  a.seed = std::random_device()();
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string name = argv[i];
    uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
    if (name == "--calls") a.calls = static_cast<int64_t>(value);
    if (name == "--seed") a.seed = value;
    if (name == "--episode") a.episode = value;
  }
  std::cout << "seed " << a.seed << std::endl;
  return RUN_ALL_TESTS();
}
