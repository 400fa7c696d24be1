// Copies of many boxes by several threads: onto devices that are only pretended, whose copies come
// late and in threads of their own, and onto CPU devices, as loads and saves of users make them.
#include "core/exec/bulk_copies.h"

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <sys/resource.h>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/context.h"
#include "core/exec/locked_memory.h"
#include "core/nn/nn.h"
#include "devices/cpu/cpu_device.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"
#include "tests/devices.h"
#include "tests/io/temp_folder.h"
#include "tests/message_of.h"

namespace tinyshard::bulk_copies_test {
namespace {

// A queue of copies that a thread does, each a little later.
class LateQueue {
 public:
  LateQueue() : thread_([this] { work(); }) {}
  ~LateQueue() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  uint64_t add(void* to, const void* from, size_t bytes) {
    const std::lock_guard lock(mutex_);
    copies_.push_back({to, from, bytes});
    changed_.notify_all();
    return ++added_;
  }
  void wait(uint64_t until) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= until; });
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ == added_; });
  }

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || !copies_.empty(); });
      if (copies_.empty()) return;
      const Copy copy = copies_.front();
      copies_.pop_front();
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      std::memcpy(copy.to, copy.from, copy.bytes);
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Copy> copies_;
  uint64_t added_ = 0, done_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

struct LateEvent final : Event {
  LateEvent(LateQueue& q, uint64_t n) : queue(q), number(n) {}
  LateQueue& queue;
  uint64_t number;
};

class LateDevice final : public Device, public HostCopies {
 public:
  std::string name() const override { return "LATE:0"; }
  const Target& target() const override { return target_; }
  using Device::allocate;
  void* allocate(size_t bytes, const char*) override { return std::malloc(bytes + 1); }
  void free(void* memory, size_t) noexcept override { std::free(memory); }
  MemoryStats memory() const override { return {}; }
  void copy_in(void* to, const void* host, size_t bytes) override { std::memcpy(to, host, bytes); }
  void copy_out(void* host, const void* from, size_t bytes) override {
    std::memcpy(host, from, bytes);
  }
  bool fill_zero(void* to, size_t bytes) override {
    std::memset(to, 0, bytes);
    return true;
  }
  void* host_pointer(void*) override { return nullptr; }
  std::unique_ptr<Program> load(const ObjectCode&) override { return nullptr; }
  bool supports(const LibraryCall&, std::string*) const override { return false; }
  std::unique_ptr<Program> library(const LibraryCall&) override { return nullptr; }
  void synchronize() override {}

  bool lock_memory(void* memory, size_t) override {
    const std::lock_guard lock(mutex_);
    if (refuses) return false;
    locked.insert(memory);
    return true;
  }
  void unlock_memory(void* memory) noexcept override {
    const std::lock_guard lock(mutex_);
    locked.erase(memory);
  }
  std::unique_ptr<CopyBatch> begin_copies() override { return std::make_unique<Batch>(*this); }

  bool refuses = false;
  std::atomic<int> ended = 0, fails_at = 0, copies = 0;
  std::set<void*> locked;

 private:
  class Batch final : public CopyBatch {
   public:
    explicit Batch(LateDevice& device) : device_(device) {}
    ~Batch() override {
      device_.in_.wait();
      device_.out_.wait();
    }
    std::unique_ptr<Event> copy_in(void* to, const void* host, size_t bytes) override {
      if (++device_.copies == device_.fails_at) throw DeviceError("LATE:0 has failed");
      return std::make_unique<LateEvent>(device_.in_, device_.in_.add(to, host, bytes));
    }
    std::unique_ptr<Event> copy_out(void* host, const void* from, size_t bytes) override {
      if (++device_.copies == device_.fails_at) throw DeviceError("LATE:0 has failed");
      return std::make_unique<LateEvent>(device_.out_, device_.out_.add(host, from, bytes));
    }
    void wait(Event& event) override {
      auto& late = static_cast<LateEvent&>(event);
      late.queue.wait(late.number);
    }
    void end() override { ++device_.ended; }

