// The file that VIZ names and the page that is made of it, without a browser: what is told of a step over
// two devices, how the file levels off, and that no data leaves the element that it is in.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/log.h"
#include "core/base/observer.h"
#include "report/view_file.h"
#include "report/view_runs.h"
#include "tinyshard/tinyshard.h"
#include "view/perfetto.h"
#include "view/view_page.h"

namespace tinyshard {
namespace {

using nlohmann::json;

class View : public ::testing::Test {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 2});
    path_ = (std::filesystem::temp_directory_path() /
             ("view-" + std::to_string(::getpid()) + ".tsview"))
                .string();
  }
  void TearDown() override {
    Runtime::shutdown();
    std::filesystem::remove(path_);
  }

  std::string text() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<json> lines(const std::string& kind) const {
    std::vector<json> found;
    std::istringstream rest(text());
    for (std::string line; std::getline(rest, line);) {
      json row = json::parse(line);
      if (row.at("k") == kind) found.push_back(std::move(row));
    }
    return found;
  }

  std::string path_;
};

json item_of(const json& plan, const std::string& kind) {
  for (const json& item : plan.at("items")) {
    if (item.at("kind") == kind) return item;
  }
  return {};
}

TEST_F(View, TellsAStepOverTwoDevices) {
  const Mesh mesh = Mesh::world({{"data", 2}});
  const Tensor x = Tensor::arange(10)
                       .cast(DType::F32)
                       .reshape({5, 2})
                       .shard(mesh, {{"data", Shard(0)}})
                       .realize();
  Jit step = [](const Tensor& y) { return (y * 3).sum(); };
  {
    const ViewFile view(path_);
    for (int i = 0; i < 40; ++i) step(x);
  }
  ASSERT_EQ(lines("head").size(), 1u);
  const std::vector<json> plans = lines("plan"), runs = lines("run");
  ASSERT_EQ(plans.size(), 1u);
  const json& plan = plans[0];
  EXPECT_EQ(runs.size(), 40u);
  EXPECT_EQ(plan.at("meshes")[0].at("axes"), json::parse(R"([["data",2]])"));
  // The value that is split, and the sum that is completed.
  const json& values = plan.at("values");
  EXPECT_TRUE(std::ranges::any_of(values, [](const json& v) {
    return v[2] == json::parse("[5,2]") && v[4] == json::parse("[0]");
  })) << values;
  ASSERT_EQ(plan.at("moves").size(), 1u);
  const json& move = plan.at("moves")[0];
  EXPECT_EQ(move.at("from"), json::parse(R"(["P sum"])"));
  EXPECT_EQ(move.at("to"), json::parse(R"(["R"])"));
  EXPECT_GT(move.at("bytes"), 0);
  EXPECT_EQ(plan.at("origins")[move.at("o").get<size_t>()][1].get<std::string>().substr(0, 13),
            "view_test.cpp");
  const json collective = item_of(plan, "collective"), kernel = item_of(plan, "kernel");
  EXPECT_EQ(collective.at("collective").at("op"), "all_reduce");
  EXPECT_EQ(collective.at("collective").at("axis"), "data");
  EXPECT_EQ(collective.at("purpose"), "completes the sum of sum");
  EXPECT_EQ(kernel.at("read"), 24);  // three rows of two on the device that has more
  EXPECT_FALSE(plan.at("code").empty());
  EXPECT_EQ(plan.at("passes")[0].at("name"), "program");
  EXPECT_GT(plan.at("nodes").size(), 4u);
  // Runs are counted, and a few told with their items.
  const auto detailed = std::ranges::count_if(runs, [](const json& r) { return r.contains("i"); });
  EXPECT_GE(detailed, 6);
  EXPECT_LE(detailed, 26);
  EXPECT_TRUE(runs[0].contains("i"));
  const json last = lines("sum").back();
  EXPECT_EQ(last.at("runs"), 40);
  EXPECT_EQ(last.at("items")[0][1], 40);
}

