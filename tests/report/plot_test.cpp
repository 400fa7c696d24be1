// Charts: marks that people would choose, SVG that parses, whatever the data.
#include "report/plot.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

#include "core/base/error.h"
#include "report/axis.h"
#include "tests/io/temp_folder.h"

namespace tinyshard::plot_test {
namespace {

using test::get;
using test::message_of;
using test::TempFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Checks that tags nest and attributes are quoted, as far as our SVG goes; returns what is wrong.
std::string xml_problem(std::string_view text) {
  std::vector<std::string> open;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '&') {
      const size_t end = text.find(';', at);
      const auto name = text.substr(at + 1, end - at - 1);
      if (name != "amp" && name != "lt" && name != "gt" && name != "quot") return "entity";
      at = end;
    }
    if (static_cast<unsigned char>(text[at]) < 0x20 && text[at] != '\n') return "control character";
    if (text[at] != '<') {
      ++at;
      continue;
    }
    const bool closing = text[at + 1] == '/';
    at += closing ? 2 : 1;
    const size_t name_end = text.find_first_of(" />", at);
    const std::string name(text.substr(at, name_end - at));
    at = name_end;
    bool empty = false;
    while (at < text.size() && text[at] != '>') {
      if (text[at] == '/') empty = true;
      if (text[at] == '"') {
        const size_t end = text.find('"', at + 1);
        if (end == text.npos || text.substr(at, end - at).find('<') != text.npos) {
          return "attribute";
        }
        at = end;
      }
      ++at;
    }
    ++at;
    if (closing) {
      if (open.empty() || open.back() != name) return "end of " + name;
      open.pop_back();
    } else if (!empty) {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : "no end of " + open.back();
}

TEST(NiceAxis, Linear) {
  const Axis axis = nice_axis(0.3, 6.2, 6, false);
  EXPECT_EQ(axis.low, 0);
  EXPECT_EQ(axis.high, 7);
  EXPECT_THAT(axis.labels, ElementsAre("0", "1", "2", "3", "4", "5", "6", "7"));
  EXPECT_THAT(nice_axis(0.12, 0.31, 4, false).labels,
              ElementsAre("0.10", "0.15", "0.20", "0.25", "0.30", "0.35"));
  EXPECT_THAT(nice_axis(-1.5, 1.5, 4, false).labels, ElementsAre("-2", "-1", "0", "1", "2"));
  EXPECT_THAT(nice_axis(0, 45'000, 5, false).labels,
              ElementsAre("0", "10k", "20k", "30k", "40k", "50k"));
  EXPECT_THAT(nice_axis(3, 3, 4, false).labels, testing::Contains("3.0"));
  EXPECT_THAT(nice_axis(0, 0, 4, false).ticks, testing::Contains(0));
  EXPECT_THAT(nice_axis(1e-5, 3e-5, 4, false).labels,
              ElementsAre("1e-5", "1.5e-5", "2e-5", "2.5e-5", "3e-5"));
}

TEST(NiceAxis, Logarithmic) {
  EXPECT_THAT(nice_axis(0.002, 700, 6, true).labels,
              ElementsAre("0.001", "0.01", "0.1", "1", "10", "100", "1000"));
  EXPECT_THAT(nice_axis(1.2, 6.5, 6, true).labels, ElementsAre("1", "2", "5", "10"));
  EXPECT_THAT(nice_axis(2, 40, 6, true).labels, ElementsAre("2", "5", "10", "20", "50"));
  EXPECT_EQ(nice_axis(1e-300, 1e300, 6, true).labels.size(), 7u);
}

TEST(LineChart, IsWellFormedWithAnyText) {
  LineChart chart({.title = "a < b & \"c\" > d \x01\xff \u00e9",
                   .x_label = "<x>",
                   .y_label = "&y",
                   .log_y = true});
  chart.add("<script>alert(1)</script>", {1, 2, 3})
      .add("\xed\xa0\x80\xc0\xaf\xf4\x90\x80\x80", {1, 2, 3});
  const std::string svg = chart.svg();
  EXPECT_EQ(xml_problem(svg), "");
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; &quot;c&quot; &gt; d  ? \u00e9"));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_THAT(svg, HasSubstr("?????????"));  // surrogate, overlong, beyond Unicode: byte by byte
  EXPECT_EQ(svg, chart.svg());
}

TEST(LineChart, GapsBreakTheLine) {
  LineChart chart({});
  chart.add("x", {0, 1, 2, 3, 4}, {1, 2, NAN, 4, 5});
  const std::string svg = chart.svg();
  const size_t path = svg.find("fill=\"none\"");
  const size_t begin = svg.rfind("d=\"", path);
  EXPECT_EQ(std::ranges::count(svg.substr(begin, path - begin), 'M'), 2);
}

TEST(LineChart, ManyPointsStaySmallAndKeepTheirExtremes) {
  std::mt19937 random(1);
  std::vector<double> y;
  y.reserve(1'000'000);
  for (int i = 0; i < 1'000'000; ++i) y.push_back(static_cast<double>(random() % 1000));
  y[123'456] = 5000;
  LineChart chart({});
  chart.add("x", y);
  const std::string svg = chart.svg();
  EXPECT_LT(svg.size(), 80'000u);
  EXPECT_THAT(svg, HasSubstr(">5000<"));
}

TEST(LineChart, SmoothingLeavesStraightLinesAndSparseSeriesAlone) {
  std::vector<double> x, line;
  for (int i = 0; i <= 100; ++i) x.push_back(i), line.push_back(7 - 0.05 * i);
  const auto end_of = [&](double smooth) {
    LineChart chart({.smooth = smooth});
    chart.add("a", x, line).add("b", {0, 50, 100}, {1, 5, 2});
    const std::string svg = chart.svg();
    const size_t b = svg.rfind("<path class=\"s1\"");
    return svg.substr(b, svg.find("fill", b) - b);
  };
  EXPECT_EQ(end_of(0), end_of(0.05));
}

TEST(LineChart, Errors) {
  const TempFolder folder;
  LineChart chart({});
  EXPECT_THAT(message_of<UserError>([&] { chart.add("loss", {1, 2}, {1}); }),
              HasSubstr("\"loss\" has 2 x values and 1 y values"));
  chart.add("loss", {1, 2});
  EXPECT_THAT(message_of<UserError>([&] { chart.save(folder / "no" / "a.svg"); }),
              HasSubstr((folder / "no" / "a.svg").native()));
  chart.save(folder / "a.svg");
  EXPECT_EQ(get(folder / "a.svg"), chart.svg());
}

// All numbers of a path lie in the picture, whatever goes in.
TEST(LineChart, AnyDataStaysInThePicture) {
  std::mt19937 random(2);
  const double specials[] = {0,     -0.0,   1,     -1,     NAN,   INFINITY, -INFINITY,
                             1e308, -1e308, 1e299, 5e-324, 1e-30, 1e15,     1e15 + 1};
  for (int trial = 0; trial < 3000; ++trial) {
    LineChart chart({.title = trial % 2 ? "t" : "",
                     .log_x = trial % 3 == 0,
                     .log_y = trial % 5 == 0,
                     .smooth = trial % 7 == 0 ? 0.1 : 0.0});
    for (int series = static_cast<int>(random() % 4); series > 0; --series) {
      std::vector<double> x, y;
      for (int i = static_cast<int>(random() % 20); i > 0; --i) {
        const auto value = [&] {
          return random() % 3 == 0 ? specials[random() % std::size(specials)]
                                   : std::ldexp(static_cast<double>(random()),
                                                static_cast<int>(random() % 80) - 60);
        };
        x.push_back(random() % 2 ? value() : i);
        y.push_back(value());
      }
      chart.add("s", std::move(x), std::move(y));
    }
    const std::string svg = chart.svg();
    ASSERT_EQ(xml_problem(svg), "");
    ASSERT_THAT(svg, Not(HasSubstr("nan")));
    ASSERT_THAT(svg, Not(HasSubstr("inf")));
    for (size_t at = svg.find(" d=\""); at != svg.npos; at = svg.find(" d=\"", at + 1)) {
      const char* p = svg.c_str() + at + 4;
      while (*p != '"') {
        if ((*p >= '0' && *p <= '9') || *p == '-') {
          char* end;
          const double number = std::strtod(p, &end);
          ASSERT_GE(number, 0) << svg.substr(at, 200);
          ASSERT_LE(number, 860) << svg.substr(at, 200);
          p = end;
        } else {
          ++p;
        }
      }
    }
    ASSERT_LT(svg.size(), 40'000u);
  }
}

}  // namespace
}  // namespace tinyshard::plot_test
