// A suite for every transport: each collective, dtype and reduction, at sizes from nothing to
// many segments, on groups of every shape. Runs threads as ranks by itself, and as one rank of a
// real job under mpirun.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include <gtest/gtest.h>

#include "core/dtype/half.h"
#include "devices/cuda/cuda_device.h"
#include "tests/transport/gpu_communicator.h"
#include "tests/transport/job.h"

namespace tinyshard::test::conformance_test {
namespace {

constexpr std::array kDtypes = {DType::Bool, DType::I8,  DType::I16, DType::I32, DType::I64,
                                DType::U8,   DType::U16, DType::U32, DType::U64, DType::F16,
                                DType::BF16, DType::F32, DType::F64};
constexpr std::array kReductions = {ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min};

// ------------------------------------------------------------------------------------------------
// Elements as integers that every dtype holds exactly, and their results after up to 8 terms too.

void encode(DType dtype, int64_t value, std::byte* out) {
  const auto put = [&](auto x) { std::memcpy(out, &x, sizeof(x)); };
  switch (dtype) {
    case DType::Bool:
      put(static_cast<uint8_t>(value != 0));
      break;
    case DType::I8:
    case DType::U8:
      put(static_cast<uint8_t>(value));
      break;
    case DType::I16:
    case DType::U16:
      put(static_cast<uint16_t>(value));
      break;
    case DType::I32:
    case DType::U32:
      put(static_cast<uint32_t>(value));
      break;
    case DType::I64:
    case DType::U64:
      put(static_cast<uint64_t>(value));
      break;
    case DType::F16:
      put(f32_to_f16(static_cast<float>(value)));
      break;
    case DType::BF16:
      put(f32_to_bf16(static_cast<float>(value)));
      break;
    case DType::F32:
      put(static_cast<float>(value));
      break;
    case DType::F64:
      put(static_cast<double>(value));
      break;
    case DType::F8E4M3FN:
    case DType::F8E5M2:
    case DType::F8E4M3FNUZ:
    case DType::F8E5M2FNUZ:
      put(static_cast<uint8_t>(f64_to_narrow(dtype, static_cast<double>(value))));
      break;
    case DType::Index:
      FAIL();
  }
}

int64_t value_of(DType dtype, ReduceOp op, int participant, size_t index) {
  const size_t mixed = (index + 1) * 2654435761u + static_cast<size_t>(participant) * 40503u;
  if (dtype == DType::Bool) return mixed >> 7 & 1;
  const bool positive = is_unsigned_int(dtype);
  if (op == ReduceOp::Prod) {
    constexpr std::array<int64_t, 4> kFactors = {1, 2, -1, -2};
    return kFactors[mixed >> 7 & (positive ? 1 : 3)];
  }
  return static_cast<int64_t>((mixed >> 7) % 7) - (positive ? 0 : 3);
}

int64_t combine_values(DType dtype, ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::Sum:
      return dtype == DType::Bool ? a | b : a + b;
    case ReduceOp::Prod:
      return a * b;
    case ReduceOp::Max:
      return std::max(a, b);
    case ReduceOp::Min:
      return std::min(a, b);
  }
  return 0;
}

// A buffer with a canary behind it.
class Buffer {
 public:
  Buffer(DType dtype, size_t count)
      : dtype_(dtype), count_(count), bytes_(count * itemsize(dtype) + kCanary, kFill) {}

  CommBuffer comm(size_t element = 0) { return {at(element)}; }
  std::byte* at(size_t element) { return bytes_.data() + element * itemsize(dtype_); }
  void set(size_t element, int64_t value) { encode(dtype_, value, at(element)); }

  // The first element that is not what `expected` says, or a damaged canary.
  std::string difference(const std::function<int64_t(size_t)>& expected) {
    std::array<std::byte, 8> want{};
    for (size_t i = 0; i < count_; ++i) {
      encode(dtype_, expected(i), want.data());
      if (std::memcmp(want.data(), at(i), itemsize(dtype_)) != 0)
        return "element " + std::to_string(i) + " is wrong";
    }
    for (size_t i = 0; i < kCanary; ++i) {
      if (at(count_)[i] != kFill) return "written behind the end";
    }
    return "";
  }

