// Writes into views and parts of a tensor, against loops over its elements.
#include <functional>
#include <numeric>
#include <string>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/exec/schedule_of.h"
#include "core/schedule/schedule.h"
#include "core/uop/args.h"
#include "tests/devices.h"
#include "tests/message_of.h"

namespace tinyshard::writes_test {
namespace {

using Floats = std::vector<float>;
using Ints64 = std::vector<int64_t>;

constexpr int64_t kA = 5, kB = 6, kC = 4;

// The elements of the tensor [5, 6, 4] on the host.
struct Host {
  Floats elements = Floats(size_t(kA * kB * kC));
  float& at(int64_t a, int64_t b, int64_t c) { return elements[size_t((a * kB + b) * kC + c)]; }
};

float start_of(size_t i) { return float(i % 17) - 4; }
float given_of(size_t i) { return float(i % 11) * 3 + 100; }

// The value to write, as a list of elements in row-major order.
struct Given {
  Floats elements;
  float at(int64_t i) const { return elements[size_t(i)]; }
  float at(int64_t i, int64_t j, int64_t columns) const { return at(i * columns + j); }
};

struct Write {
  std::string name;
  Dims given;  // shape of y
  std::function<void(const Tensor& t, const Tensor& y)> tensor;
  std::function<void(Host& t, const Given& y)> host;
};
void PrintTo(const Write& write, std::ostream* out) { *out << write.name; }

void for_all(int64_t a, int64_t b, const std::function<void(int64_t, int64_t)>& f) {
  for (int64_t i = 0; i < a; ++i) {
    for (int64_t j = 0; j < b; ++j) f(i, j);
  }
}

const Tensor& places() {
  static const Tensor t(std::vector<int32_t>{4, 0, -3});
  return t;
}

std::vector<Write> writes() {
  using T = const Tensor&;
  using H = Host&;
  using G = const Given&;
  std::vector<Write> w;
  auto add = [&](const char* name, Dims given, auto tensor, auto host) {
    w.push_back({name, std::move(given), tensor, host});
  };
  // clang-format off
  add("row", {kB, kC}, [](T t, T y) { t[0] = y; },
      [](H t, G y) { for_all(kB, kC, [&](auto b, auto c) { t.at(0, b, c) = y.at(b, c, kC); }); });
  add("row_number", {}, [](T t, T) { t[1] = 7; },
      [](H t, G) { for_all(kB, kC, [&](auto b, auto c) { t.at(1, b, c) = 7; }); });
  add("row_braces", {}, [](T t, T) { t[1] = {1, 2, 3, 4}; },
      [](H t, G) { for_all(kB, kC, [&](auto b, auto c) { t.at(1, b, c) = float(c + 1); }); });
  add("last_row_plus", {}, [](T t, T) { t[-1] += 1; },
      [](H t, G) { for_all(kB, kC, [&](auto b, auto c) { t.at(4, b, c) += 1; }); });
  add("element", {}, [](T t, T) { t[{1, 2, 3}] = 7.5; }, [](H t, G) { t.at(1, 2, 3) = 7.5; });
  add("row_of_row", {kC}, [](T t, T y) { t[1][2] = y; },
      [](H t, G y) { for (int64_t c = 0; c < kC; ++c) t.at(1, 2, c) = y.at(c); });
  add("element_of_element", {}, [](T t, T) { t[3][0][2] -= 5; }, [](H t, G) { t.at(3, 0, 2) -= 5; });
  add("row_of_transposed", {kB, kA}, [](T t, T y) { t.T()[2] = y; },
      [](H t, G y) { for_all(kB, kA, [&](auto b, auto a) { t.at(a, b, 2) = y.at(b, a, kA); }); });
  add("transposed_times", {}, [](T t, T) { t.T() *= 3; },
      [](H t, G) { for (float& x : t.elements) x *= 3; });
  add("permuted_slice_plus", {2, kB}, [](T t, T y) { t.permute({2, 0, 1})[{Slice(1, 3), 2}] += y; },
      [](H t, G y) { for_all(2, kB, [&](auto i, auto b) { t.at(2, b, i + 1) += y.at(i, b, kB); }); });
  add("slice", {}, [](T t, T) { t[{Slice(0, 2)}] = 5; },
      [](H t, G) { for_all(2, kB * kC, [&](auto a, auto i) { t.at(a, 0, i) = 5; }); });
  add("strided_times", {}, [](T t, T) { t[{Slice(), Slice(1, {}, 2)}] *= 3; },
      [](H t, G) { for_all(kA, 3, [&](auto a, auto i) { for (int64_t c = 0; c < kC; ++c) t.at(a, 1 + 2 * i, c) *= 3; }); });
  add("strided_uneven", {2, kC}, [](T t, T y) { t[{3, Slice(1, 6, 3)}] = y; },
      [](H t, G y) { for_all(2, kC, [&](auto i, auto c) { t.at(3, 1 + 3 * i, c) = y.at(i, c, kC); }); });
  add("reversed", {kA, kC}, [](T t, T y) { t[{Slice({}, {}, -1), 0}] = y; },
      [](H t, G y) { for_all(kA, kC, [&](auto a, auto c) { t.at(kA - 1 - a, 0, c) = y.at(a, c, kC); }); });
  add("reshaped_row_minus", {kC}, [](T t, T y) { t.reshape({kA * kB, kC})[7] -= y; },
      [](H t, G y) { for (int64_t c = 0; c < kC; ++c) t.at(1, 1, c) -= y.at(c); });
  add("reshaped_plus", {kC, kA * kB}, [](T t, T y) { t.view({kC, kA * kB}) += y; },
      [](H t, G y) { for (size_t i = 0; i < t.elements.size(); ++i) t.elements[i] += y.elements[i]; });
  add("flipped_row", {kB, kC}, [](T t, T y) { t.flip({0, 2})[0] = y; },
      [](H t, G y) { for_all(kB, kC, [&](auto b, auto c) { t.at(4, b, kC - 1 - c) = y.at(b, c, kC); }); });
  add("shrunk", {2, kB, 2}, [](T t, T y) { t.shrink({{1, 3}, {0, kB}, {2, 4}}) = y; },
      [](H t, G y) { for_all(2, kB, [&](auto a, auto b) { for (int64_t c = 0; c < 2; ++c) t.at(a + 1, b, c + 2) = y.at((a * kB + b) * 2 + c); }); });
  add("unsqueezed_plus", {kB, kC}, [](T t, T y) { t.unsqueeze(1)[{2, 0}] += y; },
      [](H t, G y) { for_all(kB, kC, [&](auto b, auto c) { t.at(2, b, c) += y.at(b, c, kC); }); });
  add("squeezed_by", {}, [](T t, T) { t[0].unsqueeze(0).squeeze(0) /= 2; },
      [](H t, G) { for_all(kB, kC, [&](auto b, auto c) { t.at(0, b, c) /= 2; }); });
  add("diagonal", {kC, kA}, [](T t, T y) { t.diagonal(0, 0, 1) = y; },
      [](H t, G y) { for_all(kC, kA, [&](auto c, auto a) { t.at(a, a, c) = y.at(c, a, kA); }); });
  add("part_of_split", {}, [](T t, T) { t.split(2)[1] += 10; },
      [](H t, G) { for_all(2, kB * kC, [&](auto a, auto i) { t.at(2 + a, 0, i) += 10; }); });
  add("parts_of_chunk", {}, [](T t, T) { int64_t k = 0; for (const Tensor& part : t.chunk(3, 1)) part += ++k; },
      [](H t, G) { for_all(kA, kB, [&](auto a, auto b) { const int64_t part = b / 2 + 1; for (int64_t c = 0; c < kC; ++c) t.at(a, b, c) += float(part); }); });
  add("named_view", {kB, kC}, [](T t, T y) { Tensor v = t[3]; v += y; v[0] = 1; v[{Slice(), 1}] *= 2; },
      [](H t, G y) {
        for_all(kB, kC, [&](auto b, auto c) { t.at(3, b, c) += y.at(b, c, kC); });
        for (int64_t c = 0; c < kC; ++c) t.at(3, 0, c) = 1;
        for (int64_t b = 0; b < kB; ++b) t.at(3, b, 1) *= 2;
      });
  add("two_views", {}, [](T t, T) { Tensor v = t[0], w = t.T()[0]; v += 1; w += 2; v *= 2; },
      [](H t, G) {
        for_all(kB, kC, [&](auto b, auto c) { t.at(0, b, c) += 1; });
        for_all(kA, kB, [&](auto a, auto b) { t.at(a, b, 0) += 2; });
        for_all(kB, kC, [&](auto b, auto c) { t.at(0, b, c) *= 2; });
      });
  add("flat_strided", {}, [](T t, T) { t.flatten()[Slice(3, 50, 7)] = 9; },
      [](H t, G) { for (size_t i = 3; i < 50; i += 7) t.elements[i] = 9; });
  add("unflattened_plus", {}, [](T t, T) { t.unflatten(1, {2, 3})[{Slice(), 1}] += 1; },
      [](H t, G) { for_all(kA, 3, [&](auto a, auto i) { for (int64_t c = 0; c < kC; ++c) t.at(a, 3 + i, c) += 1; }); });
  add("rearranged", {kA * kB}, [](T t, T y) { t.rearrange("a b c -> c (a b)")[1] = y; },
      [](H t, G y) { for_all(kA, kB, [&](auto a, auto b) { t.at(a, b, 1) = y.at(a, b, kB); }); });
  add("detached", {}, [](T t, T) { t.detach()[2] = 0; },
      [](H t, G) { for_all(kB, kC, [&](auto b, auto c) { t.at(2, b, c) = 0; }); });
  add("rows_by_index", {3, kB, kC}, [](T t, T y) { t[{places()}] = y; },
      [](H t, G y) { int64_t rows[] = {4, 0, 2}; for (int64_t k = 0; k < 3; ++k) for_all(kB, kC, [&](auto b, auto c) { t.at(rows[k], b, c) = y.at((k * kB + b) * kC + c); }); });
  add("rows_by_index_plus", {3, kB, kC}, [](T t, T y) { t[places()] += y; },
      [](H t, G y) { int64_t rows[] = {4, 0, 2}; for (int64_t k = 0; k < 3; ++k) for_all(kB, kC, [&](auto b, auto c) { t.at(rows[k], b, c) += y.at((k * kB + b) * kC + c); }); });
  add("columns_by_index_times", {}, [](T t, T) { t[{1, places()}] *= 2; },
      [](H t, G) { for (int64_t b : {4, 0, 3}) for (int64_t c = 0; c < kC; ++c) t.at(1, b, c) *= 2; });
  add("part_of_rows_by_index", {}, [](T t, T) { t[places()][{Slice(), 1}] = 3; },
      [](H t, G) { for (int64_t a : {4, 0, 2}) for (int64_t c = 0; c < kC; ++c) t.at(a, 1, c) = 3; });
  add("rows_by_index_of_view", {3, kA}, [](T t, T y) { t.T()[2][places()] = y; },
      [](H t, G y) { int64_t rows[] = {4, 0, 3}; for_all(3, kA, [&](auto k, auto a) { t.at(a, rows[k], 2) = y.at(k, a, kA); }); });
  add("assigned_row", {kB, kC}, [](T t, T y) { t[2].assign(y); },
      [](H t, G y) { for_all(kB, kC, [&](auto b, auto c) { t.at(2, b, c) = y.at(b, c, kC); }); });
  add("assigned_number", {}, [](T t, T) { t[{Slice(), 2}].assign(-1); },
      [](H t, G) { for_all(kA, kC, [&](auto a, auto c) { t.at(a, 2, c) = -1; }); });
  add("setitem_of_view", {kC}, [](T t, T y) { t[1].setitem({0}, y); },
      [](H t, G y) { for (int64_t c = 0; c < kC; ++c) t.at(1, 0, c) = y.at(c); });
  add("vector_of_indices", {}, [](T t, T) { std::vector<Index> at{4, Slice(1, 3)}; t[at] = 2; at.emplace_back(0); t[at] += 3; },
      [](H t, G) {
        for_all(2, kC, [&](auto b, auto c) { t.at(4, 1 + b, c) = 2; });
        for (int64_t b = 1; b < 3; ++b) t.at(4, b, 0) += 3;
      });
  add("empty", {}, [](T t, T) { t[{Slice(2, 2)}] = 5; t[{0, Slice(3, 1)}] += 1; }, [](H, G) {});
  // clang-format on
  return w;
}

Tensor tensor_of(const Dims& shape, float (*element)(size_t)) {
  Floats elements(
      size_t(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())));
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = element(i);
  return Tensor(elements, shape);
}

Host expected(const Write& write, int times) {
  Host host;
  for (size_t i = 0; i < host.elements.size(); ++i) host.elements[i] = start_of(i);
  Given given{tensor_of(write.given, given_of).to_vector<float>()};
  for (int k = 0; k < times; ++k) write.host(host, given);
  return host;
}

// Where the tensor lies, and what is written.
struct Where {
  const char* name;
  int devices;
  std::function<Tensor(const Tensor& t)> place;
};

std::vector<Where> places_of_tensor() {
  auto two_by_two = [](const char* first, const char* second) {
    return [first, second](const Tensor& t) {
      const Mesh mesh({{"a", 2}, {"b", 2}}, Mesh::of(device_names(4)).devices());
      auto dim = [](const char* p) {
        return *p == '-' ? Placement(Replicate) : Placement(Shard(*p - '0'));
      };
      return t.shard(mesh, {{"a", dim(first)}, {"b", dim(second)}});
    };
  };
  auto four = [](int64_t dim) {
    return [dim](const Tensor& t) { return t.shard(device_names(4), dim); };
  };
  return {{"one", 1, [](const Tensor& t) { return t; }},
          {"rows_uneven", 4, four(0)},
          {"columns_uneven", 4, four(1)},
          {"even", 4, four(2)},
          {"copies", 4, [](const Tensor& t) { return t.shard(device_names(4)); }},
          {"two_dims", 4, two_by_two("0", "1")},
          {"one_dim_twice", 4, two_by_two("1", "1")},
          {"one_axis", 4, two_by_two("-", "2")}};
}

class Writes : public testing::TestWithParam<Write> {};
INSTANTIATE_TEST_SUITE_P(All, Writes, testing::ValuesIn(writes()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Writes, ReachTheTensor) {
  const Write& write = GetParam();
  for (const Where& where : places_of_tensor()) {
    if (device_count() < where.devices) continue;
    for (const char* kind : {"stored", "lazy", "parameter"}) {
      SCOPED_TRACE(std::string(where.name) + ", " + kind);
      Tensor t = where.place(tensor_of({kA, kB, kC}, start_of));
      if (kind[0] == 's') t.realize();
      if (kind[0] == 'l') t = (t * 2 - t).contiguous() + 0;
      if (kind[0] == 'p') t.is_param_();
      const Tensor y = write.given.empty()
                           ? Tensor()
                           : tensor_of(write.given, given_of)
                                 .shard_like(Tensor::zeros(write.given).shard(t.sharding().mesh));
      const Tensor same = t, read = t * 2, view = t.reshape({-1});
      write.tensor(t, y);
      EXPECT_EQ(t.to_vector<float>(), expected(write, 1).elements);
      EXPECT_EQ(same.to_vector<float>(), expected(write, 1).elements);
      const Floats before = expected(write, 0).elements;
      EXPECT_EQ((read / 2).to_vector<float>(), before) << "what was read before";
      EXPECT_EQ(view.to_vector<float>(), before) << "another view";
      write.tensor(t, y);
      EXPECT_EQ(t.to_vector<float>(), expected(write, 2).elements);
    }
  }
}

TEST_P(Writes, AreMadeAgainByEachCallOfAStep) {
  const Write& write = GetParam();
  for (const Where& where : places_of_tensor()) {
    if (device_count() < where.devices) continue;
    SCOPED_TRACE(where.name);
    Tensor t = where.place(tensor_of({kA, kB, kC}, start_of)).realize(),
           argument = t.clone().realize();
    const Mesh mesh = t.sharding().mesh;
    const Tensor y = tensor_of(write.given, given_of).shard(mesh);
    Jit step = [&](const Tensor& x) { write.tensor(t, x); };
    Jit of_argument = [&](const Tensor& a, const Tensor& x) { write.tensor(a, x); };
    for (int k = 1; k < 4; ++k) {
      step(y);
      of_argument(argument, y);
      EXPECT_EQ(t.to_vector<float>(), expected(write, k).elements) << k;
      EXPECT_EQ(argument.to_vector<float>(), expected(write, k).elements) << k;
    }
  }
}

// --- places that change from call to call --------------------------------------------------------

TEST(WritesAtVariables, ReachTheRowsOfTheCall) {
  for (int devices : {1, 4}) {
    if (device_count() < devices) continue;
    for (int64_t dim : {0, 1}) {
      SCOPED_TRACE(std::to_string(devices) + " devices, dim " + std::to_string(dim));
      Tensor t = Tensor::zeros({8, 3}).shard(device_names(devices), dim).realize();
      Variable pos("pos", 0, 6);
      const Tensor row = Tensor{1.0, 2.0, 3.0}.shard(device_names(devices));
      Jit step = [&](const Tensor& x, Variable p) {
        t[p] = x;
        t[p + 1] += 1;
        t[{p, 0}] *= 2;
        Tensor v = t[p];
        v[2] -= 5;
        return v * 1;
      };
      Floats host(24);
      for (int64_t p : {0, 3, 2, 6}) {
        const Floats v = step(row, pos.bind(p)).to_vector<float>();
        for (int64_t c = 0; c < 3; ++c) {
          host[size_t(p * 3 + c)] = float(c + 1);
          host[size_t((p + 1) * 3 + c)] += 1;
        }
        host[size_t(p * 3)] *= 2;
        host[size_t(p * 3 + 2)] -= 5;
        EXPECT_EQ(t.to_vector<float>(), host) << p;
        EXPECT_EQ(v, Floats(host.begin() + p * 3, host.begin() + p * 3 + 3));
      }
      t[pos.bind(4)] = 9;  // outside of a step
      for (int64_t c = 0; c < 3; ++c) host[size_t(12 + c)] = 9;
      EXPECT_EQ(t.to_vector<float>(), host);
    }
  }
}

TEST(WritesAtVariables, ReachSlicesThatEndThere) {
  Tensor t = Tensor::zeros({3, 8}).realize();
  Variable n("n", 0, 8);
  Jit step = [&](Variable p) {
    t[{1, Slice(0, p)}] += 1;
    t[{Slice(), Slice(0, p)}].T() *= 2;
    t[{2, Slice(0, p)}] = 7;
  };
  Floats host(24);
  for (int64_t p : {8, 3, 0, 5}) {
    step(n.bind(p));
    for (int64_t i = 0; i < p; ++i) {
      host[size_t(8 + i)] += 1;
      for (int64_t a = 0; a < 3; ++a) host[size_t(a * 8 + i)] *= 2;
      host[size_t(16 + i)] = 7;
    }
    EXPECT_EQ(t.to_vector<float>(), host) << p;
  }
}

TEST(WritesAtVariables, ReachSlicesThatBeginThere) {
  for (int devices : {1, 4}) {
    if (device_count() < devices) continue;
    for (int64_t dim : {0, 1}) {
      SCOPED_TRACE(std::to_string(devices) + " devices, dim " + std::to_string(dim));
      Tensor t = Tensor::zeros({9, 7}).shard(device_names(devices), dim).realize();
      const Tensor rows = (Tensor::arange(14) + 1).cast(DType::F32).reshape({2, 7});
      const Tensor given = rows.shard(device_names(devices)).realize();
      Variable pos("pos", 0, 7), column("column", 0, 4);
      Jit step = [&](const Tensor& x, Variable p, Variable q) {
        t[Slice(p, p + 2)] = x;
        t[{Slice(p, p + 2), Slice(q, q + 3)}] *= 2;
        t.T()[{Slice(q, q + 1), Slice(1, {}, 3)}] -= 100;
        return t[{Slice(p, p + 2), 1}].sum();
      };
      Floats host(63);
      for (auto [p, q] : {std::pair<int64_t, int64_t>{0, 4}, {7, 0}, {3, 2}, {4, 1}}) {
        const float sum = step(given, pos.bind(p), column.bind(q)).item<float>();
        for (int64_t i = 0; i < 14; ++i) host[size_t(p * 7 + i)] = float(i + 1);
        for_all(2, 3, [&](auto i, auto j) { host[size_t((p + i) * 7 + q + j)] *= 2; });
        for (int64_t i = 1; i < 9; i += 3) host[size_t(i * 7 + q)] -= 100;
        EXPECT_EQ(t.to_vector<float>(), host) << p << " " << q;
        EXPECT_EQ(sum, host[size_t(p * 7 + 1)] + host[size_t(p * 7 + 8)]);
      }
      t[Slice(pos.bind(2), 4)] = 5;  // outside of a step
      for (size_t i = 14; i < 28; ++i) host[i] = 5;
      EXPECT_EQ(t.to_vector<float>(), host);
      auto message = [&](auto read) {
        Jit bad = [&](Variable p) { return read(p).sum(); };
        return test::message_of<UserError>([&] { bad(pos.bind(3)); });
      };
      EXPECT_NE(
          message([&](Variable p) { return t[Slice(p, 8)]; }).find("[pos, 8) has 8 - pos elements"),
          std::string::npos);
      EXPECT_NE(message([&](Variable p) {
                  return t[Slice(p, p + 3)];
                }).find("pos from 0 to 7 does not lie inside of dim 0"),
                std::string::npos);
    }
  }
}

// A cache's row is written and nothing else is read.
TEST(WritesAtVariables, ReadNoOtherRows) {
  constexpr int64_t kRows = 40, kWidth = 6;
  Tensor cache = Tensor::zeros({3, kRows, kWidth}).clone().realize();
  const Tensor row = Tensor::full({3, kWidth}, -5.0).contiguous().realize();
  Variable pos("pos", 0, kRows - 1);
  Jit step = [&](Variable p) { cache[{Slice(), p}] = row; };
  Jit deep = [&](Variable p) { cache[1][p] = row[0]; };
  step(pos.bind(7));
  deep(pos.bind(9));
  for (const CapturedStep* s : {&step.captured_step(), &deep.captured_step()}) {
    for (const Item& item : schedule_of(*s).items) {
      if (item.kind != Item::Kind::Kernel) continue;
      for (const UOp& x : toposort(std::span(&item.kernel.sink, 1))) {
        if (x.op() != Op::Load) continue;
        EXPECT_NE(item.kernel.params[size_t(slot_of(*x))].numel, cache.numel());
      }
    }
  }
  EXPECT_EQ(cache.sum().item<float>(), -5.0f * (3 * kWidth + kWidth));
}

// Adding to a row needs no other rows, and no memory beside the tensor.
TEST(Writes, TouchTheirPartAlone) {
  const Tensor t = Tensor::zeros({64, 32}).clone().realize();
  const Tensor x = Tensor::ones({32}).clone().realize();
  Variable pos("pos", 0, 63);
  const std::vector<std::function<void(const Tensor&)>> writes = {
      [&](const Tensor&) { t[3] = x; },
      [&](const Tensor&) { t[3] += x; },
      [&](const Tensor&) { t.T()[{Slice(), 3}] *= x; },
      [&](const Tensor&) { t[{3, Slice({}, {}, -1)}] /= x; },
      [&](const Tensor& p) { t[p] -= x; },
      [&](const Tensor& p) { t.T()[{Slice(), p}] += x; },
  };
  for (size_t i = 0; i < writes.size(); ++i) {
    Jit step = [&](const Variable& p) { writes[i](p.tensor()); };
    step(pos.bind(5));
    const PlanSummary plan = summarize(step);
    EXPECT_EQ(plan.kernels, 1) << i;
    EXPECT_EQ(plan.arena_bytes, 0) << i;
  }
}

// --- what is a view, and of what -----------------------------------------------------------------

TEST(Views, OfWhatWentAreValuesOfTheirOwn) {
  Tensor t = Tensor{{1, 2}, {3, 4}};
  Tensor v = t[0], w = v[1];
  t = Tensor{{5, 6}, {7, 8}};
  v += 1;
  w += 1;
  EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{5, 6, 7, 8}));
  EXPECT_EQ(v.to_vector<int>(), (std::vector<int>{2, 4}));
  EXPECT_EQ(w.item<int>(), 4);
}