TEST_F(View, PassesTellWhatTheyChange) {
  const ViewFile view(path_);
  const Tensor x = Tensor::rand({8, 8}).realize();
  Jit step = [](const Tensor& y) {
    return (y + y * 0).matmul(y).exp() + -Tensor::full({8, 8}, 0.25);
  };
  step(x);
  size_t rules = 0;
  for (const json& plan : lines("plan")) {
    for (const json& rule : plan.at("rules")) {
      ++rules;
      EXPECT_LT(rule.at(0).get<size_t>(), plan.at("passes").size());
      EXPECT_FALSE(rule.at(1).get<std::string>().empty());
      EXPECT_GE(rule.at(6).get<int>(), 1);
    }
    std::vector<uint64_t> now;
    for (const json& pass : plan.at("passes")) {
      for (const json& id : pass.at("removed")) {
        const auto there = std::ranges::find(now, id.get<uint64_t>());
        ASSERT_NE(there, now.end()) << pass.at("name");
        now.erase(there);
      }
      for (const json& id : pass.at("added")) {
        EXPECT_EQ(std::ranges::count(now, id.get<uint64_t>()), 0);
        now.push_back(id.get<uint64_t>());
      }
      EXPECT_EQ(now.size(), pass.at("nodes").get<size_t>());
      for (const json& id : pass.at("roots"))
        EXPECT_EQ(std::ranges::count(now, id.get<uint64_t>()), 1);
    }
  }
  EXPECT_GT(rules, 0u);
}

// A plan that is asked for as a text tells observers nothing.
TEST_F(View, CaughtRecordsAreNotTold) {
  const Tensor x = Tensor::rand({8, 8}).realize();
  const ViewFile view(path_);
  EXPECT_FALSE(to_dot(x.exp()).empty());
  EXPECT_TRUE(lines("plan").empty());
}

TEST_F(View, APlanOnNullDevicesIsTold) {
  Runtime::shutdown();
  Runtime::configure({.devices = {"NULL"}, .devices_per_rank = 1024});
  const ViewFile view(path_);
  const Mesh mesh = Mesh::world({{"data", 32}, {"model", 32}});
  const Tensor a = Tensor::rand({4096, 512}).shard(mesh, {{"data", Shard(0)}, {"model", Shard(1)}});
  const Tensor b = Tensor::rand({512, 256}).shard(mesh, {{"model", Shard(0)}});
  a.matmul(b).sum().realize();
  const std::vector<json> plans = lines("plan");
  ASSERT_FALSE(plans.empty());
  EXPECT_EQ(plans.back().at("devices"), 1024);
  EXPECT_FALSE(plans.back().at("moves").empty());
  // The ways that an op had, with labels and costs, and which was taken.
  size_t choices = 0;
  for (const json& value : plans.back().at("values")) {
    for (const json& choice : value.size() > 7 ? value[7] : json::array()) {
      ++choices;
      ASSERT_GE(choice.at(1).size(), 2u);
      ASSERT_LT(choice.at(0).get<size_t>(), choice.at(1).size());
      for (const json& option : choice.at(1)) {
        EXPECT_TRUE(option.at(0).get<std::string>().starts_with("operands ")) << option;
        EXPECT_GE(option.at(1).get<double>(), 0) << option;
      }
    }
  }
  EXPECT_GT(choices, 0u);
  EXPECT_TRUE(std::ranges::all_of(
      lines("run"), [](const json& r) { return !r.contains("i") || r["i"].empty(); }));
}

// An equal plan that is made again is the same one.
TEST_F(View, EqualPlansAreToldOnce) {
  const ViewFile view(path_);
  for (int i = 0; i < 5; ++i) (Tensor::full({4, 4}, 2.0).contiguous() + 1).realize();
  EXPECT_EQ(lines("plan").size(), 1u);
  EXPECT_EQ(lines("run").size(), 5u);
}

