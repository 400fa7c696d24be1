// Recordings of steps in which devices send to each other, on devices of the test's own: CPUs that
// record, and replay what they recorded in any order that they were allowed.
#include "core/exec/segments.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/observer.h"
#include "core/exec/context.h"
#include "tests/device_on_cpu.h"
#include "tinyshard/tinyshard.h"

namespace tinyshard::segments_test {
namespace {

// --- cutting -------------------------------------------------------------------------------------

// "a bc!": a step of device a, then one of b and c that no recording holds.
std::vector<StepToCut> steps_of(const std::string& text) {
  std::vector<StepToCut> steps(1);
  for (char c : text) {
    if (c == ' ')
      steps.emplace_back();
    else if (c != '!')
      steps.back().devices.push_back(c - 'a');
  }
  size_t s = 0;
  steps[0].recorded = true;
  for (char c : text) {
    if (c == ' ') steps[++s].recorded = true;
    if (c == '!') steps[s].recorded = false;
  }
  return steps;
}

// "[0 2]a 1b": a recording of steps 0 and 2 on device a, then step 1 on b.
std::string cut(const std::string& text, size_t fewest = 2) {
  std::string result;
  for (const Segment& segment : cut_into_segments(steps_of(text), fewest)) {
    std::string steps;
    for (int s : segment.steps) steps += (steps.empty() ? "" : " ") + std::to_string(s);
    result += (result.empty() ? "" : ", ") + (segment.recorded ? "[" + steps + "]" : steps);
    for (int d : segment.devices) result += char('a' + d);
  }
  return result;
}

TEST(Segments, EndWhereDevicesSend) {
  EXPECT_EQ(cut("a b a ab! b a a b b ab! a a"), "[0 2]a, 1b, 3ab, [4 7 8]b, [5 6]a, 9ab, [10 11]a");
}
TEST(Segments, OfOtherDevicesGoOn) {
  EXPECT_EQ(cut("a c c ab! c a a"), "0a, 3ab, [1 2 4]c, [5 6]a");
}
TEST(Segments, OfSeveralDevicesAreTheirsAlone) {
  EXPECT_EQ(cut("ab ab a a ab ab"), "[0 1]ab, [2 3]a, [4 5]ab");
  EXPECT_EQ(cut("a a b b ab ab"), "[0 1]a, [2 3]b, [4 5]ab");
}
TEST(Segments, OfFewStepsAreNotRecorded) {
  EXPECT_EQ(cut("a a ab! b b b", 3), "0 1a, 2ab, [3 4 5]b");
}

// --- a device that records -----------------------------------------------------------------------

int told = 0, launched = 0, recorded = 0;  // single launches, recordings, and what these consist of

class Recorded final : public Recording {
 public:
  struct Work {
    void* const* list;  // null: not of a program
    std::vector<void*> pointers;
    std::function<void(void* const*)> run;
  };
  struct Step {
    std::vector<int> after;
    std::vector<Work> work;
  };
  explicit Recorded(std::vector<Step> steps) : steps_(std::move(steps)) {}

  void launch() override {
    ++launched;
    std::vector<bool> done(steps_.size());
    for (size_t left = steps_.size(); left > 0; --left) {
      std::vector<size_t> ready;
      for (size_t s = 0; s < steps_.size(); ++s) {
        auto is_done = [&](int earlier) { return bool(done[size_t(earlier)]); };
        if (!done[s] && std::ranges::all_of(steps_[s].after, is_done)) ready.push_back(s);
      }
      const size_t next = ready.at(random_() % ready.size());
      for (Work& work : steps_[next].work) work.run(work.pointers.data());
      done[next] = true;
    }
  }
  bool update(std::span<void* const* const> lists) override {
    for (Step& step : steps_) {
      for (Work& work : step.work) {
        if (std::ranges::find(lists, work.list) != lists.end())
          work.pointers.assign(work.list, work.list + work.pointers.size());
      }
    }
    return true;
  }

 private:
  std::vector<Step> steps_;
  std::mt19937 random_{7};
};

class RecordingCpu final : public test::DeviceOnCpu {
 public:
  explicit RecordingCpu(int index) : DeviceOnCpu("RECORDING", index) {}

  bool copy_from(void* to, Device& source, const void* from, size_t bytes) override {
    if (!dynamic_cast<RecordingCpu*>(&source)) return false;
    tell(nullptr, 0, [=, this](void* const*) { cpu().copy_in(to, from, bytes); });
    return true;
  }
  std::unique_ptr<Program> load(const ObjectCode& code) override {
    return std::make_unique<Told>(*this, cpu().load(code), kUnknown);
  }
  std::unique_ptr<Program> library(const LibraryCall& call) override {
    return std::make_unique<Told>(*this, cpu().library(call),
                                  call.operands.size() + call.also.size() + 1);
  }
  void synchronize() override {}
  bool can_record() const override { return true; }
  void begin_recording() override { recording_ = std::make_unique<std::vector<Recorded::Step>>(); }
  void record_step(std::span<const int> after, bool) override {
    recording_->push_back({{after.begin(), after.end()}, {}});
    in_steps_ = true;
  }
  std::unique_ptr<Recording> end_recording() override {
    in_steps_ = false;
    return std::make_unique<Recorded>(std::move(*std::exchange(recording_, nullptr)));
  }
  void abandon_recording() noexcept override { recording_.reset(); }