   private:
    LateDevice& device_;
  };

  Target target_;
  std::mutex mutex_;
  LateQueue in_, out_;
};

std::vector<int32_t> counted(int64_t n) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 1);
  return values;
}

struct Case {
  Dims shape;
  LocalBox box;
  Dims room;  // of the memory
};
std::vector<Case> cases() {
  return {{{1500, 1000}, {{0, 0}, {1500, 1000}}, {1500, 1000}},
          {{1500, 1000}, {{700, 0}, {800, 1000}}, {800, 1000}},
          {{1500, 1000}, {{0, 300}, {1500, 100}}, {1500, 100}},    // short rows
          {{1500, 1000}, {{0, 200}, {1500, 750}}, {1500, 800}},    // padding behind each row
          {{2, 1200000}, {{0, 100}, {2, 1100000}}, {2, 1100001}},  // rows longer than a page
          {{50, 40, 30}, {{10, 3, 5}, {20, 30, 25}}, {25, 32, 25}},
          {{7}, {{2}, {4}}, {6}},
          {{4, 0}, {{0, 0}, {4, 0}}, {4, 0}}};
}

// By its own arithmetic: where element `i` of the memory comes from, or -1 for padding.
int64_t source_of(const Case& c, int64_t i) {
  int64_t at = 0, stride = 1;
  for (size_t d = c.shape.size(); d-- > 0;) {
    const int64_t x = i % c.room[d];
    i /= c.room[d];
    if (x >= c.box.size[d]) return -1;
    at += (c.box.begin[d] + x) * stride;
    stride *= c.shape[d];
  }
  return at;
}

// Boxes of an array that holds its numbers from 1 on.
struct Expected {
  std::vector<int32_t> in_memory, packed;
};
Expected expect(const Case& c) {
  Expected expected;
  for (int64_t e = 0; e < product(c.room); ++e) {
    const int64_t at = source_of(c, e);
    expected.in_memory.push_back(int32_t(at + 1));
    if (at >= 0) expected.packed.push_back(int32_t(at + 1));
  }
  return expected;
}

class BulkCopies : public ::testing::Test {
 protected:
  void TearDown() override {
    Runtime::get();
    Runtime::shutdown();  // pages are locked for devices of the test
  }
  FileRegion region(const std::vector<int32_t>& values, size_t before) {
    const auto path = folder_ / ("values" + std::to_string(files_++));
    std::ofstream file(path, std::ios::binary);
    file << std::string(before, 'x');
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * 4));
    file.close();
    return {std::make_shared<const OpenFile>(open_to_read(path)), path.native(), before};
  }
  LateDevice late, other;
  test::TempFolder folder_;
  int files_ = 0;
};

