// fuzz: runs random programs in every way that must give the same, and prints what does not as a
// small C++ program. See --help; docs/notes/search.md says how to read what it finds.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <sys/stat.h>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "tests/fuzz/compare.h"
#include "tests/fuzz/generator.h"
#include "tests/fuzz/minimise.h"
#include "tests/fuzz/print.h"

namespace fuzz {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  double minutes = 1;
  uint64_t seed = 0;
  uint64_t programs = 0;
  std::string mode, replay, folder;
  double minimise_s = 40;
  int findings = 20, jobs = 1;
  int64_t cache_mb = 512;
  bool print_program = false;
};

class Fuzz {
 public:
  explicit Fuzz(Options options) : o_(std::move(options)) {}

  int run() {
    fmt::print("seed {}\n", o_.seed);
    std::fflush(stdout);
    // Each job has workers of its own, which end with its thread.
    std::vector<std::jthread> jobs;
    for (int i = 0; i < o_.jobs; ++i) jobs.emplace_back([this] { job(); });
    jobs.clear();
    report(seconds());
    return found_ ? 1 : 0;
  }

  int replay() {
    std::ifstream file(o_.replay);
    Program program;
    uint64_t seed = 0;
    if (file) {
      std::ostringstream text;
      text << file.rdbuf();
      // The lines of a program alone, or those that stand below a finding.
      std::string all = text.str();
      size_t from = all.find("/* replay"), to = all.find("*/", from);
      if (from != std::string::npos) {
        from = all.find('\n', from) + 1;
        all = all.substr(from, to - from);
      }
      program = parse(all);
    } else {
      seed = std::stoull(o_.replay);
      program = generate(seed);
    }
    fmt::print("{}", to_text(program));
    Workers workers;
    judged(program, seed, workers);
    return found_ ? 1 : 0;
  }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  // The next seed, until there are enough programs, minutes or findings.
  std::optional<uint64_t> next() {
    std::scoped_lock lock(mutex_);
    bool enough = o_.programs ? given_ >= o_.programs : seconds() > 60 * o_.minutes;
    if (enough || int(found_) >= o_.findings) return std::nullopt;
    if (seconds() - told_ > 60) {
      told_ = seconds();
      fmt::print("{:.0f} min: {} programs, {} findings\n", told_ / 60, programs_, found_);
      std::fflush(stdout);
      trim_cache();
    }
    return o_.seed + given_++;
  }

  void job() {
    Workers workers;
    while (auto seed = next()) {
      Program program = generate(*seed);
      if (o_.print_program) fmt::print("# {}\n{}\n", *seed, to_text(program)), std::fflush(stdout);
      judged(program, *seed, workers);
    }
  }

  void judged(const Program& program, uint64_t seed, Workers& workers) {
    {
      std::scoped_lock lock(mutex_);
      ++programs_;
      for (const Step& step : program.steps) ++ops_[step.op];
    }
    Judge judge(program, workers);
    try {
      for (const Check& check : checks_for(program, o_.mode, seed)) {
        {
          std::scoped_lock lock(mutex_);
          ++checks_[check.mode];
        }
        if (auto finding = judge(check)) {
          tell(program, *finding, seed, workers);
          return;
        }
      }
    } catch (const Invalid&) {
      std::scoped_lock lock(mutex_);
      ++invalid_;  // later calls of a program may not fit what the first one had
    }
  }

  void tell(const Program& program, const Finding& finding, uint64_t seed, Workers& workers) {
    // A finding that is the same already costs no time again.
    std::string before = finding.signature();
    {
      std::scoped_lock lock(mutex_);
      if (finding.kind.ends_with("Error") && seen_.contains(before)) {
        ++repeated_;
        return;
      }
    }
    Minimal small = minimise(program, finding, workers, o_.minimise_s);
    std::scoped_lock lock(mutex_);
    std::string ops;
    for (const Step& step : small.program.steps) ops += " " + step.op;
    if (!seen_.insert(small.finding.signature() + ops).second) {
      ++repeated_;
      return;
    }
    seen_.insert(before);
    ++found_;
    std::string text =
        fmt::format("{}\n/* replay with fuzz --replay FILE of these lines (seed {}):\n{}*/\n",
                    to_cpp(small.program, small.finding), seed, to_text(small.program));
    fmt::print("\n--- finding {} at program {}, {:.0f} s\n{}", found_, programs_, seconds(), text);
    if (small.finding.text.find('\n') != std::string::npos) fmt::print("{}\n", small.finding.text);
    std::fflush(stdout);
    if (!o_.folder.empty()) {
      std::ofstream file(fmt::format("{}/{}.txt", o_.folder, seed));
      file << text << small.finding.text << "\n";
    }
  }

