// Two lists say all of it: for_each_option visits variable, member and meaning of every option,
// for_each_check the names in TS_CHECK. Reading the environment, opening a scope, printing what is set
// and finding the nearest name for a variable that does not exist are visitors of these lists, so that
// a new option is one row:
//
//   visit("TS_THREADS", o.threads, "threads of the CPU device")
//   TS_THREADS=two     parse(name, text, int&) throws, with the variable and its text
//   TS_THREAD=2        a warning that names TS_THREADS
//
// Options are those of the environment with the settings of each open scope over them, in the order in
// which the scopes were opened. They are values that never change: a scope puts another one in
// their place, and threads that still read the one before do so in peace.
#include "core/base/options.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/base/jit_mode.h"
#include "core/base/log.h"
#include "core/base/option_scope.h"
#include "core/base/words.h"

extern char** environ;

namespace tinyshard {
namespace {

template <class T>
void parse(const char* name, const char* text, T& out) {
  const char* end = text + std::strlen(text);
  auto [rest, error] = std::from_chars(text, end, out);
  if (error != std::errc() || rest != end) {
    fail(fmt::format("{}=\"{}\" is not a number", name, text));
  }
}

// Seconds; "inf" is for ever.
void parse(const char* name, const char* text, double& out) {
  parse<double>(name, text, out);
  if (!(out > 0)) {
    fail(fmt::format("{}=\"{}\" is no time above 0 seconds", name, text));
  }
}

void parse(const char*, const char* text, std::string& out) { out = text; }

void parse(const char* name, const char* text, bool& out) {
  int value = 0;
  parse(name, text, value);
  out = value != 0;
}

// Visits (name, member) of every check.
template <class C, class Visit>
void for_each_check(C& checks, Visit visit) {
  visit("costs", checks.costs);
  visit("memory", checks.memory);
  visit("replicas", checks.replicas);
  visit("values", checks.values);
}

void parse(const char* variable, const char* text, Checks& out) {
  out = {};
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view wanted = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), wanted.size() + 1));
    bool known = wanted.empty();
    std::string names;
    for_each_check(out, [&](const char* name, bool& member) {
      if (wanted == name) known = member = true;
      names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
    });
    if (!known) {
      fail(fmt::format("{}=\"{}\": there is no check {}; there are {}", variable, text, wanted,
                       names));
    }
  }
}

std::string show(const Checks& checks) {
  std::string names;
  for_each_check(checks, [&](const char* name, bool member) {
    if (member) names += fmt::format("{}{}", names.empty() ? "" : ",", name);
  });
  return names;
}
std::string show(const std::string& value) { return value; }
std::string show(bool value) { return value ? "1" : "0"; }
template <class T>
std::string show(T value) {
  return fmt::format("{}", value);
}

std::string default_cache_dir() {
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg)
    return std::string(xdg) + "/tinyshard";
  if (const char* home = std::getenv("HOME"); home && *home)
    return std::string(home) + "/.cache/tinyshard";
  return {};
}