TEST_F(BulkCopies, BoxesOfFilesAndMemoryArriveOnDevicesAndComeBack) {
  auto cpu = make_cpu_device(0, 1);
  const std::vector<Case> all = cases();
  std::vector<Expected> expected;
  for (const Case& c : all) expected.push_back(expect(c));
  for (const bool refuses : {false, true}) {
    late.refuses = refuses;
    for (const bool from_file : {true, false}) {
      std::deque<std::vector<int32_t>> arrays;
      std::deque<FileRegion> regions;
      std::vector<BoxIn> boxes;
      std::vector<Device*> devices{&late, &other, cpu.get()};
      for (const Case& c : all) {
        arrays.push_back(counted(product(c.shape)));
        BoxIn box{.rows = BoxRows(c.shape, c.box, c.room, 4),
                  .room = size_t(product(c.room)) * 4,
                  .targets = {}};
        if (from_file) {
          regions.push_back(region(arrays.back(), 12));
          box.file = &regions.back();
        } else {
          box.host = reinterpret_cast<const std::byte*>(arrays.back().data());
        }
        for (Device* device : devices) {
          void* memory = device->allocate(box.room);
          const std::vector<std::byte> junk(box.room, std::byte{77});
          device->copy_in(memory, junk.data(), box.room);
          box.targets.push_back({device, memory});
        }
        boxes.push_back(std::move(box));
      }
      int64_t told = 0, total = 0;
      copy_in(boxes, [&](int64_t done, int64_t all_of_it) {
        EXPECT_GE(done, told);
        told = done;
        total = all_of_it;
      });
      EXPECT_EQ(told, total);
      std::vector<BoxReader::Box> to_read;
      for (size_t i = 0; i < all.size(); ++i) {
        const Case& c = all[i];
        for (const auto& [device, memory] : boxes[i].targets) {
          std::vector<int32_t> got(size_t(product(c.room)));
          device->copy_out(got.data(), memory, got.size() * 4);
          EXPECT_TRUE(got == expected[i].in_memory) << device->name() << " case " << i;
          to_read.push_back(
              {device, memory,
               BoxRows(c.box.size, {Dims(c.box.size.size()), c.box.size}, c.room, 4)});
        }
      }
      BoxReader reader(to_read);
      for (size_t i = 0; i < to_read.size(); ++i) {
        const std::vector<int32_t>& want = expected[i / devices.size()].packed;
        const size_t bytes = reader.bytes(i);
        ASSERT_EQ(bytes, want.size() * 4);
        std::vector<int32_t> got(want.size());
        size_t next = 0;
        const size_t middle = bytes / 8 * 4;
        for (const auto& [from, to] : {std::pair{size_t{0}, middle}, {middle, bytes}}) {
          if (from == to) continue;
          reader.read(i, from, to, [&](size_t at, std::span<const std::byte> piece) {
            EXPECT_EQ(at, next);
            std::memcpy(reinterpret_cast<std::byte*>(got.data()) + at, piece.data(), piece.size());
            next = at + piece.size();
          });
        }
        EXPECT_TRUE(got == want) << i;
      }
      for (const BoxIn& box : boxes) {
        for (const auto& [device, memory] : box.targets) device->free(memory, box.room);
      }
    }
  }
  EXPECT_GE(late.ended, 4);
  EXPECT_EQ(late.ended, other.ended);
}

TEST_F(BulkCopies, AFailureEndsAllOfItAndIsTold) {
  const std::vector<int32_t> values = counted(20 << 20);
  const FileRegion file = region(values, 0);
  void* memory = late.allocate(values.size() * 4);
  const Dims shape{int64_t(values.size())};
  BoxIn box{.file = &file,
            .rows = BoxRows(shape, {{0}, shape}, shape, 4),
            .room = values.size() * 4,
            .targets = {{&late, memory}}};
  late.fails_at = 5;
  EXPECT_THROW(copy_in(std::span(&box, 1)), DeviceError);
  late.fails_at = 0;
  std::filesystem::resize_file(file.path, 1 << 20);
  const std::string text = test::message_of<IoError>([&] { copy_in(std::span(&box, 1)); });
  EXPECT_NE(text.find(file.path), std::string::npos) << text;
  // In a read, too: what is under way to its pages ends first.
  BoxReader reader({{&late, memory, BoxRows(shape, {{0}, shape}, shape, 4)}});
  const auto count = late.copies.load();
  late.fails_at = count + 3;
  EXPECT_THROW(reader.read(0, 0, reader.bytes(0), [](size_t, auto) {}), DeviceError);
  late.fails_at = 0;
  EXPECT_THROW(reader.read(0, 0, reader.bytes(0), [](size_t, auto) { throw UserError("no"); }),
               UserError);
  late.free(memory, values.size() * 4);
}

