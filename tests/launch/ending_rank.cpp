// A rank of a job that is told to end, for scripts/faults.py end and ending_test.cpp: does one thing,
// named by its argument, until then. Prints "ready <process>" as soon as it does it, for itself and
// for each process that it starts.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <tinyshard/tinyshard.h>
#include <unistd.h>

using namespace tinyshard;

namespace {

void say_ready() {
  std::printf("ready %d\n", getpid());
  std::fflush(stdout);
}

[[noreturn]] void rest() {
  for (;;) pause();
}

Tensor ones() {
  return Tensor::ones({64 * Mesh::world({{"data", -1}}).size()})
      .shard(Mesh::world({{"data", -1}}), {{"data", Shard(0)}});
}

void step() {
  Jit captured = [](Tensor x) { return (x * 2).sum(); };
  captured(ones()).item<float>();
  say_ready();
  for (;;) captured(ones()).item<float>();
}

void sleep_long() {
  ones().sum().item<float>();
  say_ready();
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// Rank 0 does not come.
void wait_for_rank_0() {
  ones().sum().item<float>();
  say_ready();
  if (Runtime::get().rank() == 0) rest();
  ones().sum().item<float>();
}

// Ranks that began and do not meet.
void meet() {
  say_ready();
  if (std::getenv("TS_RANK") == std::string("0")) rest();
  ones().sum().item<float>();
}

void compile() {
  say_ready();
  for (int64_t i = 1;; ++i) {
    Tensor x = Tensor::ones({17 + i});
    for (int k = 0; k < 60; ++k) x = (x + double(i * 100 + k)).sin() * x.exp2();
    x.realize();
  }
}

void print_hard() {
  say_ready();
  for (int64_t i = 0;; ++i) std::printf("line %ld of a rank that has much to say\n", long(i));
}

void start_children(const std::function<void()>& leave) {
  for (int i = 0; i < 3; ++i) {
    if (fork() != 0) continue;
    leave();
    say_ready();
    rest();
  }
  ones().sum().item<float>();
  say_ready();
  rest();
}

void ignore() {
  for (int s : {SIGTERM, SIGINT, SIGHUP}) std::signal(s, SIG_IGN);
  ones().sum().item<float>();
  say_ready();
  rest();
}

// Saves when it is told to, all ranks at the same step.
int save(const char* folder) {
  expect_termination();
  Tensor state = Tensor::zeros({16}).shard(Mesh::world({{"data", -1}}));
  say_ready();
  for (int64_t step = 1;; ++step) {
    state = (state + 1).realize();
    if (!nn::any_rank_is_to_end()) continue;
    nn::save_checkpoint(nn::StateDict{{"state", state}}, folder, step);
    if (Runtime::get().rank() == 0) std::printf("saved step %ld\n", long(step));
    return termination_status();
  }
}

// Asks for time and does not use it.
void dawdle() {
  expect_termination(std::chrono::seconds(1));
  say_ready();
  rest();
}

void crash() {
  std::printf("before the crash\n");
  ones().sum().item<float>();
  if (Runtime::get().rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  std::signal(SIGSEGV, SIG_DFL);  // a sanitizer's would end the process in its own way
  std::raise(SIGSEGV);
}

// Joins and ends.
void meet_only() {
  ones().sum().item<float>();
  std::printf("%d of %d by %s\n", Runtime::get().rank() + 1, Runtime::get().ranks(),
              std::getenv("TS_TRANSPORT") == nullptr ? "default" : std::getenv("TS_TRANSPORT"));
}

// Starts itself with its own environment.
void child(const std::string& program) {
  ones().sum().item<float>();
  const int status = std::system((program + " meet_only").c_str());
  if (status != 0) throw UserError("the program that it started has failed");
}

// Gives three values to all ranks, the last of which is another one on rank 1, and ends, after a call
// that ought to say so, without one, or not at all.
void drift(const std::string& end, const std::string& folder) {
  const Mesh mesh = Mesh::world({{"data", -1}});
  Tensor given;
  for (int i = 0; i < 3; ++i) {
    const bool differs = i == 2 && end != "nothing" && end != "killed" && world().rank == 1;
    given = Tensor(std::vector<float>(4, differs ? 2 : 1), {4}).shard(mesh).realize();
  }
  if (end == "shutdown") Runtime::shutdown();
  if (end == "checkpoint") nn::save_checkpoint(nn::StateDict{{"given", given}}, folder, 1);
  if (end == "killed" && world().rank == 1) std::raise(SIGKILL);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string action = argc > 1 ? argv[1] : "";
  const std::map<std::string, std::function<void()>> actions = {
      {"step", step},
      {"sleep", sleep_long},
      {"wait", wait_for_rank_0},
      {"meet", meet},
      {"compile", compile},
      {"print", print_hard},
      {"fork", [] { start_children([] {}); }},
      {"group", [] { start_children([] { setpgid(0, 0); }); }},
      {"session", [] { start_children([] { setsid(); }); }},
      {"daemon",
       [] {
         start_children([] {
           setsid();
           if (fork() != 0) _exit(0);
         });
       }},
      {"ignore", ignore},
      {"crash", crash},
      {"meet_only", meet_only},
      {"child", [&] { child(argv[0]); }},
      {"dawdle", dawdle}};
  try {
    if (action == "save" && argc > 2) return save(argv[2]);
    if (action == "drift" && argc > 2) {
      drift(argv[2], argc > 3 ? argv[3] : "");
      return 0;
    }
    const auto found = actions.find(action);
    if (found == actions.end()) throw UserError("no such action: " + action);
    found->second();
  } catch (const std::exception& error) {
    return tell_failure("ending_rank", error);
  }
}
