// Loading into models on any mesh: values against bytes that the test wrote itself, and how much a
// process reads for them.
#include <array>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include "core/base/file.h"
#include "core/exec/context.h"
#include "core/nn/nn.h"
#include "core/tensor/jit.h"
#include "core/tensor/random.h"
#include "io/safetensors.h"
#include "tests/devices.h"
#include "tests/io/temp_folder.h"
#include "tests/message_of.h"

namespace tinyshard::load_test {
namespace {

std::vector<float> counted(int64_t n, float from) {
  std::vector<float> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), from);
  return values;
}

// Bytes that read() and pread() brought this process since it began.
int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string name;
  int64_t value = 0;
  file >> name >> value;
  return value;
}

class Load : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name,
                              const std::vector<std::pair<std::string, Dims>>& tensors) {
    std::vector<std::vector<float>> values;
    std::vector<io::TensorView> views;
    float from = 0;
    for (const auto& [key, shape] : tensors) {
      values.push_back(counted(product(shape), from += 1000));
      views.push_back({key, DType::F32, shape, std::as_bytes(std::span(values.back()))});
    }
    io::write_safetensors(folder_ / name, views);
    return folder_ / name;
  }
  test::TempFolder folder_;
};

struct Place {
  std::vector<MeshAxis> axes;
  std::vector<AxisPlacement> placements;
};
const std::vector<Place> kPlaces = {
    {{{"a", 1}}, {{"a", Shard(0)}}},
    {{{"a", 3}}, {{"a", Shard(0)}}},
    {{{"a", 3}}, {{"a", Shard(1)}}},
    {{{"a", 4}}, {{"a", Shard(0)}}},
    {{{"a", 4}}, {{"a", Shard(1)}}},
    {{{"a", 4}}, {}},
    {{{"a", 2}, {"b", 2}}, {{"a", Shard(0)}, {"b", Shard(1)}}},
    {{{"a", 2}, {"b", 2}}, {{"a", Shard(1)}, {"b", Shard(0)}}},
    {{{"a", 2}, {"b", 2}}, {{"a", Shard(0)}, {"b", Shard(0)}}},
    {{{"a", 2}, {"b", 2}}, {{"b", Shard(1)}}},
};
Mesh mesh_of(const Place& place) {
  std::vector<DeviceRef> devices;
  int64_t count = 1;
  for (const MeshAxis& axis : place.axes) count *= axis.size;
  for (int i = 0; i < count; ++i) devices.push_back(parse_device(device_name(i)));
  return Mesh(place.axes, devices);
}

TEST_F(Load, EachDeviceGetsItsPartOnAnyMesh) {
  TINYSHARD_NEED_DEVICES(4);
  for (const Dims& shape :
       {Dims{8, 12}, Dims{5, 7}, Dims{1, 3}, Dims{0, 4}, Dims{5, 6, 3}, Dims{3000, 5}}) {
    const auto path = write("w.safetensors", {{"w", shape}});
    const std::vector<float> expected = counted(product(shape), 1000);
    const std::vector<double> wide(expected.begin(), expected.end());
    for (const Place& place : kPlaces) {
      const Mesh mesh = mesh_of(place);
      for (bool realized : {false, true}) {
        Tensor w = Tensor::zeros(shape).shard(mesh, place.placements);
        Tensor d = Tensor::zeros(shape, DType::F64).shard(mesh, place.placements);
        if (realized) Tensor::realize({w, d});
        const std::string where = w.sharding().to_string();
        nn::load({{"w", w}}, safe_load(path));
        EXPECT_EQ(w.sharding().to_string(), where);
        EXPECT_EQ(w.to_vector<float>(), expected) << where << realized;
        nn::load({{"w", d}}, safe_load(path));
        EXPECT_EQ(d.to_vector<double>(), wide) << where << realized;
        EXPECT_EQ((w + d).sum().item<double>(), 2 * std::reduce(wide.begin(), wide.end()));
      }
    }
  }
}