TEST_F(BulkCopies, ASnapshotIsKeptForTheNextOne) {
  std::byte* first = nullptr;
  {
    const auto memory = snapshot_memory(10 << 20, &late);
    first = memory->data();
    EXPECT_TRUE(memory->is_locked());
    EXPECT_NE(snapshot_memory(5 << 20, &late)->data(), first);  // that one is in use
  }
  const auto second = snapshot_memory(1 << 20, &late);
  EXPECT_TRUE(second->is_locked());
  const auto* data = second->data();
  second->data()[0] = std::byte{1};
  Runtime::get();
  Runtime::shutdown();
  EXPECT_TRUE(late.locked.empty());
  EXPECT_FALSE(second->is_locked());
  EXPECT_EQ(data[0], std::byte{1});  // whoever still writes it to a disk may
  late.refuses = true;
  EXPECT_FALSE(snapshot_memory(1 << 20, &late)->is_locked());
  EXPECT_FALSE(snapshot_memory(1 << 20, nullptr)->is_locked());
}

// --- as users come to it

class BulkLoads : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::map<std::string, Dims>& tensors) {
    std::deque<std::vector<int32_t>> values;
    std::vector<io::TensorView> views;
    for (const auto& [key, shape] : tensors) {
      values.push_back(counted(product(shape)));
      views.push_back({key, DType::I32, shape, std::as_bytes(std::span(values.back()))});
    }
    io::write_safetensors(folder_ / "w.safetensors", views);
    return folder_ / "w.safetensors";
  }
  test::TempFolder folder_;
};

const std::map<std::string, Dims> kTensors = {
    {"a", {1537, 1025}}, {"b", {13}}, {"c", {30, 40, 50}}, {"d", {64, 40000}}, {"e", {2, 3}}};

Mesh line() { return Mesh::of(device_names(4), "x"); }

TEST_F(BulkLoads, ValuesOfAFileArriveHoweverTheyAreDivided) {
  TINYSHARD_NEED_DEVICES(4);
  const auto path = write(kTensors);
  const Mesh mesh = line();
  const std::vector<std::vector<AxisPlacement>> ways = {{{"x", Shard(0)}}, {{"x", Shard(1)}}, {}};
  for (const auto& way : ways) {
    std::vector<Tensor> loaded, wanted;
    for (const auto& [key, value] : safe_load(path)) {
      const bool fits = way.empty() || way[0].second.dim < int(value.shape().size());
      loaded.push_back(value.shard(mesh, fits ? way : ways[0]));
    }
    Tensor::realize(loaded);
    size_t i = 0;
    for (const auto& [key, shape] : kTensors)
      EXPECT_EQ(loaded[i++].to_vector<int32_t>(), counted(product(shape))) << key;
  }
}

TEST_F(BulkLoads, CopiesOfCopiesKeepTheirOrder) {
  TINYSHARD_NEED_DEVICES(4);
  const auto path = write(kTensors);
  const nn::StateDict dict = safe_load(path);
  const Mesh mesh = line(), pair = Mesh::of(device_names(2), "y");
  const Tensor once = dict.at("a").shard(mesh, {{"x", Shard(0)}});
  const Tensor twice = once.shard(pair, {{"y", Shard(1)}});
  const Tensor host = dict.at("d").clone(), moved = host.shard(mesh, {{"x", Shard(1)}});
  Tensor::realize({twice, once, moved, host});
  EXPECT_EQ(twice.to_vector<int32_t>(), counted(1537 * 1025));
  EXPECT_EQ(once.to_vector<int32_t>(), counted(1537 * 1025));
  EXPECT_EQ(moved.to_vector<int32_t>(), counted(64 * 40000));
  // Values that are written over after they were read.
  Tensor target = Tensor::zeros({1537, 1025}, DType::I32).shard(mesh).clone().realize();
  target.assign(dict.at("a").shard(mesh));
  const Tensor more = target + 1;
  EXPECT_EQ(more.to_vector<int32_t>()[5], 7);
  EXPECT_EQ(target.to_vector<int32_t>(), counted(1537 * 1025));
}