TEST_F(View, WhatIsLeftOutIsCounted) {
  {
    const ViewFile view(path_);
    for (int i = 0; i < 20'003; ++i)
      observe([] {
        ObservedEvent event;
        event.kind = EventKind::Allocation;
        event.bytes = 64;
        return event;
      });
  }
  EXPECT_EQ(lines("mem").size(), 20'000u);
  ASSERT_EQ(lines("cut").size(), 1u);
  EXPECT_EQ(lines("cut")[0].at("allocations"), 3);
}

TEST_F(View, AFullDiskIsToldOnce) {
  std::vector<std::string> told;
  set_log_sink([&](std::string_view line) { told.emplace_back(line); });
  {
    const ViewFile view("/dev/full");
    (Tensor::full({4, 4}, 2.0).contiguous() + 1).realize();
  }
  set_log_sink({});
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("/dev/full: No space left on device"), std::string::npos) << told[0];
}

// The time of an item that waits for a collective first is its own; the collective has that of the wait.
TEST(ViewRuns, WaitsAreNotTheItems) {
  ViewRuns runs;
  const std::chrono::steady_clock::time_point start;
  std::vector<ItemTime> items;
  const auto add = [&](int item, bool waits, int64_t begun, int64_t us) {
    items.push_back(
        {item, waits, start + std::chrono::microseconds(begun), std::chrono::microseconds(us)});
  };
  add(0, false, 10, 1);
  add(0, true, 12, 90);
  add(1, false, 11, 100);
  add(2, false, 112, 5);
  ObservedEvent run;
  run.items = &items;
  run.kind = EventKind::Run;
  run.plan = 3;
  run.took = std::chrono::microseconds(120);
  runs.add(run, start);
  const json sum = json::parse(runs.sum_of(3));
  EXPECT_EQ(sum.at("items"),
            json::parse("[[0,1,1.0,1.0,90.0],[1,1,10.0,10.0,0.0],[2,1,5.0,5.0,0.0]]"));
}

std::string data_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t from = page.find(begin) + begin.size();
  return page.substr(from, page.find("</script>", from) - from);
}

// Ranks are processes of one trace, on the clock of the first.
TEST(Perfetto, RanksInOneFile) {
  const auto rank_lines = [](int rank, int64_t start) {
    return json{{"k", "head"}, {"rank", rank}, {"ranks", 2}, {"start_us", start}}.dump() +
           "\n{\"k\":\"plan\",\"plan\":1,\"items\":[{\"name\":\"kernel "
           "a\",\"source\":\"x.cpp:3\"},{\"name\":\"#1 "
           "all_reduce\",\"kind\":\"collective\"}],\"hash\":\"h\",\"buffers\":[[\"f32\",[2],0,8,"
           "\"state\",\"m.w\"]]}\n{\"k\":\"run\",\"plan\":1,\"run\":7,\"t\":100,\"d\":50,\"i\":[0,"
           "5,10,"
           "9,1,1,\"x\",1,1],"
           "\"w\":[1,20,8]}\n{\"k\":\"mem\",\"t\":1,\"b\":64,\"name\":\"m.w\"}\n{\"k\":\"mem\","
           "\"t\":2,\"b\":-16}"
           "\nnonsense\n";
  };
  const json trace =
      json::parse(perfetto_trace({{"b", rank_lines(1, 1'500)}, {"a", rank_lines(0, 1'000)}}));
  const auto find = [&](int rank, const std::string& name) {
    for (const json& e : trace.at("traceEvents")) {
      if (e.at("pid") == rank && e.at("name") == name) return e;
    }
    return json();
  };
  EXPECT_EQ(find(0, "kernel a").at("ts"), 105);
  EXPECT_EQ(find(1, "kernel a").at("ts"), 605);
  EXPECT_EQ(find(1, "kernel a").at("args").at("source"), "x.cpp:3");
  EXPECT_EQ(find(1, "waits for #1 all_reduce").at("dur"), 8);
  EXPECT_FALSE(find(0, "item 9").is_null());
  EXPECT_EQ(trace.at("traceEvents").back().at("args").at("bytes"), 48);
  EXPECT_EQ(find(0, "memory by owner").at("args"), json::parse(R"({"state":64})"));
  EXPECT_EQ(perfetto_trace({{"c", "{}\n"}}), "[]");
}