  void report(double seconds) const {
    fmt::print("\n{} programs in {:.1f} min ({:.1f}/s), seed {}\n", programs_, seconds / 60,
               double(programs_) / seconds, o_.seed);
    fmt::print("comparisons:");
    for (const auto& [mode, n] : checks_) fmt::print(" {} {}", mode, n);
    fmt::print("\nops:");
    for (const auto& [op, n] : ops_) fmt::print(" {} {}", op, n);
    fmt::print("\n{} findings, {} more like them\n", found_, repeated_);
  }

  // Kernels of random programs come once: the folder is emptied rather than aged.
  void trim_cache() const {
    const char* folder = std::getenv("TS_CACHE_DIR");
    if (!folder) return;
    int64_t bytes = 0;
    std::error_code ignored;
    for (auto& entry : std::filesystem::recursive_directory_iterator(folder, ignored)) {
      if (entry.is_regular_file(ignored)) bytes += int64_t(entry.file_size(ignored));
    }
    if (bytes > o_.cache_mb << 20) {
      for (auto& entry : std::filesystem::directory_iterator(folder, ignored))
        std::filesystem::remove_all(entry.path(), ignored);
    }
  }

  Options o_;
  Clock::time_point start_ = Clock::now();
  std::mutex mutex_;  // of what follows
  double told_ = 0;
  uint64_t given_ = 0;
  std::map<std::string, uint64_t> ops_, checks_;
  std::set<std::string> seen_;
  uint64_t programs_ = 0, invalid_ = 0, found_ = 0, repeated_ = 0;
};

}  // namespace
}  // namespace fuzz

int main(int argc, char** argv) {
  bool worker = false;
  fuzz::Options o;
  o.seed = std::random_device()() % 1000000000;
  double deadline = 60;
  CLI::App app(
      "Random programs against an interpreter, against themselves and against differences.");
  app.add_option("--minutes", o.minutes, "How long");
  app.add_option("--programs", o.programs, "How many, whatever the time");
  app.add_option("--seed", o.seed, "Of the first program; the next ones count from there");
  app.add_option("--mode", o.mode, "One of the comparisons alone")
      ->check(
          CLI::IsMember({"values", "steps", "captured", "gradients", "switches", "placements"}));
  app.add_option("--replay", o.replay, "A file with a program, or the seed of one");
  app.add_option("--folder", o.folder, "Where findings are written, one file each");
  app.add_option("--findings", o.findings, "Stop after so many");
  app.add_option("--jobs", o.jobs, "How many programs at once")->check(CLI::Range(1, 256));
  app.add_option("--minimise", o.minimise_s, "Seconds to make a finding small");
  app.add_option("--deadline", deadline, "Seconds that one program may run");
  app.add_option("--cache-mb", o.cache_mb, "Size of the kernel cache at which it is emptied");
  app.add_flag("--print", o.print_program, "Print each program before it runs");
  app.add_flag("--worker", worker)->group("");
  CLI11_PARSE(app, argc, argv);
  if (worker) return fuzz::serve(3);
  fuzz::Worker::set_deadline(deadline);
  std::string folder;
  if (!std::getenv("TS_CACHE_DIR")) {
    folder = (std::filesystem::temp_directory_path() / "tinyshard-fuzz-XXXXXX").string();
    if (!mkdtemp(folder.data())) return 2;
    setenv("TS_CACHE_DIR", folder.c_str(), 1);
  }
  int status = 2;
  {
    fuzz::Fuzz fuzz(o);
    status = o.replay.empty() ? fuzz.run() : fuzz.replay();
  }
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
  return status;
}
