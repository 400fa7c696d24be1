// The log: lines as promised, appended to and cut back, and errors that name the file.
#include "report/jsonl.h"

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "tests/io/temp_folder.h"

namespace tinyshard::jsonl_test {
namespace {

using nlohmann::json;
using test::get;
using test::message_of;
using test::put;
using test::TempFolder;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(JsonlLog, WritesOneObjectALine) {
  const TempFolder folder;
  JsonlLog log(folder / "log");
  log.write({{"step", 3}, {"loss", 2.25}, {"tokens_per_s", 12345.5}, {"ms", 41.125f}});
  EXPECT_EQ(get(folder / "log"),
            "{\"step\":3,\"loss\":2.25,\"tokens_per_s\":12345.5,\"ms\":41.125}\n");  // before it is
                                                                                     // closed
  log.write({{"text", "a\"b\n\u00e9\x01"},
             {"yes", true},
             {"big", uint64_t{18446744073709551615u}},
             {"small", int64_t{-5}}});
  log.write({});
  const std::string text = get(folder / "log");
  EXPECT_THAT(text, HasSubstr("\n{\"text\":\"a\\\"b\\n\u00e9\\u0001\",\"yes\":true,\"big\":"
                              "18446744073709551615,\"small\":-5}\n{}\n"));
}

TEST(JsonlLog, NumbersReadBackTheSame) {
  const TempFolder folder;
  JsonlLog log(folder / "log");
  const std::vector<double> values = {
      0.1, 1.0 / 3, 1e300, 5e-324, -0.0, 1e21, 123456789012345680.0};
  for (double value : values) log.write({{"x", value}});
  log.write({{"x", NAN}, {"y", INFINITY}, {"z", -INFINITY}, {"bad", "\xff"}});
  std::istringstream lines(get(folder / "log"));
  std::string line;
  for (double value : values) {
    std::getline(lines, line);
    EXPECT_EQ(json::parse(line).at("x").get<double>(), value) << line;
  }
  std::getline(lines, line);
  EXPECT_THAT(line, HasSubstr("{\"x\":\"NaN\",\"y\":\"Infinity\",\"z\":\"-Infinity\",\"bad\":"));
  EXPECT_TRUE(json::accept(line));
}

TEST(JsonlLog, GoesOnWhereItStopped) {
  const TempFolder folder;
  put(folder / "log", "{\"step\":0}\n{\"step\":1}\n{\"ste");  // killed in the middle of a line
  JsonlLog(folder / "log").write({{"step", 2}});
  EXPECT_EQ(get(folder / "log"), "{\"step\":0}\n{\"step\":1}\n{\"step\":2}\n");
  // Resumed from a checkpoint of step 1: what came after it is done again. Lines without a step
  // stay.
  put(folder / "log", "{\"config\":{}}\n" + get(folder / "log"));
  JsonlLog(folder / "log", {.from_step = 1}).write({{"step", 1}, {"again", true}});
  EXPECT_EQ(get(folder / "log"), "{\"config\":{}}\n{\"step\":0}\n{\"step\":1,\"again\":true}\n");
}

TEST(JsonlLog, ErrorsNameTheFile) {
  const TempFolder folder;
  EXPECT_EQ(message_of<UserError>([&] { JsonlLog log(folder / "no" / "log"); }),
            "cannot write log " + (folder / "no" / "log").native() + ": No such file or directory");
  EXPECT_THAT(message_of<UserError>([&] { JsonlLog log(folder.path()); }),
              HasSubstr("Is a directory"));
  if (std::filesystem::exists("/dev/full")) {
    JsonlLog log("/dev/full");
    EXPECT_THAT(message_of<UserError>([&] { log.write({{"a", 1}}); }),
                HasSubstr("/dev/full: No space left on device"));
  }
  JsonlLog("/dev/null").write({{"a", 1}});
  EXPECT_FALSE(std::filesystem::is_regular_file("/dev/null"));
}

TEST(JsonlLog, SeriesComeBack) {
  const TempFolder folder;
  JsonlLog log(folder / "log");
  log.write({{"step", 0}, {"loss", 3.5}});
  log.write({{"step", 1}, {"validation", 3.0}});
  log.write({{"step", 2}, {"loss", NAN}});
  log.write({{"step", "three"}, {"loss", 1.0}});
  log.write({{"step", 4}, {"loss", 2.5}});
  put(folder / "torn", get(folder / "log") + "[]\n{\"step\":5,\"lo");
  const JsonlSeries series = read_series(folder / "torn", "step", "loss");
  EXPECT_THAT(series.x, ElementsAre(0, 2, 4));
  EXPECT_THAT(series.y, ElementsAre(3.5, testing::NanSensitiveDoubleEq(NAN), 2.5));
  EXPECT_THROW(read_series(folder / "none", "step", "loss"), UserError);
}

}  // namespace
}  // namespace tinyshard::jsonl_test