TEST(Views, OfViewsAreAnyNumber) {
  Tensor t = Tensor::arange(6).realize(), v = t;
  for (int i = 0; i < 2000; ++i) v = v.reshape(2, 3).T().reshape(6);
  std::vector<int> expected(6);
  const std::vector<int> now = v.to_vector<int>();
  v *= 10;
  for (size_t i = 0; i < 6; ++i) expected[i] = int(i) * 10;
  EXPECT_EQ(t.to_vector<int>(), expected);
  for (size_t i = 0; i < 6; ++i) expected[i] = now[i] * 10;
  EXPECT_EQ(v.to_vector<int>(), expected);
}

TEST(Views, KeepNothingAlive) {
  std::weak_ptr<TensorState> state;
  Tensor v;
  {
    const Tensor t = Tensor{{1, 2}, {3, 4}}.realize();
    state = t.state();
    v = t[0].T();
  }
  EXPECT_TRUE(state.expired());
  v += 1;
  EXPECT_EQ(v.to_vector<int>(), (std::vector<int>{2, 3}));
}

TEST(Views, AreWrittenAsTheirTensorIsNow) {
  Tensor t = Tensor{1, 2, 3}.realize();
  Tensor v = t[Slice(0, 2)];
  t += 10;
  EXPECT_EQ(v.to_vector<int>(), (std::vector<int>{1, 2})) << "as it was read";
  v *= 2;
  EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{22, 24, 13}));
  EXPECT_EQ(v.to_vector<int>(), (std::vector<int>{22, 24}));
}

