// The devices that tests use: of the kind that TS_DEVICES names, CPU without it. Tests of several
// devices are skipped, saying so, where there are fewer.
#pragma once
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/options.h"
#include "core/exec/context.h"

namespace tinyshard {

inline std::string device_kind() {
  std::string kind = options().devices.substr(0, options().devices.find_first_of(":,"));
  return kind.empty() ? "CPU" : kind;
}

inline int device_count() {
  for (const DeviceKind& kind : builtins().devices) {
    if (kind.name == device_kind()) return kind.count();
  }
  return 0;
}

inline std::string device_name(int index) { return device_kind() + ":" + std::to_string(index); }

inline std::vector<std::string> device_names(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(device_name(i));
  return names;
}

#define TINYSHARD_NEED_DEVICES(n)                                                      \
  if (::tinyshard::device_count() < (n))                                               \
  GTEST_SKIP() << "needs " << (n) << " devices of kind " << ::tinyshard::device_kind() \
               << ", there are " << ::tinyshard::device_count()

}  // namespace tinyshard