 private:
  static constexpr size_t kCanary = 64;
  static constexpr std::byte kFill{0xA5};
  DType dtype_;
  size_t count_;
  std::vector<std::byte> bytes_;
};

std::vector<CommBuffer> comm_buffers(std::vector<Buffer>& buffers,
                                     const std::function<size_t(size_t)>& element = {}) {
  std::vector<CommBuffer> list(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) list[i] = buffers[i].comm(element ? element(i) : 0);
  return list;
}

// Lists an element for each local participant.
template <class T>
std::vector<CommBuffer> single_elements(std::vector<T>& values) {
  std::vector<CommBuffer> list(values.size());
  for (size_t i = 0; i < values.size(); ++i) list[i] = {&values[i]};
  return list;
}

std::vector<int> iota(int n) {
  std::vector<int> numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// ------------------------------------------------------------------------------------------------
// One function per collective: fills, calls, and returns the check to make once the work is done.

using Check = std::function<void()>;
struct Running {
  Work work;
  Check check;
};
void finish(Running running) {
  running.work.wait();
  EXPECT_TRUE(running.work.test());
  running.check();
}

struct Data {
  std::vector<Buffer> send, recv;
};

int participant(const Communicator& c, size_t local) { return c.local()[local]; }

int64_t reduced(const Communicator& c, DType dtype, ReduceOp op, size_t index) {
  int64_t result = value_of(dtype, op, 0, index);
  for (int p = 1; p < c.size(); ++p)
    result = combine_values(dtype, op, result, value_of(dtype, op, p, index));
  return result;
}

Check make_check(const Communicator& c, std::shared_ptr<Data> data, const std::string& what,
                 bool in_place, std::function<int64_t(size_t local, size_t index)> expected) {
  return [&c, data, what, in_place, expected] {
    auto& results = in_place ? data->send : data->recv;
    for (size_t l = 0; l < c.local().size(); ++l) {
      const std::string wrong = results[l].difference([&](size_t i) { return expected(l, i); });
      EXPECT_EQ(wrong, "") << what << " on participant " << participant(c, l) << " of " << c.size()
                           << " in \"" << c.name() << '"';
    }
  };
}

std::string label(const Collective& call, bool in_place) {
  return describe(call) + (in_place ? " in place" : "");
}

Running all_reduce(Communicator& c, DType dtype, ReduceOp op, size_t count, bool in_place) {
  auto data = std::make_shared<Data>();
  for (size_t l = 0; l < c.local().size(); ++l) {
    data->send.emplace_back(dtype, count);
    data->recv.emplace_back(dtype, in_place ? 0 : count);
    for (size_t i = 0; i < count; ++i)
      data->send[l].set(i, value_of(dtype, op, participant(c, l), i));
  }
  const Collective call{
      .op = CollectiveOp::AllReduce, .reduce = op, .dtype = dtype, .count = count};
  Work work =
      c.start(call, comm_buffers(data->send), comm_buffers(in_place ? data->send : data->recv));
  return {work, make_check(c, data, label(call, in_place), in_place,
                           [&c, dtype, op](size_t, size_t i) { return reduced(c, dtype, op, i); })};
}

Running broadcast(Communicator& c, DType dtype, size_t count, int root, bool in_place) {
  auto data = std::make_shared<Data>();
  for (size_t l = 0; l < c.local().size(); ++l) {
    const bool is_root = participant(c, l) == root;
    data->send.emplace_back(dtype, in_place || is_root ? count : 0);
    data->recv.emplace_back(dtype, in_place ? 0 : count);
    for (size_t i = 0; is_root && i < count; ++i)
      data->send[l].set(i, value_of(dtype, ReduceOp::Sum, root, i));
  }
  const Collective call{
      .op = CollectiveOp::Broadcast, .dtype = dtype, .count = count, .from = root};
  Work work =
      c.start(call, comm_buffers(data->send), comm_buffers(in_place ? data->send : data->recv));
  return {work,
          make_check(c, data, label(call, in_place), in_place, [dtype, root](size_t, size_t i) {
            return value_of(dtype, ReduceOp::Sum, root, i);
          })};
}

// Equal parts where `counts` is empty. Element i of participant p's part is value (p, i).
Running all_gather(Communicator& c, DType dtype, size_t count, std::vector<size_t> counts,
                   bool in_place) {
  const size_t n = static_cast<size_t>(c.size());
  const Collective call{
      .op = CollectiveOp::AllGather, .dtype = dtype, .count = count, .counts = counts};
  const std::vector<size_t> parts = counts.empty() ? std::vector<size_t>(n, count) : counts;
  std::vector<size_t> offsets(n + 1);
  std::partial_sum(parts.begin(), parts.end(), offsets.begin() + 1);
  auto data = std::make_shared<Data>();
  for (size_t l = 0; l < c.local().size(); ++l) {
    const size_t p = static_cast<size_t>(participant(c, l));
    data->send.emplace_back(dtype, in_place ? offsets[n] : parts[p]);
    data->recv.emplace_back(dtype, in_place ? 0 : offsets[n]);
    for (size_t i = 0; i < parts[p]; ++i) {
      data->send[l].set((in_place ? offsets[p] : 0) + i,
                        value_of(dtype, ReduceOp::Sum, static_cast<int>(p), i));
    }
  }
  const auto own_offset = [&](size_t l) {
    return in_place ? offsets[static_cast<size_t>(participant(c, l))] : 0;
  };
  Work work = c.start(call, comm_buffers(data->send, own_offset),
                      comm_buffers(in_place ? data->send : data->recv));
  return {work,
          make_check(c, data, label(call, in_place), in_place, [dtype, offsets](size_t, size_t i) {
            const size_t p =
                static_cast<size_t>(std::upper_bound(offsets.begin(), offsets.end(), i) -
                                    offsets.begin()) -
                1;
            return value_of(dtype, ReduceOp::Sum, static_cast<int>(p), i - offsets[p]);
          })};
}

Running reduce_scatter(Communicator& c, DType dtype, ReduceOp op, size_t count,
                       std::vector<size_t> counts, bool in_place) {
  const size_t n = static_cast<size_t>(c.size());
  const Collective call{.op = CollectiveOp::ReduceScatter,
                        .reduce = op,
                        .dtype = dtype,
                        .count = count,
                        .counts = counts};
  const std::vector<size_t> parts = counts.empty() ? std::vector<size_t>(n, count) : counts;
  std::vector<size_t> offsets(n + 1);
  std::partial_sum(parts.begin(), parts.end(), offsets.begin() + 1);
  auto data = std::make_shared<Data>();
  for (size_t l = 0; l < c.local().size(); ++l) {
    const int p = participant(c, l);
    data->send.emplace_back(dtype, offsets[n]);
    data->recv.emplace_back(dtype, in_place ? 0 : parts[static_cast<size_t>(p)]);
    for (size_t i = 0; i < offsets[n]; ++i) data->send[l].set(i, value_of(dtype, op, p, i));
  }
  const auto own_offset = [&](size_t l) { return offsets[static_cast<size_t>(participant(c, l))]; };
  std::vector<CommBuffer> recv =
      in_place ? comm_buffers(data->send, own_offset) : comm_buffers(data->recv);
  Work work = c.start(call, comm_buffers(data->send), recv);
  // In place, the other parts of the buffer keep what they held.
  return {work, make_check(c, data, label(call, in_place), in_place,
                           [&c, dtype, op, offsets, in_place](size_t l, size_t i) {
                             const size_t p = static_cast<size_t>(participant(c, l));
                             const bool own = !in_place || (i >= offsets[p] && i < offsets[p + 1]);
                             if (!own) return value_of(dtype, op, static_cast<int>(p), i);
                             return reduced(c, dtype, op, in_place ? i : offsets[p] + i);
                           })};
}

// counts[from * n + to]; element i of the piece from p to q is value (p * n + q, i).
Running all_to_all(Communicator& c, DType dtype, size_t count, std::vector<size_t> counts) {
  const size_t n = static_cast<size_t>(c.size());
  const Collective call{
      .op = CollectiveOp::AllToAll, .dtype = dtype, .count = count, .counts = counts};
  const std::vector<size_t> pieces = counts.empty() ? std::vector<size_t>(n * n, count) : counts;
  auto data = std::make_shared<Data>();
  auto expected = std::make_shared<std::vector<std::vector<int64_t>>>();
  const auto value = [=](size_t from, size_t to, size_t i) {
    return value_of(dtype, ReduceOp::Sum, static_cast<int>(from * n + to), i);
  };
  for (size_t l = 0; l < c.local().size(); ++l) {
    const size_t p = static_cast<size_t>(participant(c, l));
    std::vector<int64_t> out, in;
    for (size_t q = 0; q < n; ++q) {
      for (size_t i = 0; i < pieces[p * n + q]; ++i) out.push_back(value(p, q, i));
      for (size_t i = 0; i < pieces[q * n + p]; ++i) in.push_back(value(q, p, i));
    }
    data->send.emplace_back(dtype, out.size());
    data->recv.emplace_back(dtype, in.size());
    for (size_t i = 0; i < out.size(); ++i) data->send[l].set(i, out[i]);
    expected->push_back(in);
  }
  Work work = c.start(call, comm_buffers(data->send), comm_buffers(data->recv));
  return {work, make_check(c, data, label(call, false), false,
                           [expected](size_t l, size_t i) { return (*expected)[l][i]; })};
}

// ------------------------------------------------------------------------------------------------

struct Config {
  std::string name;
  Layout layout;
  bool small_pieces;  // every algorithm for long buffers at work on short ones
  bool parallel = false;
  bool gpus = false;  // a GPU for each participant, NCCL between them

  CommOptions options() const {
    CommOptions options = test_options();
    if (small_pieces) {
      options.tuning = {.direct_bytes = 8,
                        .segment_bytes = 24,
                        .split_broadcast_bytes = 16,
                        .max_message_bytes = 20};
      options.verify = true;
    }
    if (parallel) {
      options.parallel = [](size_t n, const std::function<void(size_t)>& body) {
        std::thread odd([&] {
          for (size_t i = 1; i < n; i += 2) body(i);
        });
        for (size_t i = 0; i < n; i += 2) body(i);
        odd.join();
      };
    }
    return options;
  }
};

std::vector<Config> configs() {
  std::vector<Layout> layouts = {{1}, {2}, {4}, {1, 1}, {1, 1, 1}, {2, 2}, {1, 3}, {1, 1, 1, 1}};
  if (under_mpirun()) {
    const size_t ranks = static_cast<size_t>(read_launch_environment().size);
    layouts = {Layout(ranks, 1), Layout(ranks, 2)};
    layouts.emplace_back();
    for (size_t r = 0; r < ranks; ++r) layouts.back().push_back(r % 2 == 0 ? 1 : 3);
  }
  std::vector<Config> list;
  for (const Layout& layout : layouts) {
    std::string name = "devices";
    for (int locals : layout) name += "_" + std::to_string(locals);
    list.push_back({name, layout, false});
    list.push_back({name + "_small_pieces", layout, true});
  }
  if (!under_mpirun()) list.push_back({"devices_4_parallel", {4}, false, true});
  if (!under_mpirun() && count_cuda_devices() >= 2) {
    list.push_back({"gpus_2", {2}, false, false, true});
    list.push_back({"gpus_1_1", {1, 1}, false, false, true});
  }
  return list;
}

class Conformance : public ::testing::TestWithParam<Config> {
 protected:
  void on_every_rank(const Body& body) {
    const CommOptions options = GetParam().options();
    if (!GetParam().gpus) return run(GetParam().layout, options, body);
    run(GetParam().layout, options, [&](Communicator& host) {
      std::vector<std::unique_ptr<Device>> gpus;
      std::vector<Device*> pointers;
      for (int p : host.local()) {
        gpus.push_back(make_cuda_device(p));
        pointers.push_back(gpus.back().get());
      }
      GpuCommunicator communicator(host, pointers, options);
      body(communicator);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, Conformance, ::testing::ValuesIn(configs()),
                         [](const auto& info) { return info.param.name; });

std::vector<size_t> uneven(size_t n) {  // 0, 3, 6, ... with a large one: some empty, none equal
  std::vector<size_t> counts(n);
  for (size_t i = 0; i < n; ++i) counts[i] = i % 3 == 0 ? i / 3 : i * 37 + 1;
  return counts;
}

TEST_P(Conformance, AllReduceEveryDtypeAndReduction) {
  on_every_rank([](Communicator& c) {
    for (DType dtype : kDtypes) {
      for (ReduceOp op : kReductions) {
        for (size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}}) {
          finish(all_reduce(c, dtype, op, count, false));
          finish(all_reduce(c, dtype, op, count, true));
        }
      }
    }
  });
}

TEST_P(Conformance, ReduceScatterEveryDtypeAndReduction) {
  on_every_rank([](Communicator& c) {
    for (DType dtype : kDtypes) {
      for (ReduceOp op : kReductions) {
        for (size_t count : {size_t{0}, size_t{1}, size_t{129}}) {
          finish(reduce_scatter(c, dtype, op, count, {}, false));
          finish(reduce_scatter(c, dtype, op, count, {}, true));
        }
        finish(reduce_scatter(c, dtype, op, 0, uneven(static_cast<size_t>(c.size())), false));
        finish(reduce_scatter(c, dtype, op, 0, uneven(static_cast<size_t>(c.size())), true));
      }
    }
  });
}

TEST_P(Conformance, BytesMoveForEveryDtype) {
  on_every_rank([](Communicator& c) {
    const size_t n = static_cast<size_t>(c.size());
    std::vector<size_t> pieces(n * n);
    for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = i * 7 % 5;
    for (DType dtype : kDtypes) {
      for (size_t count : {size_t{0}, size_t{1}, size_t{333}}) {
        finish(all_gather(c, dtype, count, {}, false));
        finish(all_gather(c, dtype, count, {}, true));
        finish(all_to_all(c, dtype, count, {}));
        for (int root = 0; root < c.size(); ++root) {
          finish(broadcast(c, dtype, count, root, false));
          finish(broadcast(c, dtype, count, root, true));
        }
      }
      finish(all_gather(c, dtype, 0, uneven(n), false));
      finish(all_gather(c, dtype, 0, uneven(n), true));
      finish(all_to_all(c, dtype, 0, pieces));
    }
  });
}

TEST_P(Conformance, LargeBuffers) {
  if (GetParam().small_pieces) return;  // hundred thousands of messages
  on_every_rank([](Communicator& c) {
    constexpr size_t kLarge = 700001;
    finish(all_reduce(c, DType::F32, ReduceOp::Sum, kLarge, false));
    finish(all_reduce(c, DType::BF16, ReduceOp::Sum, kLarge, true));
    finish(all_reduce(c, DType::F16, ReduceOp::Max, kLarge, true));
    finish(reduce_scatter(c, DType::F64, ReduceOp::Sum, kLarge / 4, {}, true));
    finish(all_gather(c, DType::F32, kLarge / 2, {}, false));
    finish(all_to_all(c, DType::I32, kLarge / 8, {}));
    finish(broadcast(c, DType::U8, kLarge * 2, c.size() - 1, false));
  });
}

TEST_P(Conformance, SendAndReceive) {
  on_every_rank([](Communicator& c) {
    // Around the ring twice, the second lap with other sizes; a participant's neighbour may be
    // itself.
    for (size_t count : {size_t{0}, size_t{1}, size_t{500}}) {
      std::vector<Buffer> out, in;
      std::vector<Work> works;
      for (int p : c.local()) {
        out.emplace_back(DType::I32, count);
        in.emplace_back(DType::I32, count);
        for (size_t i = 0; i < count; ++i)
          out.back().set(i, value_of(DType::I32, ReduceOp::Sum, p, i));
      }
      Batch batch(c);
      for (size_t l = 0; l < out.size(); ++l) {
        const int p = participant(c, l), next = (p + 1) % c.size(),
                  previous = (p + c.size() - 1) % c.size();
        works.push_back(c.recv(in[l].comm(), count, DType::I32, previous, p));
        works.push_back(c.send(out[l].comm(), count, DType::I32, p, next));
      }
      batch.end();
      for (Work& work : works) work.wait();
      for (size_t l = 0; l < in.size(); ++l) {
        const int previous = (participant(c, l) + c.size() - 1) % c.size();
        EXPECT_EQ(in[l].difference(
                      [&](size_t i) { return value_of(DType::I32, ReduceOp::Sum, previous, i); }),
                  "");
      }
    }
  });
}

TEST_P(Conformance, MessagesOfAPairKeepTheirOrder) {
  on_every_rank([](Communicator& c) {
    constexpr int kMessages = 50;
    const int last = c.size() - 1;
    std::vector<int32_t> out(kMessages), in(kMessages);
    std::iota(out.begin(), out.end(), 0);
    std::vector<Work> works;
    Batch batch(c);
    for (size_t i = 0; i < kMessages; ++i) {
      if (c.rank_of(0) == c.rank()) works.push_back(c.send({&out[i]}, 1, DType::I32, 0, last));
      if (c.rank_of(last) == c.rank()) works.push_back(c.recv({&in[i]}, 1, DType::I32, 0, last));
    }
    batch.end();
    for (Work& work : works) work.wait();
    if (c.rank_of(last) == c.rank()) {
      EXPECT_EQ(in, out);
    }
  });
}

TEST_P(Conformance, CallsOverlapAndAreAwaitedInAnyOrder) {
  on_every_rank([](Communicator& c) {
    std::vector<Running> running;
    for (size_t round = 0; round < 20; ++round) {
      running.push_back(all_reduce(c, DType::F32, ReduceOp::Sum, 100 + round, round % 2 == 0));
      running.push_back(all_gather(c, DType::I16, round, {}, false));
      running.push_back(reduce_scatter(c, DType::F64, ReduceOp::Max, 20 + round, {}, false));
      running.push_back(all_to_all(c, DType::U8, round, {}));
      running.push_back(broadcast(c, DType::BF16, 50, static_cast<int>(round) % c.size(), true));
    }
    // Half of the ranks wait from the front, half from the back.
    if (c.rank() % 2 == 1) std::reverse(running.begin(), running.end());
    for (Running& r : running) finish(std::move(r));
  });
}

TEST_P(Conformance, MoreCallsThanTheWindow) {
  on_every_rank([](Communicator& c) {
    constexpr size_t kCalls = 2500;  // also more than the sequence numbers that tags tell apart
    std::vector<float> values(kCalls * c.local().size());
    std::vector<Work> works;
    for (size_t i = 0; i < kCalls; ++i) {
      std::vector<CommBuffer> buffers;
      for (size_t l = 0; l < c.local().size(); ++l) {
        float* value = &values[i * c.local().size() + l];
        *value = static_cast<float>(i);
        buffers.push_back({value});
      }
      works.push_back(c.all_reduce(buffers, buffers, 1, DType::F32));
    }
    for (Work& work : works) work.wait();
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t call = i / c.local().size();
      ASSERT_EQ(values[i], static_cast<float>(call * static_cast<size_t>(c.size())));
    }
  });
}

// All collectives once on a group.
void exercise(Communicator& c) {
  finish(all_reduce(c, DType::F32, ReduceOp::Sum, 300, false));
  finish(reduce_scatter(c, DType::I32, ReduceOp::Sum, 30, {}, false));
  finish(all_gather(c, DType::F16, 30, {}, false));
  finish(all_to_all(c, DType::I64, 30, {}));
  finish(broadcast(c, DType::U8, 300, c.size() - 1, false));
  c.barrier().wait();
}

std::unique_ptr<Communicator> split_if_member(Communicator& c, const std::vector<int>& group) {
  const bool member =
      std::any_of(group.begin(), group.end(), [&](int p) { return c.rank_of(p) == c.rank(); });
  return member ? c.split(group) : nullptr;
}

TEST_P(Conformance, GroupsOfEveryShape) {
  on_every_rank([](Communicator& c) {
    const int n = c.size();
    const std::vector<int> all = iota(n);
    std::vector<int> even, odd, head, single = {n - 1};
    for (int p : all) (p % 2 == 0 ? even : odd).push_back(p);
    head.assign(all.begin(), all.begin() + (n + 1) / 2);
    std::vector<int> reversed(all.rbegin(), all.rend());  // other numbers, and ranks not in order
    std::vector<std::vector<int>> groups = {all, even, odd, head, single, reversed};
    std::vector<std::unique_ptr<Communicator>> alive;
    for (const auto& group : groups) {
      if (group.empty()) continue;
      auto sub = split_if_member(c, group);
      if (!sub) continue;
      EXPECT_EQ(sub->size(), static_cast<int>(group.size()));
      for (int p = 0; p < sub->size(); ++p)
        EXPECT_EQ(sub->rank_of(p), c.rank_of(group[static_cast<size_t>(p)]));
      exercise(*sub);
      alive.push_back(std::move(sub));
    }
    // All of them at once, still.
    for (auto& sub : alive) exercise(*sub);
  });
}

TEST_P(Conformance, OverlapAcrossGroups) {
  if (GetParam().gpus && GetParam().layout.size() > 1)
    GTEST_SKIP() << "groups on devices want one order of calls (core/runtime/communicator.h)";
  on_every_rank([](Communicator& c) {
    std::vector<int> rotated = iota(c.size());
    std::rotate(rotated.begin(), rotated.begin() + 1, rotated.end());
    auto first = c.split(rotated, "rotated"), second = c.split(rotated);
    EXPECT_EQ(first->name(), "rotated");
    std::vector<Running> running;
    for (size_t round = 0; round < 10; ++round) {
      // Only the order within a group has to be the same on all ranks.
      Communicator& early = c.rank() % 2 == 0 ? *first : *second;
      Communicator& late = c.rank() % 2 == 0 ? *second : *first;
      for (Communicator* group : {&early, &c, &late}) {
        const size_t count = 64 * round + (group == second.get() ? 1 : 0);
        running.push_back(all_reduce(*group, DType::F64, ReduceOp::Sum, count, true));
      }
    }
    // Nor have the waits: each moves all groups along.
    if (c.rank() % 2 == 1) std::reverse(running.begin(), running.end());
    for (Running& r : running) finish(std::move(r));
  });
}

TEST_P(Conformance, GroupsComeAndGo) {
  if (GetParam().gpus) GTEST_SKIP() << "600 groups of NCCL take minutes, and no contexts of ours";
  on_every_rank([](Communicator& c) {
    const std::vector<int> all = iota(c.size());
    for (int round = 0; round < 600; ++round) {  // more than the contexts that exist at once
      auto group = c.split(all);
      if (round % 50 == 0) finish(all_reduce(*group, DType::I32, ReduceOp::Sum, 5, true));
    }
  });
}

TEST_P(Conformance, GroupsOfGroups) {
  on_every_rank([](Communicator& c) {
    std::vector<int> even, first = {0};
    for (int p = 0; p < c.size(); p += 2) even.push_back(p);
    auto half = split_if_member(c, even);
    if (!half) return;
    std::vector<int> backwards;
    for (int p = half->size() - 1; p >= 0; --p) backwards.push_back(p);
    auto again = split_if_member(*half, backwards);
    exercise(*again);
    if (auto one = split_if_member(*again, first)) exercise(*one);
  });
}

TEST_P(Conformance, FloatSumsAreCloseAndEqualEverywhere) {
  on_every_rank([](Communicator& c) {
    constexpr size_t kCount = 5000;
    const auto term = [](int p, size_t i) {
      return std::sin(static_cast<double>(i) * 0.7 + p * 1.3) * std::exp(p % 5);
    };
    const auto sum_once = [&](DType dtype) {
      std::vector<Buffer> buffers;
      for (int p : c.local()) {
        buffers.emplace_back(dtype, kCount);
        for (size_t i = 0; i < kCount; ++i) {
          const double x = term(p, i);
          const auto put = [&](auto bits) {
            std::memcpy(buffers.back().at(i), &bits, sizeof(bits));
          };
          if (dtype == DType::F64) put(x);
          if (dtype == DType::F32) put(static_cast<float>(x));
          if (dtype == DType::F16) put(f32_to_f16(static_cast<float>(x)));
          if (dtype == DType::BF16) put(f32_to_bf16(static_cast<float>(x)));
        }
      }
      c.all_reduce(comm_buffers(buffers), comm_buffers(buffers), kCount, dtype).wait();
      return buffers;
    };
    struct Case {
      DType dtype;
      double epsilon;
    };
    for (const Case& one : {Case{DType::F64, 0x1p-52}, Case{DType::F32, 0x1p-23},
                            Case{DType::F16, 0x1p-10}, Case{DType::BF16, 0x1p-7}}) {
      std::vector<Buffer> sums = sum_once(one.dtype), again = sum_once(one.dtype);
      const size_t bytes = kCount * itemsize(one.dtype);
      double worst = 0;
      for (size_t i = 0; i < kCount; ++i) {
        double exact = 0, magnitude = 0, got = 0;
        for (int p = 0; p < c.size(); ++p) {
          exact += term(p, i);
          magnitude += std::abs(term(p, i));
        }
        const auto get = [&](auto bits) {
          std::memcpy(&bits, sums[0].at(i), sizeof(bits));
          return bits;
        };
        if (one.dtype == DType::F64) got = get(double{});
        if (one.dtype == DType::F32) got = get(float{});
        if (one.dtype == DType::F16) got = f16_to_f32(get(uint16_t{}));
        if (one.dtype == DType::BF16) got = bf16_to_f32(get(uint16_t{}));
        worst = std::max(worst, std::abs(got - exact) / magnitude);
      }
      // Terms are rounded once when stored, sums once per level; each of many additions rounds,
      // too.
      EXPECT_LE(worst, std::max(2.0, c.size() / 4.0) * one.epsilon) << name(one.dtype);
      EXPECT_EQ(std::memcmp(sums[0].at(0), again[0].at(0), bytes), 0) << "not the same bits twice";
      std::vector<uint64_t> hashes(static_cast<size_t>(c.size()) * c.local().size());
      std::vector<uint64_t> own;
      std::vector<CommBuffer> recv;
      own.reserve(sums.size());
      recv.reserve(sums.size());
      for (Buffer& sum : sums) {
        own.push_back(
            std::hash<std::string_view>()({reinterpret_cast<const char*>(sum.at(0)), bytes}));
      }
      for (size_t l = 0; l < own.size(); ++l) {
        recv.push_back({&hashes[l * static_cast<size_t>(c.size())]});
      }
      c.all_gather(single_elements(own), recv, 1, DType::U64).wait();
      EXPECT_EQ(std::count(hashes.begin(), hashes.end(), hashes[0]),
                static_cast<ptrdiff_t>(hashes.size()))
          << "ranks differ";
    }
  });
}

TEST_P(Conformance, NanReachesMaxAndMin) {
  on_every_rank([](Communicator& c) {
    for (ReduceOp op : {ReduceOp::Max, ReduceOp::Min}) {
      for (int culprit = 0; culprit < c.size(); ++culprit) {
        std::vector<float> values;
        for (int p : c.local()) values.push_back(p == culprit ? NAN : static_cast<float>(p));
        const std::vector<CommBuffer> buffers = single_elements(values);
        c.all_reduce(buffers, buffers, 1, DType::F32, op).wait();
        for (float value : values)
          EXPECT_TRUE(std::isnan(value)) << name(op) << " with NaN on " << culprit;
      }
    }
  });
}

TEST_P(Conformance, IntegersWrap) {
  on_every_rank([](Communicator& c) {
    std::vector<uint8_t> values(c.local().size(), 200);
    const std::vector<CommBuffer> buffers = single_elements(values);
    c.all_reduce(buffers, buffers, 1, DType::U8).wait();
    for (uint8_t value : values) EXPECT_EQ(value, static_cast<uint8_t>(200 * c.size()));
  });
}

TEST_P(Conformance, SeveralThreadsUseTheirOwnGroups) {
  if (GetParam().gpus && GetParam().layout.size() > 1)
    GTEST_SKIP() << "threads have no one order of calls, which groups on devices want";
  if (GetParam().layout.size() > 2) return;  // enough threads already
  on_every_rank([](Communicator& c) {
    const std::vector<int> all = iota(c.size());
    auto other = c.split(all, "second thread");
    std::thread second([&] {
      for (size_t i = 0; i < 200; ++i)
        finish(all_reduce(*other, DType::F32, ReduceOp::Sum, i, false));
    });
    for (size_t i = 0; i < 200; ++i) finish(all_reduce(c, DType::I32, ReduceOp::Sum, i, true));
    second.join();
  });
}

TEST_P(Conformance, SameGraphsPass) {
  on_every_rank([](Communicator& c) {
    c.check_same(
        42, [] { return std::vector<std::string>{"matmul", "all_reduce"}; }, "the schedule");
    EXPECT_FALSE(c.failed());
  });
}

TEST_P(Conformance, DifferentGraphsAreNamed) {
  if (GetParam().layout.size() == 1) return;
  on_every_rank([](Communicator& c) {
    const bool odd_one = c.rank() == c.rank_of(c.size() - 1);
    std::vector<std::string> items = {"matmul 4x4", odd_one ? "all_reduce 8" : "all_reduce 16",
                                      "sgd"};
    const std::string text = expect_throw<UserError>(
        [&] { c.check_same(odd_one ? 1 : 2, [&] { return items; }, "the schedule"); });
    EXPECT_NE(
        text.find("the schedule of rank 0 and rank " + std::to_string(c.rank_of(c.size() - 1))),
        std::string::npos)
        << text;
    EXPECT_NE(text.find("item 1 is \"all_reduce 16\" on rank 0, \"all_reduce 8\" on rank"),
              std::string::npos)
        << text;
    // A list is a prefix of the other; the text may be empty.
    if (odd_one) items = {"matmul 4x4"};
    const std::string shorter = expect_throw<UserError>(
        [&] { c.check_same(odd_one ? 1 : 2, [&] { return items; }, "the schedule"); });
    EXPECT_NE(shorter.find("missing (it has 1 items)"), std::string::npos) << shorter;
    // Other methods that asked say more than the items.
    const RunIdentity told{.asked = odd_one ? "item (b.cpp:2)" : "step (a.cpp:1)"};
    const std::string asked = expect_throw<UserError>(
        [&] { c.check_same(odd_one ? 1 : 2, [&] { return items; }, "the schedule", told); });
    EXPECT_NE(asked.find("rank 0: step (a.cpp:1); rank 1: " +
                         std::string(c.rank_of(c.size() - 1) == 1 ? "item" : "step")),
              std::string::npos)
        << asked;
    EXPECT_EQ(asked.find("item 1 is"), std::string::npos) << asked;
    finish(all_reduce(c, DType::F32, ReduceOp::Sum, 8, true));  // nothing is broken by it
  });
}

TEST_P(Conformance, WrongCallsAreUserErrors) {
  on_every_rank([](Communicator& c) {
    const uint64_t before = c.sequence();
    std::vector<float> value(c.local().size() + 1);
    std::vector<CommBuffer> right(c.local().size(), CommBuffer{value.data()}),
        wrong(right.size() + 1, CommBuffer{value.data()});
    const std::vector<size_t> counts(static_cast<size_t>(c.size()) + 1, 1);
    const int n = c.size();
    expect_throw<UserError>([&] { c.all_reduce(wrong, right, 1, DType::F32); });
    expect_throw<UserError>([&] { c.all_reduce(right, {}, 1, DType::F32); });
    expect_throw<UserError>([&] { c.all_reduce(right, right, 1, DType::Index); });
    expect_throw<UserError>([&] { c.broadcast(right, right, 1, DType::F32, n); });
    expect_throw<UserError>([&] { c.broadcast(right, right, 1, DType::F32, -1); });
    expect_throw<UserError>([&] { c.send({value.data()}, 1, DType::F32, c.local()[0], n); });
    expect_throw<UserError>([&] {
      c.start({.op = CollectiveOp::AllGather, .dtype = DType::F32, .counts = counts}, right, right);
    });
    expect_throw<UserError>([&] { c.split(std::vector<int>{0, 0}); });
    expect_throw<UserError>([&] { c.split(std::vector<int>{n}); });
    expect_throw<UserError>([&] { c.split(std::vector<int>{}); });
    for (int p = 0; p < n; ++p) {
      if (c.rank_of(p) == c.rank()) continue;
      expect_throw<UserError>([&] { c.split(std::vector<int>{p}); });
      expect_throw<UserError>([&] { c.send({value.data()}, 1, DType::F32, p, c.local()[0]); });
      expect_throw<UserError>([&] { c.recv({value.data()}, 1, DType::F32, c.local()[0], p); });
    }
    EXPECT_EQ(c.sequence(), before);
    EXPECT_FALSE(c.failed());
    finish(all_reduce(c, DType::F32, ReduceOp::Sum, 3, false));
  });
}

}  // namespace
}  // namespace tinyshard::test::conformance_test