TEST(Views, StayWhenTheyWereRead) {
  Tensor t = Tensor{{1, 2}, {3, 4}}.realize();
  Tensor v = t[1].realize();
  EXPECT_EQ(v.to_vector<int>(), (std::vector<int>{3, 4}));
  v += 1;
  v += 1;
  EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{1, 2, 5, 6}));
  EXPECT_EQ(v.to_vector<int>(), (std::vector<int>{5, 6}));
}

TEST(Views, BecomeVariablesByPlainAssignment) {
  Tensor t = Tensor{{1, 2}, {3, 4}};
  Tensor v = t[0];
  v = Tensor{8, 9};
  EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{1, 2, 3, 4}));
  v += 1;
  EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{1, 2, 3, 4}));
  t[0] = t[1] = v;
  EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{9, 10, 9, 10}));
}

TEST(Views, ByIndexTensorsAreCopiesOnceTheyHaveAName) {
  Tensor t = Tensor{1, 2, 3};
  Tensor v = t[Tensor{2, 0}], w = v[Slice(0, 1)], u = t[Tensor{1, 1}].reshape({2, 1});
  v += 1;
  w += 1;
  u += 1;
  EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(v.to_vector<int>(), (std::vector<int>{5, 2}));
  t[Tensor{1, 1}] += 1;  // once, as each place gets one value
  EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{1, 3, 3}));
}

