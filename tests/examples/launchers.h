// The launchers that start a program as two or four ranks.
#pragma once
#include <string>
#include <vector>

namespace tinyshard::test {

struct Launcher {
  std::string name, two, four;
};
inline std::vector<Launcher> launchers() {
  std::vector<Launcher> all = {
      {"tinyshard run", std::string(RUN_2) + " ", std::string(RUN_4) + " "}};
#ifdef MPIRUN_2
  all.push_back({"mpirun", std::string(MPIRUN_2) + " ", std::string(MPIRUN_4) + " "});
#endif
  return all;
}

}  // namespace tinyshard::test
