// A tensor is a value: what is assigned to one changes no other, whichever of them share a storage,
// a node or memory, in whatever order they are computed, and whether a captured step runs between.
#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <sstream>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

namespace tinyshard::assign_test {
namespace {

constexpr int64_t n = 4;  // rows and columns

// The same program on host values, each op by itself.
struct Host {
  std::vector<double> v = std::vector<double>(n * n);
  double& at(int64_t i, int64_t j) { return v[size_t(i * n + j)]; }
  double at(int64_t i, int64_t j) const { return v[size_t(i * n + j)]; }
};

Host map(const std::function<double(int64_t, int64_t)>& element) {
  Host out;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) out.at(i, j) = element(i, j);
  }
  return out;
}

struct Both {
  Tensor lazy;
  Host host;
};

class Program {
 public:
  explicit Program(uint32_t seed) : random_(seed) {}

  // Runs `steps` random statements; what is left is compared, in a random order.
  void run(int steps) {
    for (int i = 0; i < 3; ++i) values_.push_back(input());
    for (int i = 0; i < steps; ++i) statement();
    // Often only one value is asked for, which the others are part of, as in a function that ends.
    if (pick(2) == 0) {
      Both sum = values_[0];
      for (size_t i = 1; i < values_.size(); ++i) sum = add(sum, values_[i], 0.5);
      note("return the sum of all");
      values_ = {sum};
    }
    std::shuffle(values_.begin(), values_.end(), random_);
    for (Both& x : values_) check(x);
  }

  std::string text() const { return text_.str(); }

 private:
  size_t pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }
  size_t any() { return pick(values_.size()); }
  void note(const std::string& text) { text_ << text << "\n"; }

  Both input() {
    Both x;
    for (double& v : x.host.v) v = std::uniform_real_distribution(-1.0, 1.0)(random_);
    x.lazy = Tensor(x.host.v, {n, n});
    return x;
  }
  static Both add(const Both& a, const Both& b, double scale) {
    return {(a.lazy + b.lazy) * scale,
            map([&](int64_t i, int64_t j) { return (a.host.at(i, j) + b.host.at(i, j)) * scale; })};
  }

  // Another tensor of the value, which is no view.
  static Tensor own(const Tensor& x) { return Tensor(x.uop()); }

  Both value(size_t a, size_t b) {
    const Both &x = values_[a], &y = values_[b];
    auto say = [&](const char* op) { note(std::string(op) + " of " + name(a) + ", " + name(b)); };
    switch (pick(9)) {
      case 0:
        say("half the sum");
        return add(x, y, 0.5);
      case 1:
        say("rows backwards");
        return {own(x.lazy.flip(0)),
                map([&](int64_t i, int64_t j) { return x.host.at(n - 1 - i, j); })};
      case 2:
        say("transpose");
        return {own(x.lazy.transpose(0, 1)),
                map([&](int64_t i, int64_t j) { return x.host.at(j, i); })};
      case 3:
        say("product / 4");
        return {x.lazy.matmul(y.lazy) * 0.25, map([&](int64_t i, int64_t j) {
                  double sum = 0;
                  for (int64_t k = 0; k < n; ++k) sum += x.host.at(i, k) * y.host.at(k, j);
                  return sum * 0.25;
                })};
      case 4:
        say("less the row's mean");
        return {x.lazy - x.lazy.mean(1, true), map([&](int64_t i, int64_t j) {
                  double sum = 0;
                  for (int64_t k = 0; k < n; ++k) sum += x.host.at(i, k);
                  return x.host.at(i, j) - sum / n;
                })};
      case 5:
        say("cumulative sum / 4");
        return {x.lazy.cumsum(0) * 0.25, map([&](int64_t i, int64_t j) {
                  double sum = 0;
                  for (int64_t k = 0; k <= i; ++k) sum += x.host.at(k, j);
                  return sum * 0.25;
                })};
      case 6:
        say("clone");
        return {x.lazy.clone(), x.host};
      case 7:
        say("the same shape");
        return {own(x.lazy), x.host};
      default:
        say("contiguous maximum");
        return {x.lazy.maximum(y.lazy).contiguous(), map([&](int64_t i, int64_t j) {
                  return std::max(x.host.at(i, j), y.host.at(i, j));
                })};
    }
  }

  void statement() {
    switch (pick(10)) {
      case 0:
      case 1:
      case 2: {
        Both made = value(any(), any());
        values_.push_back(made);
        note("  is new, " + name(values_.size() - 1));
        break;
      }
      case 3:
      case 4:
      case 5:
      case 6: {
        size_t target = any();
        Both made = value(any(), any());
        values_[target].lazy.assign(made.lazy);
        set_host(values_[target], made.host);
        note("  is assigned to " + name(target));
        break;
      }
      case 7:
        if (values_.size() > 2) {
          size_t which = any();
          note("drop " + name(which) + ": the last takes its name");
          values_[which] = values_.back();
          values_.pop_back();
        }
        break;
      case 8: {
        size_t which = any();
        note("realize " + name(which));
        values_[which].lazy.realize();
        break;
      }
      default:
        call_step();
        break;
    }
  }

  // A captured step with a state of its own, a value that it reads and one that it assigns.
  void call_step() {
    if (!step_) {
      read_ = any();
      assigned_ = any();
      if (read_ == assigned_) return;
      Tensor read = values_[read_].lazy, assigned = values_[assigned_].lazy;
      kept_ = {values_[read_], values_[assigned_]};
      note("capture a step that reads " + name(read_) + " and adds to " + name(assigned_));
      step_.emplace([read, assigned](Tensor x) {
        Tensor before = assigned * 0.5;
        assigned.assign((assigned + x.transpose(0, 1)) * 0.5);
        return before + read.flip(0) * 0.25;
      });
    }
    size_t argument = any();
    note("call it with " + name(argument));
    Host x = values_[argument].host;
    result_.lazy = (*step_)(values_[argument].lazy);
    const Host read = kept_[0].host, assigned = kept_[1].host;
    Host result = map([&](int64_t i, int64_t j) {
      return assigned.at(i, j) * 0.5 + read.at(n - 1 - i, j) * 0.25;
    });
    Host more = map([&](int64_t i, int64_t j) { return (assigned.at(i, j) + x.at(j, i)) * 0.5; });
    set_host(kept_[1], more);
    set_host(result_, result);  // the same tensor at every call
    bool listed = std::ranges::any_of(
        values_, [&](const Both& v) { return v.lazy.state() == result_.lazy.state(); });
    if (!listed) {
      values_.push_back(result_);
      note("  its result is " + name(values_.size() - 1));
    }
  }

  // Sets the host value of every handle of that tensor.
  void set_host(Both& of, const Host& host) {
    const StatePtr state = of.lazy.state();
    of.host = host;
    for (auto* list : {&values_, &kept_}) {
      for (Both& v : *list) {
        if (v.lazy.state() == state) v.host = host;
      }
    }
  }

  static std::string name(size_t i) { return "t" + std::to_string(i); }

  void check(const Both& x) {
    std::vector<double> got = x.lazy.to_vector<double>();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], x.host.v[i], 1e-9) << text_.str();
  }

  std::mt19937 random_;
  std::vector<Both> values_;
  std::vector<Both> kept_;
  size_t read_ = 0, assigned_ = 0;
  std::optional<Jit<std::function<Tensor(Tensor)>>> step_;
  Both result_;
  std::ostringstream text_;
};