TEST(Views, OfParametersAndWhatBecomesOne) {
  Tensor t = Tensor{{1.0, 2.0}, {3.0, 4.0}};
  Tensor v = t[0].is_param_();
  v += 1;  // has a storage of its own
  EXPECT_EQ(t.to_vector<float>(), (Floats{1, 2, 3, 4}));
  EXPECT_EQ(v.to_vector<float>(), (Floats{2, 3}));
  Tensor w = t[1];
  w.replace(Tensor{7.0, 8.0});
  w += 1;
  EXPECT_EQ(t.to_vector<float>(), (Floats{1, 2, 3, 4}));
}

// Values that nothing else names: equal ones are not written along.
TEST(Views, OfConstants) {
  Tensor a = Tensor::zeros({3}), b = Tensor::zeros({3});
  a[1] = 4;
  b.T() += 1;
  EXPECT_EQ(a.to_vector<float>(), (Floats{0, 4, 0}));
  EXPECT_EQ(b.to_vector<float>(), (Floats{1, 1, 1}));
}

TEST(Views, OfBits) {
  Tensor t = Tensor{1.0, -2.0, 3.0};
  t.bitcast(DType::U32)[1] &= 0x7fffffff;
  EXPECT_EQ(t.to_vector<float>(), (Floats{1, 2, 3}));
  Tensor bytes = t.bitcast(DType::U8);
  bytes[11] = 0xc0;  // the sign of the last one
  EXPECT_EQ(t.to_vector<float>(), (Floats{1, 2, -3}));
  Tensor u = Tensor{5, 0, 7}.cast(DType::U8);
  u.bitcast(DType::Bool)[1] = true;
  EXPECT_EQ(u.to_vector<int>(), (std::vector<int>{5, 1, 7}));
}

