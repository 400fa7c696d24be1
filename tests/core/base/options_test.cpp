#include "core/base/options.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/option_scope.h"

namespace tinyshard {
namespace {

// Sets a variable for one test and reads the environment again at both ends.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() {
    unsetenv(name_);
    reload_options();
  }

 private:
  const char* name_;
};

TEST(Options, HaveDefaults) {
  for (const char* name : {"DEBUG", "SPEC", "TS_LIBRARIES", "TS_THREADS", "TS_CACHE", "TS_TIMEOUT"})
    unsetenv(name);
  reload_options();
  EXPECT_EQ(options().debug, 0);
  EXPECT_EQ(options().spec, 0);
  EXPECT_TRUE(options().libraries);
  EXPECT_TRUE(options().cache);
  EXPECT_EQ(options().timeout_s, 300);
  EXPECT_EQ(options().bucket_bytes, 100 << 20);
}

TEST(Options, AreReadFromTheEnvironment) {
  Variable debug("DEBUG", "4"), libraries("TS_LIBRARIES", "0"), timeout("TS_TIMEOUT", "2.5"),
      devices("TS_DEVICES", "CPU:0,CPU:1"), folder("TS_CACHE_DIR", "/somewhere"),
      bytes("TS_BUCKET_BYTES", "5000000000"), beam("BEAM", "8");
  reload_options();
  EXPECT_EQ(options().debug, 4);
  EXPECT_FALSE(options().libraries);
  EXPECT_EQ(options().timeout_s, 2.5);
  EXPECT_EQ(options().devices, "CPU:0,CPU:1");
  EXPECT_EQ(options().cache_dir, "/somewhere");
  EXPECT_EQ(options().bucket_bytes, 5000000000);
  EXPECT_EQ(options().beam, 8);
}

TEST(Options, ATimeIsAboveZero) {
  for (const char* time : {"nan", "-1", "0", "-inf", "5 s", ""}) {
    Variable timeout("TS_TIMEOUT", time);
    if (*time == '\0') {
      reload_options();
      EXPECT_EQ(options().timeout_s, 300);
    } else {
      EXPECT_THROW(reload_options(), UserError) << time;
    }
  }
  for (const char* time : {"inf", "1e300", "0.5"}) {
    Variable timeout("TS_TIMEOUT", time);
    reload_options();
    EXPECT_GE(options().timeout_s, 0.5) << time;
  }
  reload_options();
}

TEST(Options, ChecksAreAListOfNames) {
  for (const char* list : {"memory", ",memory,", "memory,memory"}) {
    Variable check("TS_CHECK", list);
    reload_options();
    EXPECT_TRUE(options().check.memory) << list;
  }
  reload_options();
  EXPECT_EQ(options().check, Checks{});
  {
    Variable check("TS_CHECK", "replicas,memory");
    reload_options();
    EXPECT_TRUE(options().check.memory && options().check.replicas);
  }
  for (const char* list : {"memroy", "memory,1", "all", " memory"}) {
    ::setenv("TS_CHECK", list, 1);
    try {
      reload_options();
      FAIL() << list;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(list), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("there are costs, memory, replicas, values"),
                std::string::npos);
    }
    ::unsetenv("TS_CHECK");
  }
  reload_options();
}

TEST(Options, AnEmptyVariableIsNotSet) {
  Variable debug("DEBUG", "");
  reload_options();
  EXPECT_EQ(options().debug, 0);
}

TEST(Options, CacheFolderFollowsTheHomeFolders) {
  std::string home = std::getenv("HOME") ? std::getenv("HOME") : "";
  {
    Variable xdg("XDG_CACHE_HOME", "/cache");
    reload_options();
    EXPECT_EQ(options().cache_dir, "/cache/tinyshard");
  }
  {
    Variable set_home("HOME", "/home/me");
    reload_options();
    EXPECT_EQ(options().cache_dir, "/home/me/.cache/tinyshard");
  }
  if (!home.empty()) setenv("HOME", home.c_str(), 1);
  reload_options();
}

TEST(Options, NameTheVariableThatDoesNotParse) {
  for (auto [name, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"DEBUG", "two"},
                                                                  {"SPEC", "1x"},
                                                                  {"TS_TIMEOUT", "soon"},
                                                                  {"TS_LIBRARIES", "yes"},
                                                                  {"TS_TIMEOUT", "nan"},
                                                                  {"TS_TIMEOUT", "-1"},
                                                                  {"TS_TIMEOUT", "0"},
                                                                  {"TS_THREADS", "-2"},
                                                                  {"BEAM", "-1"},
                                                                  {"TS_BUCKET_BYTES", "0"},
                                                                  {"TS_THREADS", "99999999999"},
                                                                  {"TS_CUDA_PATH", "."},
                                                                  {"TS_CUDA_PATH", "/usr:lib"},
                                                                  {"TS_HIP_PATH", "rocm"},
                                                                  {"TS_BUCKET_BYTES", "25 MB"}}) {
    setenv(name, value, 1);
    try {
      reload_options();
      ADD_FAILURE() << name << "=" << value << " was accepted";
    } catch (const UserError& e) {
      std::string what = e.what();
      EXPECT_NE(what.find(name), std::string::npos) << what;
      EXPECT_NE(what.find(value), std::string::npos) << what;
    }
    unsetenv(name);
    reload_options();
  }
}

