// A plan as HTML for a report and a graph as text for Graphviz: what is in them, and that no name of the
// program becomes markup.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "core/exec/plan_dot.h"
#include "core/exec/plan_html.h"
#include "tinyshard/tinyshard.h"

namespace tinyshard {
namespace {

class PlanText : public ::testing::Test {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    Runtime::configure({.devices = {"CPU"}, .devices_per_rank = 2});
  }
  void TearDown() override { Runtime::shutdown(); }

  static Tensor split() {
    const Mesh mesh = Mesh::world({{"da<ta>", 2}});
    return Tensor::arange(40)
        .cast(DType::F32)
        .reshape({8, 5})
        .shard(mesh, {{"da<ta>", Shard(0)}})
        .realize();
  }
};

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST_F(PlanText, HtmlTellsWhatMoves) {
  const Tensor sum = (split() * 3).sum();
  const std::string html = explain(sum, Html);
  EXPECT_TRUE(html.starts_with("<div class=\"tinyshard-plan\">")) << html;
  EXPECT_TRUE(html.ends_with("</div>\n"));
  EXPECT_NE(html.find("Movements (1)"), std::string::npos) << html;
  EXPECT_NE(html.find("<td>P sum</td><td>R</td>"), std::string::npos) << html;
  EXPECT_NE(html.find("da&lt;ta&gt;: Shard(0)"), std::string::npos) << html;
  EXPECT_NE(html.find("plan_text_test.cpp:"), std::string::npos) << html;
  EXPECT_EQ(html.find("da<ta>"), std::string::npos);
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos);
  for (const char* tag : {"div", "table", "details", "tr", "td", "p"})
    EXPECT_EQ(count(html, "<" + std::string(tag) + ">") + count(html, "<" + std::string(tag) + " "),
              count(html, "</" + std::string(tag) + ">"))
        << tag;
  // Asking runs nothing and tells observers nothing; the value is as it would have been.
  EXPECT_EQ(sum.item<float>(), 3 * 39 * 40 / 2);
  EXPECT_NE(explain(sum, Html).find("Nothing has to be computed."), std::string::npos);
}

TEST_F(PlanText, HtmlOfACapturedStep) {
  Jit step = [](const Tensor& x) { return (x * 3).sum(); };
  EXPECT_THROW(explain(step, Html), UserError);
  step(split());
  const std::string html = explain(step, Html);
  EXPECT_NE(html.find("Items ("), std::string::npos) << html;
  EXPECT_NE(html.find("all_reduce"), std::string::npos) << html;
}

TEST_F(PlanText, DotOfACapturedStepHasItsItems) {
  Jit step = [](const Tensor& x) { return ((x * 3).sum(0).exp() + 1).sum(); };
  EXPECT_THROW(to_dot(step), UserError);
  step(split());
  const std::string dot = to_dot(step);
  const auto items = size_t(summarize(step).kernels + summarize(step).collectives);
  EXPECT_EQ(count(dot, "label="), items) << dot;
  EXPECT_NE(dot.find("all_reduce"), std::string::npos) << dot;
  EXPECT_NE(dot.find("plan_text_test.cpp:"), std::string::npos) << dot;
  EXPECT_GE(count(dot, " -> "), size_t(2)) << dot;
}

// A sort keeps memory of its own: plans tell it, and equal sorts keep it once.
TEST_F(PlanText, WorkspacesOfLibraryCalls) {
  const Tensor x = Tensor::rand({4096}).realize();
  const PlanSummary alone = summarize(x.sort().first);
  EXPECT_GE(alone.workspace_bytes, 4096 * 4);
  EXPECT_EQ(alone.peak_bytes(), alone.held_bytes + alone.arena_bytes + alone.workspace_bytes);
  EXPECT_NE(explain(x.sort().first).find("workspaces of library calls"), std::string::npos);
  EXPECT_EQ(summarize({x.sort().first, (x + 1).sort().first}).workspace_bytes,
            alone.workspace_bytes);
  EXPECT_EQ(summarize(x.exp()).workspace_bytes, 0);
}

TEST_F(PlanText, DotHasOpsShapesShardingsAndLines) {
  const Tensor sum = (split() * 3).sum();
  const std::string dot = to_dot(sum);
  EXPECT_TRUE(dot.starts_with("digraph tinyshard {\n")) << dot;
  EXPECT_NE(dot.find("f32[8, 5]\\nda<ta>: Shard(0)\\nplan_text_test.cpp:"), std::string::npos)
      << dot;
  EXPECT_NE(dot.find("da<ta>: P sum"), std::string::npos) << dot;
  EXPECT_GE(count(dot, " -> "), 2u) << dot;
  sum.realize();
  EXPECT_EQ(count(to_dot(sum), "label="), 0u);
  if (std::system("command -v dot > /dev/null") != 0) return;
  const auto path =
      std::filesystem::path(::testing::TempDir()) / ("plan-" + std::to_string(getpid()) + ".dot");
  std::ofstream(path) << dot;
  const std::string command = "dot -Tsvg " + path.string() + " > " + path.string() + ".svg";
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::ifstream svg(path.string() + ".svg");
  const std::string drawn{std::istreambuf_iterator<char>(svg), {}};
  EXPECT_EQ(count(drawn, "class=\"node\""), count(dot, "label="));
  std::filesystem::remove(path);
  std::filesystem::remove(path.string() + ".svg");
}

TEST(PlanTextOfNames, NothingIsMarkup) {
  const std::string record =
      R"({"plan":0,"kernels":1,"library_calls":0,"collectives":0,"copies":0,"devices":2,"sent":0,"operations":1,
      "held":4,"arena":0,"memory":[["<d>",4,0]],"meshes":[{"axes":[["\"a\\",2]],"devices":["CPU:0","CPU:1"]}],
      "origins":[["op","</style><script>x\"\n.cpp:1","<img src=x>"]],"moves":[],
      "values":[[1,"f32",[2],0,[0],0,"<b onclick='x'>"]],"passes":[{"name":"program","added":[1],"removed":[]}],
      "nodes":[[1,"weird \"\\N\" <op>\u0001",[],0]],
      "items":[{"name":"k<1>","read":1,"written":2,"ops":3,"purpose":"</div>","source":"a&b"}]})";
  const std::string html = plan_html(record);
  for (const char* bad : {"<script", "<img", "<b ", "</style><s", "<d>", "k<1>", "a&b"})
    EXPECT_EQ(html.find(bad), std::string::npos) << bad;
  EXPECT_EQ(count(html, "</div>"), 1u);
  const std::string dot = plan_dot(record);
  EXPECT_NE(
      dot.find(R"(label="weird \"\\N\" <op> \n\"a\\: Shard(0)\n</style><script>x\"\n.cpp:1")"),
      std::string::npos)
      << dot;
}

}  // namespace
}  // namespace tinyshard