// Visits (variable, member, meaning) of every option: the list that parsing and printing share.
template <class Visit>
void for_each_option(Options& o, Visit visit) {
  visit("DEBUG", o.debug,
        "1 times and counts, 2 kernels and reshards, 3 graphs, 4 kernel graphs, 5 LLVM IR, 6 "
        "assembly");
  visit("SPEC", o.spec,
        "1 verifies graphs entering and leaving the pipeline, 2 after every pass, and the memory "
        "of schedules");
  visit("NOOPT", o.no_opt,
        "1 plans without passes and steps that only make plans faster, without libraries and BEAM");
  visit("DEFAULT_FLOAT", o.default_float,
        "type of floats that the program does not choose: f32, f64, f16 or bf16");
  visit("TS_LIBRARIES", o.libraries, "0 keeps products and convolutions in generated kernels");
  visit("TS_THREADS", o.threads,
        "threads of the CPU devices; 0 = cores of this process / local ranks");
  visit("TS_CACHE", o.cache, "0 keeps compiled kernels in memory only");
  visit("TS_CACHE_DIR", o.cache_dir, "folder of compiled kernels, an absolute path");
  visit("TS_CACHE_BYTES", o.cache_bytes,
        "bytes of compiled kernels to keep; those not used for the longest time go; 0 = no limit");
  visit("TS_KERNEL_BYTES", o.kernel_bytes,
        "bytes of kernels, and of programs loaded of them, to keep in memory; those that no plan "
        "uses "
        "and that were not used for the longest time go; 0 = no limit");
  visit("TS_CHECK", o.check,
        "comma separated checks, which cost much: costs, memory, replicas, values");
  visit("TS_COMPOSITES", o.composites,
        "spell has GELU and its like become smaller ops before all else, keep leaves all of them "
        "whole until libraries were asked; by default those stay that a library may take");
  visit("TS_TIMEOUT", o.timeout_s, "deadline of one collective, seconds");
  visit("TS_DISABLE_PASSES", o.disabled_passes,
        "comma separated names of passes and of steps of scheduling to leave out");
  visit("TS_DEVICES", o.devices, "devices of this process, such as CPU:0,CPU:1");
  visit("TS_DEVICES_PER_RANK", o.devices_per_rank,
        "devices of each rank where the program does not say; 0 = one, or those of TS_DEVICES");
  visit("TS_HOSTS", o.hosts,
        "hosts among which the ranks of a job are shared out evenly, in order; 0 = one; plans send "
        "less between hosts");
  visit("TS_CUDA_PATH", o.cuda_path, "folders with CUDA's libraries, separated by ':'");
  visit("TS_HIP_PATH", o.hip_path, "folders with ROCm's libraries, separated by ':'");
  visit("TS_TRANSPORT", o.transport,
        "between processes: mpi, tcp, or sockets (tcp without shared memory); by default mpi where "
        "mpirun or PMIx started them, else tcp");
  visit("TS_RECORD", o.record,
        "folder where each rank keeps a ring of its last collectives, for tinyshard blame and ps");
  visit("TS_TRACE", o.trace,
        "file of what the engine did and when, for chrome://tracing or ui.perfetto.dev; of several "
        "ranks each writes its own, as trace.rank2.json");
  visit("VIZ", o.viz,
        "1, 2 or a file: what the engine did, for tinyshard view; 2 with the code of kernels; of "
        "several ranks each writes its own");
  visit("TS_SHUFFLE", o.shuffle,
        "not 0 runs items in a random order that their memory allows; looks for orders that are "
        "missing");
  visit("TS_SERIAL", o.serial,
        "1 runs what a captured step does on a GPU in one chain, nothing side by side");
  visit("TS_TF32", o.tf32, "1 lets f32 products on CUDA round their operands to 10 bits (TF32)");
  visit("BEAM", o.beam,
        "times this many plans of each kernel and, on a GPU, algorithms of each product, and "
        "products "
        "by libraries and in loops, and keeps the fastest");
  visit("JIT", o.jit,
        "0 calls the function of a Jit each time, to debug it; 2 captures it and replays its items "
        "one by one");
  visit("TS_BUCKET_BYTES", o.bucket_bytes,
        "bytes of gradients, or of parameters, in one collective");
}

// Numbers that parse and that nothing can be done with. `source` comes in front of a name.
void check_ranges(const Options& o, std::string_view source) {
  auto need = [source](bool holds, const char* name, const auto& value, const char* range) {
    if (!holds) fail(fmt::format("{}{}=\"{}\" must be {}", source, name, value, range));
  };
  need(o.threads >= 0, "TS_THREADS", o.threads, "0 or a number of threads");
  need(o.devices_per_rank >= 0, "TS_DEVICES_PER_RANK", o.devices_per_rank,
       "0 or a number of devices");
  need(o.hosts >= 0, "TS_HOSTS", o.hosts, "0 or a number of hosts");
  need(o.composites.empty() || o.composites == "spell" || o.composites == "keep", "TS_COMPOSITES",
       o.composites, "spell or keep");
  need(o.jit >= 0 && o.jit <= 2, "JIT", o.jit, "0, 1 or 2");
  need(o.beam >= 0, "BEAM", o.beam, "0 or a number of candidates");
  for (const auto& [name, folders] :
       {std::pair("TS_CUDA_PATH", &o.cuda_path), std::pair("TS_HIP_PATH", &o.hip_path)}) {
    for (std::string_view rest = *folders; !rest.empty();) {
      const std::string_view folder = rest.substr(0, rest.find(':'));
      rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
      need(folder.empty() || folder.front() == '/', name, *folders,
           "folders by their absolute paths: what lies there is run");
    }
  }
  need(o.kernel_bytes >= 0, "TS_KERNEL_BYTES", o.kernel_bytes, "0 or a number of bytes");
  need(o.bucket_bytes > 0, "TS_BUCKET_BYTES", o.bucket_bytes, "a number of bytes above 0");
}