 private:
  static constexpr size_t kUnknown = 0;  // buffers of a kernel: its list is read when it runs

  struct Told final : Program {
    Told(RecordingCpu& d, std::unique_ptr<Program> p, size_t n)
        : device(d), program(std::move(p)), count(n) {}
    void launch(void* const* buffers, const int64_t* coordinates) override {
      device.tell(buffers, count, [this, buffers, coordinates](void* const* now) {
        program->launch(count == kUnknown ? buffers : now, coordinates);
      });
    }
    std::string describe() const override { return program->describe(); }
    RecordingCpu& device;
    std::unique_ptr<Program> program;
    size_t count;
  };

  void tell(void* const* list, size_t count, std::function<void(void* const*)> run) {
    if (!recording_) {
      ++told;
      return run(list);
    }
    ++recorded;
    if (!in_steps_) {  // in order
      recording_->emplace_back();
      if (recording_->size() > 1) recording_->back().after = {int(recording_->size()) - 2};
    }
    recording_->back().work.push_back({list, {list, list + count}, std::move(run)});
  }

  std::unique_ptr<std::vector<Recorded::Step>> recording_;
  bool in_steps_ = false;
};

// --- a pipeline on such devices ------------------------------------------------------------------

struct Layers {
  std::vector<nn::Linear> list = nn::layers<nn::Linear>(3, 16, 16);
  TS_FIELDS(list)
  Tensor operator()(Tensor x) const {
    for (const nn::Linear& layer : list) x = layer(x).tanh();
    return x;
  }
};

class SegmentsOfAStep : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const_cast<Builtins&>(builtins())
        .devices.push_back({"RECORDING", [] { return 4; }, [] { return std::string("of a test"); },
                            [](int index, int) { return std::make_unique<RecordingCpu>(index); }});
  }
  void TearDown() override { Runtime::shutdown(); }

  static std::vector<float> losses(const std::string& kind, int steps) {
    Runtime::shutdown();
    Runtime::configure({.devices = {kind}, .devices_per_rank = 4});
    Tensor::manual_seed(5);
    const auto models = nn::layers<Layers>(4);
    const nn::Pipeline pipe(Mesh({{"pipe", 4}}), "pipe", {models.begin(), models.end()},
                            {.micro_batches = 6});
    nn::optim::SGD optim(nn::parameters(models), {.lr = 0.2, .momentum = 0.9});
    Jit step = [&](Tensor x) {
      TrainingMode on;
      optim.zero_grad();
      const Tensor loss = pipe.backward(
          x, x.flip(1), [](const Tensor& a, const Tensor& b) { return (a - b).square().mean(); });
      optim.step();
      return loss;
    };
    std::vector<float> list;
    for (int i = 0; i < steps; ++i) {
      told = launched = recorded = 0;
      const Tensor x = (Tensor::arange(12 * 16).cast(DType::F32) * (0.01F * float(i + 1))).sin();
      list.push_back(step(x.reshape({12, 16}).to(kind + ":0").realize()).item<float>());
    }
    return list;
  }
};

TEST_F(SegmentsOfAStep, GiveWhatItsItemsGive) {
  const std::vector<float> want = losses("CPU", 6);
  EXPECT_EQ(losses("RECORDING", 6), want);
  EXPECT_LT(want.back(), want.front());
}

// Nobody sees the items of a recording: for an observer that takes their times one run is made of them.
TEST_F(SegmentsOfAStep, OneRunIsMeasured) {
  class Runs : public Observer {
   public:
    bool takes_item_times() const override { return true; }
    void begin(const ObservedEvent&) override {}
    void end(const ObservedEvent& event) noexcept override {
      if (event.kind == EventKind::Run) list.emplace_back(event.items->size(), event.measured);
    }
    std::vector<std::pair<size_t, bool>> list;
  };
  const std::vector<float> want = losses("CPU", 5);
  Runs seen;
  {
    const Observing observing(seen);
    EXPECT_EQ(losses("RECORDING", 5), want);
  }
  const size_t all = std::ranges::max(seen.list).first;
  std::vector<bool> measured;  // of the runs that tell all items: the step's first two
  for (const auto& [items, is_measured] : seen.list) {
    if (items == all) measured.push_back(is_measured);
  }
  EXPECT_EQ(measured, (std::vector{false, true}));
}

// All that a stage does between two sends is a launch, however many layers it has.
TEST_F(SegmentsOfAStep, AreFewLaunches) {
  losses("RECORDING", 1);
  const int items = told;
  losses("RECORDING", 2);
  const int in_recordings = recorded;
  losses("RECORDING", 3);
  // Each of 6 micro-batches goes forward and backward through four stages, of which each is updated.
  EXPECT_LE(launched, 2 * 6 * 4 + 4);
  EXPECT_GE(in_recordings, items * 2 / 3);
  // Sends, and segments of one or two items.
  EXPECT_LE(told, items / 4);
  EXPECT_EQ(recorded, 0);
}

}  // namespace
}  // namespace tinyshard::segments_test