// An arrow leads from the rank that came last to the one that waited for it.
TEST(Perfetto, FlowsBetweenRanks) {
  const auto lines = [](int rank, double starts, double waits) {
    return json{{"k", "head"}, {"rank", rank}, {"ranks", 2}, {"start_us", 1000}}.dump() + "\n" +
           json{{"k", "plan"},
                {"plan", 3 + rank},
                {"hash", "h"},
                {"items", {{{"kind", "collective"}, {"name", "#1 sum"}}}}}
               .dump() +
           "\n" +
           json{{"k", "run"},
                {"plan", 3 + rank},
                {"run", 7},
                {"t", 100},
                {"d", 50},
                {"i", {0, starts, 1}},
                {"w", {0, starts + 1, waits}}}
               .dump() +
           "\n";
  };
  const json trace = json::parse(perfetto_trace({{"a", lines(0, 5, 20)}, {"b", lines(1, 20, 2)}}));
  json begin, end;
  for (const json& e : trace.at("traceEvents")) {
    if (e.at("ph") == "s") begin.push_back(e);
    if (e.at("ph") == "f") end.push_back(e);
  }
  ASSERT_EQ(begin.size(), 1u);
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(begin[0].at("pid"), 1);
  EXPECT_EQ(begin[0].at("ts"), 120);
  EXPECT_EQ(end[0].at("pid"), 0);
  EXPECT_EQ(end[0].at("id"), begin[0].at("id"));
  EXPECT_GT(end[0].at("ts"), 106);  // within the wait, from 106 to 126
  EXPECT_LT(end[0].at("ts"), 126);
}

TEST(ViewPage, DataIsNeverMarkup) {
  const std::string hostile =
      "</script><script>alert(1)</script><!-- ]]> \xe2\x80\xa8 \xff\xfe \" ' & @DATA@ /*SCRIPT*/";
  const std::string line = json{{"k", "head"}, {"program", hostile}}.dump(
      -1, ' ', false, json::error_handler_t::replace);
  const std::string page =
      view_page({{hostile, line + "\n{\"k\":\"plan\",\"plan\":1e999}\nno json\n" +
                               std::string(100, '[') + "\n"}});
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  const std::string data = data_of(page);
  EXPECT_EQ(data.find_first_of("<>&"), std::string::npos);
  EXPECT_EQ(data.find("\xe2\x80\xa8"), std::string::npos);
  const json back = json::parse(data);
  EXPECT_EQ(back.at("files")[0].at("lines").size(), 1u);
  EXPECT_EQ(back.at("files")[0].at("left_out"), 3);
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(page.find("http://"),
            page.find("http://www.w3.org/2000/svg"));  // a name, not an address
}

// Whatever a file holds, the page's data is JSON without a character that HTML reads.
TEST(ViewPage, MutatedFiles) {
  const std::string line =
      R"({"k":"plan","plan":1,"for":"a</script>","items":[{"kind":"kernel","name":"<b>"}],"values":[[1,"f32",[2],0,[0],0,"&"]]})";
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    std::string text = line + "\n" + line + "\n";
    for (unsigned n = random() % 4 + 1; n-- > 0;) text[random() % text.size()] = char(random());
    const std::string data = data_of(view_page({{"x", text}}));
    ASSERT_TRUE(json::accept(data)) << data;
    ASSERT_EQ(data.find_first_of("<>&"), std::string::npos) << data;
  }
}

TEST(ViewPage, ScriptsAreSmall) { EXPECT_LT(view_page({}).size(), 300u << 10); }

}  // namespace
}  // namespace tinyshard
