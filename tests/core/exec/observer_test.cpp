// Events: what observers see of a step that is computed, captured and called again, and what errors
// and plans know of where values come from.
#include "core/base/observer.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/log.h"
#include "core/base/options.h"
#include "tests/sanitized.h"
#include "tinyshard/tinyshard.h"

namespace {
bool in_child = false;  // of fork()
}

// A child of fork has the memory of threads that it does not have: what those own would be taken for
// lost there. The parent computes the same, and its leaks are looked for.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the sanitizer's name
extern "C" int __lsan_is_turned_off() { return in_child ? 1 : 0; }

namespace tinyshard {
namespace {

class Recorder : public Observer {
 public:
  // Kernels are compiled by several threads; the events of each one nest.
  void begin(const ObservedEvent& event) override {
    const std::lock_guard lock(mutex_);
    open_[std::this_thread::get_id()].push_back(event.id);
  }
  void end(const ObservedEvent& event) noexcept override {
    const std::lock_guard lock(mutex_);
    std::vector<uint64_t>& open = open_[std::this_thread::get_id()];
    EXPECT_EQ(open.back(), event.id);
    open.pop_back();
    events.push_back(event);
  }
  bool all_ended() const {
    return std::ranges::all_of(open_, [](const auto& thread) { return thread.second.empty(); });
  }
  int64_t count(EventKind kind) const {
    return std::ranges::count(events, kind, &ObservedEvent::kind);
  }
  std::vector<ObservedEvent> events;

