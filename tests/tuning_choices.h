// The choices that BEAM makes while this observes, in words: "CPU:0: reduce_4: choice 2 of  0: 9.1 ...".
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "core/base/observer.h"

namespace tinyshard::test {

class TuningChoices : public Observer {
 public:
  // `with`: part of the words of those that count.
  explicit TuningChoices(std::string with) : with_(std::move(with)) {}
  void begin(const ObservedEvent&) override {}
  void end(const ObservedEvent& event) noexcept override {
    if (event.kind == EventKind::Tuning && event.after.find(with_) != std::string::npos)
      made.push_back(event.name + ": " + event.after);
  }
  std::vector<std::string> made;

 private:
  std::string with_;
};

}  // namespace tinyshard::test
