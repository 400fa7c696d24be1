#include "launch/environment.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

class Variables {
 public:
  explicit Variables(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  const char* text(const char* variable) const {
    const char* value = lookup_(variable);
    return value != nullptr && *value != '\0' ? value : nullptr;
  }

  std::optional<int> number(const char* variable) const {
    const char* value = text(variable);
    if (value == nullptr) return std::nullopt;
    const std::string_view digits = value;
    int parsed = 0;
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), parsed);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      throw UserError(
          fmt::format("environment variable {}=\"{}\" is not a number", variable, value));
    }
    return parsed;
  }

  int required(const char* variable, const char* because) const {
    std::optional<int> value = number(variable);
    if (!value)
      throw UserError(
          fmt::format("environment variable {} is set, but {} is not", because, variable));
    return *value;
  }

 private:
  const EnvironmentLookup& lookup_;
};

// Slurm's list of tasks per node, "2(x3),1": the entry of one node.
std::optional<int> tasks_on_node(std::string_view list, int node) {
  const char *at = list.data(), *end = at + list.size();
  while (at < end) {
    int tasks = 0, repeat = 1;
    auto parsed = std::from_chars(at, end, tasks);
    if (parsed.ec != std::errc()) return std::nullopt;
    at = parsed.ptr;
    if (end - at > 2 && at[0] == '(' && at[1] == 'x') {
      parsed = std::from_chars(at + 2, end, repeat);
      if (parsed.ec != std::errc() || parsed.ptr == end) return std::nullopt;
      at = parsed.ptr + 1;
    }
    if (node < repeat) return tasks;
    node -= repeat;
    if (at < end) ++at;  // the comma
  }
  return std::nullopt;
}

void read_slurm(const Variables& variables, const char* because, LaunchEnvironment& launch) {
  const bool step = variables.text("SLURM_STEP_NUM_TASKS") != nullptr;
  launch.size = variables.required(step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", because);
  launch.local_rank = variables.number("SLURM_LOCALID").value_or(0);
  launch.local_size = launch.local_rank + 1;
  const char* per_node = variables.text("SLURM_STEP_TASKS_PER_NODE");
  if (per_node == nullptr) per_node = variables.text("SLURM_TASKS_PER_NODE");
  if (per_node != nullptr) {
    std::optional<int> tasks =
        tasks_on_node(per_node, variables.number("SLURM_NODEID").value_or(0));
    if (tasks) launch.local_size = *tasks;
  }
}

// Ports below those that hosts give to connections of their own (32768 and up). The same step
// has the same port on all ranks; another one most likely has another.
int port_of_step(int job, int step) {
  constexpr uint32_t kFirst = 15000, kPorts = 16000;
  return int(kFirst + (uint32_t(job) * 31 + uint32_t(step)) % kPorts);
}

void read_slurm_meeting(const Variables& variables, LaunchEnvironment& launch) {
  const int job = variables.number("SLURM_JOB_ID").value_or(0);
  const int step =
      variables.number("SLURM_STEP_ID").value_or(variables.number("SLURM_STEPID").value_or(0));
  const char* nodes = variables.text("SLURM_STEP_NODELIST");
  if (nodes == nullptr) nodes = variables.text("SLURM_NODELIST");
  launch.meeting.at_first_rank = true;
  launch.meeting.job = fmt::format("slurm {}.{}", job, step);
  if (nodes == nullptr) return;
  // Within one host nothing leaves it.
  const std::string host = launch.local_size == launch.size ? "127.0.0.1" : first_host(nodes);
  launch.meeting.store = fmt::format("{}:{}", host, port_of_step(job, step));
}

void read_master(const Variables& variables, LaunchEnvironment& launch) {
  const char* address = variables.text("MASTER_ADDR");
  const std::optional<int> port = variables.number("MASTER_PORT");
  launch.meeting.at_first_rank = true;
  launch.meeting.epoch = uint32_t(variables.number("TORCHELASTIC_RESTART_COUNT").value_or(0));
  if (address == nullptr || !port) return;
  const char* agent = variables.text("TORCHELASTIC_USE_AGENT_STORE");
  const bool taken = agent != nullptr && std::string_view(agent) == "True";
  const bool six = std::string_view(address).find(':') != std::string_view::npos;
  launch.meeting.store =
      fmt::format("{}{}{}:{}", six ? "[" : "", address, six ? "]" : "", *port + (taken ? 1 : 0));
  launch.meeting.job = "master " + launch.meeting.store;
}

void read_own(const Variables& variables, LaunchEnvironment& launch) {
  launch.rank = variables.required("TS_RANK", "TS_WORLD_SIZE");
  launch.size = variables.required("TS_WORLD_SIZE", "TS_RANK");
  launch.local_rank = variables.number("TS_LOCAL_RANK").value_or(0);
  launch.local_size = variables.number("TS_LOCAL_SIZE").value_or(launch.local_rank + 1);
  launch.newcomers_from = variables.number("TS_NEWCOMERS").value_or(0);
  const auto text = [&](const char* variable) {
    const char* value = variables.text(variable);
    return std::string(value == nullptr ? "" : value);
  };
  launch.meeting.store = text("TS_STORE");
  launch.meeting.job = text("TS_JOB");
  launch.meeting.epoch = uint32_t(variables.number("TS_EPOCH").value_or(0));
}

void check_consistent(const LaunchEnvironment& launch) {
  const bool ranks = launch.size >= 1 && launch.rank >= 0 &&
                     (launch.rank < launch.size || launch.is_to_join()) &&
                     (launch.newcomers_from == 0 || launch.newcomers_from == launch.size);
  const bool locals = launch.local_rank >= 0 && launch.local_rank < launch.local_size &&
                      launch.local_size <= launch.size;
  if (ranks && locals) return;
  throw UserError(fmt::format(
      "the environment of {} contradicts itself: rank {} of {}, on this host rank {} of {}",
      name(launch.launcher), launch.rank, launch.size, launch.local_rank, launch.local_size));
}

}  // namespace

