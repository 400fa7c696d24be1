// Runs the example of each method in the table and compares what it gives with what docs/reference/ says:
// tests/docs/reference_results.txt. With --write it writes that file (and scripts/reference.py the pages).
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <tinyshard/tinyshard.h>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using namespace tinyshard;

std::string number(double x) {
  std::ostringstream text;
  text.precision(4);
  text << (x == 0 ? 0.0 : x);  // no sign
  return text.str();
}

// Elements from `at` on as nested lists.
std::string nested(const std::vector<double>& values, const Dims& shape, size_t dim, size_t& at) {
  if (dim == shape.size()) return number(values[at++]);
  std::string text = "[";
  for (int64_t i = 0; i < shape[dim]; ++i)
    text += (i > 0 ? ", " : "") + nested(values, shape, dim + 1, at);
  return text + "]";
}

std::string shown(const Tensor& x) {
  size_t at = 0;
  return nested(x.to_vector<double>(), x.shape(), 0, at);
}
std::string shown(const std::pair<Tensor, Tensor>& both) {
  return shown(both.first) + " and " + shown(both.second);
}
std::string shown(const std::vector<Tensor>& all) {
  std::string text;
  for (const Tensor& x : all) text += (text.empty() ? "" : " and ") + shown(x);
  return text;
}
std::string shown(const Dims& dims) { return to_string(dims); }
std::string shown(DType dtype) { return std::string(name(dtype)); }
std::string shown(const std::string& text) { return text; }
std::string shown(bool truth) { return truth ? "true" : "false"; }
template <class T>
  requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
std::string shown(T x) {
  return number(double(x));
}

std::map<std::string, std::string> results() {
  // inputs
  Tensor x = Tensor({{1.0, -2.0, 3.0}, {-4.0, 5.0, -6.0}});
  Tensor y = Tensor({{1.0, 0.5, 2.0}, {2.0, 0.5, 1.0}});
  Tensor i = Tensor({{7, -7, 0}, {4, 5, 6}});
  Tensor mask = x > 0;
  Tensor v = Tensor({1.0, 2.0, 3.0});
  Tensor w = Tensor({{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}});
  Tensor image = Tensor::arange(16.0).reshape({1, 1, 4, 4});
  Mesh mesh = Mesh::of({"CPU:0", "CPU:1"}, "d");
  // end of inputs
  Tensor::realize({x, y, i, mask, v, w, image});
  std::map<std::string, std::string> all;
#define METHOD(area, name, kind, line, ...) all[#name] = shown(__VA_ARGS__);
#include "core/tensor/methods.inc"
#undef METHOD
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string file = argc > 1 ? argv[argc - 1] : "";
  const std::map<std::string, std::string> now = results();
  if (argc > 2 && std::string(argv[1]) == "--write") {
    std::ofstream out(file);
    for (const auto& [name, text] : now) out << name << '\t' << text << '\n';
    return 0;
  }
  std::ifstream in(file);
  int wrong = 0;
  size_t lines = 0;
  for (std::string line; std::getline(in, line); ++lines) {
    const size_t tab = line.find('\t');
    const std::string name = line.substr(0, tab), text = line.substr(tab + 1);
    const auto found = now.find(name);
    if (found != now.end() && found->second == text) continue;
    ++wrong;
    std::cout << name << ": " << (found == now.end() ? "no method" : found->second)
              << ", and the page says " << text << '\n';
  }
  std::cout << lines << " results, " << wrong << " wrong, " << now.size() << " examples\n";
  return wrong == 0 && lines == now.size() ? 0 : 1;
}
