// Where the data sets and recorded results lie that are too large for the tree.
#pragma once

#include <filesystem>

namespace tinyshard::test {

// The folder with data/ and golden/: $TINYSHARD_TEST_DATA where it is set, else the one that the configuration found
// beside the checkout; empty where there is none. Links with tinyshard_test_data.
std::filesystem::path test_data();

}  // namespace tinyshard::test
