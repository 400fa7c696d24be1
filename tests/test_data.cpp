#include "tests/test_data.h"

#include <cstdlib>

namespace tinyshard::test {

std::filesystem::path test_data() {
  const char* set = std::getenv("TINYSHARD_TEST_DATA");
  return set ? set : TINYSHARD_TEST_DATA_DIR;
}

}  // namespace tinyshard::test