TEST_F(Load, CheckpointsComeBackOnOtherMeshes) {
  TINYSHARD_NEED_DEVICES(4);
  for (const Dims& shape : {Dims{8, 12}, Dims{5, 7}, Dims{0, 4}}) {
    const std::vector<float> expected = counted(product(shape), 7);
    for (const Place& from : kPlaces) {
      const auto root = folder_ / "run";
      std::filesystem::remove_all(root);
      nn::save_checkpoint(
          {{"w", Tensor(expected, shape).shard(mesh_of(from), from.placements).realize()}}, root,
          1);
      for (const Place& to : kPlaces) {
        const Tensor w = Tensor::zeros(shape).shard(mesh_of(to), to.placements);
        const Tensor h = Tensor::zeros(shape, DType::F64).shard(mesh_of(to), to.placements);
        nn::load_checkpoint({{"w", w}}, root);
        nn::load_checkpoint({{"w", h}}, root, {.check_digests = false});
        EXPECT_EQ(w.to_vector<float>(), expected) << w.sharding().to_string();
        EXPECT_EQ(h.to_vector<float>(), expected) << h.sharding().to_string();
      }
    }
  }
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The same bytes, whatever the mesh: those of a writer that has the tensors whole.
TEST_F(Load, SavedFilesAreTheSameFromAnyMesh) {
  TINYSHARD_NEED_DEVICES(4);
  for (const Place& place : kPlaces) {
    nn::StateDict dict;
    std::vector<std::vector<float>> values;
    std::vector<io::TensorView> views;
    for (const Dims& shape : {Dims{8, 12}, Dims{5, 7}, Dims{1, 3}, Dims{0, 4}, Dims{5, 6, 3}}) {
      values.push_back(counted(product(shape), float(values.size())));
      const std::string name = "w" + std::to_string(values.size());
      dict.emplace(name, Tensor(values.back(), shape).shard(mesh_of(place), place.placements));
      views.push_back({name, DType::F32, shape, std::as_bytes(std::span(values.back()))});
    }
    const std::vector<double> one{0.5};
    dict.emplace("x", Tensor(one, Dims{}));
    views.push_back({"x", DType::F64, {}, std::as_bytes(std::span(one))});
    safe_save(dict, folder_ / "out.safetensors", {{"a", "b"}});
    io::write_safetensors(folder_ / "plain.safetensors", views, {{"a", "b"}});
    EXPECT_EQ(text_of(folder_ / "out.safetensors"), text_of(folder_ / "plain.safetensors"));
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    EXPECT_EQ(entry.path().extension(), ".safetensors");
}

TEST_F(Load, FoldersHoldShardsAndAnIndex) {
  const auto path = folder_ / "model";
  nn::StateDict dict;
  for (int i = 0; i < 5; ++i) dict.emplace(std::to_string(i), Tensor::full({10}, float(i)));
  for (const auto& [bytes, files] : {std::pair{100, 3}, {1000, 1}, {1, 5}}) {
    std::filesystem::remove_all(path);
    for (int twice = 0; twice < 2; ++twice)
      safe_save(dict, path, {{"kind", "test"}}, {.shard_bytes = uint64_t(bytes)});
    int found = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      found += entry.path().extension() == ".safetensors";
    EXPECT_EQ(found, files);
    EXPECT_EQ(safe_load_metadata(path).at("kind"), "test");
    EXPECT_EQ(safe_load_metadata(path).at("total_size"), "200");
    const nn::StateDict back = safe_load(path);
    ASSERT_EQ(back.size(), 5u);
    for (const auto& [name, t] : dict)
      EXPECT_EQ(back.at(name).to_vector<float>(), t.to_vector<float>());
  }
}

TEST_F(Load, AnIndexThatCannotBeWrittenIsAUserError) {
  const auto path = folder_ / "model";
  std::filesystem::create_directories(path / "model.safetensors.index.json" / "something");
  const std::string text =
      test::message_of<UserError>([&] { safe_save({{"w", Tensor({1.0})}}, path); });
  EXPECT_NE(text.find("model.safetensors.index.json: Is a directory"), std::string::npos) << text;
  EXPECT_FALSE(std::filesystem::exists(path / "model-00001-of-00001.safetensors"));
}

TEST_F(Load, AFailedSaveLeavesWhatWasThere) {
  const auto path = folder_ / "w.safetensors";
  safe_save({{"w", Tensor({1.0})}}, path);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little{1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  const std::string text = test::message_of<UserError>(
      [&] { safe_save({{"w", Tensor::zeros(1 << 20).clone()}}, path); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(text.find(path.native()), std::string::npos) << text;
  EXPECT_EQ(safe_load(path).at("w").item<float>(), 1);
  const std::filesystem::directory_iterator entries(folder_.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

// A process reads what its devices hold, and each box once.
TEST_F(Load, ReadsOwnBytesOnly) {
  if (device_kind() != "CPU") GTEST_SKIP() << "counts the reads of processes with CPU devices";
  const auto path = write("w.safetensors", {{"a", {4096, 1024}}, {"b", {1024, 4096}}});
  const Mesh mesh = Mesh::of(device_names(4), "x");
  const Tensor first = Tensor::empty({4096, 1024}).shard(Mesh::of({device_name(0)}, "x"));
  const Tensor copies = Tensor::empty({1024, 4096}).shard(mesh);
  const Tensor columns = Tensor::empty({1024, 4096}).shard(mesh, {{"x", Shard(1)}});
  const nn::StateDict dict = safe_load(path);
  for (const auto& [tensor, name] :
       {std::pair{first, "a"}, std::pair{copies, "b"}, std::pair{columns, "b"}}) {
    const int64_t before = bytes_read();
    nn::load({{"w", tensor}}, {{"w", dict.at(name)}});
    const int64_t read = bytes_read() - before;
    EXPECT_GE(read, 16 << 20);
    EXPECT_LE(read, (16 << 20) + (160 << 10)) << name;
  }
}

TEST_F(Load, TellsHowFarItIs) {
  const auto path = write("w.safetensors", {{"a", {1024, 1024}}, {"b", {10}}, {"c", {7}}});
  std::vector<std::array<int64_t, 2>> told;
  nn::load({{"a", Tensor::zeros({1024, 1024}).clone()},
            {"b", Tensor::zeros(10, DType::F64).clone()},
            {"c", Tensor::zeros(7).clone()}},
           {{"a", safe_load(path).at("a")},
            {"b", safe_load(path).at("b")},
            {"c", safe_load(path).at("c") * 2}},
           {.progress = [&](int64_t done, int64_t total) { told.push_back({done, total}); }});
  ASSERT_FALSE(told.empty());
  for (size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i][1], (1 << 22) + 40 + 28);
    EXPECT_GE(told[i][0], told[i > 0 ? i - 1 : 0][0]);
  }
  EXPECT_EQ(told.back()[0], told.back()[1]);
}

TEST_F(Load, WhoNeedsTheOldValueKeepsIt) {
  const auto path = write("w.safetensors", {{"w", {4}}});
  Tensor w = Tensor({1.0, 2.0, 3.0, 4.0}).clone().realize();
  const Tensor doubled = w * 2, same = w.detach(), copy = w;
  nn::load({{"w", w}}, safe_load(path));
  EXPECT_EQ(doubled.to_vector<int>(), (std::vector{2, 4, 6, 8}));
  EXPECT_EQ(same.to_vector<int>(), (std::vector{1, 2, 3, 4}));
  EXPECT_EQ(w.to_vector<int>(), (std::vector{1000, 1001, 1002, 1003}));
  EXPECT_EQ(copy.to_vector<int>(), w.to_vector<int>());

  // Values that were never computed, or that wait to be written, can be loaded, too.
  Tensor::manual_seed(3);
  const Tensor drawn = Tensor::rand({4}).is_param_();
  const Tensor plus = drawn + 1;
  Tensor::manual_seed(3);
  const std::vector<float> expected = (Tensor::rand({4}) + 1).to_vector<float>();
  w.assign(w + 5);
  nn::load({{"drawn", drawn}, {"w", w}},
           {{"drawn", safe_load(path).at("w")}, {"w", safe_load(path).at("w")}});
  EXPECT_EQ(plus.to_vector<float>(), expected);
  EXPECT_EQ(drawn.to_vector<int>(), (std::vector{1000, 1001, 1002, 1003}));
  EXPECT_EQ(w.to_vector<int>(), (std::vector{1000, 1001, 1002, 1003}));
  EXPECT_TRUE(drawn.is_param());
}

// Values that are targets themselves, or views of them, are those before the call.
TEST_F(Load, TargetsMayTakeEachOthersValues) {
  const auto path = write("w.safetensors", {{"w", {2}}});
  auto made = [](const std::vector<float>& values) { return Tensor(values).clone().realize(); };
  const Tensor a = made({1, 2}), b = made({3, 4});
  nn::load({{"x", a}, {"y", b}}, {{"x", b}, {"y", a}});
  EXPECT_EQ(a.to_vector<int>(), (std::vector{3, 4}));
  EXPECT_EQ(b.to_vector<int>(), (std::vector{1, 2}));
  // Around, over tensors of other types, one that takes what is in a file and one that stays.
  const Tensor c = made({5, 6}), d = made({7, 8}), e = made({9, 10});
  const Tensor narrow = made({11, 12}).cast(DType::F16).clone().realize();
  nn::load(
      {{"a", a}, {"b", b}, {"c", c}, {"d", d}, {"e", e}, {"narrow", narrow}},
      {{"a", b}, {"b", narrow}, {"c", d}, {"d", safe_load(path).at("w")}, {"e", e}, {"narrow", c}});
  EXPECT_EQ(a.to_vector<int>(), (std::vector{1, 2}));
  EXPECT_EQ(b.to_vector<int>(), (std::vector{11, 12}));
  EXPECT_EQ(c.to_vector<int>(), (std::vector{7, 8}));
  EXPECT_EQ(d.to_vector<int>(), (std::vector{1000, 1001}));
  EXPECT_EQ(e.to_vector<int>(), (std::vector{9, 10}));
  EXPECT_EQ(narrow.to_vector<int>(), (std::vector{5, 6}));
  // Views that overlap, of what is written.
  const Tensor whole = made({1, 2, 3, 4});
  const Tensor low = whole[Slice(0, 3)].clone().realize();
  nn::load({{"low", low}, {"whole", whole}},
           {{"low", whole[Slice(1, 4)]}, {"whole", low.pad({{1, 0}}) + whole.flip({0})}});
  EXPECT_EQ(low.to_vector<int>(), (std::vector{2, 3, 4}));
  EXPECT_EQ(whole.to_vector<int>(), (std::vector{4, 4, 4, 4}));
  // Not computed yet, and waiting to be written.
  const Tensor lazy = made({1, 2}) * 3, waiting = made({7, 7});
  waiting.assign(waiting + 1);
  nn::load({{"x", lazy}, {"y", waiting}}, {{"x", waiting}, {"y", lazy}});
  EXPECT_EQ(lazy.to_vector<int>(), (std::vector{8, 8}));
  EXPECT_EQ(waiting.to_vector<int>(), (std::vector{3, 6}));
}

TEST_F(Load, TargetsOfAMeshTakeEachOthersValues) {
  TINYSHARD_NEED_DEVICES(4);
  const Mesh mesh = mesh_of(kPlaces[6]);
  const Tensor a = Tensor::arange(16).reshape({4, 4}).clone().realize();
  const Tensor b = (a + 16).shard(mesh, kPlaces[6].placements).clone().realize();
  nn::load({{"x", a}, {"y", b}}, {{"x", b}, {"y", a}});
  EXPECT_EQ(a.to_vector<int>(), (Tensor::arange(16) + 16).to_vector<int>());
  EXPECT_EQ(b.to_vector<int>(), Tensor::arange(16).to_vector<int>());
}

TEST_F(Load, CapturedStepsSeeWhatWasLoaded) {
  const auto path = write("w.safetensors", {{"w", {4}}});
  Tensor w = Tensor::zeros(4).clone().realize();
  Jit step([&](const Tensor& x) { return x + w; });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(Tensor::ones(4).clone()).to_vector<int>()[3], 1);
  w.assign(Tensor::full(4, 2.0));
  nn::load({{"w", w}}, safe_load(path));
  EXPECT_EQ(step(Tensor::ones(4).clone()).to_vector<int>(), (std::vector{1001, 1002, 1003, 1004}));
}

TEST_F(Load, NothingIsLoadedInsideOfACapturedStep) {
  const Tensor w = Tensor::zeros(4).clone().realize();
  nn::save_checkpoint({{"w", w}}, folder_ / "checkpoint", 1);
  Jit loads([&](const Tensor& x) {
    nn::load({{"w", w}}, {{"w", Tensor::ones(4)}});
    return x + w;
  });
  Jit restores([&](const Tensor& x) {
    nn::load_checkpoint({{"w", w}}, folder_ / "checkpoint");
    return x + w;
  });
  for (const std::string& text : {test::message_of<UserError>([&] { loads(Tensor::ones(4)); }),
                                  test::message_of<UserError>([&] { restores(Tensor::ones(4)); })})
    EXPECT_NE(text.find("cannot be loaded inside a captured step"), std::string::npos) << text;
  EXPECT_EQ(w.to_vector<int>(), std::vector<int>(4, 0));
}

TEST_F(Load, TwoValuesForOneTensorAreAnError) {
  const auto path = write("w.safetensors", {{"a", {3}}, {"b", {3}}});
  const Tensor tied = Tensor::zeros(3).clone();
  const std::string text =
      test::message_of<UserError>([&] { nn::load({{"a", tied}, {"b", tied}}, safe_load(path)); });
  EXPECT_NE(text.find("a and b are one tensor"), std::string::npos) << text;
  EXPECT_EQ(tied.to_vector<int>(), std::vector<int>(3, 0));
}

TEST_F(Load, AFileThatWasCutIsNamed) {
  const auto path = write("w.safetensors", {{"w", {1 << 20}}});
  const nn::StateDict dict = safe_load(path);
  std::filesystem::resize_file(path, 1 << 20);
  const std::string text =
      test::message_of<IoError>([&] { nn::load({{"w", Tensor::zeros(1 << 20).clone()}}, dict); });
  EXPECT_NE(text.find(path.native()), std::string::npos) << text;
}

}  // namespace
}  // namespace tinyshard::load_test
