// The bar under a clock and a width of the test's own: what is drawn, when, and that it never
// wraps.
#include "report/progress.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <list>
#include <random>
#include <sstream>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tinyshard::progress_test {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

struct Screen {
  std::ostringstream out;
  double now = 0;
  int columns = 80;

  ProgressOptions options(bool terminal) {
    return {.stream = &out,
            .terminal = terminal,
            .width = [this] { return columns; },
            .unicode = false,
            .clock = [this] { return now; }};
  }
  // Returns the drawn text, one entry per redraw or line.
  std::vector<std::string> drawn() const {
    std::vector<std::string> lines;
    std::string line;
    for (char c : out.str()) {
      if (c != '\r' && c != '\n') {
        line += c;
      } else if (!line.empty()) {
        lines.push_back(std::exchange(line, {}));
      }
    }
    if (!line.empty()) lines.push_back(line);
    for (std::string& text : lines) {
      for (size_t at; (at = text.find("\x1b[K")) != text.npos;) text.erase(at, 3);
    }
    std::erase(lines, "");
    return lines;
  }
};

TEST(Progress, DrawsABar) {
  Screen screen;
  {
    Progress bar("train", 200, screen.options(true));
    screen.now = 2;
    bar.show("loss", 2.3125);
    bar.show("tokens/s", 12345);
    bar.set(50);
  }
  EXPECT_THAT(
      screen.drawn(),
      ElementsAre("train    0%  [                                      ]  0/200",
                  "train   25%  [====>            ]  50/200  0:06 left  loss 2.312  tokens/s 12.3k",
                  "train: 50/200 in 0:02, 25.0 it/s, loss 2.312, tokens/s 12.3k"));
  EXPECT_THAT(screen.out.str(), EndsWith("\n"));
}

TEST(Progress, IsFilledByEighths) {
  Screen screen;
  screen.columns = 35;
  auto options = screen.options(true);
  options.unicode = true;
  Progress bar("a", 80, options);
  screen.now = 1;
  bar.set(41);
  EXPECT_EQ(screen.drawn().back(), "a   51%  41/80  0:01 left");  // no room for a bar
  screen.columns = 46;
  screen.now = 2;
  bar.set(42);
  EXPECT_EQ(screen.drawn().back(), "a   52%  ▕████████▍       ▏  42/80  0:02 left");
}