TEST(Options, UnknownVariablesAreToldOnceWithTheNearestName) {
  Variable wrong("TS_TIMOUT", "3"), other("TS_LIBRARY", "0"), known("TS_TIMEOUT", "3");
  std::vector<std::string> lines;
  set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  reload_options();
  reload_options();
  set_log_sink({});
  ASSERT_EQ(lines.size(), 2u);
  std::ranges::sort(lines);
  EXPECT_NE(lines[0].find("TS_LIBRARY is not known"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("did you mean TS_LIBRARIES?"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("did you mean TS_TIMEOUT?"), std::string::npos) << lines[1];
}

// Names that work in tinygrad and do nothing here.
TEST(Options, OtherNamesAreToldOnceWithWhatToUse) {
  struct Told {
    const char *name, *value, *says;  // nothing: not told
  };
  for (const auto& [name, value, says] :
       {Told{"PROFILE", "1", "TS_TRACE=trace.json"}, Told{"DEV", "CUDA", "TS_DEVICES=CUDA"},
        Told{"CUDA", "1", "TS_DEVICES=CUDA"}, Told{"CPU", "1", "TS_DEVICES=CPU"},
        Told{"NV", "1", "TS_DEVICES=CUDA"}, Told{"AMD", "1", "TS_DEVICES=HIP"},
        Told{"JIT_BATCH_SIZE", "0", nullptr}, Told{"JIT_BATCH_SIZE", "32", "no batches"},
        Told{"JITBEAM", "2", "BEAM counts"}, Told{"PROFILE", "2", nullptr}}) {
    Variable set(name, value);
    std::vector<std::string> lines;
    set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
    reload_options();
    reload_options();
    set_log_sink({});
    ASSERT_EQ(lines.size(), says ? 1u : 0u) << name << "=" << value;
    if (!says) continue;
    EXPECT_NE(lines[0].find(std::string(name) + "=" + value + " does nothing in tinyshard"),
              std::string::npos)
        << lines[0];
    EXPECT_NE(lines[0].find(says), std::string::npos) << lines[0];
  }
}

TEST(Options, NooptIsWithoutLibrariesAndBeam) {
  Variable noopt("NOOPT", "1"), beam("BEAM", "8");
  reload_options();
  EXPECT_TRUE(options().no_opt);
  EXPECT_FALSE(options().libraries);
  EXPECT_EQ(options().beam, 0);
}

TEST(OptionScope, HoldsUntilItsEnd) {
  reload_options();
  const Options& before = options();
  {
    const OptionScope outer({{"DEBUG", 1}, {"TS_CHECK", "memory"}, {"TS_LIBRARIES", false}});
    EXPECT_EQ(options().debug, 1);
    EXPECT_TRUE(options().check.memory);
    EXPECT_FALSE(options().libraries);
    {
      const OptionScope inner({{"DEBUG", "0"}, {"TS_CHECK", "values"}});
      EXPECT_EQ(options().debug, 0);
      EXPECT_EQ(options().check, Checks{.values = true});
      EXPECT_FALSE(options().libraries);
    }
    EXPECT_EQ(options().debug, 1);
    // The environment is what scopes stand upon.
    Variable spec("SPEC", "1");
    reload_options();
    EXPECT_EQ(options().spec, 1);
    EXPECT_EQ(options().debug, 1);
  }
  EXPECT_EQ(options(), before);
}

TEST(OptionScope, ThatFailsLeavesNothing) {
  reload_options();
  const Options& before = options();
  EXPECT_THROW(OptionScope({{"DEBUG", 2}, {"BEAM", -1}}), UserError);
  EXPECT_THROW(OptionScope({{"DEBUG", 2}, {"TS_THREADS", 1}}), UserError);
  EXPECT_EQ(options(), before);
}

// Scopes of several threads end in any order; each lasts until its own end, and nothing stays.
TEST(OptionScope, OfSeveralThreads) {
  reload_options();
  const Options& before = options();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      static constexpr std::array kNames{"DEBUG", "SPEC", "BEAM", "TS_SHUFFLE"};
      for (int i = 1; i < 50; ++i) {
        const OptionScope scope({{kNames[size_t(t)], i}});
        const Options& now = options();
        EXPECT_EQ((std::array{now.debug, now.spec, now.beam, now.shuffle}[size_t(t)]), i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(options(), before);
}

TEST(Options, AreListedOnceEachWithTheirMeaning) {
  Variable debug("DEBUG", "3");
  reload_options();
  std::set<std::string> names;
  for (const OptionRow& row : option_rows()) {
    EXPECT_TRUE(names.insert(row.variable).second) << row.variable;
    EXPECT_GT(row.meaning.size(), 5u) << row.variable;
    if (row.variable == "DEBUG") {
      EXPECT_EQ(row.value, "3");
      EXPECT_TRUE(row.from_environment);
    }
  }
  EXPECT_TRUE(names.contains("DEBUG"));
  EXPECT_GE(names.size(), 10u);
}

}  // namespace
}  // namespace tinyshard
