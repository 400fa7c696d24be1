// Reductions, lookups, orders and scans over divided dims send what theory asks for, and a tenth.
#include <cmath>

#include <fmt/format.h>

#include "tests/multi/bytes.h"

namespace tinyshard::bytes_lookups_test {
namespace {

// Ring algorithms, per device. A message has as many bytes as its storage, a multiple of 64.
double all_reduce(int64_t devices, double bytes) {
  return 2 * double(devices - 1) / double(devices) * std::ceil(bytes / 64) * 64;
}
double all_gather(int64_t devices, double bytes) {
  return double(devices - 1) / double(devices) * bytes;
}

class Lookups : public test::Planned {
 protected:
  // On 4, 8, 64 and 1024 devices.
  template <class F>
  void each_world(F f) {
    for (int count : {4, 8, 64, 1024}) {
      SCOPED_TRACE(fmt::format("{} devices", count));
      devices(count);
      f(int64_t(count));
    }
  }
};

// --- reductions are completed before they are repeated -------------------------------------------

TEST_F(Lookups, StatisticsTravel) {
  each_world([&](int64_t n) {
    Tensor x = split({4096, 96}, 0);
    const double row = all_reduce(n, 96 * 4);
    EXPECT_LE(sent(x - x.mean(0, true)), bound(row));
    EXPECT_LE(sent(x / x.sum()), bound(all_reduce(n, 4)));
    EXPECT_LE(sent((x - x.min()) / (x.max() - x.min())), bound(2 * all_reduce(n, 4)));
    EXPECT_LE(sent(x.softmax(0)), bound(2 * row));
    EXPECT_LE(sent(x.log_softmax(0)), bound(2 * row));
    EXPECT_LE(sent(x.layernorm(0)), bound(2 * all_reduce(n, 96 * 4)));
    EXPECT_LE(sent(x.var(0)), bound(2 * row));
    EXPECT_LE(sent(x.argmax(0)), bound(2 * row));
    EXPECT_LE(sent(x.argmin(0)), bound(2 * row));
    EXPECT_LE(sent(x.argmax()), bound(2 * all_reduce(n, 4)));
    EXPECT_LE(sent(stored({64, 64}, {}) * x.sum()), bound(all_reduce(n, 4)));
    EXPECT_LE(temporaries(x - x.mean(0, true)), 4096 * 96 * 4 / n + 4096);
  });
}

// Messages of a bucket begin at multiples of 64 bytes, and the last one ends where it ends.
TEST_F(Lookups, ShortStatisticsTravelAlone) {
  each_world([&](int64_t n) {
    Tensor x = split({4096, 24}, 0);
    const double row = 2 * double(n - 1) / double(n) * 24 * 4;
    EXPECT_LE(sent(x.sum(0)), bound(row));
    EXPECT_LE(sent(x.max(0)), bound(row));
    EXPECT_LE(sent(x.softmax(0)), bound(2 * row));
    EXPECT_LE(sent(x / x.sum(0)), bound(row));
  });
}

// A sum from which two values are made, each of which is wanted whole, is completed for both.
TEST_F(Lookups, StatisticsThatShareASumSendItOnce) {
  each_world([&](int64_t n) {
    Tensor x = split({4096, 96}, 0);
    const double row = all_reduce(n, 96 * 4);
    EXPECT_LE(sent({x.mean(0), x.std(0)}), bound(2 * row));
    EXPECT_LE(sent(x.mean(0) + x.std(0)), bound(2 * row));
    EXPECT_LE(sent({x.mean(0), x.var(0), x.sum(0)}), bound(2 * row));
    EXPECT_LE(sent({x.mean(0, true), x.mean(0), x.layernorm(0)}),
              bound(row + 2 * all_reduce(n, 96 * 4)));
    EXPECT_EQ(summarize({x.mean(0), x.std(0)}).collectives, 2);
  });
}

TEST_F(Lookups, NormsOfDataParallelTrainingSendStatistics) {
  each_world([&](int64_t n) {
    Tensor x = split({2048, 16, 4, 4}, 0);
    nn::BatchNorm norm(16);
    TrainingMode training;
    Tensor y = norm(x);
    // Mean and variance forward, the sums of two products backward.
    EXPECT_LE(sent(y), bound(2 * all_reduce(n, 16 * 4)));
    Tensor g = (y * y.detach() * x).sum().gradient({x})[0];
    EXPECT_LE(sent(g), bound(6 * all_reduce(n, 16 * 4)));
  });
}

// A row-parallel product before an activation is completed once, forward and backward.
TEST_F(Lookups, WhatIsReadTwiceIsCompletedOnce) {
  each_world([&](int64_t n) {
    Tensor a = split({128, 2048}, 1), b = split({2048, 256}, 0);
    Tensor y = a.matmul(b);
    const double once = all_reduce(n, 128 * 256 * 4);
    EXPECT_LE(sent(y.gelu()), bound(once));
    EXPECT_LE(sent(y.silu()), bound(once));
    EXPECT_LE(sent(y.tanh()), bound(once));
    EXPECT_LE(sent(y * 2 + y.relu()), bound(once));
    EXPECT_LE(sent(y.layernorm()), bound(once));
  });
}

// Sums that meet sums stay pending, and so do gradients of parameters.
TEST_F(Lookups, SumsStayPendingUntilTheyMeet) {
  each_world([&](int64_t n) {
    Tensor a = split({128, 2048}, 1), b = split({2048, 64}, 0), c = split({2048, 64}, 0);
    EXPECT_LE(sent(a.matmul(b) * 0.5 + a.matmul(c)), bound(all_reduce(n, 128 * 64 * 4)));
    Tensor rows = split({4096, 64}, 0), w = stored({64, 64}, {}), bias = stored({64}, {});
    auto g = (rows.matmul(w) + bias).tanh().sum().gradient({w, bias});
    EXPECT_LE(sent(g), bound(all_reduce(n, (64 * 64 + 64) * 4)));
  });
}

// A repeated value travels, not its copies: a bias, not as many rows of it as there are.
TEST_F(Lookups, BiasesAreBroughtToActivations) {
  each_world([&](int64_t n) {
    Tensor x = split({2048, 4096}, 0), bias = split({4096}, 0);
    const double whole = all_gather(n, 4096 * 4);
    EXPECT_LE(sent(x + bias), bound(whole));
    EXPECT_LE(sent(bias + x), bound(whole));
    EXPECT_EQ((bias + x).sharding().placements[0], Shard(0));
  });
}

TEST_F(Lookups, WhatIsExpandedByHandTravelsBefore) {
  each_world([&](int64_t n) {
    Tensor means = split({1024, 4096}, 0).mean(1, true).expand({1024, 4096});
    const double whole = all_gather(n, 1024 * 4);
    EXPECT_LE(sent(means.shard(mesh(), {})), bound(whole));
    EXPECT_LE(sent(means.shard(mesh(), {{"d", Shard(1)}})), bound(whole));
    EXPECT_EQ(sent(means.shard(mesh(), {{"d", Shard(0)}})), 0);
  });
}

// --- tables that are divided along what is looked up ---------------------------------------------

TEST_F(Lookups, EmbeddingsOfDividedVocabulariesSendTheirResult) {
  each_world([&](int64_t n) {
    Tensor table = split({128000, 64}, 0, DType::BF16), tokens = stored({4, 8}, {}, DType::I32);
    const double found = all_reduce(n, 32 * 64 * 2);
    EXPECT_LE(sent(table.embedding(tokens)), bound(found));
    EXPECT_LE(temporaries(table.embedding(tokens)), 4 * 32 * 64 * 4);
    // The same by an index of another form.
    EXPECT_LE(sent(table[{tokens}]), bound(found));
    EXPECT_LE(sent(table.gather(0, stored({32, 64}, {}, DType::I64))), bound(found));
    // Places that are divided themselves are brought together, and what they find is divided again.
    Tensor wide = split({128000, 64}, 0), batch = split({4096}, 0, DType::I32);
    EXPECT_LE(sent(wide.embedding(batch)),
              bound(all_gather(n, 4096 * 4) + all_gather(n, 4096 * 64 * 4)));
    EXPECT_EQ(wide.embedding(batch).sharding().placements[0], Shard(0));
    // A few rows that many places name are gathered.
    Tensor few = split({2048, 8}, 0);
    EXPECT_LE(sent(few.embedding(stored({8192}, {}, DType::I32))), bound(all_gather(n, 2048 * 32)));
    // Places that lie divided look up a whole table where they lie.
    EXPECT_EQ(sent(stored({2048, 8}, {}).embedding(split({8192}, 0, DType::I32))), 0);
  });
}

// The table is in f32, and its rows are computed with in bf16, in any view of them.
TEST_F(Lookups, RowsThatAreReadInANarrowTypeTravelInIt) {
  each_world([&](int64_t n) {
    Tensor table = split({65536, 64}, 0), tokens = stored({2, 1024}, {}, DType::I32);
    const int64_t width = 2 * 1024 * 64 * 2;
    const std::vector<AxisPlacement> whole, parts{{"d", Shard(1)}};
    Tensor rows = table.embedding(tokens).cast(DType::BF16);
    EXPECT_LE(sent(rows), bound(all_reduce(n, width)));
    EXPECT_LE(sent(rows.shard(mesh(), parts)), bound(all_gather(n, width)));
    EXPECT_LE(sent(rows.cast(DType::F32).relu()), bound(all_reduce(n, width)));
    EXPECT_LE(sent(table.embedding(tokens).transpose(0, 1).cast(DType::BF16)),
              bound(all_reduce(n, width)));
    // A second reader, in f32, has all of them sent in f32.
    Tensor wide = table.embedding(tokens);
    EXPECT_LE(sent({wide.cast(DType::BF16), wide.relu()}), bound(all_reduce(n, 2 * width)));
  });
}

TEST_F(Lookups, GradientsOfDividedTablesStayDivided) {
  each_world([&](int64_t n) {
    Tensor table = split({65536, 64}, 0), tokens = stored({32}, {}, DType::I32);
    Tensor rows = table.embedding(tokens);
    Tensor g = (rows * rows).sum().gradient({table})[0];
    EXPECT_EQ(g.sharding().placements[0], Shard(0));
    EXPECT_LE(sent(g), bound(all_reduce(n, 32 * 64 * 4)));
    EXPECT_LE(temporaries(g), 2 * 65536 * 64 * 4 / n + 8 * 32 * 64 * 4);
  });
}

// Asked for by itself the gradient lies as its table, and no device makes all of it.
TEST_F(Lookups, GradientsOfDividedTablesByDividedPlacesStayDivided) {
  each_world([&](int64_t n) {
    for (DType type : {DType::F32, DType::BF16}) {
      Tensor table = split({65536, 64}, 0, type), tokens = split({4096}, 0, DType::I32);
      Tensor rows = table.embedding(tokens);
      Tensor g = (rows * rows).sum().gradient({table})[0];
      EXPECT_EQ(g.sharding().placements[0], Shard(0));
      EXPECT_LE(temporaries(g), 2 * 65536 * 64 * 4 / n + 8 * 4096 * 64 * 4);
      EXPECT_LE(sent(g), bound(4 * all_gather(n, 4096 * 64 * 4)));
    }
  });
}

TEST_F(Lookups, OptimizersOfDividedTablesStepInParts) {
  each_world([&](int64_t n) {
    Tensor table = split({65536, 64}, 0), tokens = stored({32}, {}, DType::I32);
    table.is_param_();
    nn::optim::AdamW optimizer({table}, {.lr = 1e-3});
    TrainingMode training;
    Tensor rows = table.embedding(tokens);
    (rows * rows).sum().backward();
    PlanSummary plan = summarize(optimizer.schedule_step());
    EXPECT_LE(plan.collective_bytes, bound(all_reduce(n, 32 * 64 * 4)));
    EXPECT_LE(plan.arena_bytes, 3 * 65536 * 64 * 4 / n + 8 * 32 * 64 * 4);
  });
}

// Tokens over one axis of a mesh, the vocabulary over the other.
TEST_F(Lookups, TokensAndVocabularyOnTwoAxes) {
  devices(4, 2);
  Tensor table = stored({65536, 64}, {Replicate, Shard(0)}),
         tokens = stored({64}, {Shard(0), Replicate}, DType::I32);
  Tensor rows = table.embedding(tokens);
  EXPECT_LE(sent(rows), bound(all_reduce(2, 16 * 64 * 4)));
  Tensor g = (rows * rows).sum().gradient({table})[0];
  EXPECT_EQ(g.sharding().placements[1], Shard(0));
  // The few rows of 16 tokens are brought by the others.
  EXPECT_LE(sent(g), bound(all_reduce(2, 16 * 64 * 4) + 3 * (16 * 64 * 4 + 64)));
}

TEST_F(Lookups, CrossEntropyOfDividedVocabulariesSendsStatistics) {
  each_world([&](int64_t n) {
    Tensor logits = split({1024, 128000}, 1), labels = stored({1024}, {}, DType::I32);
    for (double smoothing : {0.0, 0.1}) {
      for (int ignored : {-1, 0}) {
        Tensor loss = logits.sparse_categorical_crossentropy(
            labels, {.ignore_index = ignored, .label_smoothing = smoothing});
        EXPECT_LE(sent(loss), 5 * all_reduce(n, 1024 * 4)) << smoothing << ignored;
        Tensor g = loss.gradient({logits})[0];
        EXPECT_LE(sent({loss, g}), 64 * 1024) << smoothing << ignored;
        EXPECT_EQ(g.sharding().placements[0], Shard(1));
        EXPECT_LE(temporaries(g), 3 * 1024 * ((128000 + n - 1) / n) * 4 + 64 * 1024);
      }
    }
    Tensor loss = logits.cross_entropy(labels);
    EXPECT_LE(sent({loss, loss.gradient({logits})[0]}), 64 * 1024);
    EXPECT_EQ(sent(labels.one_hot(128000).shard(mesh(), {{"d", Shard(1)}})), 0);
  });
}

// logits[arange(n), labels] picks as gather(1, labels) does: each device what lies in its part.
TEST_F(Lookups, PicksOfCountedRowsSendWhatTheyPick) {
  each_world([&](int64_t n) {
    Tensor rows = Tensor::arange(1024), labels = stored({1024}, {}, DType::I32);
    Tensor logits = split({1024, 16384}, 1);
    Tensor picked = logits[{rows, labels}];
    const double found = all_reduce(n, 1024 * 4);
    EXPECT_LE(sent(picked), bound(found));
    Tensor g = (picked * picked).sum().gradient({logits})[0];
    EXPECT_LE(sent({picked, g}), bound(found));
    // Several labels of each row, and rows that are counted inside.
    EXPECT_LE(sent(logits[{rows.reshape({1024, 1}), stored({1024, 3}, {}, DType::I32)}]),
              bound(3 * found));
    EXPECT_LE(sent(logits.T()[{labels, rows}]), bound(found));
    // Rows that are divided, and labels that are so or on all devices.
    Tensor batch = split({1024, 16384}, 0);
    for (const Tensor& own : {labels, split({1024}, 0, DType::I32)}) {
      Tensor mine = batch[{rows, own}];
      EXPECT_EQ(sent({mine, (mine * mine).sum().gradient({batch})[0]}), 0);
      EXPECT_EQ(mine.sharding().placements[0], Shard(0));
    }
  });
  devices(4, 2);
  Tensor grid = stored({64, 4096}, {Shard(0), Shard(1)});
  Tensor mine = grid[{Tensor::arange(64), stored({64}, {Shard(0), Replicate}, DType::I32)}];
  EXPECT_LE(sent({mine, (mine * mine).sum().gradient({grid})[0]}), bound(all_reduce(2, 16 * 4)));
}

// Rows of bags are added up before the sum over devices is completed.
TEST_F(Lookups, BagsSendTheirSums) {
  each_world([&](int64_t n) {
    const double ids = all_gather(n, 1024.0 * 8 * 4), mask = all_gather(n, 1024.0 * 8),
                 sums = all_gather(n, 1024.0 * 64 * 4);
    for (DType type : {DType::F32, DType::BF16}) {
      Tensor table = split({128000, 64}, 0, type), whole = stored({1024, 8}, {}, DType::I32);
      EXPECT_LE(sent(table.embedding(whole).sum(1)), bound(2 * sums));
      EXPECT_LE(sent(table.embedding(whole).mean(1)), bound(2 * sums));
      // Bags that are divided over devices.
      Tensor bags = split({1024, 8}, 0, DType::I32);
      for (const Tensor& y : {table.embedding(bags).sum(1), table.embedding(bags).mean(1),
                              table[{bags}].sum(1), -table.embedding(bags).sum(1, true)}) {
        EXPECT_LE(sent(y), bound(ids + sums));
        EXPECT_EQ(y.sharding().placements[0], Shard(0));
      }
      Tensor real = (bags != 0).unsqueeze(2);
      EXPECT_LE(sent(real.where(table.embedding(bags), 0).sum(1) / real.sum(1)),
                bound(ids + mask + sums));
      EXPECT_LE(sent((table.embedding(bags) * real).sum(1)), bound(ids + 4 * mask + sums));
      // Weights are brought together as the bags are.
      Tensor weights = split({1024, 8}, 0);
      Tensor weighed = table.embedding(bags).cast(DType::F32) * weights.unsqueeze(2);
      EXPECT_LE(sent(weighed.sum(1)), bound(2 * ids + sums));
      EXPECT_LE(sent((table.embedding(whole).cast(DType::F32) * stored({1024, 8}, {}).unsqueeze(2))
                         .sum(1)),
                bound(2 * sums));
      // The sum over all bags is one.
      EXPECT_LE(sent(table.embedding(bags).sum(0)), bound(ids + all_reduce(n, 8 * 64 * 4)));
      // Rows that somebody reads as well lie as their places do.
      Tensor rows = table.embedding(bags);
      EXPECT_EQ(rows.sharding().placements[0], Shard(0));
    }
    Tensor table = split({128000, 64}, 0), bags = split({1024, 8}, 0, DType::I32);
    Tensor y = table.embedding(bags).mean(1);
    EXPECT_LE(sent((y * y).sum()), bound(ids + sums + all_reduce(n, 4)));
  });
}

// logits[rows, labels] with any rows: the table is looked up where it lies.
TEST_F(Lookups, PicksOfAnyRowsSendWhatTheyPick) {
  each_world([&](int64_t n) {
    Tensor rows = stored({512}, {}, DType::I32), labels = stored({512}, {}, DType::I64);
    const double found = all_reduce(n, 512 * 4);
    Tensor logits = split({1024, 16384}, 1);
    Tensor picked = logits[{rows, labels}];
    EXPECT_LE(sent(picked), bound(found));
    Tensor g = (picked * picked).sum().gradient({logits})[0];
    EXPECT_LE(sent({picked, g}), bound(found));
    EXPECT_EQ(g.sharding().placements[0], Shard(1));
    EXPECT_LE(temporaries(g), 3 * 1024 * 16384 * 4 / n + 64 * 1024);
    // Fewer rows than there are, as a prompt has in a batch.
    EXPECT_LE(sent(logits[{Tensor::arange(512), labels}]), bound(found));
    EXPECT_LE(sent(logits.T()[{labels, rows}]), bound(found));
    EXPECT_LE(sent((logits * 0.5).exp()[{rows, labels}]), bound(found));
    // Divided places are brought together, and what they find is divided.
    Tensor mine = logits[{split({1024}, 0, DType::I32), split({1024}, 0, DType::I32)}];
    EXPECT_LE(sent(mine), bound(2 * all_gather(n, 1024 * 8) + all_gather(n, 1024 * 4)));
    EXPECT_EQ(mine.sharding().placements[0], Shard(0));
    // Dims in the middle, and a dim beside them.
    Tensor middle = split({8, 512, 2048}, 2);
    EXPECT_LE(sent(middle[{Slice(), rows, labels}]), bound(8 * found));
    Tensor beside = split({64, 2048, 32}, 1);
    EXPECT_LE(sent(beside[{rows, labels}]), bound(32 * found));
    // A dim beside them that is divided.
    EXPECT_EQ(sent(split({64, 32, 2048}, 2)[{rows, labels}]), 0);
  });
  devices(4, 2);
  Tensor grid = stored({1024, 4096}, {Shard(0), Shard(1)}), rows = stored({512}, {}, DType::I32);
  EXPECT_LE(sent(grid[{rows, rows}]), bound(all_reduce(4, 512 * 4) + all_reduce(2, 512 * 4)));
}

// --- orders --------------------------------------------------------------------------------------

TEST_F(Lookups, TheLargestOfDividedRowsAreCandidatesOfEachPart) {
  each_world([&](int64_t n) {
    Tensor x = split({16, 128 * 1024}, 1);
    auto [values, places] = x.topk(8, 1);
    const double found = 16 * 8 * 4;
    // A key and a place for each candidate, then the sum of the values.
    EXPECT_LE(sent({values, places}), bound(double(n - 1) * 2 * found + all_reduce(n, found)));
    EXPECT_EQ(sent(split({4096, 64}, 0).topk(8, 1).first), 0);
    // Rows that a reshape made of several dims, whichever is divided.
    for (int dim : {1, 2}) {
      auto [most, where] = split({16, 2048, 2048}, dim).flatten(1).topk(8, 1);
      EXPECT_LE(sent({most, where}), bound(double(n - 1) * 2 * found + all_reduce(n, found)));
    }
  });
}

TEST_F(Lookups, SortsAlongShardsSendEachElementOnce) {
  each_world([&](int64_t n) {
    // Many rows: an all-to-all of the values, of which each device makes the keys.
    Tensor many = split({8192, 1024}, 0);
    auto [values, places] = many.sort(0);
    EXPECT_LE(sent({values, places}), bound(all_gather(n, 8192.0 * 1024 * 4 / double(n))));
    EXPECT_TRUE(values.sharding().placements[0].is_shard());
    // A single row: no more than it takes to gather the values; less in sort_along_shards_test.cpp.
    Tensor one = split({65536}, 0);
    EXPECT_LE(sent(one.argsort(0)), bound(all_gather(n, 65536 * 4)));
    EXPECT_LE(sent(one.sort(0).first), bound(all_gather(n, 65536 * 4)));
    EXPECT_LE(sent({one.sort(0, true).first, one.sort(0, true).second}),
              bound(all_gather(n, 65536 * 4)));
    EXPECT_LE(sent(split({65536}, 0, DType::BF16).sort(0).first), bound(all_gather(n, 65536 * 2)));
  });
}

// Where entries, what they say and the destination are divided alike, what each device has found is
// combined where it is to lie: a reduce-scatter of a destination, and for writes an all-to-all of
// what each device would write, and of a bit that says whether it does.
TEST_F(Lookups, ScattersAlongShardsCombineWhereTheResultLies) {
  each_world([&](int64_t n) {
    Tensor x = split({65536}, 0), src = split({65536}, 0), index = split({65536}, 0, DType::I32);
    const double whole = all_gather(n, 65536 * 4);
    for (auto [reduce, times] :
         {std::pair(ScatterReduce::Sum, 1), std::pair(ScatterReduce::Prod, 1),
          std::pair(ScatterReduce::Amax, 1), std::pair(ScatterReduce::Amin, 1),
          std::pair(ScatterReduce::Mean, 2)}) {
      Tensor y = x.scatter_reduce(0, index, src, reduce);
      EXPECT_LE(sent(y), bound(times * whole)) << int(reduce);
      EXPECT_EQ(y.sharding().placements[0], Shard(0)) << int(reduce);
    }
    for (DType type : {DType::F32, DType::BF16, DType::I64, DType::Bool}) {
      Tensor to = split({65536}, 0, type), of = split({65536}, 0, type);
      const double written = all_gather(n, 65536.0 * (double(itemsize(type)) + 1.0 / 8));
      EXPECT_LE(sent(to.scatter(0, index, of)), bound(written)) << name(type);
      EXPECT_EQ(to.scatter(0, index, of).sharding().placements[0], Shard(0));
      to.setitem({index}, of);
      EXPECT_LE(sent(to), bound(written)) << name(type);
    }
    // Entries that every device has are not sent.
    EXPECT_LE(sent(x.scatter(0, index, stored({65536}, {}))), bound(whole));
    EXPECT_LE(sent(x.scatter(0, index, 3)), bound(whole));
  });
}

// Each entry is 4 bytes of index and what it says, and goes to its owner once: of as many entries as
// places so many times that. On eight devices pairs bring their entries together; a mean sends sums
// and counts, and half floats are added up in f32.
TEST_F(Lookups, ScattersSendThreeTimesTheirEntries) {
  struct Times {
    double sum, chosen, mean, written;
  };
  auto expect = [&](int count, DType type, const Times& times) {
    SCOPED_TRACE(fmt::format("{} on {} devices", name(type), count));
    devices(count);
    constexpr int64_t kPlaces = 1 << 20;
    Tensor x = split({kPlaces}, 0, type), src = split({kPlaces}, 0, type);
    Tensor index = split({kPlaces}, 0, DType::I32);
    const double entries =
        all_gather(count, double(kPlaces) / count * (4 + double(itemsize(type))));
    auto reduced = [&](ScatterReduce reduce) {
      return double(sent(x.scatter_reduce(0, index, src, reduce))) / entries;
    };
    EXPECT_LE(reduced(ScatterReduce::Sum), times.sum);
    EXPECT_LE(reduced(ScatterReduce::Prod), times.sum);
    EXPECT_LE(reduced(ScatterReduce::Amax), times.chosen);
    EXPECT_LE(reduced(ScatterReduce::Amin), times.chosen);
    EXPECT_LE(reduced(ScatterReduce::Mean), times.mean);
    EXPECT_LE(double(sent(x.scatter(0, index, src))), times.written * entries);
    x.setitem({index}, src);
    EXPECT_LE(double(sent(x)), times.written * entries);
  };
  expect(4, DType::F32, {.sum = 2.01, .chosen = 2.01, .mean = 2.7, .written = 2.1});
  expect(4, DType::BF16, {.sum = 2.3, .chosen = 1.4, .mean = 3.2, .written = 1.5});
  expect(8, DType::F32, {.sum = 2.9, .chosen = 2.9, .mean = 4.6, .written = 3});
  expect(8, DType::BF16, {.sum = 3.5, .chosen = 2.4, .mean = 5, .written = 2.5});
}

// Few entries are brought to all devices, of which each takes what falls into its part.
TEST_F(Lookups, FewEntriesAlongShardsAreBroughtTogether) {
  each_world([&](int64_t n) {
    Tensor x = split({1 << 20}, 0), src = split({4096}, 0), index = split({4096}, 0, DType::I32);
    const double entries = all_gather(n, 4096 * (4 + 4));
    for (ScatterReduce reduce : {ScatterReduce::Sum, ScatterReduce::Prod, ScatterReduce::Mean,
                                 ScatterReduce::Amax, ScatterReduce::Amin}) {
      for (bool include_self : {true, false}) {
        Tensor y = x.scatter_reduce(0, index, src, reduce, include_self);
        EXPECT_LE(sent(y), bound(entries)) << int(reduce);
        EXPECT_EQ(y.sharding().placements[0], Shard(0)) << int(reduce);
      }
    }
    EXPECT_LE(sent(x.scatter(0, index, src)), bound(entries));
    x.setitem({index}, src);
    EXPECT_LE(sent(x), bound(entries));
    // Rows: an index of 4 bytes for 64 of them.
    Tensor rows = split({65536, 64}, 0), some = split({4096, 64}, 0);
    rows.setitem({index}, some);
    EXPECT_LE(sent(rows), bound(all_gather(n, 4096 * (4 + 64 * 4))));
  });
}

// --- scans ---------------------------------------------------------------------------------------

TEST_F(Lookups, ScansSendTheTotalsOfParts) {
  each_world([&](int64_t n) {
    for (int64_t rows : {8192, 100}) {
      Tensor x = split({rows, 48}, 0);
      const double totals = all_gather(n, double(n) * std::ceil(48 * 4 / 64.0) * 64);
      for (const Tensor& y : {x.cumsum(0), x.cumprod(0), x.logcumsumexp(0)}) {
        EXPECT_LE(sent(y), bound(totals)) << rows;
        EXPECT_EQ(y.sharding().placements[0], rows < n ? Replicate : Shard(0)) << rows;
      }
      if (rows < n) continue;
      // And one row to the neighbour, for where a maximum changed.
      EXPECT_LE(sent(x.cummax(0).first), bound(totals));
      EXPECT_LE(sent(x.cummax(0).second), bound(2 * totals + 2 * 48 * 4));
    }
  });
}

// --- random numbers ------------------------------------------------------------------------------

TEST_F(Lookups, RandomNumbersAreDrawnWhereTheyLie) {
  each_world([&](int64_t n) {
    const int64_t part = int64_t{8192} * 8192 * 4 / n;
    for (bool normal : {false, true}) {
      Tensor x = (normal ? Tensor::randn({8192, 8192}) : Tensor::rand({8192, 8192}))
                     .shard(mesh(), {{"d", Shard(0)}});
      PlanSummary plan = summarize(x);
      EXPECT_EQ(plan.collective_bytes, 0);
      EXPECT_LE(plan.bytes_written, part + 64);
      EXPECT_LE(plan.held_bytes + plan.arena_bytes, part + 1024);
    }
    Tensor x = split({8192, 1024}, 0);
    TrainingMode training;
    PlanSummary plan = summarize(x.dropout(0.5) * 2);
    const int64_t mine = int64_t{8192} * 1024 * 4 / n;
    EXPECT_EQ(plan.collective_bytes, 0);
    EXPECT_LE(plan.bytes_read, mine + 1024);
    EXPECT_LE(plan.arena_bytes, mine + 1024);
  });
}

// --- writing at places ---------------------------------------------------------------------------

// A key/value cache [batch, heads, positions, width] that is divided by heads.
TEST_F(Lookups, CachesAreWrittenWhereTheyLie) {
  each_world([&](int64_t n) {
    if (n > 64) return;
    Tensor cache = split({8, 64, 512, 32}, 1), row = split({8, 64, 1, 32}, 1);
    Tensor at = stored({1}, {}, DType::I32);
    cache.setitem({Slice(), Slice(), at, Slice()}, row);
    EXPECT_EQ(sent(cache), 0);
    Tensor other = split({8, 64, 512, 32}, 1), few = split({8, 64, 3, 32}, 1);
    other.setitem({Slice(), Slice(), stored({3}, {}, DType::I32), Slice()}, few);
    EXPECT_EQ(sent(other), 0);
    // Rows at places of a divided dim.
    Tensor rows = split({4096, 32}, 0), values = stored({3, 32}, {});
    rows.setitem({stored({3}, {}, DType::I32)}, values);
    EXPECT_EQ(sent(rows), 0);
    Tensor x = split({4096, 32}, 0);
    Tensor index = stored({16, 32}, {}, DType::I32), src = stored({16, 32}, {});
    EXPECT_EQ(sent(x.scatter(0, index, src)), 0);
    EXPECT_EQ(sent(x.scatter_reduce(0, index, src, ScatterReduce::Sum)), 0);
    EXPECT_EQ(sent(x.scatter_reduce(0, index, src, ScatterReduce::Amax)), 0);
  });
}

TEST_F(Lookups, SelectionsSendWhatTheySelect) {
  each_world([&](int64_t n) {
    Tensor x = split({65536}, 0);
    const double totals = all_gather(n, double(n) * 64), result = all_reduce(n, 1024 * 4);
    // Places, and the values there.
    EXPECT_LE(sent(x.masked_select(x > 0, 1024)), bound(totals + 2 * result + 64));
    EXPECT_LE(sent(x.nonzero(1024)), bound(totals + result + 64));
  });
}

}  // namespace
}  // namespace tinyshard::bytes_lookups_test