// A misspelt variable does nothing, which nobody would notice. Each is told once.
void warn_of_unknown_variables(Options& o) {
  static auto& told = *new std::set<std::string, std::less<>>;
  // Tests have the first; launchers tell each process of a job its place by the others.
  std::vector<std::string_view> known{
      "TS_PTXAS",        "TS_RANK",        "TS_WORLD_SIZE", "TS_LOCAL_RANK",
      "TS_LOCAL_SIZE",   "TS_STORE",       "TS_JOB",        "TS_JOB_KEY",
      "TS_JOB_KEY_FILE", "TS_EPOCH",       "TS_SECURE",     "TS_BIND",
      "TS_REPORT_FD",    "TS_REPORT_PIPE", "TS_JOINED",     "TS_NEWCOMERS"};
  for_each_option(o, [&](const char* name, auto&, const char*) { known.emplace_back(name); });
  for (char** entry = environ; entry && *entry; ++entry) {
    std::string_view text = *entry, name = text.substr(0, text.find('='));
    if (!name.starts_with("TS_") || std::ranges::find(known, name) != known.end()) continue;
    if (!told.emplace(name).second) continue;
    log_line(fmt::format("environment variable {} is not known and does nothing; did you mean {}?",
                         name, nearest_word(name, known)));
  }
}

// Variables of tinygrad that mean nothing here, and what does the same. Each that is set is told once.
struct OtherName {
  const char *name, *instead;
  bool is_switch = true;  // told where it is 1: other programs may mean something else by the name
};
constexpr auto kOtherNames = std::to_array<OtherName>({
    {"DEV", "TS_DEVICES names the devices: TS_DEVICES=CPU, TS_DEVICES=CUDA:0", false},
    {"CPU", "TS_DEVICES=CPU computes on the CPU"},
    {"CUDA", "TS_DEVICES=CUDA computes on GPUs, which are the default where there are any"},
    {"NV", "TS_DEVICES=CUDA computes on GPUs, which are the default where there are any"},
    {"AMD", "TS_DEVICES=HIP computes on GPUs, which are the default where there are any"},
    {"HIP", "TS_DEVICES=HIP computes on GPUs, which are the default where there are any"},
    {"PROFILE", "TS_TRACE=trace.json writes a timeline for ui.perfetto.dev"},
    {"JIT_BATCH_SIZE", "a captured step is one recording of each device, there are no batches",
     false},
    {"JITBEAM", "BEAM counts in captured steps as well", false},
});

void tell_other_names() {
  static auto& told = *new std::set<std::string, std::less<>>;
  for (const OtherName& other : kOtherNames) {
    const char* text = ::secure_getenv(other.name);
    const std::string_view value = text ? text : "";
    if (other.is_switch ? value != "1" : value.empty() || value == "0") continue;
    if (!told.emplace(other.name).second) continue;
    log_line(fmt::format("environment variable {}={} does nothing in tinyshard: {}", other.name,
                         text, other.instead));
  }
}

// Sets the option of that name; false: there is none.
bool set_option(Options& o, std::string_view name, std::string_view source, const char* text) {
  bool found = false;
  for_each_option(o, [&](const char* known, auto& member, const char*) {
    if (name != known) return;
    found = true;
    parse((std::string(source) + known).c_str(), text, member);
  });
  return found;
}

// Options that others follow from.
Options with_consequences(Options o) {
  if (o.no_opt) {
    o.libraries = false;
    o.beam = 0;
  }
  return o;
}

constexpr std::string_view kFromEnvironment = "environment variable ";