TEST(Views, InFunctionsAreTheCallers) {
  Tensor t = Tensor{{1, 2}, {3, 4}};
  auto add_one = [](Tensor x) { x += 1; };
  add_one(t[1]);
  auto weight = [&] { return t; };
  weight()[{0, 0}] = 9;
  weight() *= 2;
  EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{18, 4, 8, 10}));
  weight() = Tensor{{1, 1}, {1, 1}};
  EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{1, 1, 1, 1}));
}

TEST(Views, AsArgumentsOfASteps) {
  Tensor t = Tensor{{1, 2}, {3, 4}}.realize();
  Jit step = [](const Tensor& x) { x += 1; };
  Tensor v = t[1];
  step(t[0]);
  step(v);
  step(t[0]);
  step(v);
  EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{3, 4, 5, 6}));
  EXPECT_EQ(v.to_vector<int>(), (std::vector<int>{5, 6}));
}

TEST(Views, FromBeforeAStep) {
  Tensor t = Tensor{{1, 2}, {3, 4}}.realize();
  Tensor v = t[1], other = t[1];
  Jit step = [&] { v += 1; };
  for (int k = 1; k < 4; ++k) {
    step();
    EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{1, 2, 3 + k, 4 + k}));
    EXPECT_EQ(v.to_vector<int>(), (std::vector<int>{3 + k, 4 + k}));
  }
  EXPECT_EQ(other.to_vector<int>(), (std::vector<int>{3, 4}));
  v *= 2;  // outside, which the step sees
  t[0] = 0;
  step();
  EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{0, 0, 13, 15}));
  EXPECT_EQ(v.to_vector<int>(), (std::vector<int>{13, 15}));
}

