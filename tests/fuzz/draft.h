// A program that is being made: its values so far as the interpreter has them, so that what is
// drawn next fits them. Values are numbered in the order in which they were made; finished() gives
// leaves the first numbers, as programs have them.
#pragma once
#include <set>
#include <vector>

#include "tests/fuzz/interpreter.h"
#include "tests/fuzz/profile.h"

namespace fuzz {

class Draft : public Choices {
 public:
  explicit Draft(uint64_t seed);

  const Profile& profile() const { return profile_; }
  bool gradient() const { return profile_.gradient; }
  Type main_type() { return one_of(profile_.types); }

  // --- values -----------------------------------------------------------------------------------
  int values() const { return int(values_.size()); }
  const Array& at(int value) const { return values_[size_t(value)].array; }
  Type type(int value) const { return at(value).type; }
  const Shape& shape(int value) const { return at(value).shape; }
  bool usable(int value) const { return !dead_.contains(value); }
  bool is_leaf(int value) const { return values_[size_t(value)].leaf >= 0; }
  const Leaf& leaf(int value) const { return leaves_[size_t(values_[size_t(value)].leaf)]; }
  void make_parameter(int leaf) {
    leaves_[size_t(values_[size_t(leaf)].leaf)].role = Role::Parameter;
  }
  const Step& step(int value) const { return steps_[size_t(values_[size_t(value)].step)]; }
  int leaves() const { return int(leaves_.size()); }
  int steps() const { return int(steps_.size()); }

  // A value of one of these types, -1 where there seems to be none.
  int any(bool (*fits)(Type) = nullptr);
  int any_float() { return any(is_float); }
  int any_int() { return any(is_int); }
  // With elements and at least so many dims.
  int with_dims(int rank, bool (*fits)(Type) = nullptr);
  // A value of exactly this shape and type, a new leaf where there is none; -1 with many leaves.
  int like(const Shape& shape, Type type);
  // A value that broadcasts with x.
  int partner(int x);
  // The result of a reduction or a product, which on a mesh may still be pending; -1.
  int a_sum();
  // The result of any op that adds up floats, whose bits depend on the order; -1.
  int a_rounded_sum();
  // Dims of a leaf that are divided over the mesh.
  std::vector<int64_t> sharded_dims(int value) const;

  int64_t axis(int value) { return pick(0, int(at(value).rank()) - 1); }
  int64_t any_size();
  Shape any_shape();

  // --- making -----------------------------------------------------------------------------------
  int add_leaf(const Shape& shape, Type type);
  int add_leaf(const Shape& shape, Type type, Style style, int64_t limit = 0);
  // A whole number below the limit that each call binds anew; at most one in a program: -1.
  int add_variable(int64_t limit);
  // Interprets the step and keeps it where its value is worth something; its number or -1.
  int keep(const Step& step);

  // --- the end ----------------------------------------------------------------------------------
  std::vector<int> roots, targets;  // by the numbers of this draft
  // Roots that come back as arguments of the next call.
  void choose_feedback();
  Program finished() const;

 private:
  struct Value {
    Array array;
    int leaf = -1, step = -1;
  };
  int insert(const Leaf& leaf);
  bool healthy(const Array& x);
  int result_of(const std::set<std::string>& ops, bool (*fits)(Type));

  Profile profile_;
  std::vector<Value> values_;
  std::vector<Leaf> leaves_;
  std::vector<Step> steps_;
  std::vector<Feedback> feedback_;
  std::set<int> dead_;  // freed, or numbers of statements
  std::vector<Shape> shapes_;
};

}  // namespace fuzz
