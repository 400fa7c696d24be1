// Checkpoints: what is saved on N ranks is read on M, damage is found and named, failures leave the
// last one.
#include "io/checkpoint.h"

#include <barrier>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <mutex>
#include <numeric>
#include <random>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>

#include "io/digest.h"
#include "tests/io/faults.h"
#include "tests/io/temp_folder.h"

namespace tinyshard::io {
namespace {

namespace fs = std::filesystem;
using test::bytes_of;
using test::get;
using test::message_of;
using test::names_in;
using test::put;
using test::TempFolder;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using Shape = std::vector<int64_t>;

int64_t volume(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// A barrier of threads that carries the conjunction of what they bring.
class Together {
 public:
  explicit Together(int ranks) : barrier_(ranks, Fold{this}) {}
  Agree agree() {
    return [this](bool ok) {
      if (!ok) all_ = false;
      barrier_.arrive_and_wait();
      return result_.load();
    };
  }

 private:
  struct Fold {
    Together* self;
    void operator()() noexcept {
      self->result_ = self->all_.load();
      self->all_ = true;
    }
  };
  std::atomic<bool> all_{true}, result_{true};
  std::barrier<Fold> barrier_;
};

// Runs f(rank, options) on a thread per rank; returns what each threw, as text.
template <class F>
std::vector<std::string> on_ranks(int ranks, F f) {
  Together together(ranks);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  threads.reserve(errors.size());
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      errors[static_cast<size_t>(rank)] = message_of<std::exception>([&] {
        f(rank, CheckpointOptions{.rank = rank, .ranks = ranks, .agree = together.agree()});
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// The value of element i of tensor `seed`, for tensors of i32.
std::vector<int32_t> values_of(const Shape& shape, int32_t seed) {
  std::vector<int32_t> values(static_cast<size_t>(volume(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = seed * 1'000'000 + static_cast<int32_t>(i);
  return values;
}

// The box of `values`, an array of `shape`.
std::vector<int32_t> box_of(const std::vector<int32_t>& values, const Shape& shape,
                            const Shape& offset, const Shape& size) {
  std::vector<int32_t> box;
  Shape at(shape.size(), 0);
  for (int64_t n = volume(size); n > 0; --n) {
    int64_t index = 0;
    for (size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + offset[d] + at[d];
    box.push_back(values[static_cast<size_t>(index)]);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < size[d]) break;
      at[d] = 0;
    }
  }
  return box;
}

std::vector<int32_t> read_box(const Checkpoint& checkpoint, std::string_view name,
                              const Shape& offset, const Shape& size) {
  std::vector<int32_t> out(static_cast<size_t>(volume(size)), -1);
  checkpoint.read_slice(name, offset, size, std::as_writable_bytes(std::span(out)));
  return out;
}

// A small save of one rank, for tests of what happens to it afterwards.
fs::path save_small(const fs::path& root, int64_t step, int keep = 3) {
  const auto a = values_of({4, 6}, static_cast<int32_t>(step));
  const auto b = values_of({5}, static_cast<int32_t>(step) + 100);
  CheckpointWriter writer(root, step, {.keep = keep});
  writer.add({"a", DType::I32, {4, 6}, bytes_of(a)});
  writer.add({"b", DType::I32, {5}, bytes_of(b)});
  return writer.commit({{"config", "{\"layers\":4}"}});
}

void expect_small(const Checkpoint& checkpoint, int64_t step) {
  EXPECT_EQ(checkpoint.step(), step);
  EXPECT_EQ(read_box(checkpoint, "a", {0, 0}, {4, 6}),
            values_of({4, 6}, static_cast<int32_t>(step)));
  EXPECT_EQ(read_box(checkpoint, "b", {0}, {5}), values_of({5}, static_cast<int32_t>(step) + 100));
}

TEST(Checkpoint, OneRankRoundTrip) {
  const TempFolder folder;
  const std::vector<uint8_t> bools = {1, 0, 1};
  const std::vector<double> scalar = {2.5};
  const auto a = values_of({4, 6}, 1);
  CheckpointWriter writer(folder / "deep" / "root", 1234);
  writer.add({"a", DType::I32, {4, 6}, bytes_of(a)});
  writer.add({"mask \u00e9", DType::Bool, {3}, bytes_of(bools)});
  writer.add({"lr", DType::F64, {}, bytes_of(scalar)});
  writer.add({"empty", DType::F32, {0, 7}, {}});
  const fs::path path = writer.commit({{"config", "{\"layers\":4}"}, {"rng", "1 2 3"}});
  EXPECT_EQ(path, folder / "deep" / "root" / "step-00001234");
  EXPECT_THAT(names_in(path), ElementsAre("manifest.json", "model.safetensors.index.json",
                                          "part-00000-of-00001.safetensors"));
  EXPECT_THAT(names_in(path.parent_path()), ElementsAre(".tinyshard-lock", "step-00001234"));

  const Checkpoint checkpoint = Checkpoint::find(folder / "deep" / "root", {.check_all = true});
  EXPECT_EQ(checkpoint.path(), path);
  EXPECT_EQ(checkpoint.step(), 1234);
  EXPECT_EQ(checkpoint.metadata(), (Metadata{{"config", "{\"layers\":4}"}, {"rng", "1 2 3"}}));
  EXPECT_EQ(checkpoint.tensors().size(), 4u);
  EXPECT_EQ(read_box(checkpoint, "a", {0, 0}, {4, 6}), a);
  double lr = 0;
  checkpoint.read("lr", std::as_writable_bytes(std::span(&lr, 1)));
  EXPECT_EQ(lr, 2.5);
  EXPECT_EQ(checkpoint.tensor("empty").shape, (Shape{0, 7}));
  checkpoint.read("empty", {});
  EXPECT_EQ(checkpoint.tensor("mask \u00e9").dtype, DType::Bool);
  // Other tools see plain safetensors.
  const SafetensorsSet set(path);
  EXPECT_EQ(set.tensors().size(), 4u);
  EXPECT_TRUE(std::ranges::equal(set.at("a").bytes, bytes_of(a)));
}

TEST(Checkpoint, WhatEveryRankHoldsIsWrittenOnceAndSpread) {
  const TempFolder folder;
  constexpr int kRanks = 3;
  const auto errors = on_ranks(kRanks, [&](int, const CheckpointOptions& options) {
    std::vector<std::vector<int32_t>> values;
    values.reserve(6);
    for (int t = 0; t < 6; ++t) values.push_back(values_of({100}, t));
    CheckpointWriter writer(folder.path(), 7, options);
    for (int t = 0; t < 6; ++t) {
      writer.add(
          {"t" + std::to_string(t), DType::I32, {100}, bytes_of(values[static_cast<size_t>(t)])});
    }
    EXPECT_EQ(writer.commit(), folder / "step-00000007");
  });
  EXPECT_THAT(errors, testing::Each(""));
  const Checkpoint checkpoint(folder / "step-00000007", {.check_all = true});
  ASSERT_EQ(checkpoint.parts().size(), 3u);
  std::vector<int> tensors_in(3);
  for (int t = 0; t < 6; ++t) {
    const auto& tensor = checkpoint.tensor("t" + std::to_string(t));
    ASSERT_EQ(tensor.slices.size(), 1u);
    ++tensors_in[tensor.slices[0].part];
    EXPECT_EQ(read_box(checkpoint, tensor.name, {0}, {100}), values_of({100}, t));
  }
  EXPECT_THAT(tensors_in, ElementsAre(2, 2, 2));
  EXPECT_EQ(SafetensorsSet(folder / "step-00000007").tensors().size(), 6u);
}

// Cuts [0, size) into `parts` pieces; some are empty.
std::vector<int64_t> cuts(std::mt19937& random, int64_t size, int parts) {
  std::vector<int64_t> at = {0, size};
  for (int i = 1; i < parts; ++i) {
    at.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(size + 1)));
  }
  std::sort(at.begin(), at.end());
  return at;
}

// Saved on N ranks as a grid of uneven, perhaps empty shards, read back as random boxes.
TEST(Checkpoint, AnyBoxOfAnyGridOfShards) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 60; ++trial) {
    const TempFolder folder;
    const int ranks = 1 + static_cast<int>(random() % 4);
    Shape shape(random() % 5);
    // Some tensors are larger than the reader's window.
    for (int64_t& dim : shape) {
      dim = 1 + static_cast<int64_t>(random() % (trial % 10 == 0 && shape.size() < 3 ? 900 : 9));
    }
    const auto values = values_of(shape, trial);
    // Shards are products of cuts of each dimension; shard i belongs to rank i % ranks.
    std::vector<std::pair<Shape, Shape>> shards = {{{}, {}}};
    for (int64_t dim : shape) {
      const auto at = cuts(random, dim, 1 + static_cast<int>(random() % 3));
      std::vector<std::pair<Shape, Shape>> next;
      for (const auto& [offset, size] : shards) {
        for (size_t i = 0; i + 1 < at.size(); ++i) {
          next.push_back({offset, size});
          next.back().first.push_back(at[i]);
          next.back().second.push_back(at[i + 1] - at[i]);
        }
      }
      shards = std::move(next);
    }
    const auto errors = on_ranks(ranks, [&](int rank, const CheckpointOptions& options) {
      std::vector<std::vector<int32_t>> held;
      CheckpointWriter writer(folder.path(), trial, options);
      held.reserve(shards.size());
      for (size_t i = 0; i < shards.size(); ++i) {
        if (static_cast<int>(i) % ranks != rank) continue;
        held.push_back(box_of(values, shape, shards[i].first, shards[i].second));
        writer.add_slice({"x", DType::I32, shards[i].second, bytes_of(held.back())}, shape,
                         shards[i].first);
      }
      writer.commit();
    });
    ASSERT_THAT(errors, testing::Each(""));
    for (const bool check : {true, false}) {
      const Checkpoint checkpoint(Checkpoint::find(folder.path()).path(), {.check_digests = check});
      for (int box = 0; box < 8; ++box) {
        Shape offset, size;
        for (int64_t dim : shape) {
          const auto at = cuts(random, dim, box == 0 ? 1 : 3);
          offset.push_back(at[at.size() / 2 - 1]);
          size.push_back(at[at.size() / 2] - offset.back());
        }
        EXPECT_EQ(read_box(checkpoint, "x", offset, size), box_of(values, shape, offset, size));
      }
    }
  }
}

TEST(Checkpoint, EqualPiecesAreKeptOnce) {
  const TempFolder folder;
  const auto errors = on_ranks(4, [&](int rank, const CheckpointOptions& options) {
    const int64_t half = rank % 2;  // replicated over two groups
    const auto values = values_of({10}, static_cast<int32_t>(half));
    CheckpointWriter writer(folder.path(), 1, options);
    writer.add_slice({"x", DType::I32, {10}, bytes_of(values)}, {20}, {10 * half});
    writer.commit();
  });
  EXPECT_THAT(errors, testing::Each(""));
  const Checkpoint checkpoint(folder / "step-00000001", {.check_all = true});
  EXPECT_EQ(checkpoint.tensor("x").slices.size(), 2u);
  EXPECT_EQ(read_box(checkpoint, "x", {10}, {10}), values_of({10}, 1));
  EXPECT_FALSE(fs::exists(folder / "step-00000001" / "model.safetensors.index.json"));
}

// Saves pieces of "x", one a rank, of shape {size} at {offset}; returns rank 0's error.
std::string save_pieces(const fs::path& root, std::vector<std::pair<int64_t, int64_t>> pieces,
                        int64_t total, bool other_dtype = false) {
  const auto errors =
      on_ranks(static_cast<int>(pieces.size()), [&](int rank, const CheckpointOptions& options) {
        const auto [offset, size] = pieces[static_cast<size_t>(rank)];
        const std::vector<int32_t> values(static_cast<size_t>(size));
        CheckpointWriter writer(root, 1, options);
        writer.add_slice(
            {"x", other_dtype && rank == 1 ? DType::F32 : DType::I32, {size}, bytes_of(values)},
            {total}, {offset});
        writer.commit();
      });
  for (size_t rank = 1; rank < errors.size(); ++rank) {
    EXPECT_EQ(errors[rank].empty(), errors[0].empty()) << errors[rank];
    if (!errors[0].empty()) {
      EXPECT_THAT(errors[rank], HasSubstr("another rank could not write its part"));
    }
  }
  EXPECT_TRUE(list_checkpoints(root).empty() || errors[0].empty());
  return errors[0];
}

TEST(Checkpoint, PiecesMustTileTheTensor) {
  const TempFolder folder;
  const auto save = [&](std::vector<std::pair<int64_t, int64_t>> pieces, bool other = false) {
    return save_pieces(folder.path(), std::move(pieces), 10, other);
  };
  EXPECT_THAT(save({{0, 5}, {6, 4}}),
              HasSubstr("tensor \"x\" of shape [10]: the slices cover 36 of 40 bytes"));
  EXPECT_THAT(save({{0, 6}, {5, 5}}), HasSubstr("slices [0:6] and [5:10] overlap"));
  EXPECT_THAT(save({{0, 6}, {6, 5}}), HasSubstr("slice [6:11] does not lie inside"));
  EXPECT_THAT(save({{-1, 6}, {5, 5}}), HasSubstr("slice [-1:5] does not lie inside"));
  EXPECT_THAT(save({{0, 5}, {5, 5}}, true),
              HasSubstr("tensor \"x\" is i32 [10] on one rank and f32 [10] on rank 1"));
  EXPECT_EQ(save({{0, 5}, {5, 5}}), "");
  EXPECT_THAT(names_in(folder.path()), ElementsAre(".tinyshard-lock", "step-00000001"));
}

TEST(Checkpoint, ArgumentsAreChecked) {
  const TempFolder folder;
  const std::vector<int32_t> values(4);
  const auto made = [&](int64_t step, CheckpointOptions options) {
    return message_of<UserError>(
        [&] { CheckpointWriter writer(folder.path(), step, std::move(options)); });
  };
  EXPECT_THAT(made(-1, {}), HasSubstr("step -1 is negative"));
  EXPECT_THAT(made(1, {.rank = 2, .ranks = 2}), HasSubstr("rank 2 of 2 ranks"));
  EXPECT_THAT(made(1, {.ranks = 2}), HasSubstr("2 ranks need `agree`"));
  EXPECT_THAT(made(1, {.keep = 0}), HasSubstr("keep is 0"));
  EXPECT_THAT(made(1, {.job = "../x"}), HasSubstr("the job \"../x\""));
  CheckpointWriter writer(folder.path(), 1);
  writer.add({"a", DType::I32, {4}, bytes_of(values)});
  EXPECT_THAT(message_of<UserError>([&] { writer.add({"a", DType::I32, {4}, bytes_of(values)}); }),
              HasSubstr("\"a\" is added twice"));
  EXPECT_THAT(message_of<UserError>(
                  [&] { writer.add_slice({"b", DType::I32, {4}, bytes_of(values)}, {4, 1}, {0}); }),
              HasSubstr("tensor \"b\": a slice of shape [4] at [0] of a tensor of shape [4, 1]"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Checkpoint, AnUnwritableRootIsAnErrorInAdvance) {
  const TempFolder folder;
  check_checkpoint_root(folder / "new" / "root");
  EXPECT_TRUE(fs::is_empty(folder / "new" / "root"));
  put(folder / "file", "x");
  const auto error = [](const fs::path& root) {
    return message_of<IoError>([&] { check_checkpoint_root(root); });
  };
  EXPECT_THAT(error(folder / "file"), HasSubstr((folder / "file").native()));
  EXPECT_THAT(error(folder / "file" / "root"), HasSubstr("Not a directory"));
  fs::create_symlink(folder / "gone", folder / "link");
  for (const fs::path& root : {folder / "link", folder / "link" / "root"}) {
    EXPECT_THAT(error(root), HasSubstr((folder / "link").native() + " is a link to " +
                                       (folder / "gone").native() + ", which does not exist"));
  }
  EXPECT_THAT(error("/proc/self/root-of-checkpoints"), HasSubstr("/proc/self/root-of-checkpoints"));
  // The save says it, too.
  EXPECT_THAT(message_of<IoError>([&] { save_small(folder / "file", 1); }),
              HasSubstr((folder / "file").native()));
}

TEST(Checkpoint, ReadsAreChecked) {
  const TempFolder folder;
  const Checkpoint checkpoint(save_small(folder.path(), 1));
  std::vector<std::byte> out(96);
  const auto error = [&](std::string_view name, Shape offset, Shape shape, size_t bytes) {
    return message_of<UserError>(
        [&] { checkpoint.read_slice(name, offset, shape, std::span(out).first(bytes)); });
  };
  EXPECT_EQ(error("a", {0, 0}, {4, 6}, 96), "");
  EXPECT_EQ(error("a", {4, 6}, {0, 0}, 0), "");
  EXPECT_THAT(error("c", {0}, {1}, 4), HasSubstr("has no tensor \"c\" (2 tensors"));
  EXPECT_THAT(
      error("a", {0}, {4}, 16),
      HasSubstr("tensor \"a\" of shape [4, 6]: a box of shape [4] at [0] has other dimensions"));
  EXPECT_THAT(error("a", {1, 0}, {4, 6}, 96),
              HasSubstr("a box of shape [4, 6] at [1, 0] does not lie inside"));
  EXPECT_THAT(error("a", {-1, 0}, {1, 6}, 24), HasSubstr("does not lie inside"));
  EXPECT_THAT(error("a", {0, 0}, {INT64_MAX, 6}, 24), HasSubstr("does not lie inside"));
  EXPECT_THAT(error("a", {0, 0}, {4, 6}, 95),
              HasSubstr("a box of shape [4, 6] does not have 95 bytes"));
}

TEST(Checkpoint, FindSaysWhatItMet) {
  const TempFolder folder;
  const auto error = [](const fs::path& path) {
    return message_of<UserError>([&] { Checkpoint::find(path); });
  };
  EXPECT_EQ(error(folder / "none"),
            "no checkpoint: " + (folder / "none").native() + " does not exist");
  put(folder / "file", "x");
  EXPECT_THAT(error(folder / "file"), HasSubstr("is not a folder"));
  EXPECT_THAT(error(folder.path()), HasSubstr("it has no folder step-<number>"));
  EXPECT_FALSE(Checkpoint::latest(folder / "none"));
  EXPECT_FALSE(Checkpoint::latest(folder.path()));
  const fs::path first = save_small(folder / "root", 1);
  save_small(folder / "root", 2);
  EXPECT_EQ(Checkpoint::find(first).step(), 1);
  EXPECT_EQ(Checkpoint::find(first.native() + "/").step(), 1);
  EXPECT_EQ(Checkpoint::find(folder / "root").step(), 2);
  fs::remove(folder / "root" / "step-00000002" / "manifest.json");
  EXPECT_THAT(error(folder / "root" / "step-00000002"), HasSubstr("manifest.json: No such file"));
  fs::remove(first / "part-00000-of-00001.safetensors");
  EXPECT_THAT(error(folder / "root"), testing::AllOf(HasSubstr("step-00000002 is passed over"),
                                                     HasSubstr("step-00000001 is passed over")));
}

TEST(Checkpoint, KeepsTheNewest) {
  const TempFolder folder;
  for (int step = 1; step <= 6; ++step) save_small(folder.path(), step * 10, 2);
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre(".tinyshard-lock", "step-00000050", "step-00000060"));
  // The same step again is a new folder; the older one of that step goes.
  EXPECT_EQ(save_small(folder.path(), 60, 2), folder / "step-00000060-r2");
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre(".tinyshard-lock", "step-00000050", "step-00000060-r2"));
  EXPECT_EQ(save_small(folder.path(), 60, 2), folder / "step-00000060-r3");
  expect_small(Checkpoint::find(folder.path()), 60);
}

TEST(Checkpoint, NeverRemovesTheOnlyGoodOne) {
  const TempFolder folder;
  save_small(folder.path(), 1, 1);
  // A later one that is torn does not count: with keep 1, step 1 has to stay until another is
  // complete.
  fs::create_directory(folder / "step-00000009");
  put(folder / "step-00000009" / "manifest.json", "{");
  std::vector<std::string> warnings;
  const auto values = values_of({1}, 1);
  CheckpointWriter writer(
      folder.path(), 5, {.keep = 1, .warn = [&](std::string_view s) { warnings.emplace_back(s); }});
  writer.add({"a", DType::I32, {1}, bytes_of(values)});
  test::fail_call("rename", 4, EIO);  // part, index, manifest, then the commit
  EXPECT_THROW(writer.commit(), IoError);
  EXPECT_TRUE(test::clear_faults());
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre(".tinyshard-lock", "step-00000001", "step-00000009"));
  writer.commit();
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre(".tinyshard-lock", "step-00000005", "step-00000009"));
  EXPECT_THAT(warnings,
              Contains(HasSubstr("step-00000009 is left, though it is not a complete checkpoint")));
  EXPECT_EQ(Checkpoint::find(folder.path()).step(), 5);
}

TEST(Checkpoint, TheOneJustSavedStaysEvenIfLaterStepsAreThere) {
  const TempFolder folder;
  save_small(folder.path(), 100);
  save_small(folder.path(), 200);
  std::vector<std::string> warnings;
  const auto values = values_of({1}, 1);
  CheckpointWriter writer(folder.path(), 10, {.keep = 1, .warn = [&](std::string_view s) {
                                                warnings.emplace_back(s);
                                              }});
  writer.add({"a", DType::I32, {1}, bytes_of(values)});
  EXPECT_EQ(writer.commit(), folder / "step-00000010");
  EXPECT_TRUE(fs::exists(folder / "step-00000010"));
  EXPECT_THAT(warnings, Contains(HasSubstr("step-00000200 is of a later step")));
}

TEST(Checkpoint, RemovesOnlyWhatCarriesItsNames) {
  const TempFolder folder;
  save_small(folder.path(), 1, 1);
  put(folder / "step-00000001" / "notes.txt", "mine");
  put(folder / "step-2", "mine");
  put(folder / "notes.txt", "mine");
  for (const char* name : {"step-00000000.other.tinyshard-tmp", "step-00000000.tinyshard-tmp",
                           "step-x.job.tinyshard-tmp", "step-00000003.job.tinyshard-tmp"}) {
    fs::create_directory(folder / name);
    put(folder / name / "part-00000-of-00001.safetensors", "torn");
  }
  fs::create_directory(folder / "elsewhere");
  fs::create_directory_symlink(folder / "elsewhere", folder / "step-00000000");
  std::vector<std::string> warnings;
  const auto values = values_of({1}, 1);
  CheckpointWriter writer(
      folder.path(), 2, {.keep = 1, .warn = [&](std::string_view s) { warnings.emplace_back(s); }});
  writer.add({"a", DType::I32, {1}, bytes_of(values)});
  writer.commit();
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre(".tinyshard-lock", "elsewhere", "notes.txt", "step-00000000",
                          "step-00000000.other.tinyshard-tmp", "step-00000000.tinyshard-tmp",
                          "step-00000001", "step-00000002", "step-2", "step-x.job.tinyshard-tmp"));
  EXPECT_THAT(
      warnings,
      Contains(HasSubstr("step-00000001 is left: notes.txt in it is not part of a checkpoint")));
  expect_small(Checkpoint(folder / "step-00000001"), 1);
}

TEST(Checkpoint, LeftoversOfDeadJobsAreRemoved) {
  const TempFolder folder;
  const auto values = values_of({1}, 1);
  const auto save = [&](int64_t step, const char* job) {
    CheckpointWriter writer(folder.path(), step, {.job = job});
    writer.add({"a", DType::I32, {1}, bytes_of(values)});
    writer.commit();
  };
  save(1, "first");
  // A kill of "first" leaves this, after its name went into the lock file.
  fs::create_directory(folder / "step-00000002.first.tinyshard-tmp");
  put(folder / "step-00000002.first.tinyshard-tmp" /
          "part-00000-of-00001.safetensors.first-12.tinyshard-tmp",
      "half");
  save(3, "second");
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre(".tinyshard-lock", "step-00000001", "step-00000003"));
}

