// The launcher: a key and a store for each start of the job, the ranks, and their summary. Example:
// `tinyshard run -n 4 --restarts 1 -- ./train`. Rank 2 is killed; the others say so and end; the
// summary names rank 2. The job is started once more, with another key and epoch 1, so that nothing
// of the first start can talk to the second.
#include "cli/run.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <string>
#include <sys/auxv.h>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/rings.h"
#include "cli/view.h"
#include "core/base/error.h"
#include "launch/environment.h"
#include "launch/hosts.h"
#include "launch/job.h"
#include "launch/rank_group.h"
#include "launch/secret.h"
#include "transport/formation.h"
#include "transport/rendezvous/tcp_store.h"
#include "transport/tcp/socket.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace tinyshard::cli {
std::string own_path() {
  std::error_code error;
  auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  // Without /proc the kernel still says by what name it was started.
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel gives the address as a number
  const auto* name = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  if (error && name != nullptr) path = std::filesystem::canonical(name, error);
  if (error) throw UserError("this program does not find itself");
  return path.string();
}

namespace {

constexpr std::chrono::milliseconds kMayRead{100};

// The environment of every rank, wherever it runs: our own variables, and those named with --env.
std::vector<std::string> environment_of(const RunOptions& options, bool elsewhere) {
  std::vector<std::string> list;
  for (char** entry = environ; elsewhere && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto is_it = [&](std::string_view name) {
      return name == text.substr(0, text.find('='));
    };
    if (text.starts_with("TS_") && !text.starts_with("TS_JOB") &&
        std::ranges::none_of(launch_variables(), is_it))
      list.emplace_back(text);
  }
  for (const std::string& wanted : options.environment) {
    if (wanted.find('=') != std::string::npos) {
      list.push_back(wanted);
    } else if (const char* value = std::getenv(wanted.c_str())) {
      list.push_back(wanted + "=" + value);
    } else {
      throw UserError(fmt::format("--env {}: there is no such variable", wanted));
    }
  }
  if (!options.log_folder.empty() && std::getenv("TS_RECORD") == nullptr)
    list.push_back("TS_RECORD=" + std::filesystem::absolute(options.log_folder).string());
  if (!options.view.empty())
    list.push_back("VIZ=" + std::filesystem::absolute(options.view).string());
  if (options.timeout_s > 0) list.push_back(fmt::format("TS_TIMEOUT={}", options.timeout_s));
  if (options.devices_per_rank > 0)
    list.push_back(fmt::format("TS_DEVICES_PER_RANK={}", options.devices_per_rank));
  return list;
}

// MIN or MIN:MAX; zeros where nothing is said.
std::pair<int, int> parse_elastic(const std::string& text, int ranks) {
  if (text.empty()) return {0, 0};
  int least = 0, most = 0;
  const char *at = text.data(), *end = at + text.size();
  auto parsed = std::from_chars(at, end, least);
  const bool has_most = parsed.ec == std::errc() && parsed.ptr < end && *parsed.ptr == ':';
  if (has_most) parsed = std::from_chars(parsed.ptr + 1, end, most);
  if (parsed.ec != std::errc() || parsed.ptr != end || least < 1 || (has_most && most < least))
    throw UserError(fmt::format("run: --elastic {} is neither MIN nor MIN:MAX ranks", text));
  if (least > ranks || most > ranks)
    throw UserError(fmt::format("run: --elastic {}, but there are {} ranks", text, ranks));
  return {least, most};
}

bool wants_color(const std::string& when) {
  if (when != "auto") return when == "always";
  return isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
}

// The sentences that the rings of this host give, where there are some.
std::string blame_of(const std::string& folder, const std::string& job) {
  if (folder.empty()) return {};
  try {
    const std::string text = blame_report(folder, job);
    return text.empty() ? "" : "tinyshard run: " + text;
  } catch (const UserError&) {
    return {};  // the ranks ended before they had one
  }
}

// Descriptors 0 to 2 that are closed would become those of files and pipes.
void fill_standard_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
}

}  // namespace

