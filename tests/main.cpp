// main() of the tests that share a program (IN in cmake/Testing.cmake), and of those that run on any kind of device
// (ON_GPU). `--source=sort_test.cpp`, given as often as one likes, runs the cases of that source alone. All are skipped,
// with the reason, where TS_DEVICES names a kind of which there is no device here.
#include <cstdio>
#include <set>
#include <string>
#include <string_view>

#include "tests/devices.h"

namespace {

constexpr std::string_view kSource = "--source=";

// The cases of these sources as a filter of GoogleTest, "Sort.Values:Sort.Places". One that another source has as well
// would run with both: it ends the program, as does a source without a case.
std::string cases_of(const std::set<std::string>& sources) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  std::set<std::string> inside, outside, met;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) {
      std::string file = suite.GetTestInfo(k)->file();
      file.erase(0, file.rfind('/') + 1);
      bool wanted = sources.contains(file);
      if (wanted) met.insert(file);
      (wanted ? inside : outside)
          .insert(std::string(suite.name()) + "." + suite.GetTestInfo(k)->name());
    }
  }
  std::string filter;
  for (const std::string& name : inside) {
    if (outside.contains(name)) {
      std::printf("two sources of this program have a case %s\n", name.c_str());
      return {};
    }
    filter += name + ":";
  }
  for (const std::string& source : sources) {
    if (met.contains(source)) continue;
    std::printf("no case of this program is in %s\n", source.c_str());
    return {};
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::set<std::string> sources;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]).starts_with(kSource)) sources.insert(argv[i] + kSource.size());
  }
  // A death test starts the program again, with a filter of its own.
  if (!sources.empty() && GTEST_FLAG_GET(filter) == "*") {
    std::string filter = cases_of(sources);
    if (filter.empty()) return 1;
    GTEST_FLAG_SET(filter, filter);
  }
  for (const tinyshard::DeviceKind& kind : tinyshard::builtins().devices) {
    if (kind.name != tinyshard::device_kind() || kind.count() > 0) continue;
    std::printf("skipped: no device of kind %s: %s\n", kind.name.c_str(), kind.detail().c_str());
    return 0;
  }
  return RUN_ALL_TESTS();
}
