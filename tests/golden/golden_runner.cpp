// golden_runner: runs the recorded cases of a folder on a device, a number of devices or a mesh,
// with their inputs placed in a given way. See --help and docs/notes/search.md.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <regex>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "core/base/error.h"
#include "tests/golden/run_case.h"
#include "tests/golden/runner.h"

namespace tinyshard::golden {
namespace {

struct Arguments {
  std::string cases, device, mesh, placement, json_file, filter;
  int64_t devices = 0;
  bool verbose = false;
};

// "2x2" is {2, 2}.
std::vector<int64_t> sizes(const std::string& text) {
  if (!std::regex_match(text, std::regex("[1-9][0-9]{0,4}(x[1-9][0-9]{0,4})*")))
    throw UserError(fmt::format("mesh \"{}\" is no list of sizes such as 2x2", text));
  std::vector<int64_t> out;
  for (size_t at = 0; at < text.size(); at = std::min(text.find('x', at), text.size() - 1) + 1)
    out.push_back(std::stoll(text.substr(at)));
  return out;
}

Where where(const Arguments& a, const std::string& kind) {
  if (a.devices == 0 && a.mesh.empty() && a.placement.empty()) return {};
  std::vector<int64_t> axes =
      a.mesh.empty() ? std::vector<int64_t>{std::max<int64_t>(a.devices, 1)} : sizes(a.mesh);
  int64_t count = 1;
  for (const int64_t size : axes) count *= size;
  if (a.devices != 0 && count != a.devices)
    throw UserError(fmt::format("a mesh of {} has {} devices, not {}", a.mesh, count, a.devices));
  return Where(kind, axes, a.placement.empty() ? "replicate" : a.placement);
}

int run(const Arguments& a) {
  std::string kind = a.device.empty() ? "CPU" : a.device;
  if (kind.find(':') == std::string::npos && a.devices == 0 && a.mesh.empty()) kind += ":0";
  // Tensors without a place of their own go to the default devices.
  if (!a.device.empty()) ::setenv("TS_DEVICES", kind.c_str(), 1);
  kind = kind.substr(0, kind.find(':'));

  const Recorded recorded(a.cases);
  if (recorded.cases().empty()) {
    std::cerr << "golden_runner: no cases in " << a.cases
              << " (manifest.json, tensors.safetensors)\n";
    return 2;
  }
  const Where place = where(a, kind);
  const std::regex wanted(a.filter);
  json report = json::array();
  Tally tally(a.verbose);
  for (const json& description : recorded.cases()) {
    const std::string& name = description.at("name").get_ref<const std::string&>();
    if (!a.filter.empty() && !std::regex_search(name, wanted)) continue;
    tally.begin(name);
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome = run_case(description, recorded, place);
    tally.end(name, outcome.passed, outcome.message);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    report.push_back({{"name", name},
                      {"op", description.at("op")},
                      {"passed", outcome.passed},
                      {"seconds", seconds.count()},
                      {"message", outcome.message}});
  }
  if (!a.json_file.empty()) {
    std::ofstream file(a.json_file);
    file << json{{"passed", tally.passed()},
                 {"failed", tally.failed()},
                 {"where", place.to_string()},
                 {"placement", a.placement},
                 {"cases", report}}
                .dump(1, ' ', false, json::error_handler_t::replace)
         << '\n';
    if (!file.flush()) {
      std::cerr << "golden_runner: cannot write " << a.json_file << '\n';
      tally.finish();
      return EXIT_FAILURE;
    }
  }
  return tally.finish();
}

int parse_and_run(int argc, char** argv) {
  Arguments a;
  CLI::App app(
      "Runs recorded cases (manifest.json and tensors.safetensors of a folder) and compares "
      "values,\n"
      "gradients and errors. The last line is \"N passed, N failed\"; the exit status is 0 if none "
      "failed.");
  app.add_option("--cases", a.cases, "folder with manifest.json and tensors.safetensors")
      ->required();
  app.add_option(
      "--device", a.device,
      "kind of device, such as CPU or CUDA; CPU:1 is one of them (default: TS_DEVICES, or CPU)");
  app.add_option("--devices", a.devices, "inputs lie on a mesh of this many devices")
      ->check(CLI::PositiveNumber);
  app.add_option("--mesh", a.mesh, "inputs lie on a mesh of these sizes, such as 2x2");
  app.add_option(
      "--placement", a.placement,
      "how they lie there: replicate (default), shard:auto (dims that divide evenly), shard:K (dim "
      "K),\n"
      "uneven (dims that do not), partial (a pending reduction, one term on each device)");
  app.add_option("--json", a.json_file, "writes what became of each case");
  app.add_option("--filter", a.filter, "only cases whose names this regular expression finds");
  app.add_flag("--verbose", a.verbose, "prints each name before the case runs");
  CLI11_PARSE(app, argc, argv);
  return run(a);
}

}  // namespace
}  // namespace tinyshard::golden

int main(int argc, char** argv) {
  return tinyshard::golden::run_main("golden_runner", tinyshard::golden::parse_and_run, argc, argv);
}
