#include "core/base/bounded_cache.h"

#include <string>

#include <gtest/gtest.h>

namespace tinyshard::bounded_cache_test {
namespace {

using Cache = BoundedCache<std::string, int>;

TEST(BoundedCache, DropsWhatWasUsedLongestAgoAndNobodyHolds) {
  Cache cache;
  for (const char* key : {"a", "b", "c", "d"}) cache.add(key, std::make_shared<int>(key[0]), 40);
  const auto held = cache.find("a");
  EXPECT_EQ(*held, 'a');
  cache.find("b");  // used later than c and d
  EXPECT_EQ(cache.bytes(), 160u);
  EXPECT_FALSE(cache.is_full(160));
  ASSERT_TRUE(cache.is_full(120));
  EXPECT_EQ(cache.trim(120).size(), 2u);  // to three quarters: 90
  EXPECT_EQ(cache.bytes(), 80u);
  for (const char* key : {"a", "b"}) EXPECT_TRUE(cache.contains(key)) << key;
  for (const char* key : {"c", "d"}) EXPECT_EQ(cache.find(key), nullptr) << key;
}

TEST(BoundedCache, KeepsWhatIsHeldHoweverMuch) {
  Cache cache;
  std::vector<Cache::Pointer> held;
  for (int i = 0; i < 10; ++i) {
    held.push_back(std::make_shared<int>(i));
    cache.add(std::to_string(i), held.back(), 50);
  }
  EXPECT_TRUE(cache.trim(100).empty());
  EXPECT_FALSE(cache.is_full(100)) << "nothing came since it was tried in vain";
  cache.add("more", std::make_shared<int>(1), 50);
  EXPECT_TRUE(cache.is_full(100));
  held.clear();
  EXPECT_EQ(cache.trim(100).size(), 10u);
  EXPECT_EQ(cache.bytes(), 50u);
}

TEST(BoundedCache, TheFirstValueOfAKeyStays) {
  Cache cache;
  cache.add("a", std::make_shared<int>(1), 10);
  cache.add("a", std::make_shared<int>(2), 10);
  EXPECT_EQ(*cache.find("a"), 1);
  EXPECT_EQ(cache.bytes(), 10u);
  cache.clear();
  EXPECT_EQ(cache.size() + cache.bytes(), 0u);
}

}  // namespace
}  // namespace tinyshard::bounded_cache_test