 private:
  std::mutex mutex_;
  std::map<std::thread::id, std::vector<uint64_t>> open_;
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
    EXPECT_TRUE(seen.all_ended());
    EXPECT_GT(seen.count(EventKind::Pass), 5);
    const int64_t steps = seen.count(EventKind::ScheduleStep);
    EXPECT_GT(steps, 5);
    EXPECT_EQ(seen.count(EventKind::Compilation), 1);
    EXPECT_EQ(seen.count(EventKind::Load), 1);
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

// Reads the items of runs as numbers.
class ItemReader : public Observer {
 public:
  bool takes_item_times() const override { return true; }
  void begin(const ObservedEvent&) override {}
  void end(const ObservedEvent& event) noexcept override {
    kinds.push_back(event.kind);
    if (event.kind == EventKind::Run) runs.push_back(*event.items);
  }
  std::vector<EventKind> kinds;
  std::vector<std::vector<ItemTime>> runs;
};

TEST_F(Observed, ItemsOfARunAsNumbers) {
  const Mesh mesh = Mesh::world({{"data", 2}});
  Tensor x = Tensor::arange(8).cast(DType::F32).shard(mesh, {{"data", Shard(0)}}).realize();
  Jit step = [](Tensor y) { return (y * 3).sum(); };
  step(x);
  ItemReader numbers;
  Recorder words;
  {
    const Observing reading(numbers);
    step(x);
    EXPECT_FALSE(items_are_events());
    const Observing observing(words);
    EXPECT_TRUE(items_are_events());
    step(x);
  }
  for (const EventKind kind :
       {EventKind::Launch, EventKind::Copy, EventKind::Collective, EventKind::Wait})
    EXPECT_EQ(std::ranges::count(numbers.kinds, kind), 0) << name(kind);
  ASSERT_EQ(numbers.runs.size(), 2u);
  EXPECT_EQ(int64_t(numbers.runs[1].size()),
            words.count(EventKind::Launch) + words.count(EventKind::Collective) +
                words.count(EventKind::Copy) + words.count(EventKind::Wait));
  for (const std::vector<ItemTime>& run : numbers.runs) {
    EXPECT_GE(std::ranges::count(run, true, &ItemTime::waits), 1);
    for (size_t i = 1; i < run.size(); ++i) {
      EXPECT_GE(run[i].begun + run[i].took, run[i - 1].begun + run[i - 1].took);
      EXPECT_GE(run[i].item, 0);
    }
  }
}

// They share a storage, of which nobody keeps what it held before the call.
TEST_F(Observed, EqualResultsOfAStepAreNotCopied) {
  const Mesh mesh = Mesh::world({{"data", 2}});
  auto of_mesh = [&](double value) { return Tensor::full({4}, value).shard(mesh).realize(); };
  const Tensor sum = of_mesh(0), x = of_mesh(1);
  Jit step = [](const Tensor& sum, const Tensor& x) {
    sum.assign(sum + x);
    return std::tuple(x * 3, x * 3, (x * 3).detach());
  };
  Recorder seen;
  const Observing observing(seen);
  for (int call = 1; call < 4; ++call) {
    auto [a, b, c] = step(sum, x);
    EXPECT_EQ(seen.count(EventKind::Run), call);
    for (const Tensor& result : {a, b, c})
      EXPECT_EQ(result.to_vector<int>(), (std::vector{3, 3, 3, 3})) << call;
  }
  EXPECT_EQ(sum.to_vector<int>(), (std::vector{3, 3, 3, 3}));
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
  EXPECT_FALSE(have("pass tidy"));
  EXPECT_TRUE(have(" ms  kernel "));
  EXPECT_TRUE(have("16 B, "));
  EXPECT_TRUE(have(" GB/s"));
  EXPECT_TRUE(have("compiled "));
  EXPECT_TRUE(have("ran "));
  lines.clear();
  Tensor::ones({3}).contiguous().realize();
  EXPECT_TRUE(lines.empty());
  set_log_sink({});
}

// A few lines for a whole program.
TEST_F(Observed, DebugOneAddsUp) {
  std::vector<std::string> lines;
  set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  setenv("DEBUG", "1", 1);
  reload_options();
  for (int i = 0; i < 5; ++i) (Tensor::ones({4 + i}).contiguous() + 1).realize();
  unsetenv("DEBUG");
  reload_options();
  EXPECT_TRUE(lines.empty()) << lines[0];
  Tensor::ones({3}).contiguous().realize();  // options are followed where something is compiled
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("5 runs in ")) << lines[0];
  EXPECT_NE(lines[0].find("; 5 compilations in "), std::string::npos) << lines[0];
  set_log_sink({});
}

// Code is listed only where somebody reads it, and in the form that is asked for.
TEST_F(Observed, MovesAndListingsAreEvents) {
  class Reader : public Recorder {
   public:
    explicit Reader(CodeForm form) : form_(form) {}
    CodeForm reads_listings() const override { return form_; }

   private:
    CodeForm form_;
  };
  const Mesh mesh = Mesh::world({{"data", 2}});
  auto seen_by = [&](CodeForm form, int64_t n) {  // another n is another kernel
    Reader seen(form);
    const Observing observing(seen);
    Tensor x = Tensor::arange(n).cast(DType::F32).shard(mesh, {{"data", Shard(0)}});
    (x * 3.25).shard(mesh).realize();
    EXPECT_GE(seen.count(EventKind::Reshard), 1);
    const auto moved = std::ranges::find(seen.events, EventKind::Reshard, &ObservedEvent::kind);
    EXPECT_NE(moved->name.find(" -> "), std::string::npos) << moved->name;
    EXPECT_EQ(moved->took.count(), 0);
    return seen.events;
  };
  auto listings = [](const std::vector<ObservedEvent>& events, std::string_view begin) {
    return std::ranges::count_if(events, [&](const ObservedEvent& e) {
      return e.kind == EventKind::Listing && e.name.starts_with(begin) && !e.after.empty();
    });
  };
  EXPECT_EQ(listings(seen_by(CodeForm::None, 1246), ""), 0);
  const auto graphs = seen_by(CodeForm::Graph, 1250);
  EXPECT_GE(listings(graphs, "graph of kernel "), 1);
  EXPECT_EQ(listings(graphs, ""), listings(graphs, "graph of kernel "));
  const auto all = seen_by(CodeForm::Assembly, 1254);
  EXPECT_GE(listings(all, "LLVM of kernel "), 1);
  EXPECT_EQ(listings(all, "LLVM of kernel "), listings(all, "assembly of kernel "));
}

TEST_F(Observed, DebugListsGraphsLineByLine) {
  std::vector<std::string> lines;
  std::mutex mutex;
  set_log_sink([&](std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  });
  setenv("DEBUG", "4", 1);
  reload_options();
  (Tensor::ones({1258}).contiguous() * 3.25).realize();
  unsetenv("DEBUG");
  reload_options();
  Tensor::ones({3}).contiguous().realize();  // options are followed where something is compiled
  set_log_sink({});
  auto begins = [&](std::string_view text) {
    return std::ranges::any_of(lines, [&](const std::string& l) { return l.starts_with(text); });
  };
  EXPECT_TRUE(begins("kernel "));
  EXPECT_TRUE(begins("params "));
  EXPECT_TRUE(begins("loops"));
  // Each line of the listing is logged by itself: bench/kernel_replay reads them so.
  EXPECT_TRUE(std::ranges::none_of(lines, [](const std::string& l) {
    return l.starts_with("params ") && l.find('\n') != std::string::npos;
  }));
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
    if (event.at("ph") == "M") continue;  // the process's name
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

// TS_TRACE as the environment has it, in an epoch of its own.
void begin_traced_by(const std::string& path) {
  Runtime::shutdown();
  setenv("TS_TRACE", path.c_str(), 1);
  reload_options();
}
void end_tracing() {
  Runtime::shutdown();
  unsetenv("TS_TRACE");
  reload_options();
}

TEST_F(Observed, TheTraceVariableFollowsAProgramThatKnowsNothingOfIt) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("observer_test_variable_" + std::to_string(getpid()) + ".json");
  begin_traced_by(path.string());
  EXPECT_EQ(Tensor::arange(6).sum().item<int64_t>(), 15);
  // Events that have ended are in the file while the program runs, and stay when it is killed.
  std::ifstream unfinished(path);
  std::string text(std::istreambuf_iterator<char>(unfinished), {});
  EXPECT_NE(text.find("\"cat\":\"run\""), std::string::npos);
  const pid_t child = test::kForksCompute ? fork() : 0;
  if (test::kForksCompute && child == 0) {
    in_child = true;
    alarm(60);
    Tensor::arange(7).sum().item<int64_t>();
    std::exit(0);  // runs what is registered for the exit, which is the parent's to do
  }
  int status = 0;
  if (test::kForksCompute) {
    ASSERT_EQ(waitpid(child, &status, 0), child);
  }
  EXPECT_EQ(status, 0);
  Runtime::shutdown();  // another epoch goes on in the same file
  EXPECT_EQ(Tensor::arange(8).sum().item<int64_t>(), 28);
  end_tracing();
  EXPECT_EQ(Tensor::arange(9).sum().item<int64_t>(), 36);  // ends the file
  std::ifstream file(path);
  const nlohmann::json events = nlohmann::json::parse(file);
  std::filesystem::remove(path);
  EXPECT_EQ(
      std::ranges::count_if(events, [](const auto& e) { return e.value("cat", "") == "run"; }), 2);
  for (const nlohmann::json& event : events) EXPECT_EQ(event.at("pid"), int64_t(getpid()));
}

TEST_F(Observed, ATraceThatCannotBeWrittenIsRefusedWhereTheRuntimeBegins) {
  begin_traced_by("/nowhere/at/all.json");
  try {
    Tensor::ones({4}).contiguous().realize();
    ADD_FAILURE() << "the trace was written";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("/nowhere/at/all.json"), std::string::npos)
        << error.what();
  }
  end_tracing();
  EXPECT_EQ(Tensor::arange(5).sum().item<int64_t>(), 10);
}

}  // namespace
}  // namespace tinyshard