Tensor filled(double value) { return Tensor::full({4}, value, DType::F32).contiguous().realize(); }
double first(const Tensor& x) { return x.to_vector<double>()[0]; }

// Each finds the storage below those before it at once; to walk there took half a minute.
TEST(Assign, ManyInARowTakeTimeByTheirNumber) {
  const auto begin = std::chrono::steady_clock::now();
  Tensor x = filled(0);
  for (int i = 0; i < 40000; ++i) x += 1;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(storage_node(x.uop()).op(), Op::Buffer);
}

// Nobody but the sum needs the old value, which is read beside the new one.
TEST(Assign, AnOldValueIsReadBesideTheNewOne) {
  auto both = [](const Tensor& a) {
    Tensor c = a.clone(), old = c * 2;
    c.assign(c.flip(0) + 1);
    return c + old;
  };
  Tensor x{1, 2, 3, 4};
  EXPECT_EQ(both(x).to_vector<int>(), (std::vector<int>{7, 8, 9, 10}));
  auto chain = [](const Tensor& a) {
    Tensor c = a.clone(), sum = c * 1;
    for (int i = 0; i < 6; ++i) {
      c.assign(c.flip(0) + 1);
      sum = sum + c * (i + 2) + c.cumsum(0);
    }
    return c + sum;
  };
  std::vector<int> c{1, 2, 3, 4}, sum = c;
  for (int i = 0; i < 6; ++i) {
    std::ranges::reverse(c);
    for (int& v : c) ++v;
    int running = 0;
    for (size_t k = 0; k < 4; ++k) sum[k] += c[k] * (i + 2) + (running += c[k]);
  }
  for (size_t k = 0; k < 4; ++k) sum[k] += c[k];
  EXPECT_EQ(chain(x).to_vector<int>(), sum);
}