Options read_environment() {
  Options o;
  o.cache_dir = default_cache_dir();
  for_each_option(o, [](const char* name, auto& member, const char*) {
    // A program that has more rights than its user takes no word of the user's environment.
    const char* text = ::secure_getenv(name);
    if (text && *text) parse((std::string(kFromEnvironment) + name).c_str(), text, member);
  });
  check_ranges(o, kFromEnvironment);
  warn_of_unknown_variables(o);
  tell_other_names();
  return o;
}

// These are asked for again and again. All others are read once, when something comes to life.
constexpr auto kOfScopes = std::to_array<std::string_view>(
    {"DEBUG", "SPEC", "BEAM", "JIT", "NOOPT", "TS_LIBRARIES", "TS_CHECK", "TS_DISABLE_PASSES",
     "TS_COMPOSITES", "TS_SHUFFLE", "TS_SERIAL", "TS_TF32", "TS_BUCKET_BYTES", "TS_KERNEL_BYTES"});

class CurrentOptions {
 public:
  static CurrentOptions& get() {
    static auto& options = *new CurrentOptions;  // outlives every static user
    return options;
  }

  const Options& now() const { return *now_.load(std::memory_order_acquire); }

  void reload() {
    Options read = read_environment();
    const std::lock_guard lock(mutex_);
    environment_ = std::move(read);
    publish(with_scopes());
  }
  void open(const void* scope, std::span<const OptionScope::Setting> settings) {
    const std::lock_guard lock(mutex_);
    scopes_.push_back({scope, {settings.begin(), settings.end()}});
    try {
      publish(with_scopes());
    } catch (...) {
      scopes_.pop_back();
      throw;
    }
  }
  void close(const void* scope) {
    const std::lock_guard lock(mutex_);
    std::erase_if(scopes_, [scope](const Scope& s) { return s.id == scope; });
    publish(with_scopes());
  }

 private:
  struct Scope {
    const void* id;
    std::vector<OptionScope::Setting> settings;
  };

  CurrentOptions() : environment_(read_environment()) { publish(with_scopes()); }

  Options with_scopes() const {
    Options o = environment_;
    for (const Scope& scope : scopes_) {
      for (const auto& [name, text] : scope.settings) set_option(o, name, "", text.c_str());
    }
    if (!scopes_.empty()) check_ranges(o, "");
    return with_consequences(std::move(o));
  }
  // Equal options are one value, so that a scope in a loop keeps nothing.
  void publish(const Options& o) {
    auto found = std::ranges::find_if(all_, [&](const auto& other) { return *other == o; });
    if (found == all_.end()) found = all_.insert(found, std::make_unique<const Options>(o));
    now_.store(found->get(), std::memory_order_release);
  }

  std::mutex mutex_;
  Options environment_;
  std::vector<Scope> scopes_;
  std::vector<std::unique_ptr<const Options>> all_;
  std::atomic<const Options*> now_ = nullptr;
};

void check_name(const std::string& name) {
  if (std::ranges::count(kOfScopes, name) > 0) return;
  std::string names;
  for (std::string_view known : kOfScopes)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known);
  Options o;
  bool known = false;
  for_each_option(o,
                  [&](const char* option, auto&, const char*) { known = known || name == option; });
  fail(fmt::format("{} {}; a scope may set {}", name,
                   known ? "is read once, from the environment" : "is no option", names));
}

}  // namespace

const Options& options() { return CurrentOptions::get().now(); }
JitMode jit_mode() { return JitMode(options().jit); }
void reload_options() { CurrentOptions::get().reload(); }

OptionScope::OptionScope(std::initializer_list<Setting> settings, std::source_location caller) {
  const Call call("OptionScope", caller);
  for (const Setting& setting : settings) check_name(setting.name);
  CurrentOptions::get().open(this, settings);
}
OptionScope::~OptionScope() { CurrentOptions::get().close(this); }

std::vector<OptionRow> option_rows() {
  std::vector<OptionRow> rows;
  Options now = options();
  for_each_option(now, [&](const char* name, auto& member, const char* meaning) {
    rows.push_back({name, show(member), meaning, std::getenv(name) != nullptr});
  });
  return rows;
}

}  // namespace tinyshard