int run(const RunOptions& options, const std::vector<std::string>& words) {
  fill_standard_streams();
  OutputQueue output;
  const auto say = [&](const std::string& text) { output.write(STDERR_FILENO, text + "\n"); };
  JobOptions job;
  job.output = &output;
  job.grace = std::chrono::milliseconds(int64_t(options.grace_s * 1e3));
  job.command = words;
  if (job.command.empty())
    throw UserError("run: no program is named; tinyshard run -n 4 -- ./program");
  if (!options.hosts.empty() && !options.host_file.empty())
    throw UserError("run: --hosts and --hostfile name hosts both");
  std::vector<Host> hosts;
  if (!options.hosts.empty()) hosts = parse_hosts(options.hosts);
  if (!options.host_file.empty()) hosts = read_host_file(options.host_file);
  job.hosts = place_ranks(hosts, options.ranks);
  std::string remote;
  for (const Host& host : job.hosts) {
    if (remote.empty() && !is_this_host(host.name)) remote = host.name;
  }
  job.agent = own_path();
  job.remote_shell = options.remote_shell;
  job.folder = std::filesystem::current_path().string();
  job.log_folder = options.log_folder;
  int ranks = 0;
  for (const Host& host : job.hosts) ranks += host.ranks;
  std::tie(job.least_ranks, job.most_ranks) = parse_elastic(options.elastic, ranks);
  job.bind_cores = options.cores == "auto";
  job.prefix = !options.no_prefix;
  job.color = wants_color(options.color);

  std::string address = options.bind;
  if (address.empty()) address = remote.empty() ? "127.0.0.1" : tcp::host_towards(remote);
  std::vector<std::string> common = environment_of(options, !remote.empty());
  const auto as_many = [&](const Host& host) { return host.ranks == job.hosts[0].ranks; };
  const auto said = [](const std::string& entry) { return entry.starts_with("TS_HOSTS="); };
  if (job.hosts.size() > 1 && std::ranges::all_of(job.hosts, as_many) && !std::getenv("TS_HOSTS") &&
      std::ranges::none_of(common, said))
    common.push_back(fmt::format("TS_HOSTS={}", job.hosts.size()));
  for (uint32_t epoch = 0;; ++epoch) {
    Secret secret = Secret::random();
    secret.set_encrypts(wants_encryption());
    StoreServer store(tcp::join_address(address, 0), secret, epoch);
    job.environment = common;
    job.environment.push_back("TS_STORE=" + store.address());
    const std::string name = secret.for_job("name").text().substr(0, 16);
    job.environment.push_back("TS_JOB=" + name);
    job.environment.push_back("TS_JOB_KEY=" + secret.text());
    job.environment.push_back(fmt::format("TS_EPOCH={}", epoch));
    if (job.most_ranks > 0) job.environment.push_back(fmt::format("TS_NEWCOMERS={}", ranks));
    job.on_done = [&] { store.set(std::string(kJobIsOver), "1"); };
    job.has_joined = [&](int rank) { return store.has(joins_key(rank)); };
    job.on_end = [&](int rank, const std::string& why) { store.give_up(rank, why); };
    job.attempt = int(epoch);
    const JobResult result = run_job(job);
    if (!result.summary.empty()) say("tinyshard run: " + result.summary);
    if (result.status != 0 && !result.interrupted)
      output.write(STDERR_FILENO, blame_of(options.log_folder, name));
    if (result.status == 0 || result.interrupted || int(epoch) >= options.restarts) {
      // A user who told the job to end does not wait for the reader of its lines.
      const auto most = result.interrupted ? kMayRead : std::chrono::hours(24 * 365);
      output.drain(most);
      while (const auto failure = output.next_failure()) {
        if (failure->error != EPIPE) say("tinyshard run: " + failure->text());
      }
      output.drain(most);
      if (!options.view.empty()) say("tinyshard run: " + write_job_view(options.view));
      return result.status;
    }
    say(fmt::format("tinyshard run: starting again, {} of {}", epoch + 1, options.restarts));
  }
}

