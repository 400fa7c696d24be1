// Plans as files, made without a GPU: the same program gives the same file, and what changes a plan
// is told.
#include <gtest/gtest.h>

#include "tests/examples/run_program.h"

namespace tinyshard::test {
namespace {

const std::string kDump = PLAN_DUMP, kCompare = COMPARE_PLANS;

class PlanDump : public ::testing::Test {
 protected:
  Outcome run(const std::string& command) { return run_program(command, temp_.path()); }
  std::string plan(const std::string& file, const std::string& flags,
                   const std::string& variables = "") {
    Outcome o = run(variables + " " + kDump + " --out " + file + " " + flags);
    EXPECT_EQ(o.code, 0) << o.err;
    return file_text(temp_.path() / file);
  }
  TempFolder temp_;
};

TEST_F(PlanDump, PlansOfAnH200AreNotThoseOfACpu) {
  std::string gpu = plan("gpu", "--model mnist --device h200"),
              cpu = plan("cpu", "--model mnist --device cpu");
  EXPECT_EQ(gpu.find("mnist on 1 of nvptx64-nvidia-cuda sm_90a"), 0u) << gpu.substr(0, 200);
  EXPECT_EQ(cpu.find("nvptx"), std::string::npos);
  for (const std::string& text : {gpu, cpu}) {
    EXPECT_NE(text.find("library conv"), std::string::npos);
    EXPECT_NE(text.find("\n  code "), std::string::npos);
    EXPECT_NE(text.find(" arena "), std::string::npos);
  }
}

TEST_F(PlanDump, ComparesPlans) {
  const std::string flags = "--model quickstart --device h200 --no-code";
  plan("before", flags);
  EXPECT_EQ(plan("again", flags), file_text(temp_.path() / "before"));
  Outcome same = run(kCompare + " before again");
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  EXPECT_NE(same.out.find("before: equal, "), std::string::npos) << same.out;

  plan("other", flags, "TS_DISABLE_PASSES=epilogues");
  Outcome differs = run(kCompare + " before other");
  EXPECT_EQ(differs.code, 1);
  EXPECT_NE(differs.out.find("before: differs: "), std::string::npos) << differs.out;
  EXPECT_NE(differs.out.find("\n-item "), std::string::npos) << differs.out;
}

TEST_F(PlanDump, CollectivesOfSeveralDevices) {
  std::string text = plan("eight", "--model quickstart --device h200 --devices 8 --no-code");
  EXPECT_NE(text.find("all_reduce sum f32"), std::string::npos);
  EXPECT_NE(text.find(" waits for "), std::string::npos);
}

TEST_F(PlanDump, MistakesAreTold) {
  EXPECT_EQ(run(kDump).code, 2);
  Outcome o = run(kDump + " --model mnist --no-code --out missing/plan");
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("--out missing/plan: cannot be written"), std::string::npos) << o.err;
}

}  // namespace
}  // namespace tinyshard::test
