// How far sums, and what is made of them, are from exact ones, beside a sum in pairs:
//   accuracy_bench [--from 10] [--to 20] [--devices 4] [--worst]
//
// n numbers lie in several shapes and are added up along several axes, on one device and in parts, in
// each type. A sum in pairs of n terms is off by up to log2(n) roundings of the type in which it is
// added up, relative to the sum of the terms' sizes. A row has the largest error of a result as a
// multiple of that, and the program fails where one is above 4: a sum in turn is off by up to n.
// Products keep up to some 2,048 terms of a result in one register, as libraries do: they have 32.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/measure.h"

using namespace tinyshard;

namespace {

constexpr double kMost = 4, kMostOfProducts = 32;  // errors of a sum in pairs

// n numbers in a shape, and the dims that are added up.
struct Layout {
  std::string name;
  Dims shape, axes;
};

std::vector<Layout> layouts(int64_t n) {
  return {
      {"rows", {8, n / 8}, {1}},
      {"columns", {n / 64, 64}, {0}},
      {"one column", {n, 1}, {0}},
      {"middle", {4, n / 64, 16}, {1}},
      {"channels last", {n / 256, 16, 16}, {0, 1}},
      {"scattered", {4, n / 64, 4, 4}, {0, 2}},
      {"all", {n / 64, 64}, {0, 1}},
  };
}

struct Data {
  std::string name;
  std::function<Tensor(int64_t)> make;
};

std::vector<Data> data() {
  return {{"0.1", [](int64_t n) { return Tensor::full({n}, 0.1f).clone(); }},
          {"uniform", [](int64_t n) { return Tensor::rand({n}); }},
          {"normal", [](int64_t n) { return Tensor::randn({n}); }}};
}

// Sums of terms of x along axes: the method, a term, and what the sum becomes.
struct Method {
  std::string name;
  std::function<Tensor(const Tensor&, const Axes&)> of;
  double (*term)(double);
  double (*result)(double sum, double count);
  double (*slope)(double sum, double count);  // of the result by the sum
};

double same(double x) { return x; }
double twice(double x) { return 2 * x; }
double squared(double x) { return x * x; }
double the_sum(double s, double) { return s; }
double one(double, double) { return 1; }

std::vector<Method> methods() {
  return {
      {"sum", [](const Tensor& x, const Axes& a) { return x.sum(a); }, same, the_sum, one},
      {"mean", [](const Tensor& x, const Axes& a) { return x.mean(a); }, same,
       [](double s, double n) { return s / n; }, [](double, double n) { return 1 / n; }},
      {"norm",
       [](const Tensor& x, const Axes& a) {
         return x.cast(x.dtype() == DType::F64 ? DType::F64 : DType::F32).square().sum(a).sqrt();
       },
       squared, [](double s, double) { return std::sqrt(s); },
       [](double s, double) { return s > 0 ? 0.5 / std::sqrt(s) : 0; }},
      {"slope of a bias",
       [](const Tensor& x, const Axes& a) {
         const Tensor bias = (x.sum(a, true) * 0).detach().contiguous();
         const Dims kept = x.sum(a).shape();
         return (x + bias).square().sum().gradient({bias})[0].reshape(kept);
       },
       twice, the_sum, one},
  };
}

struct Sums {
  std::vector<long double> sum, sizes;  // of each result: of the terms, and of their sizes
  double count = 1;                     // of terms
};

Sums exact(const std::vector<double>& x, const Layout& layout, double (*term)(double)) {
  const size_t rank = layout.shape.size();
  Dims step(rank, 0);
  int64_t results = 1;
  Sums sums;
  for (size_t d = rank; d-- > 0;) {
    if (std::ranges::find(layout.axes, int64_t(d)) != layout.axes.end()) {
      sums.count *= double(layout.shape[d]);
    } else {
      step[d] = results;
      results *= layout.shape[d];
    }
  }
  sums.sum.resize(size_t(results));
  sums.sizes.resize(size_t(results));
  Dims at(rank, 0);
  int64_t place = 0;
  for (double v : x) {
    sums.sum[size_t(place)] += term(v);
    sums.sizes[size_t(place)] += std::abs(term(v));
    for (size_t d = rank; d-- > 0;) {
      place += step[d];
      if (++at[d] < layout.shape[d]) break;
      place -= step[d] * layout.shape[d];
      at[d] = 0;
    }
  }
  return sums;
}

double rounding(DType type) {
  const std::map<DType, double> all{
      {DType::F64, 0x1p-53}, {DType::F32, 0x1p-24}, {DType::F16, 0x1p-11}, {DType::BF16, 0x1p-8}};
  return all.at(type);
}

// The error of a result as a multiple of that of a sum in pairs, beside the rounding of the result.
double in_pairs(double got, long double want, double size, double count, DType type, DType result) {
  if (result == DType::F16 && std::abs(want) > 60000) return 0;  // more than it holds, or nearly
  const double unit = rounding(type == DType::F64 ? DType::F64 : DType::F32);
  const double pairs = unit * std::max(1.0, std::log2(count)) * size;
  const double own = 2 * rounding(result) * std::abs(double(want));
  const double error = std::max(0.0, double(std::abs(got - want)) - own);
  if (error == 0) return 0;
  return std::isfinite(error) ? error / pairs : INFINITY;
}

class Table {
 public:
  explicit Table(bool worst_only) : worst_only_(worst_only) {}
  void add(const std::string& what, double error, double most = kMost) {
    if (!worst_only_) fmt::print("{:<70} {:8.3f}\n", what, error);
    if (!(error <= most)) failed_.push_back(fmt::format("{}: {:.1f}", what, error));
    if (worst_.first.empty() || error > worst_.second) worst_ = {what, error};
  }
  int end() const {
    fmt::print("worst: {} {:.3f}\n", worst_.first, worst_.second);
    for (const std::string& text : failed_) fmt::print("too far: {}\n", text);
    return failed_.empty() ? 0 : 1;
  }