TEST(Views, CarryGradients) {
  Tensor w = Tensor{2.0, 3.0}.is_param_(), x = Tensor{{1.0, 1.0}, {5.0, 7.0}};
  Tensor h = x * 1;
  h[0] = w;
  h[1] *= w;
  (h * h).sum().backward();  // w^2 + (x w)^2
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{2 * 2 + 2 * 25 * 2, 2 * 3 + 2 * 49 * 3}));
}

// --- what cannot be written to -------------------------------------------------------------------

std::string refused(const std::function<void()>& statement) {
  return test::message_of<UserError>(statement);
}
#define EXPECT_REFUSED(statement, text)                                                     \
  do {                                                                                      \
    const std::string message = refused([&] { statement; });                                \
    EXPECT_NE(message.find(text), std::string::npos) << #statement << ": " << message;      \
    EXPECT_NE(message.find("writes_test.cpp"), std::string::npos) << #statement << message; \
  } while (false)

TEST(Refused, AreWritesThatNobodyWouldSee) {
  const Tensor a = Tensor{{1, 2}, {3, 4}}, b = Tensor{{1, 1}, {1, 1}};
  const char* unseen = "nobody would see";
  EXPECT_REFUSED((a + b) += 1, "+=: the left side, i32[2, 2], is a value that was computed here");
  EXPECT_REFUSED((a + b)[0] = 5, unseen);
  EXPECT_REFUSED((a + b) = 5, "=: the left side");
  EXPECT_REFUSED((a * 2).T()[0] *= 2, unseen);
  EXPECT_REFUSED((a * 2).reshape(4)[{Slice(0, 2)}] = b[0], unseen);
  EXPECT_REFUSED((a * 2)[0].setitem({0}, 1), unseen);
  EXPECT_REFUSED((a * 2).detach() /= 1, unseen);
  EXPECT_REFUSED(a.cast(DType::F32) += 1, unseen);
  EXPECT_REFUSED(a.contiguous()[0] = 1, unseen);
  EXPECT_REFUSED(a.clone()[0] = 1, unseen);
  EXPECT_REFUSED(Tensor::zeros({2})[0] = 1, unseen);
  EXPECT_REFUSED(a.pad({{0, 1}, {0, 0}})[0] = 1, unseen);
  Jit step = [&](const Tensor& x) { (x * 2)[0] = 1; };
  EXPECT_REFUSED(step(a), unseen);
  EXPECT_EQ(a.to_vector<int>(), (std::vector<int>{1, 2, 3, 4}));
}

