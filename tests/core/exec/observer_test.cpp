// Events: what observers see of a step that is computed, captured and called again, and what errors
// and plans know of where values come from.
#include "core/base/observer.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/log.h"
#include "core/base/options.h"
#include "tinyshard/tinyshard.h"

namespace tinyshard {
namespace {

class Recorder : public Observer {
 public:
  void begin(const ObservedEvent& event) override { open.push_back(event.id); }
  void end(const ObservedEvent& event) noexcept override {
    EXPECT_EQ(open.back(), event.id);  // events of a thread nest
    open.pop_back();
    events.push_back(event);
  }
  int64_t count(EventKind kind) const {
    return std::ranges::count(events, kind, &ObservedEvent::kind);
  }
  std::vector<uint64_t> open;
  std::vector<ObservedEvent> events;
};

class Observed : public ::testing::Test {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 2});
  }
  void TearDown() override { Runtime::shutdown(); }
};

TEST_F(Observed, PassesCompilationsRunsAndItems) {
  const Mesh mesh = Mesh::world({{"data", 2}});
  Tensor x = Tensor::arange(8).cast(DType::F32).shard(mesh, {{"data", Shard(0)}}).realize();
  Jit step = [](Tensor y) { return (y * 3).sum(); };
  Recorder seen;
  {
    const Observing observing(seen);
    step(x);
    EXPECT_TRUE(seen.open.empty());
    EXPECT_GT(seen.count(EventKind::Pass), 5);
    const int64_t steps = seen.count(EventKind::ScheduleStep);
    EXPECT_GT(steps, 5);
    EXPECT_EQ(seen.count(EventKind::Compilation), 1);
    EXPECT_EQ(seen.count(EventKind::Run), 1);
    const int64_t launches = seen.count(EventKind::Launch);
    EXPECT_GE(launches, 1);
    EXPECT_EQ(seen.count(EventKind::Collective), 1);
    auto collective = std::ranges::find(seen.events, EventKind::Collective, &ObservedEvent::kind);
    EXPECT_EQ(collective->ticket.item, 1u);
    EXPECT_EQ(origin_of(collective->origin).about, "completes the sum of sum");
    EXPECT_TRUE(origin_of(collective->origin).source().starts_with("observer_test.cpp:"));
    step(x);
    EXPECT_EQ(seen.count(EventKind::Run), 2);
    EXPECT_EQ(seen.count(EventKind::Launch), 2 * launches);
    EXPECT_EQ(seen.count(EventKind::ScheduleStep), steps);
  }
  const size_t before = seen.events.size();
  EXPECT_EQ(step(x).item<float>(), 84);
  EXPECT_EQ(seen.events.size(), before);
}

TEST_F(Observed, DebugIsAnObserver) {
  std::vector<std::string> lines;
  set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  setenv("DEBUG", "2", 1);
  reload_options();
  (Tensor::ones({4}).contiguous() + 1).realize();
  unsetenv("DEBUG");
  reload_options();
  auto have = [&](std::string_view text) {
    return std::ranges::any_of(
        lines, [&](const std::string& l) { return l.find(text) != std::string::npos; });
  };
  EXPECT_TRUE(have("pass tidy"));
  EXPECT_TRUE(have("pass schedule"));
  EXPECT_TRUE(have("step fusion"));
  EXPECT_TRUE(have(" ms  kernel "));
  EXPECT_TRUE(have("ran "));
  lines.clear();
  Tensor::ones({3}).contiguous().realize();
  EXPECT_TRUE(lines.empty());
  set_log_sink({});
}

TEST_F(Observed, ATraceFileIsJsonWithSourceLines) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("observer_test_" + std::to_string(getpid()) + ".json");
  const Mesh mesh = Mesh::world({{"data", 2}});
  {
    const TraceFile trace(path.string());
    Tensor x = Tensor::arange(8).cast(DType::F32).shard(mesh, {{"data", Shard(0)}});
    EXPECT_EQ(x.sum().item<float>(), 28);
  }
  std::ifstream file(path);
  const nlohmann::json events = nlohmann::json::parse(file);
  std::filesystem::remove(path);
  int64_t runs = 0, collectives = 0;
  for (const nlohmann::json& event : events) {
    EXPECT_EQ(event.at("ph"), "X");
    EXPECT_GE(event.at("dur").get<double>(), 0);
    runs += event.at("cat") == "run";
    if (event.at("cat") != "collective") continue;
    ++collectives;
    EXPECT_EQ(event.at("args").at("for"), "completes the sum of sum");
    EXPECT_TRUE(event.at("args").at("source").get<std::string>().starts_with("observer_test.cpp:"));
  }
  EXPECT_GE(runs, 1);
  EXPECT_EQ(collectives, 1);
  EXPECT_THROW(TraceFile("/nowhere/at/all.json"), UserError);
}

}  // namespace
}  // namespace tinyshard