 private:
  bool worst_only_;
  std::pair<std::string, double> worst_;
  std::vector<std::string> failed_;
};

// x on so many devices, in parts of its first dim or of its last one; x itself on one.
std::vector<std::pair<std::string, Tensor>> placed(const Tensor& x, int devices) {
  std::vector<std::pair<std::string, Tensor>> all{{"1 device", x}};
  for (int n = 2; n <= devices; n *= 2) {
    std::vector<std::string> names;
    for (int i = 0; i < n; ++i) names.push_back(fmt::format("CPU:{}", i));
    const Mesh mesh = Mesh::of(names, "d");
    for (const int dim : {0, int(x.ndim()) - 1})
      all.emplace_back(fmt::format("{} devices, dim {}", n, dim),
                       x.shard(mesh, {{"d", Shard(dim)}}).realize());
  }
  return all;
}

void compare_methods(int64_t n, DType type, const Data& numbers, int devices, Table& table) {
  const Tensor line = numbers.make(n).cast(type).contiguous().realize();
  const std::vector<double> values = line.cast(DType::F64).to_vector<double>();
  for (const Layout& layout : layouts(n)) {
    const auto places = placed(line.reshape(Ints(layout.shape)).realize(), devices);
    for (const Method& method : methods()) {
      const Sums want = exact(values, layout, method.term);
      for (const auto& [where, x] : places) {
        const Tensor y = method.of(x, Axes(layout.axes));
        const std::vector<double> got = y.cast(DType::F64).to_vector<double>();
        double error = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          const double sum = double(want.sum[i]);
          const double size = double(want.sizes[i]) * method.slope(sum, want.count);
          error = std::max(error, in_pairs(got[i], method.result(sum, want.count), size, want.count,
                                           type, y.dtype()));
        }
        table.add(fmt::format("{} of {} {} {}, {}, {}", method.name, n, numbers.name, name(type),
                              layout.name, where),
                  error);
      }
    }
  }
}

// Running sums, products with a vector, and softmax, of one row.
void compare_rows(int64_t n, DType type, const Data& numbers, int devices, Table& table) {
  const Tensor line = numbers.make(n).cast(type).contiguous().realize();
  const std::vector<double> values = line.cast(DType::F64).to_vector<double>();
  for (const auto& [where, x] : placed(line, std::min(devices, 2))) {
    auto add = [&](const char* what, double error) {
      table.add(fmt::format("{} of {} {} {}, {}", what, n, numbers.name, name(type), where), error);
    };
    const std::vector<double> running = x.cumsum(0).cast(DType::F64).to_vector<double>();
    long double sum = 0, sizes = 0, exponentials = 0;
    double error = 0;
    for (size_t i = 0; i < running.size(); ++i) {
      sum += values[i], sizes += std::abs(values[i]), exponentials += std::exp(values[i]);
      error = std::max(error, in_pairs(running[i], sum, double(sizes), double(n), type, type));
    }
    add("running sum", error);
    const Tensor product = x.reshape({1, n}).matmul(Tensor::ones({n, 2}, type));
    // Parts of a product in 16 bits are rounded to these.
    const long double half = std::reduce(values.begin(), values.begin() + n / 2, 0.0L);
    const double got = product.cast(DType::F64).to_vector<double>()[0];
    const double parts = 2 * rounding(type) * double(std::abs(half) + std::abs(sum - half));
    error = in_pairs(double(sum) + std::max(0.0, double(std::abs(got - sum)) - parts), sum,
                     double(sizes), double(n), type, type);
    table.add(fmt::format("product of {} {} {}, {}", n, numbers.name, name(type), where), error,
              kMostOfProducts);
    const std::vector<double> odds = x.softmax(0).cast(DType::F64).to_vector<double>();
    error = 0;
    for (size_t i = 0; i < odds.size(); ++i) {
      const double want = double(std::exp(values[i]) / exponentials);
      const double own = 4 * rounding(type == DType::F64 ? DType::F64 : DType::F32) * want;
      const double off = std::max(0.0, std::abs(odds[i] - want) - own);
      error = std::max(error, in_pairs(want + off, want, want, double(n), type, type));
    }
    add("softmax", type == DType::F16 || type == DType::BF16 ? 0 : error);
  }
}

int run(int from, int to, int devices, bool worst_only) {
  Table table(worst_only);
  Tensor::manual_seed(1);
  for (int bits = from; bits <= to; bits += 2) {
    for (DType type : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
      for (const Data& numbers : data()) {
        compare_methods(int64_t{1} << bits, type, numbers, devices, table);
        compare_rows(int64_t{1} << bits, type, numbers, devices, table);
      }
    }
  }
  return table.end();
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  CLI::App app("Errors of sums, and of what is made of them, beside those of sums in pairs.");
  int from = 10, to = 20, devices = 4, status = 0;
  bool worst_only = false;
  app.add_option("--from", from, "least number of terms, as a power of two")
      ->check(CLI::Range(8, 30));
  app.add_option("--to", to, "largest number")->check(CLI::Range(8, 30));
  app.add_option("--devices", devices, "CPU devices")->check(CLI::Range(1, 16));
  app.add_flag("--worst", worst_only, "tell the worst case and those that are too far alone");
  const int parsed = bench::run_main("accuracy_bench", app, argc, argv,
                                     [&] { status = run(from, to, devices, worst_only); });
  return parsed != 0 ? parsed : status;
}