std::string_view name(Launcher launcher) {
  constexpr std::array<std::string_view, 6> kNames = {
      "no launcher", "mpirun", "srun --mpi=pmix", "srun", "RANK and WORLD_SIZE", "tinyshard run"};
  return kNames[static_cast<size_t>(launcher)];
}

int LaunchEnvironment::launched_as(int rank_now) const {
  return members.empty() ? rank_now : members.at(size_t(rank_now));
}

int LaunchEnvironment::rank_now(int launched) const {
  if (members.empty()) return launched;
  const auto found = std::ranges::find(members, launched);
  return found == members.end() ? -1 : int(found - members.begin());
}

std::string first_host(std::string_view list) {
  const size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string_view::npos || comma < bracket)
    return std::string(list.substr(0, comma));
  const std::string_view numbers = list.substr(bracket + 1);
  const std::string_view first = numbers.substr(0, numbers.find_first_of("-,]"));
  const size_t end = numbers.find(']');
  if (end == std::string_view::npos) return {};
  const std::string_view rest = numbers.substr(end + 1);
  return std::string(list.substr(0, bracket)).append(first).append(rest.substr(0, rest.find(',')));
}

void check_meeting(const LaunchEnvironment& launch) {
  if (!launch.meeting.store.empty()) return;
  const char* missing = launch.launcher == Launcher::Own     ? "TS_STORE is not set"
                        : launch.launcher == Launcher::Slurm ? "SLURM_STEP_NODELIST is not set"
                        : launch.launcher == Launcher::Rank
                            ? "MASTER_ADDR and MASTER_PORT are not set"
                            : "no store is named";
  throw UserError(fmt::format(
      "{} started {} ranks, but does not say where they meet: {}; start them with tinyshard run, "
      "or with mpirun",
      name(launch.launcher), launch.size, missing));
}

LaunchEnvironment read_launch_environment(const EnvironmentLookup& lookup) {
  const Variables variables(lookup);
  LaunchEnvironment launch;
  const bool slurm_task =
      variables.text("SLURM_PROCID") != nullptr &&
      (variables.text("SLURM_STEP_ID") != nullptr || variables.text("SLURM_STEPID") != nullptr);
  if (const char* bind = variables.text("TS_BIND")) launch.meeting.bind = bind;
  if (variables.text("TS_RANK") != nullptr || variables.text("TS_WORLD_SIZE") != nullptr) {
    launch.launcher = Launcher::Own;
    read_own(variables, launch);
  } else if (variables.text("OMPI_COMM_WORLD_RANK") != nullptr ||
             variables.text("OMPI_COMM_WORLD_SIZE") != nullptr) {
    launch.launcher = Launcher::OpenMpi;
    launch.rank = variables.required("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    launch.size = variables.required("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
    launch.local_rank = variables.number("OMPI_COMM_WORLD_LOCAL_RANK").value_or(0);
    launch.local_size =
        variables.number("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(launch.local_rank + 1);
  } else if (variables.text("PMIX_RANK") != nullptr) {
    launch.launcher = Launcher::Pmix;
    launch.rank = variables.required("PMIX_RANK", "PMIX_RANK");
    read_slurm(variables, "PMIX_RANK", launch);
  } else if (slurm_task) {
    launch.launcher = Launcher::Slurm;
    launch.rank = variables.required("SLURM_PROCID", "SLURM_STEP_ID");
    read_slurm(variables, "SLURM_PROCID", launch);
    read_slurm_meeting(variables, launch);
  } else if (variables.text("RANK") != nullptr || variables.text("WORLD_SIZE") != nullptr) {
    launch.launcher = Launcher::Rank;
    launch.rank = variables.required("RANK", "WORLD_SIZE");
    launch.size = variables.required("WORLD_SIZE", "RANK");
    launch.local_rank = variables.number("LOCAL_RANK").value_or(0);
    launch.local_size = variables.number("LOCAL_WORLD_SIZE").value_or(launch.local_rank + 1);
    read_master(variables, launch);
  }
  check_consistent(launch);
  return launch;
}

LaunchEnvironment read_launch_environment() {
  return read_launch_environment([](const char* variable) { return std::getenv(variable); });
}

}  // namespace tinyshard