TEST(Checkpoint, TwoJobsCannotSaveToOneFolder) {
  const TempFolder folder;
  save_small(folder.path(), 1);
  const int other = ::open((folder / ".tinyshard-lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(other, LOCK_EX | LOCK_NB), 0);
  EXPECT_THAT(message_of<UserError>([&] { save_small(folder.path(), 2); }),
              HasSubstr("another process is saving to " + folder.path().native()));
  ::close(other);
  save_small(folder.path(), 2);
}

// The first job's files of the same step stay as they are so far, and the first job goes on.
TEST(Checkpoint, ARefusedJobHarmsNothing) {
  const TempFolder folder;
  save_small(folder.path(), 1);
  const int other = ::open((folder / ".tinyshard-lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(other, LOCK_EX | LOCK_NB), 0);
  const fs::path temporary = folder / "step-00000002.job.tinyshard-tmp";
  fs::create_directory(temporary);
  put(temporary / "part-00000-of-00001.safetensors", "half");
  EXPECT_THAT(message_of<UserError>([&] { save_small(folder.path(), 2); }),
              HasSubstr("another process is saving to " + folder.path().native()));
  EXPECT_TRUE(fs::exists(temporary / "part-00000-of-00001.safetensors"));
  ::close(other);
}

TEST(Checkpoint, AClaimedFolderIsThisProcesssUntilItEnds) {
  const TempFolder folder;
  const fs::path root = folder / "root";
  claim_checkpoint_root(root);
  claim_checkpoint_root(root);
  const auto by_another_process = [&](const char* work) {
    const pid_t child = fork();
    if (child == 0) {
      const char* program = "/proc/self/exe";
      setenv("TINYSHARD_OTHER_JOB", work, 1);
      setenv("TINYSHARD_OTHER_ROOT", root.c_str(), 1);
      execl(program, program, "--gtest_filter=OtherJob.*", nullptr);
      _exit(9);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  };
  for (const char* work : {"claim", "save"}) EXPECT_EQ(by_another_process(work), 0) << work;
  save_small(root, 2);  // between its saves, too
  for (const char* work : {"claim", "save"}) EXPECT_EQ(by_another_process(work), 0) << work;
  save_small(root, 3);
  EXPECT_THAT(names_in(root), ElementsAre(".tinyshard-lock", "step-00000002", "step-00000003"));
}

// The other process of the test above.
TEST(OtherJob, IsRefused) {
  const char *work = std::getenv("TINYSHARD_OTHER_JOB"),
             *path = std::getenv("TINYSHARD_OTHER_ROOT");
  if (work == nullptr || path == nullptr) return;
  const fs::path root = path;
  EXPECT_THAT(message_of<UserError>([&] {
                if (std::string_view(work) == "claim") claim_checkpoint_root(root);
                save_small(root, 9);
              }),
              HasSubstr("another process is saving to " + root.native()));
}

TEST(Checkpoint, EveryFailingCallLeavesTheLastCheckpoint) {
  const TempFolder folder;
  for (const std::string call : {"write", "fsync", "close", "rename"}) {
    for (int n = 1; n < 60; ++n) {
      std::error_code ignored;
      fs::remove_all(folder / "root", ignored);
      save_small(folder / "root", 1, 1);
      test::fail_call(call, n, call == "write" ? ENOSPC : EIO);
      const std::string error = message_of<UserError>([&] { save_small(folder / "root", 2, 1); });
      const bool met = test::clear_faults();
      if (!met) {
        EXPECT_GT(n, 4) << call;
        break;
      }
      const auto latest = Checkpoint::latest(folder / "root", {.check_all = true});
      if (!latest) FAIL() << call << " " << n << ": " << error;
      // A reported failure is a failure, with one exception: the last sync, after the rename.
      const bool last_sync =
          error.find("cannot sync folder " + (folder / "root").native() + ":") != error.npos;
      EXPECT_EQ(last_sync, error.find("step-00000002 is there and complete") != error.npos)
          << error;
      expect_small(*latest, error.empty() || last_sync ? 2 : 1);
      if (!error.empty()) {
        EXPECT_THAT(error, HasSubstr(folder.path().native())) << call << n;
      }
      EXPECT_THAT(names_in(folder / "root"), Not(Contains(testing::EndsWith("tmp"))))
          << call << n << ": " << error;
      save_small(folder / "root", 3, 1);
      expect_small(Checkpoint::find(folder / "root", {.check_all = true}), 3);
    }
  }
}

TEST(Checkpoint, OneRankFailingFailsAll) {
  const TempFolder folder;
  save_small(folder.path(), 1);
  const auto errors = on_ranks(3, [&](int rank, const CheckpointOptions& options) {
    const auto values = values_of({10}, rank);
    CheckpointWriter writer(folder.path(), 2, options);
    // Rank 2's name cannot be written.
    writer.add_slice({rank == 2 ? "\xff" : "x", DType::I32, {10}, bytes_of(values)}, {30},
                     {10 * rank});
    writer.commit();
  });
  EXPECT_THAT(errors[0], HasSubstr("step 2 in " + folder.path().native() +
                                   ": another rank could not write its part"));
  EXPECT_THAT(errors[1], HasSubstr("the previous checkpoint stands"));
  EXPECT_THAT(errors[2], HasSubstr("not UTF-8"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre(".tinyshard-lock", "step-00000001"));
}

// After the rename the checkpoint is there: nobody may say that nothing was committed.
TEST(Checkpoint, AFailureAfterTheCommitSaysSo) {
  const TempFolder folder;
  const auto errors = on_ranks(2, [&](int rank, const CheckpointOptions& given) {
    CheckpointOptions options = given;
    int stages = 0;
    options.agree = [&](bool fine) {
      const bool agreed = given.agree(fine);
      // Three stages down, rank 0 has nothing to do but to sync the folder.
      if (rank == 0 && ++stages == 3) test::fail_call("fsync", 1, EIO);
      return agreed;
    };
    const auto values = values_of({10}, 1);
    CheckpointWriter writer(folder.path(), 2, options);
    writer.add({"x", DType::I32, {10}, bytes_of(values)});
    writer.commit();
  });
  EXPECT_TRUE(test::clear_faults());
  EXPECT_THAT(errors[0], HasSubstr("step-00000002 is there and complete, but a power loss"));
  EXPECT_THAT(errors[1], HasSubstr("it is there and complete"));
  EXPECT_EQ(Checkpoint::find(folder.path(), {.check_all = true}).step(), 2);
}

TEST(Checkpoint, TornOnesArePassedOver) {
  const TempFolder folder;
  save_small(folder.path(), 1);
  const fs::path second = save_small(folder.path(), 2);
  const fs::path part = second / "part-00000-of-00001.safetensors",
                 manifest = second / "manifest.json";
  const std::string part_bytes = get(part), manifest_bytes = get(manifest);
  const auto expect_first = [&](const std::string& what) {
    std::vector<std::string> warnings;
    const auto latest = Checkpoint::latest(
        folder.path(), {.warn = [&](std::string_view s) { warnings.emplace_back(s); }});
    if (!latest) FAIL() << "no complete checkpoint";
    expect_small(*latest, 1);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_THAT(warnings[0], StartsWith(second.native() + " is passed over: "));
    EXPECT_THAT(warnings[0], HasSubstr(what));
  };
  for (size_t size = 0; size < manifest_bytes.size(); ++size) {
    put(manifest, manifest_bytes.substr(0, size));
    expect_first(manifest.native());
  }
  fs::remove(manifest);
  expect_first("manifest.json: No such file or directory");
  put(manifest, manifest_bytes);
  for (size_t size : {size_t{0}, size_t{5}, part_bytes.size() - 1}) {
    put(part, part_bytes.substr(0, size));
    expect_first("it has " + std::to_string(size) + " bytes, the manifest says " +
                 std::to_string(part_bytes.size()));
  }
  put(part, part_bytes + "x");
  expect_first("cut or replaced");
  fs::remove(part);
  expect_first("part-00000-of-00001.safetensors: No such file or directory");
  put(part, part_bytes);
  expect_small(Checkpoint::find(folder.path()), 2);
}

// Every single bit of every file, flipped: found by verify(), named; those of the manifest, of the
// index and of a part's header already when it is opened.
TEST(Checkpoint, EveryFlippedBitIsFound) {
  const TempFolder folder;
  const fs::path path = save_small(folder.path(), 1);
  const size_t header_bytes = Checkpoint(path).parts().at(0).header_bytes;
  size_t flips = 0;
  for (const std::string name :
       {"manifest.json", "model.safetensors.index.json", "part-00000-of-00001.safetensors"}) {
    const std::string good = get(path / name);
    const size_t at_once = name.ends_with(".json") ? good.size() : header_bytes;
    for (size_t bit = 0; bit < 8 * good.size(); ++bit, ++flips) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
      put(path / name, bad);
      const std::string error = message_of<FormatError>(
          [&] { Checkpoint checkpoint(path, {.check_all = bit / 8 >= at_once}); });
      ASSERT_THAT(error, HasSubstr(name)) << "bit " << bit;
    }
    put(path / name, good);
  }
  EXPECT_GT(flips, 5'000u);
  Checkpoint(path).verify();
}

TEST(Checkpoint, AFlippedBitInATensorNamesIt) {
  const TempFolder folder;
  const fs::path path = save_small(folder.path(), 1);
  const Checkpoint checkpoint(path);
  const auto& b = checkpoint.tensor("b").slices.at(0);
  const fs::path part = path / "part-00000-of-00001.safetensors";
  std::string bytes = get(part);
  bytes[b.begin + 3] ^= 1;
  put(part, bytes);
  EXPECT_EQ(read_box(checkpoint, "a", {0, 0}, {4, 6}), values_of({4, 6}, 1));
  // Reading one element checks the slice it comes from.
  const std::string error = message_of<FormatError>([&] { read_box(checkpoint, "b", {4}, {1}); });
  EXPECT_THAT(error, StartsWith(part.native() + ": tensor \"b\" [0:5] (bytes "));
  EXPECT_THAT(error, HasSubstr("was altered after it was saved"));
  EXPECT_THROW(checkpoint.verify(), FormatError);
  EXPECT_FALSE(Checkpoint::latest(folder.path(), {.check_all = true}));
  const Checkpoint unchecked(path, {.check_digests = false});
  EXPECT_NE(read_box(unchecked, "b", {0}, {5}), values_of({5}, 101));
}

// A manifest that someone made, with the right digest: nothing in it is believed.
TEST(Checkpoint, CraftedManifestsAreRefused) {
  const TempFolder folder;
  const fs::path path = save_small(folder.path(), 1);
  const std::string good = get(path / "manifest.json");
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    text.replace(at, from.size(), to);
    text.replace(10, 16, "0000000000000000");
    text.replace(10, 16, digest_text(digest_of(text)));
    put(path / "manifest.json", text);
    return message_of<FormatError>([&] { Checkpoint checkpoint(path); });
  };
  EXPECT_EQ(error("\"step\":1", "\"step\":1"), "");
  EXPECT_THAT(error("\"step\":1", "\"step\":-1"), HasSubstr("step is no unsigned number"));
  EXPECT_THAT(error("\"step\":1", "\"stop\":1"), HasSubstr("step is missing"));
  EXPECT_THAT(error("\"version\":1", "\"version\":2"),
              HasSubstr("version is 2, this library reads 1"));
  EXPECT_THAT(error("tinyshard-checkpoint", "tinyshard-chequepoint"), HasSubstr("format is not"));
  EXPECT_THAT(error("part-00000-of-00001.safetensors", "../../part-0-of-1.safetensors"),
              HasSubstr("is not the name of a part"));
  EXPECT_THAT(error("\"part\":0", "\"part\":1"), HasSubstr("of part 1 of 1"));
  EXPECT_THAT(error("\"dtype\":\"I32\"", "\"dtype\":\"I99\""), HasSubstr("\"I99\""));
  EXPECT_THAT(error("\"dtype\":\"I32\"", "\"dtype\":\"I64\""), HasSubstr("cannot be 4x6 of I64"));
  EXPECT_THAT(error("\"offset\":[0,0]", "\"offset\":[1,0]"), HasSubstr("does not lie inside"));
  EXPECT_THAT(error("\"offset\":[0,0]", "\"offset\":[0]"), HasSubstr("a slice has 2 dimensions"));
  EXPECT_THAT(error("\"offset\":[0,0]", "\"offset\":[0,18446744073709551615]"),
              HasSubstr("offset holds 18446744073709551615"));
  EXPECT_THAT(error("\"shape\":[4,6],\"slices\"", "\"shape\":[4,7],\"slices\""),
              HasSubstr("cover 96 of 112 bytes"));
  EXPECT_THAT(error("\"shape\":[4,6],\"slices\"", "\"shape\":[4611686018427387904,6],\"slices\""),
              HasSubstr("too large"));
  EXPECT_THAT(error("\"begin\":", "\"begin\":1"), HasSubstr("cannot be"));
  EXPECT_THAT(error("\"end\":", "\"end\":9"), HasSubstr("cannot be"));
  EXPECT_THAT(error("\"header_bytes\":", "\"header_bytes\":9999"),
              HasSubstr("header larger than itself"));
  EXPECT_THAT(error("\"metadata\":{", "\"metadata\":{\"n\":1,"),
              HasSubstr("metadata \"n\" is no string"));
  EXPECT_THAT(error("\"parts\":[", "\"parts\":7,\"p\":["), HasSubstr("parts is no array"));
  EXPECT_THAT(error("}\n", "]\n"), HasSubstr("not valid JSON"));
}

// A full disk at any byte: a small tmpfs where this process may mount one, a file size limit
// elsewhere.
TEST(Checkpoint, FullDisk) {
  const TempFolder folder;
  const std::vector<int32_t> ballast(30'000, 7);
  const auto save = [&](int64_t step, size_t count) {
    CheckpointWriter writer(folder / "root", step, {.keep = 1});
    const auto small = values_of({4, 6}, static_cast<int32_t>(step));
    writer.add(
        {"ballast", DType::I32, {static_cast<int64_t>(count)}, bytes_of(ballast).first(4 * count)});
    writer.add({"a", DType::I32, {4, 6}, bytes_of(small)});
    writer.commit();
  };
  const auto expect_step = [&](int64_t step) {
    const auto latest = Checkpoint::latest(folder / "root", {.check_all = true});
    if (!latest) FAIL() << "no complete checkpoint";
    EXPECT_EQ(latest->step(), step);
    EXPECT_EQ(read_box(*latest, "a", {0, 0}, {4, 6}),
              values_of({4, 6}, static_cast<int32_t>(step)));
  };
  fs::create_directory(folder / "root");
  std::mt19937 random(6);
  if (::mount("tmpfs", (folder / "root").c_str(), "tmpfs", 0, "size=160k") == 0) {
    struct Unmount {
      fs::path path;
      ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
    } unmount{folder / "root"};
    int full = 0;
    int64_t good = 1;
    save(1, 10);
    for (int64_t step = 2; step <= 60; ++step) {
      const std::string error = message_of<IoError>([&] { save(step, random() % ballast.size()); });
      if (error.empty()) {
        good = step;
      } else {
        ++full;
        EXPECT_THAT(error, testing::AllOf(HasSubstr((folder / "root").native()),
                                          HasSubstr("No space left on device")));
      }
      expect_step(good);
    }
    EXPECT_GT(full, 5);
    return;
  }
  save(1, 10);
  for (int trial = 0; trial < 30; ++trial) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlim_t most = random() % 120'000;
      const rlimit limit{most, most};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      ::_exit(message_of<IoError>([&] { save(2, ballast.size()); }).empty() ? 1 : 0);
    }
    random.discard(1);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    expect_step(1);
  }
}

// Slices of several of the reader's windows (1 MiB): windows that end inside of a run, between two,
// and beside them.
TEST(Checkpoint, BoxesOfLargeSlices) {
  const TempFolder folder;
  const Shape shape = {1500, 701};
  const auto values = values_of(shape, 3);
  CheckpointWriter writer(folder.path(), 1);
  writer.add({"x", DType::I32, shape, bytes_of(values)});
  writer.commit();
  const std::vector<std::pair<Shape, Shape>> boxes = {
      {{0, 0}, shape},        {{0, 0}, {1500, 100}}, {{0, 600}, {1500, 101}}, {{3, 350}, {1490, 1}},
      {{100, 0}, {900, 701}}, {{1499, 700}, {1, 1}}, {{370, 0}, {10, 701}},   {{0, 0}, {1, 1}}};
  for (const auto& [offset, size] : boxes) {
    for (const bool check : {true, false}) {
      const Checkpoint checkpoint = Checkpoint::find(folder.path(), {.check_digests = check});
      EXPECT_EQ(read_box(checkpoint, "x", offset, size), box_of(values, shape, offset, size));
    }
  }
}

TEST(Checkpoint, ManyThreadsRead) {
  const TempFolder folder;
  const auto values = values_of({1000, 300}, 3);
  CheckpointWriter writer(folder.path(), 1);
  writer.add({"x", DType::I32, {1000, 300}, bytes_of(values)});
  writer.commit();
  const Checkpoint checkpoint = Checkpoint::find(folder.path());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const Shape offset = {t * 250, 10 * t}, size = {250, 100};
      if (read_box(checkpoint, "x", offset, size) != box_of(values, {1000, 300}, offset, size))
        ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tinyshard::io