TEST(Refused, AreRepeatedElements) {
  const Tensor t = Tensor{1.0, 2.0, 3.0, 4.0}.realize();
  const char* repeated = "shows an element of its tensor at several places";
  EXPECT_REFUSED(t.expand({2, 4}) += 1, repeated);
  EXPECT_REFUSED((t.expand({2, 4})[{0, 1}] = 5), repeated);
  EXPECT_REFUSED(t.unfold(0, 2, 1) *= 2, repeated);
  Tensor e = t.unsqueeze(1).expand({4, 2});
  EXPECT_REFUSED(e -= 1, "-=: the left side, of shape [4, 2]");
  EXPECT_REFUSED(e.assign(1), "assign: the left side");
  EXPECT_EQ(t.to_vector<float>(), (Floats{1, 2, 3, 4}));
  t.expand({4}) += 1;  // repeats nothing
  EXPECT_EQ(t.to_vector<float>(), (Floats{2, 3, 4, 5}));
}

TEST(Refused, AreOtherTypesAndShapes) {
  const Tensor t = Tensor{1, 2}, y = Tensor{{1, 2}, {3, 4}, {5, 6}}, f = Tensor{1.0, 2.0};
  EXPECT_REFUSED(t += 0.5, "+=: the left side is i32[2] and stays it, but the result is f32[2]");
  EXPECT_REFUSED(t /= 2, "/=: the left side is i32[2]");
  EXPECT_REFUSED(t -= y, "-=: the left side is i32[2] and stays it, but the result is i32[3, 2]");
  EXPECT_REFUSED(t[0] *= y, "*=: the left side is i32[]");
  EXPECT_REFUSED(t *= y.T()[0], "*=: shapes [2] and [3] do not broadcast");
  EXPECT_REFUSED(f <<= 1, "<<=: needs integers");
  EXPECT_REFUSED(f &= 1, "&=: needs integers");
  EXPECT_REFUSED(t[0] = y, "=: i32[3, 2] does not expand to shape []");
  auto braces = [&] { t[0] = {1, 2}; };
  EXPECT_REFUSED(braces(), "=: i32[2] does not expand to shape []");
  EXPECT_REFUSED(~f, "bitwise_not: needs integers or bools, not f32[2]");
  auto rows = [] { return Tensor{{1, 2}, {3}}; };
  EXPECT_REFUSED(rows(), "tensor: rows of different length");
  EXPECT_EQ(t.to_vector<int>(), (std::vector<int>{1, 2}));
}