TEST(Assign, EqualValuesAreTwoTensors) {
  Tensor x = filled(1), a = x + 1, b = x + 1;
  Tensor::realize({a, b});
  a.assign(a * 2).realize();
  EXPECT_EQ(first(b), 2);
  EXPECT_EQ(first(a), 4);
  for (bool together : {true, false}) {
    Tensor c = filled(3), d = c.contiguous(), e = c.cast(DType::F32);
    c.assign(c + 11);
    d.assign(d + 1);
    if (together) Tensor::realize({c, d, e});
    EXPECT_EQ(first(c), 14);
    EXPECT_EQ(first(d), 4);
    EXPECT_EQ(first(e), 3);
  }
}

// A value that needs what another one overwrites may overwrite what a third one needs.
TEST(Assign, ValuesThatAreDisturbedDisturbOthers) {
  Tensor a = filled(1), b = filled(2), of_b = b * 10;
  Tensor next = a * 3;
  b.assign(a + b);
  a.assign(a + 100);
  a.realize();
  EXPECT_EQ(first(of_b), 20);
  EXPECT_EQ(first(next), 3);
  EXPECT_EQ(first(b), 3);
}

TEST(Assign, ResultsOfAStepThatValuesNeedAreKept) {
  Jit step = [](Tensor x) { return x + 1; };
  Tensor a = step(filled(1)), lazy = a * 10, same = a.reshape({4});
  step(filled(5));
  EXPECT_EQ(first(lazy), 20);
  EXPECT_EQ(first(same), 2);
  EXPECT_EQ(first(a), 6);
  a.assign(a * 2);  // replaced by the next call's result
  EXPECT_EQ(first(step(filled(7))), 8);
  EXPECT_EQ(first(a), 8);
}

TEST(Assign, WhatAStepAssignsIsKeptForValuesThatNeedIt) {
  Tensor p = filled(3), before = p * 1;
  Jit step = [&](Tensor x) { p.assign(p + x); };
  step(filled(1));
  Tensor between = p * 1, same = p.reshape({4});
  step(filled(1));
  EXPECT_EQ(first(before), 3);
  EXPECT_EQ(first(between), 4);
  EXPECT_EQ(first(same), 4);
  EXPECT_EQ(first(p), 5);
}

TEST(Assign, WhatIsToBeAssignedIsThereWhenAStepReadsIt) {
  Tensor p = filled(3), q = filled(1);
  Jit step = [&](Tensor x) {
    q.assign(q + x);
    return p + x;
  };
  step(filled(1));
  p.assign(p + 5);
  q.assign(q * 10);
  EXPECT_EQ(first(step(filled(1))), 9);
  EXPECT_EQ(first(q), 21);
}

TEST(Assign, AStepMayBeGivenWhatItAssigns) {
  Tensor p = filled(4);
  Jit step = [&](Tensor x) {
    p.assign((x.cumsum(0) * 0 + 5).contiguous());
    return x.flip(0) * 2;
  };
  step(filled(1));
  p.assign(filled(4)).realize();
  EXPECT_EQ(first(step(p)), 8);
  EXPECT_EQ(first(p), 5);
}

// The learning rate is written from the host while an update that reads it waits.
TEST(Assign, AWriteFromTheHostIsNoPartOfWhatWasAskedBefore) {
  TrainingMode on;
  Tensor p = filled(1).is_param_();
  nn::optim::SGD optimizer({p}, {.lr = 1});
  p.sum().backward();
  optimizer.step();
  Tensor rate = optimizer.lr * 1;
  optimizer.set_lr(1000);
  EXPECT_EQ(first(p), 0);
  EXPECT_EQ(rate.item<double>(), 1);
}

// Thousands of values that wait to be assigned, in one storage and in many.
TEST(Assign, ManyAssignmentsMayWait) {
  constexpr int kMany = 3000;
  Tensor x = filled(1);
  std::vector<Tensor> each;
  for (int i = 0; i < kMany; ++i) {
    x.assign(x + 1);
    each.push_back(Tensor(std::vector<float>(4, float(i))));
    each.back().assign(each.back() * 2);
  }
  EXPECT_EQ(first(x), 1 + kMany);
  for (int i = 0; i < kMany; ++i) ASSERT_EQ(first(each[size_t(i)]), 2 * i);
}

TEST(Assign, RandomProgramsHaveTheValuesOfTheirStatements) {
  for (uint32_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    Program program(seed);
    try {
      program.run(4 + int(seed % 12));
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what() << "\n" << program.text();
    }
    if (HasFailure()) return;
  }
}

// --- rows that change in place -------------------------------------------------------------------