TEST_F(BulkLoads, AFileThatShrinksIsAnErrorWithTheLine) {
  const auto path = write(kTensors);
  const nn::StateDict dict = safe_load(path);
  std::filesystem::resize_file(path, 1 << 20);
  const std::string text = test::message_of<IoError>([&] {
    const Mesh mesh = Mesh::of({device_name(0)}, "x");
    Tensor::realize({dict.at("a").shard(mesh), dict.at("d").shard(mesh)});
  });
  EXPECT_NE(text.find(path.native()), std::string::npos) << text;
  EXPECT_NE(text.find("bulk_copies_test.cpp"), std::string::npos) << text;
}

TEST_F(BulkLoads, LargeCheckpointsComeBackFromManyThreads) {
  TINYSHARD_NEED_DEVICES(4);
  const Mesh mesh = line();
  auto state_of = [&](int64_t add) {
    nn::StateDict state;
    for (const auto& [key, shape] : kTensors) {
      const Tensor t = Tensor(counted(product(shape)), shape) + add;
      state.emplace(key, t.shard(mesh, {{"x", Shard(int(shape.size()) - 1)}}).clone().realize());
    }
    return state;
  };
  for (const bool asynchronous : {false, true}) {
    const auto root = folder_ / (asynchronous ? "beside" : "now");
    nn::StateDict state = state_of(0);
    nn::save_checkpoint(state, root, 1, {.asynchronous = asynchronous});
    for (auto& [key, t] : state) t.assign(t * 0 - 1);  // the snapshot is what it was
    std::vector<Tensor> all;
    for (auto& [key, t] : state) all.push_back(t);
    Tensor::realize(all);
    nn::wait_for_checkpoints();
    EXPECT_NO_THROW(io::Checkpoint::find(root, {.check_all = true}));
    nn::load_checkpoint(state, root);
    for (const auto& [key, t] : state)
      EXPECT_EQ(t.to_vector<int32_t>(), counted(product(t.shape()))) << key;
    const auto file = folder_ / "again.safetensors";
    safe_save(state, file);
    for (const auto& [key, t] : safe_load(file))
      EXPECT_EQ(t.to_vector<int32_t>(), counted(product(t.shape()))) << key;
  }
}

// As a full disk: what was there stands, in the folder and in memory.
TEST_F(BulkLoads, ASaveThatFindsNoRoomLosesNothing) {
  const auto root = folder_ / "run";
  nn::StateDict state;
  for (int i = 0; i < 8; ++i) state.emplace(std::to_string(i), Tensor::full({1 << 20}, i).clone());
  nn::save_checkpoint(state, root, 1);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little{20 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  const std::string now = test::message_of<UserError>([&] { nn::save_checkpoint(state, root, 2); });
  const std::string beside = test::message_of<UserError>([&] {
    nn::save_checkpoint(state, root, 2, {.asynchronous = true});
    nn::wait_for_checkpoints();
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  for (const std::string& text : {now, beside})
    EXPECT_NE(text.find("File too large"), std::string::npos) << text;
  EXPECT_EQ(io::Checkpoint::find(root, {.check_all = true}).step(), 1);
  nn::save_checkpoint(state, root, 3);
  EXPECT_EQ(nn::load_checkpoint(state, root).step, 3);
}

TEST_F(BulkLoads, LoadsAndSavesOfSeveralThreadsMeet) {
  const auto path = write(kTensors);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const std::string device = device_name(0);
      for (int round = 0; round < 2; ++round) {
        std::vector<Tensor> all;
        for (const auto& [key, value] : safe_load(path)) all.push_back(value.to(device));
        Tensor::realize(all);
        nn::StateDict dict;
        for (size_t i = 0; i < all.size(); ++i) dict.emplace(std::to_string(i), all[i]);
        const auto copy = folder_ / (std::to_string(t) + ".safetensors");
        safe_save(dict, copy);
        EXPECT_EQ(safe_load(copy).at("0").to_vector<int32_t>(), counted(1537 * 1025));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tinyshard::bulk_copies_test