TEST(Progress, IsRedrawnTenTimesASecond) {
  Screen screen;
  Progress bar("a", 10'000, screen.options(true));
  for (int i = 0; i < 10'000; ++i) {
    screen.now += 0.001;
    bar.advance();
  }
  const auto draws = std::ranges::count(screen.out.str(), '\r');
  EXPECT_GE(draws, 90);
  EXPECT_LE(draws, 102);
}

// Columns that text takes on the screen.
int columns_of(const std::string& text) {
  return static_cast<int>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

TEST(Progress, NeverWraps) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    Screen screen;
    auto options = screen.options(true);
    options.unicode = trial % 2 == 0;
    screen.columns = static_cast<int>(random() % 130);
    const int64_t total = random() % 5 == 0 ? -1 : static_cast<int64_t>(random() % 100'000);
    Progress bar(std::string(random() % 30, 'l') + "ü", total, options);
    if (random() % 2 == 0) bar.show("loss", std::exp(static_cast<double>(random() % 50)));
    if (random() % 2 == 0) bar.show("accuracy in %", 12.5);
    if (random() % 3 == 0) bar.show("évaluation", "läuft");
    screen.now += static_cast<double>(random() % 10'000) / 7;
    bar.set(static_cast<int64_t>(random() % 110'000));
    for (const std::string& line : screen.drawn()) {
      ASSERT_LE(columns_of(line), std::max(screen.columns - 1, 0)) << line;
    }
    ASSERT_THAT(screen.out.str(), Not(HasSubstr("\n")));
  }
}

TEST(Progress, ANarrowTerminalKeepsWhatMatters) {
  Screen screen;
  Progress bar("train", 1000, screen.options(true));
  const auto at = [&](int columns) {
    screen.columns = columns;
    screen.now += 10;
    bar.show("loss", 2.5);
    bar.show("tokens/s", 1000);
    bar.set(100 + bar.done());
    return screen.drawn().back();
  };
  EXPECT_EQ(at(100),
            "train   10%  [==>                      ]  100/1000  10.0 it/s  1:30 left  loss 2.500  "
            "tokens/s 1000");
  EXPECT_EQ(at(72), "train   20%  [=>      ]  200/1000  1:20 left  loss 2.500  tokens/s 1000");
  EXPECT_EQ(at(64), "train   30%  300/1000  1:10 left  loss 2.500  tokens/s 1000");
  EXPECT_EQ(at(50), "train   40%  1:00 left  loss 2.500  tokens/s 1000");
  EXPECT_EQ(at(40), "train   50%  0:50 left  loss 2.500");
  EXPECT_EQ(at(25), "train   60%  loss 2.500");
  EXPECT_EQ(at(13), "train   70%");
  EXPECT_EQ(at(4), "tra");
  EXPECT_EQ(at(100),
            "train   90%  [======================>  ]  900/1000  10.0 it/s  0:10 left  loss 2.500  "
            "tokens/s 1000");
}

TEST(Progress, TheRateIsThatOfTheLastSeconds) {
  Screen screen;
  Progress bar("a", 1000, screen.options(true));
  screen.now = 100;  // the first step compiles
  bar.advance();
  for (int i = 0; i < 200; ++i) {
    screen.now += 0.1;
    bar.advance();
  }
  EXPECT_THAT(screen.drawn().back(), HasSubstr("201/1000  10"));
  EXPECT_THAT(screen.drawn().back(), HasSubstr("1:20 left"));
}

TEST(Progress, SlowStepsHaveTheirTimeNamed) {
  Screen screen;
  Progress bar("a", 10, screen.options(true));
  for (int i = 0; i < 3; ++i) {
    screen.now += 40;
    bar.advance();
  }
  EXPECT_THAT(screen.drawn().back(), HasSubstr("3/10  40.0 s/it  4:40 left"));
}

TEST(Progress, WithoutATerminalLinesComeEveryTenSeconds) {
  Screen screen;
  {
    Progress bar("train", 200, screen.options(false));
    for (int i = 0; i < 200; ++i) {
      screen.now += 0.125;
      bar.advance();
      bar.show("loss", 3 - 0.01 * i);
    }
  }
  EXPECT_THAT(screen.out.str(), Not(HasSubstr("\r")));
  EXPECT_THAT(screen.out.str(), Not(HasSubstr("\x1b")));
  EXPECT_THAT(screen.drawn(), ElementsAre("train: 80/200 (40%), 8.00 it/s, 0:15 left, loss 2.220",
                                          "train: 160/200 (80%), 8.00 it/s, 0:05 left, loss 1.420",
                                          "train: 200/200 in 0:25, 8.00 it/s, loss 1.010"));
}

TEST(Progress, ASilentRankSaysNothing) {
  Screen screen;
  auto options = screen.options(true);
  options.enabled = false;
  Progress bar("train", 10, options);
  bar.advance(3);
  bar.show("loss", 1);
  bar.print("text");
  bar.finish();
  EXPECT_EQ(bar.done(), 3);
  EXPECT_EQ(screen.out.str(), "");
}

TEST(Progress, WhatWasDoneBeforeIsNotCountedAsFast) {
  Screen screen;
  auto options = screen.options(true);
  options.start = 500;
  Progress bar("train", 1000, options);
  screen.now = 10;
  bar.advance(100);
  EXPECT_THAT(screen.drawn().back(), HasSubstr("600/1000  10.0 it/s  0:40 left"));
  bar.finish();
  EXPECT_EQ(screen.drawn().back(), "train: 600/1000 in 0:10, 10.0 it/s");
}

TEST(Progress, UnknownTotal) {
  Screen screen;
  Progress bar("read", -1, screen.options(true));
  screen.now = 2;
  bar.set(20);
  EXPECT_EQ(screen.drawn().back(), "read  20 it  10.0 it/s");
}

TEST(Progress, NothingToDo) {
  Screen screen;
  {
    Progress bar("none", 0, screen.options(true));
  }
  EXPECT_THAT(screen.drawn().front(), HasSubstr("none  100%"));
  EXPECT_EQ(screen.drawn().back(), "none: 0/0 in 0:00");
}

TEST(Progress, PrintsAboveTheBar) {
  Screen screen;
  Progress bar("a", 10, screen.options(true));
  bar.print("sample: int main()");
  EXPECT_THAT(screen.out.str(), HasSubstr("\r\x1b[Ksample: int main()\n\ra    0%"));
  bar.finish();
  bar.print("after");
  EXPECT_THAT(screen.out.str(), EndsWith("\nafter\n"));
}

TEST(Progress, NamesCannotBreakTheLine) {
  Screen screen;
  screen.columns = 200;
  Progress bar("two\nlines\r", 10, screen.options(true));
  bar.show("a\tb", "c\x1b[2Jd");
  screen.now = 1;
  bar.set(5);
  EXPECT_THAT(screen.drawn().back(), HasSubstr("two lines "));
  EXPECT_THAT(screen.drawn().back(), HasSubstr("a b c [2Jd"));
}

TEST(Progress, FinishesOnceAndWhenUnwinding) {
  Screen screen;
  try {
    Progress bar("a", 10, screen.options(true));
    bar.advance(4);
    throw UserError("stop");
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "stop");
  }
  EXPECT_EQ(screen.drawn().back(), "a: 4/10 in 0:00");
  EXPECT_EQ(std::ranges::count(screen.out.str(), '\n'), 1);
}

TEST(ProgressRange, WalksARangeThatHasAName) {
  Screen screen;
  std::vector<int> values = {1, 2, 3};
  for (int& value : progress(values, "x", screen.options(false))) value *= 2;
  EXPECT_THAT(values, ElementsAre(2, 4, 6));
  EXPECT_THAT(screen.drawn(), ElementsAre("x: 3/3 in 0:00"));
}

TEST(ProgressRange, HoldsATemporary) {
  Screen screen;
  int sum = 0;
  for (int value : progress(std::list<int>{1, 2, 3}, "x", screen.options(false))) sum += value;
  EXPECT_EQ(sum, 6);
  const std::vector<int> fixed = {4};
  for (const int& value : progress(fixed, "y", screen.options(false))) sum += value;
  EXPECT_EQ(sum, 10);
}

TEST(ProgressRange, CountsAndShows) {
  Screen screen;
  auto options = screen.options(true);
  options.start = 2;
  auto bar = progress(5, "steps", options);
  std::vector<int64_t> steps;
  for (int64_t step : bar) {
    steps.push_back(step);
    screen.now += 1;
    bar.show("loss", 0.5);
  }
  EXPECT_THAT(steps, ElementsAre(2, 3, 4));
  EXPECT_THAT(screen.drawn().front(), HasSubstr("steps   40%"));
  EXPECT_EQ(screen.drawn().back(),
            "steps: 5/5 in 0:03, 1.00 it/s, loss 0.5000");  // at the end of the loop, not of `bar`
}

TEST(ProgressRange, LeavingEarlyTellsTheTruth) {
  Screen screen;
  for (int64_t step : progress(10, "x", screen.options(false))) {
    if (step == 4) break;
  }
  EXPECT_EQ(screen.drawn().back(), "x: 4/10 in 0:00");
}

TEST(ByteBar, CountsMiB) {
  Screen screen;
  const auto tell = byte_bar("load", screen.options(false));
  for (int64_t mib : {1, 100, 300}) tell(mib << 20, 300 << 20);
  EXPECT_EQ(screen.drawn().back(), "load: 300/300 in 0:00");
}

TEST(ShortNumber, FourFiguresOrSo) {
  const std::pair<double, const char*> cases[] = {
      {0, "0"},           {1, "1"},          {-3, "-3"},        {2.3125, "2.312"},
      {23.456, "23.46"},  {234.56, "234.6"}, {2345.6, "2346"},  {9999, "9999"},
      {12345, "12.3k"},   {99'950, "100k"},  {123'456, "123k"}, {999'499, "999k"},
      {999'500, "1.00M"}, {1.5e9, "1.50G"},  {0.5, "0.5000"},   {0.0004, "4.00e-04"},
      {-0.25, "-0.2500"}, {NAN, "nan"},      {INFINITY, "inf"}, {-INFINITY, "-inf"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(short_number(value), text) << value;
  EXPECT_FALSE(short_number(std::numeric_limits<double>::max()).empty());
}

TEST(ShortTime, HoursAndDays) {
  const std::pair<double, const char*> cases[] = {
      {0, "0:00"},        {17.4, "0:17"}, {61, "1:01"}, {3725, "1:02:05"},
      {200'000, "2d 7h"}, {-3, "0:00"},   {NAN, "?"},   {INFINITY, "?"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(short_time(value), text) << value;
}

}  // namespace
}  // namespace tinyshard::progress_test