void need_no_option(const std::vector<std::string>& words) {
  if (words.empty() || !words[0].starts_with('-')) return;
  throw CLI::ValidationError(
      words[0],
      "there is no such option; options come before the program, and its own ones "
      "behind its name (see --help)");
}

void add_run(CLI::App& app, std::vector<std::string> program, int& status) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand(
      "run",
      "starts a program as several ranks, here or on other hosts, and sees them to their end");
  command->prefix_command();
  command->footer(
      "The program and its arguments come last:\n"
      "  tinyshard run -n 4 -- ./train --steps 100\n"
      "  tinyshard run --hosts a:4,b:4 -- ./train\n"
      "Ctrl-C asks the ranks to end, a second one kills them. The exit status is that of the rank "
      "that failed first; 128 + the signal where the job was told to end, 130 after Ctrl-C.\n"
      "Standard input goes to rank 0, the others have /dev/null. In loops of a shell that read "
      "themselves, give it </dev/null, too.");
  command->add_option("-n,--ranks", options->ranks, "Ranks; without it all places of the hosts")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--hosts", options->hosts, "Hosts and their places, such as a:4,b:4");
  command->add_option("--hostfile", options->host_file, "The same from a file, a host a line");
  command->add_option("--devices-per-rank", options->devices_per_rank, "Devices of each rank")
      ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--timeout", options->timeout_s,
                   "Deadline of one collective in seconds (TS_TIMEOUT)")
      ->check(CLI::Range(0.001, 1e9, "a number of seconds"));
  command
      ->add_option("--grace", options->grace_s,
                   "Seconds that ranks have to end when they are asked to, before they are killed; "
                   "programs that ask for more (expect_termination) get it")
      ->check(CLI::Range(0.0, 1e6, "a number of seconds"))
      ->capture_default_str();
  command
      ->add_option("--restarts", options->restarts, "How often a job that failed is started again")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option(
      "--elastic", options->elastic,
      "MIN or MIN:MAX. The job needs MIN ranks: while so many are left it goes on "
      "without those that failed, which the program must do, too (Runtime::reform). "
      "While there are fewer than MAX, others are started in their places and join");
  command->add_option("--log-dir", options->log_folder,
                      "Folder for the output of each rank, rank-0.log, ... (rank-0.attempt-1.log "
                      "when started again), and the ring of its collectives, for tinyshard blame; "
                      "logs of the job before become rank-0.log.old");
  command->add_option(
      "--view", options->view,
      "File of what the job did, such as run.tsview (VIZ); each rank writes its own, and those of "
      "this host become one page, run.html");
  command->add_option("--env", options->environment,
                      "NAME or NAME=value for every rank; here ranks have all variables of this "
                      "process, elsewhere those that begin with TS_");
  command->add_option("--bind", options->bind,
                      "Address to listen at; by default the loopback, or where hosts are named the "
                      "address of this one that they see");
  command
      ->add_option("--cores", options->cores,
                   "auto gives each rank its share of the cores, all all of them")
      ->check(CLI::IsMember({"auto", "all"}))
      ->capture_default_str();
  command->add_option("--rsh", options->remote_shell, "Command that runs another one on a host")
      ->capture_default_str();
  command->add_option("--color", options->color, "auto, always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->capture_default_str();
  command->add_flag("--no-prefix", options->no_prefix, "Lines without the number of their rank");
  command->callback([command, options, program = std::move(program), &status] {
    std::vector<std::string> words = command->remaining();
    need_no_option(words);
    words.insert(words.end(), program.begin(), program.end());
    status = run(*options, words);
  });

  CLI::App* agent = app.add_subcommand("agent", "serves the ranks of one host for tinyshard run");
  agent->group("");  // of no use to people
  agent->callback([&status] { status = serve_rank_group(STDIN_FILENO, STDOUT_FILENO); });
}

}  // namespace tinyshard::cli
