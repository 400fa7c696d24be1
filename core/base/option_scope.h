// Options while the program runs, for the length of a scope:
//
//   { OptionScope on({{"DEBUG", 2}, {"JIT", 0}});  step(x); }     // each item in the log
//
// The names are those of the environment variables. They hold for the whole process, whichever thread
// opens the scope; where several are open, the last one that was opened decides. In a job of several
// ranks all of them open a scope. A step that was captured keeps its plan: options that change plans
// (BEAM, NOOPT, TS_LIBRARIES, TS_DISABLE_PASSES) count when it is captured.
#pragma once
#include <concepts>
#include <initializer_list>
#include <source_location>
#include <string>
#include <utility>

namespace tinyshard {

class OptionScope {
 public:
  struct Setting {
    std::string name, value;
    Setting(std::string variable, std::string text)
        : name(std::move(variable)), value(std::move(text)) {}
    Setting(std::string variable, std::integral auto number)
        : Setting(std::move(variable), std::to_string(number)) {}
  };
  // UserError for a name that is no option, that is read once when the process starts, such as
  // TS_DEVICES, or a value that the option does not take.
  explicit OptionScope(std::initializer_list<Setting> settings,
                       std::source_location caller = std::source_location::current());
  ~OptionScope();
  OptionScope(const OptionScope&) = delete;
  OptionScope& operator=(const OptionScope&) = delete;
};

}  // namespace tinyshard