// A variable is assigned a tensor, and nothing else.
template <class T, class V>
concept Assigns = requires(T t, V v) { std::forward<T>(t) = v; };
static_assert(!Assigns<Tensor&, int> && !Assigns<const Tensor&, Tensor>);
static_assert(Assigns<Tensor&, Tensor> && Assigns<Tensor, Tensor> && Assigns<Tensor, double>);
template <class T>
concept AddsTo = requires(T t, Tensor x) { t += x; };
static_assert(AddsTo<Tensor> && !AddsTo<int> && !AddsTo<Variable>);

// --- operators -----------------------------------------------------------------------------------

TEST(Operators, HaveACompoundEach) {
  using Int = std::vector<int>;
  Tensor t = Tensor{7, -7, 12, 5};
  t %= 4;
  EXPECT_EQ(t.to_vector<int>(), (Int{3, 1, 0, 1}));
  t <<= Tensor{1, 2, 3, 4};
  EXPECT_EQ(t.to_vector<int>(), (Int{6, 4, 0, 16}));
  t |= 1;
  EXPECT_EQ(t.to_vector<int>(), (Int{7, 5, 1, 17}));
  t &= 6;
  EXPECT_EQ(t.to_vector<int>(), (Int{6, 4, 0, 0}));
  t ^= 5;
  EXPECT_EQ(t.to_vector<int>(), (Int{3, 1, 5, 5}));
  t >>= 1;
  EXPECT_EQ(t.to_vector<int>(), (Int{1, 0, 2, 2}));
  t[Slice(2, 4)] <<= 3;
  EXPECT_EQ(t.to_vector<int>(), (Int{1, 0, 16, 16}));
  EXPECT_EQ((2 << Tensor{0, 1, 2}).to_vector<int>(), (Int{2, 4, 8}));
  EXPECT_EQ((256 >> Tensor{0, 1, 2}).to_vector<int>(), (Int{256, 128, 64}));
  EXPECT_EQ((7 % Tensor{2, 4}).to_vector<int>(), (Int{1, 3}));
  EXPECT_EQ((6 & Tensor{2, 4}).to_vector<int>(), (Int{2, 4}));
  Tensor b = Tensor{true, false};
  b ^= true;
  EXPECT_EQ(b.to_vector<int>(), (Int{0, 1}));
}

TEST(Lists, NeedNoBraces) {
  const Tensor t = Tensor::arange(6);
  EXPECT_EQ(t.reshape(2, 3).shape(), (Dims{2, 3}));
  EXPECT_EQ(t.view(3, -1).shape(), (Dims{3, 2}));
  EXPECT_EQ(t.reshape(1, 2, 3).permute(2, 0, 1).shape(), (Dims{3, 1, 2}));
  EXPECT_EQ(t.reshape(2, 3).flip(0, 1).to_vector<int>(), (std::vector<int>{5, 4, 3, 2, 1, 0}));
  EXPECT_EQ(t.expand(2, -1).shape(), (Dims{2, 6}));
  EXPECT_EQ(t.repeat(2, 3).shape(), (Dims{2, 18}));
  EXPECT_EQ(Tensor::zeros(2, 3, 4).shape(), (Dims{2, 3, 4}));
  EXPECT_EQ(Tensor::randn(2, 3).shape(), (Dims{2, 3}));
  EXPECT_REFUSED(t.reshape(4, 2), "reshape: ");
  Tensor w = t.clone();
  w.reshape(2, 3)[1] = 0;
  EXPECT_EQ(w.to_vector<int>(), (std::vector<int>{0, 1, 2, 0, 0, 0}));
}

TEST(Writes, ToNoTensorAreErrors) {
  Tensor none;
  const Tensor one = Tensor::ones({1});
  EXPECT_THROW(none += 1, UserError);
  EXPECT_THROW(none *= one, UserError);
  EXPECT_THROW(none.assign(one), UserError);
  EXPECT_THROW(none[0] = 1, UserError);
  EXPECT_THROW(Tensor() -= one, UserError);
}

}  // namespace
}  // namespace tinyshard::writes_test
