// Coverage of the fuzzer: each op of its table is drawn, and each member of Tensor is in one of
// them or below with the reason why it is none.
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/fuzz/calls.h"
#include "tests/fuzz/generator.h"
#include "tests/fuzz/interpreter.h"

namespace fuzz {
namespace {

const std::map<std::string, std::string> kNotDrawn = {
    // Programs are made of these, or read by them.
    {"defined", "says what a tensor is"},
    {"size", "the same as shape()"},
    {"ndim", "says what a tensor is"},
    {"numel", "says what a tensor is"},
    {"element_size", "says what a tensor is"},
    {"nbytes", "says what a tensor is"},
    {"is_floating_point", "says what a tensor is"},
    {"describe", "says what a tensor is"},
    {"sharding", "says what a tensor is"},
    {"device", "says what a tensor is"},
    {"devices", "says what a tensor is"},
    {"empty_like", "has no values: forms_test.cpp"},
    {"shrink_to", "shrink() from 0 on"},
    {"pad_to", "pad() behind the last element"},
    {"uop", "of the library's own parts"},
    {"state", "of the library's own parts"},
    {"item", "data() is read"},
    {"to_vector", "data() is read"},
    {"data", "reads each result"},
    {"empty", "has no values to compare"},
    {"full", "leaves of one value are made by it"},
    {"zeros", "full() of zeros"},
    {"ones", "full() of ones"},
    // Random numbers have no expected value; tests/core/tensor/random_test.cpp looks at them.
    {"manual_seed", "random"},
    {"rand", "random"},
    {"randn", "random"},
    {"uniform", "random"},
    {"normal", "random"},
    {"randint", "random"},
    {"scaled_uniform", "random"},
    {"glorot_uniform", "random"},
    {"kaiming_uniform", "random"},
    {"kaiming_normal", "random"},
    {"randperm", "random"},
    {"rand_like", "random"},
    {"randn_like", "random"},
    {"multinomial", "random"},
    {"dropout", "random"},
    // Called otherwise, or by others.
    {"gradient", "of the targets of a program"},
    {"backward", "of the parameters among the targets of a program"},
    {"grad", "see backward"},
    {"set_grad", "see backward"},
    {"is_param", "see backward"},
    {"is_param_", "see backward"},
    {"replace", "makes two names of one storage: value_test.cpp"},
    {"shard", "the step of that name"},
    {"shard_like", "the step of that name"},
    {"to", "moves to a device; programs lie on meshes instead"},
    {"from_local", "of the parts of a value: local_parts_test.cpp"},
    {"local", "gives the parts of a value: local_parts_test.cpp"},
    {"allclose", "isclose() and all()"},
    {"to_bound", "of sizes that a Variable gives: sizes_test.cpp"},
    {"size_tensor", "of sizes that a Variable gives: sizes_test.cpp"},
    {"numel_tensor", "of sizes that a Variable gives: sizes_test.cpp"},
    {"sequential", "calls layers that the caller gives"},
};

std::string text_of(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// Names that class Tensor declares as public methods.
std::set<std::string> methods() {
  std::string header = text_of(TINYSHARD_TENSOR_HEADER);
  size_t from = header.find("class Tensor {"), to = header.find(" private:", from);
  std::string body = header.substr(from, to - from);
  body = std::regex_replace(body, std::regex("//[^\n]*"), "");
  std::set<std::string> names;
  // A type, a name and a parenthesis.
  std::regex method(
      R"((?:Tensor|E|void|bool|auto|Dims|int64_t|DType|size_t|string|Sharding|Svd|>|&) )"
      R"(([a-z][a-z0-9_]*)\()");
  for (std::sregex_iterator at(body.begin(), body.end(), method), end; at != end; ++at)
    names.insert((*at)[1]);
  return names;
}

TEST(Ops, AllMethodsOfTensorAreDrawnOrHaveAReason) {
  std::string texts;
  for (const auto& [op, call] : calls()) texts += " " + call.text;
  std::set<std::string> all = methods();
  EXPECT_GT(all.size(), 200U);
  for (const std::string& name : all) {
    bool drawn = std::regex_search(texts, std::regex("(\\.|::| )" + name + "\\("));
    EXPECT_NE(drawn, kNotDrawn.contains(name))
        << name
        << (drawn ? " is drawn and has a reason not to be"
                  : " is neither in tests/fuzz/calls.cpp nor among the reasons here");
  }
  for (const auto& [name, reason] : kNotDrawn)
    EXPECT_TRUE(all.contains(name)) << name << " is no method of Tensor";
}

TEST(Ops, HaveARuleEach) {
  for (const auto& [op, call] : calls())
    EXPECT_TRUE(rules().contains(op) || op == "realize") << op << " has no rule in interpret_*.cpp";
}

TEST(Ops, AreAllDrawn) {
  std::set<std::string> missing;
  for (const auto& [op, call] : calls()) missing.insert(op);
  uint64_t seed = 1;
  for (; !missing.empty() && seed < 6000; ++seed) {
    for (const Step& step : generate(seed).steps) missing.erase(step.op);
  }
  for (const std::string& op : missing)
    ADD_FAILURE() << op << " is in none of " << seed << " programs: see draw_*.cpp";
}

}  // namespace
}  // namespace fuzz