using Table = std::vector<double>;
const std::vector<int32_t> kPlaces{3, 3, 9, -1, 12, 0};

// The table with v(entry, column) added to, or put over, the row that each entry names.
Table scattered(Table t, bool add, const std::function<double(size_t, size_t)>& v) {
  for (size_t e = 0; e < kPlaces.size(); ++e) {
    if (kPlaces[e] < 0 || kPlaces[e] >= 10) continue;
    for (size_t c = 0; c < 4; ++c) {
      double& at = t[size_t(kPlaces[e]) * 4 + c];
      at = add ? at + v(e, c) : v(e, c);
    }
  }
  return t;
}

struct Change {
  const char* name;
  std::function<void(Tensor& w, Tensor& z, const Tensor& rows, const Tensor& g)> lazy;
  std::function<void(Table& w, Table& z)> host;
};

double one(size_t, size_t) { return 1; }

// The old value is read before, beside and after the scatter, by others and by itself.
std::vector<Change> changes() {
  const auto sum = ScatterReduce::Sum;
  return {
      {"the old value beside",
       [=](Tensor& w, Tensor& z, const Tensor& i, const Tensor& g) {
         const Tensor old = w * 2;
         w.assign(w.scatter_reduce(0, i, g, sum));
         z.assign(old + w);
       },
       [](Table& w, Table& z) {
         const Table old = w;
         w = scattered(w, true, one);
         for (size_t k = 0; k < w.size(); ++k) z[k] = 2 * old[k] + w[k];
       }},
      {"its own rows",
       [=](Tensor& w, Tensor&, const Tensor& i, const Tensor&) {
         w.assign(w.scatter_reduce(0, i, w.gather(0, i), sum));
       },
       [](Table& w, Table&) {
         const Table old = w;
         w = scattered(w, true,
                       [&](size_t e, size_t c) { return old[size_t(kPlaces[e]) * 4 + c]; });
       }},
      {"written, then added to",
       [=](Tensor& w, Tensor& z, const Tensor& i, const Tensor& g) {
         w.assign(w.scatter(0, i, g));
         w.assign(w.scatter_reduce(0, i, g, sum));
         z += w;
       },
       [](Table& w, Table& z) {
         w = scattered(scattered(w, false, one), true, one);
         for (size_t k = 0; k < w.size(); ++k) z[k] += w[k];
       }},
      {"for two",
       [=](Tensor& w, Tensor& z, const Tensor& i, const Tensor& g) {
         const Tensor next = w.scatter_reduce(0, i, g, sum);
         z.assign(next);
         w.assign(next);
       },
       [](Table& w, Table& z) { z = w = scattered(w, true, one); }},
      {"rows of each other",
       [=](Tensor& w, Tensor& z, const Tensor& i, const Tensor&) {
         const Tensor old = w.gather(0, i);
         w.assign(w.scatter_reduce(0, i, z.gather(0, i), sum));
         z.assign(z.scatter_reduce(0, i, old, sum));
       },
       [](Table& w, Table& z) {
         const Table a = w, b = z;
         auto row = [](const Table& t) {
           return [&t](size_t e, size_t c) { return t[size_t(kPlaces[e]) * 4 + c]; };
         };
         w = scattered(w, true, row(b));
         z = scattered(z, true, row(a));
       }},
  };
}

TEST(Rows, ThatChangeInPlaceAreValues) {
  for (const Change& change : changes()) {
    for (DType type : {DType::F32, DType::BF16, DType::I32}) {
      for (bool captured : {false, true}) {
        auto made = [&](int64_t from) {
          return (Tensor::arange(40).reshape({10, 4}) + from).cast(type).clone().realize();
        };
        Tensor w = made(0), z = made(5);
        Table host_w(40), host_z(40);
        for (size_t k = 0; k < 40; ++k) host_w[k] = double(k), host_z[k] = double(k) + 5;
        const Tensor i = Tensor(kPlaces).unsqueeze(1).expand({-1, 4}).clone().realize(),
                     g = Tensor::ones({6, 4}, type).clone().realize();
        auto body = [&](Tensor places, Tensor rows) { change.lazy(w, z, places, rows); };
        Jit step = body;
        for (int run = 0; run < 2; ++run) {
          if (captured)
            step(i, g);
          else
            body(i, g);
          change.host(host_w, host_z);
        }
        EXPECT_EQ(w.to_vector<double>(), host_w) << change.name << ' ' << name(type) << captured;
        EXPECT_EQ(z.to_vector<double>(), host_z) << change.name << ' ' << name(type) << captured;
      }
    }
  }
}

}  // namespace
}  // namespace tinyshard::assign_test
