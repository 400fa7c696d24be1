// Slurm's lists are short forms: "2(x3),1" is two tasks on each of three nodes,
// then one; the first host of "n[03-05,09],m1" is n03. The port where ranks of
// a step meet follows from job and step, so all ranks compute the same one
// without asking. A number that does not parse is an error, never a default.
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

  template <class Number = int>
  std::optional<Number> number(const char* variable) const {
    const char* value = text(variable);
    if (value == nullptr) return std::nullopt;
    const std::string_view digits = value;
    Number parsed = 0;
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
int port_of_step(uint32_t job, uint32_t step) {
  constexpr uint32_t kFirst = 15000, kPorts = 16000;
  return int(kFirst + (job * 31 + step) % kPorts);
}

// Slurm's number of a step; nothing outside of steps of tasks. It numbers steps of another kind from
// the top: 0xfffffffa is an interactive one, 0xfffffffb a batch script.
std::optional<uint32_t> slurm_step(const Variables& variables) {
  constexpr uint32_t kFirstSpecial = 0xfffffff0;
  auto step = variables.number<uint32_t>("SLURM_STEP_ID");
  if (!step) step = variables.number<uint32_t>("SLURM_STEPID");
  return step && *step < kFirstSpecial ? step : std::nullopt;
}

void read_slurm_meeting(const Variables& variables, LaunchEnvironment& launch) {
  const uint32_t job = variables.number<uint32_t>("SLURM_JOB_ID").value_or(0);
  const uint32_t step = slurm_step(variables).value_or(0);
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
  if (*port < 1 || *port + (taken ? 1 : 0) > 65535)
    throw UserError(fmt::format("environment variable MASTER_PORT={} is no port", *port));
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

// A launcher within a rank of ours gives its own variables beside ours. Slurm's may be those of the
// step in which somebody starts several ranks by hand.
void check_alone(const Variables& variables, const LaunchEnvironment& launch, bool slurm_task) {
  struct Other {
    const char *rank, *size;
    bool may_be_outside;
  };
  constexpr Other kOthers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", false},
                               {"PMI_RANK", "PMI_SIZE", false},
                               {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", true}};
  for (const Other& other : kOthers) {
    const std::optional<int> rank = variables.number(other.rank),
                             size = variables.number(other.size);
    if (!rank || !size || (other.may_be_outside && (!slurm_task || *size <= launch.size))) continue;
    if (*size == launch.size && *rank == launch.rank) continue;
    throw UserError(fmt::format(
        "TS_RANK={} and TS_WORLD_SIZE={}, but {}={} and {}={}: a launcher within a rank of "
        "another one; start the program by one of them",
        launch.rank, launch.size, other.rank, *rank, other.size, *size));
  }
}

// Launchers of MPICH and Intel MPI, or a PMIx that says no sizes: each rank would compute alone.
void check_known(const Variables& variables) {
  const std::optional<int> size = variables.number("PMI_SIZE");
  if (size.value_or(1) <= 1) return;
  const char* rank = variables.text("PMI_RANK");
  throw UserError(fmt::format(
      "PMI_RANK={} and PMI_SIZE={}: the launcher is that of MPICH or Intel MPI, by which ranks "
      "cannot "
      "meet here; start them by tinyshard run or by Open MPI's mpirun, or set RANK, WORLD_SIZE, "
      "MASTER_ADDR and MASTER_PORT",
      rank == nullptr ? "" : rank, *size));
}

// Names the folder in which ranks of mpirun meet without MPI: in that of the job, on this host.
void read_mpirun_meeting(const Variables& variables, LaunchEnvironment& launch) {
  const char* job = variables.text("PMIX_NAMESPACE");
  const char* folder = variables.text("PMIX_SERVER_TMPDIR");
  launch.meeting.job = fmt::format("mpirun {}", job == nullptr ? "" : job);
  if (folder == nullptr || job == nullptr || launch.local_size != launch.size) return;
  launch.meeting.store = fmt::format("file:{}/tinyshard-{}", folder, job);
}

// A store that the user names.
void read_store(const Variables& variables, LaunchEnvironment& launch) {
  const char* store = variables.text("TS_STORE");
  if (store == nullptr || launch.launcher == Launcher::None) return;
  launch.meeting.store = store;
  launch.meeting.at_first_rank = !launch.meeting.store.starts_with("file:");
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

std::span<const std::string_view> launch_variables() {
  static constexpr std::string_view kNames[] = {"TS_RANK",
                                                "TS_WORLD_SIZE",
                                                "TS_LOCAL_RANK",
                                                "TS_LOCAL_SIZE",
                                                "TS_STORE",
                                                "TS_JOB",
                                                "TS_JOB_KEY",
                                                "TS_EPOCH",
                                                "TS_NEWCOMERS",
                                                "TS_REPORT_FD",
                                                "TS_REPORT_PIPE",
                                                "TS_JOINED",
                                                "OMPI_COMM_WORLD_RANK",
                                                "OMPI_COMM_WORLD_SIZE",
                                                "OMPI_COMM_WORLD_LOCAL_RANK",
                                                "OMPI_COMM_WORLD_LOCAL_SIZE",
                                                "PMIX_RANK",
                                                "PMIX_NAMESPACE",
                                                "PMI_RANK",
                                                "PMI_SIZE",
                                                "SLURM_PROCID",
                                                "RANK",
                                                "WORLD_SIZE",
                                                "LOCAL_RANK",
                                                "LOCAL_WORLD_SIZE"};
  return kNames;
}

int LaunchEnvironment::launched_as(int rank_now) const {
  return members.empty() ? rank_now : members.at(size_t(rank_now));
}

int LaunchEnvironment::rank_now(int launched) const {
  if (members.empty()) return launched;
  const auto found = std::ranges::find(members, launched);
  return found == members.end() ? -1 : int(found - members.begin());
}

// Each bracket gives its first number, up to the first comma outside of them.
std::string first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    const size_t end = list.find(']');
    if (end == std::string_view::npos) return {};
    host += list.substr(1, list.find_first_of("-,]", 1) - 1);
    list.remove_prefix(end + 1);
  }
  return host;
}

void check_meeting(const LaunchEnvironment& launch) {
  if (!launch.meeting.store.empty()) return;
  const char* missing =
      launch.launcher == Launcher::Own     ? "TS_STORE is not set"
      : launch.launcher == Launcher::Slurm ? "SLURM_STEP_NODELIST is not set"
      : launch.launcher == Launcher::OpenMpi
          ? "they are on several hosts; set TS_STORE to file:/a/folder that all see, "
            "or to host:port of rank 0"
      : launch.launcher == Launcher::Rank ? "MASTER_ADDR and MASTER_PORT are not set"
                                          : "no store is named";
  throw UserError(fmt::format(
      "{} started {} ranks, but does not say where they meet without MPI: {}; or start them with "
      "tinyshard run",
      name(launch.launcher), launch.size, missing));
}

LaunchEnvironment read_launch_environment(const EnvironmentLookup& lookup) {
  const Variables variables(lookup);
  LaunchEnvironment launch;
  const bool slurm_task = variables.text("SLURM_PROCID") != nullptr && slurm_step(variables);
  if (const char* bind = variables.text("TS_BIND")) launch.meeting.bind = bind;
  if (variables.text("TS_RANK") != nullptr || variables.text("TS_WORLD_SIZE") != nullptr) {
    launch.launcher = Launcher::Own;
    read_own(variables, launch);
    check_alone(variables, launch, slurm_task);
  } else if (variables.text("OMPI_COMM_WORLD_RANK") != nullptr ||
             variables.text("OMPI_COMM_WORLD_SIZE") != nullptr) {
    launch.launcher = Launcher::OpenMpi;
    launch.rank = variables.required("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    launch.size = variables.required("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
    launch.local_rank = variables.number("OMPI_COMM_WORLD_LOCAL_RANK").value_or(0);
    launch.local_size =
        variables.number("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(launch.local_rank + 1);
    read_mpirun_meeting(variables, launch);
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
  } else {
    check_known(variables);
  }
  if (launch.launcher != Launcher::Own) read_store(variables, launch);
  check_consistent(launch);
  return launch;
}

LaunchEnvironment read_launch_environment() {
  return read_launch_environment([](const char* variable) { return std::getenv(variable); });
}

}  // namespace tinyshard
