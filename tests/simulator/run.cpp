// The ranks' program is the loop of nn::Elastic: form a world, go back to the newest step that all
// have, compute and commit, and where a rank is lost re-form without it. Group, Request, Endpoint,
// Sights, agree_on_members, StoredValues and Commits are the library's; the tensors are a number.
#include "tests/simulator/run.h"

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/nn/commits.h"
#include "io/checkpoint.h"
#include "tests/simulator/channel.h"
#include "tests/simulator/folder.h"
#include "tests/simulator/world.h"
#include "transport/endpoint.h"
#include "transport/formation.h"
#include "transport/group.h"

namespace simulator {
namespace {

using namespace tinyshard;
using namespace std::chrono_literals;

// The time from a deadline to the error that tells of it: the grace, a nap, the news' way.
constexpr Time kSlack = 300ms;
constexpr Time kReportsKill = 1s;
constexpr Time kCircleIsTold = 1500ms;
constexpr Time kNoticed = 1200ms;  // ten heartbeats are missed, and news of it has come

struct State {
  int64_t step = 0;
  uint64_t value = 0;  // in the place of all weights
};

uint64_t mix(uint64_t a, uint64_t b) { return Random(a * 31 + b).next(); }

class Job {
 public:
  Job(const Scenario& scenario, bool with_log)
      : s_(scenario),
        with_log_(with_log),
        world_(scenario.ranks, scenario.seed),
        ranks_(size_t(scenario.ranks)) {}

  Outcome run() {
    if (s_.checkpoints) folder_.emplace();
    world_.store_takes = s_.store_takes;
    for (int p = 0; p < s_.ranks; ++p) world_.start(p, [this, p] { live(p); });
    for (const Fault& fault : s_.faults) {
      if (!fault.when_some_met) world_.after(fault.at, [this, &fault] { happen(fault); });
    }
    const Time limit = 20 * (s_.timeout + s_.patience) + 60s;
    if (!world_.run_until(limit)) {
      for (int p = 0; p < s_.ranks; ++p) {
        if (!world_.process(p).fiber->ended())
          broke(p, "hang", fmt::format("it has not ended after {:.1f} s", limit.count() * 1e-9));
      }
    }
    check_end();
    return std::move(out_);
  }

 private:
  struct Rank {
    // Faults for which others may blame it.
    bool killed = false, stopped = false, slow = false, diverges = false;
    Time killed_at{};
    bool finished = false, ended = false;  // ended: with an error
    bool was_told = false;                 // of an error
    bool waits_for_long = false;           // for the one that computes
    State final_state = {};
    Time waits_since{};
    nn::Commits<State> commits = {};
  };
  struct Committed {
    uint32_t formation;
    uint64_t value;
  };

  Rank& rank(int p) { return ranks_[size_t(p)]; }

  template <class... Args>
  void log(int p, fmt::format_string<Args...> text, Args&&... args) {
    if (!with_log_) return;
    out_.log += fmt::format("{:10.3f} ms  rank {}: ", world_.now().count() * 1e-6, p);
    out_.log += fmt::format(text, std::forward<Args>(args)...) + "\n";
  }
  void broke(int p, const char* promise, const std::string& how) {
    out_.broken.push_back(
        fmt::format("{}: rank {} at {:.3f} ms: {}", promise, p, world_.now().count() * 1e-6, how));
    log(p, "BROKEN: {}", out_.broken.back());
  }

  // ----------------------------------------------------------------------------------------------
  // Faults.

  void happen(const Fault& fault) {
    const int p = fault.process;
    if (fault.kind <= Fault::Slow || fault.kind == Fault::Diverge) {
      if (world_.process(p).fiber->ended()) return;
      log(p, "fault: {}",
          fault.kind == Fault::Kill   ? "killed"
          : fault.kind == Fault::Stop ? "stopped"
          : fault.kind == Fault::Slow ? "slow"
                                      : "will diverge");
    }
    switch (fault.kind) {
      case Fault::Kill:
        rank(p).killed = true;
        rank(p).killed_at = world_.now();
        world_.kill(p);
        break;
      case Fault::Stop:
        rank(p).stopped = true;
        silenced_ = world_.now();
        world_.stop(p);
        world_.after(fault.back_in_time > 0ns ? s_.timeout + s_.patience + 1s : fault.lasts,
                     [this, p] { go_on(p); });
        break;
      case Fault::Slow:
        rank(p).slow = true;
        world_.process(p).slow = 200ms;
        world_.after(fault.lasts, [this, p] { world_.process(p).slow = 0ns; });
        break;
      case Fault::Diverge:
        rank(p).diverges = true;
        break;
      case Fault::OneWay:
        note_who_can_tell();
        cut_for(p, fault.other, fault.lasts);
        break;
      case Fault::Far:
        for (int from = 0; from < s_.ranks; ++from) {
          if (from != p && from != fault.other)
            world_.delay(from, p, fault.longer, fault.heartbeats_too);
        }
        world_.after(fault.lasts, [this, p] {
          for (int from = 0; from < s_.ranks; ++from) world_.delay(from, p, 0ns);
        });
        break;
      case Fault::Reset:
        broken_links_.emplace(p, fault.other);
        world_.reset(p, fault.other);
        break;
      case Fault::Partition:
        note_who_can_tell();
        for (int a = 0; a < s_.ranks; ++a) {
          if ((fault.side >> a & 1) == 0) continue;
          for (int b = World::kStoreHost; b < s_.ranks; ++b) {
            if (b >= 0 && (fault.side >> b & 1) != 0) continue;
            cut_for(a, b, fault.lasts);
            cut_for(b, a, fault.lasts);
          }
        }
        break;
    }
  }

  void go_on(int p) {
    if (!world_.process(p).stopped) return;
    log(p, "goes on");
    went_on_ = world_.now();
    world_.go_on(p);
  }

  void begin_to_reform() {
    if (std::exchange(first_reform_, false)) {
      for (const Fault& fault : s_.faults) {
        if (fault.back_in_time > 0ns)
          world_.after(s_.patience - fault.back_in_time, [this, p = fault.process] { go_on(p); });
      }
    }
  }

  // Before a fault that cuts links.
  void note_who_can_tell() {
    for (const auto& [a, b] : broken_links_) {
      for (int witness : {a, b}) {
        for (int p = 0; p < s_.ranks && witness >= 0; ++p) {
          if (can_tell(witness, p)) could_tell_.emplace(witness, p);
        }
      }
    }
  }

  void cut_for(int from, int to, Time lasts) {
    silenced_ = world_.now();
    broken_links_.emplace(from, to);
    world_.cut(from, to, true);
    world_.after(lasts, [this, from, to] {
      silenced_ = world_.now();  // heartbeats of before come now, and say that all is well
      world_.cut(from, to, false);
    });
  }

  bool any_link_broken(int a) const {
    return std::ranges::any_of(broken_links_,
                               [&](const auto& l) { return l.first == a || l.second == a; });
  }

  // Returns whether rank p may say that `peer` is to blame: something befell it, or a rank that p can
  // hear has lost it. A rank of the own side of a cut is not to blame. Whoever is to blame itself
  // hears so from any of the others.
  bool may_blame(int p, int peer, int members, std::string_view text) const {
    const auto struck = [&](int r) {
      const Rank& of = ranks_[size_t(r)];
      return of.killed || of.stopped || of.slow || of.diverges || was_diverged_.contains(r);
    };
    if (struck(peer) || struck(p) || ranks_[size_t(peer)].ended) return true;
    // Who was told in its pair gives up the world, too, and is seen to end before its news have come.
    if (s_.pairs && ranks_[size_t(peer)].was_told) return true;
    // A rank that was stopped until just before the deadline looks like all others by then, and so
    // does one stopped or cut off less than a second before, if it is not waited for itself.
    if (world_.now() - went_on_ < 200ms) return true;
    if (ranks_[size_t(p)].waits_for_long && world_.now() - silenced_ < kNoticed) return true;
    // Held up until the deadline, all come at once, and what the last one sent is still on its way.
    if (ranks_[size_t(peer)].finished &&
        std::ranges::any_of(ranks_, [](const Rank& r) { return r.stopped || r.slow; }))
      return true;
    // Who has heard the headers of two alone cannot tell which of them is astray.
    const bool far = std::ranges::any_of(s_.faults, std::not_fn(is_harmful));
    if (!was_diverged_.empty() && (anyone_held_up() || far || s_.long_compute > 0ns)) return true;
    // Where half of them or more have diverged, the rest is the minority.
    if (2 * int(was_diverged_.size()) >= members) return true;
    if (text.find("gave up on this rank") != text.npos && any_link_broken(p)) return true;
    return std::ranges::any_of(broken_links_, [&](const auto& link) {
      const auto [a, b] = link;
      if (a != peer && b != peer) return false;
      const int witness = a == peer ? b : a;
      return witness >= 0 && (can_tell(witness, p) || could_tell_.contains({witness, p}));
    });
  }

  // Returns whether news of a rank reaches another one now, perhaps by way of others.
  bool can_tell(int from, int to) const {
    uint64_t reached = uint64_t{1} << from;
    for (uint64_t before = 0; before != reached;) {
      before = reached;
      for (int a = 0; a < s_.ranks; ++a) {
        for (int b = 0; b < s_.ranks && (before >> a & 1) != 0; ++b) {
          if (!world_.is_cut(a, b)) reached |= uint64_t{1} << b;
        }
      }
    }
    return (reached >> to & 1) != 0;
  }

  // ----------------------------------------------------------------------------------------------
  // The program of a rank.

  class Host final : public FormationHost {
   public:
    Host(Job& job, int p) : job_(job), p_(p) {}
    Deadline now() override { return job_.world_.clock(p_); }
    void sleep(std::chrono::milliseconds time) override { job_.world_.sleep(p_, time); }
    std::vector<int> processes() override {
      std::vector<int> alive;
      for (int p = 0; p < job_.s_.ranks; ++p) {
        const Process& process = job_.world_.process(p);
        if (process.alive && !process.fiber->ended()) alive.push_back(p);
      }
      return alive;
    }

   private:
    Job& job_;
    int p_;
  };

  void live(int p) {
    LaunchEnvironment launch;
    launch.launcher = Launcher::Own;
    launch.rank = p;
    launch.size = s_.ranks;
    launch.local_rank = s_.one_host ? p : 0;
    launch.local_size = s_.one_host ? s_.ranks : 1;
    std::unique_ptr<Communicator> world;
    try {
      try {
        world = connect(p, launch);
      } catch (const CommError& error) {
        note(p, launch, error);
        reform(p, launch, world);
      }
      for (;;) {
        try {
          train(p, launch, *world);
          rank(p).finished = true;
          log(p, "finished");
          world_.process(p).closing = true;
          world.reset();
          world_.process(p).closing = false;
          return over(p);
        } catch (const CommError& error) {
          note(p, launch, error);
        }
        world_.process(p).closing = true;
        world.reset();
        world_.process(p).closing = false;
        reform(p, launch, world);
      }
    } catch (const CommError& error) {
      log(p, "ends: {}", error.what());
      check_last(p, launch, error);
    } catch (const std::exception& error) {
      broke(p, "errors are CommErrors", error.what());
    }
    rank(p).ended = true;
    over(p);
  }

  // The launcher sees a process end.
  void over(int p) {
    world_.after(world_.random.up_to(50ms),
                 [this, p] { world_.stored.give_up(p, fmt::format("rank {} has ended", p)); });
  }

  // As connect_world.
  std::unique_ptr<Communicator> connect(int p, const LaunchEnvironment& launch) {
    rank(p).waits_for_long = false;
    auto channel = meet(world_, launch, s_.timeout);
    CommOptions options;
    options.timeout = s_.timeout;
    options.verify = s_.verify;
    options.spin = 0ns;
    options.tuning = {.direct_bytes = 256,
                      .segment_bytes = 96,
                      .split_broadcast_bytes = 128,
                      .max_message_bytes = 200};
    auto endpoint = std::make_shared<Endpoint>(std::move(channel), options);
    if (launch.size > 1)
      endpoint->set_detector(
          beat(world_, launch, [e = endpoint.get()](auto places) { return e->look(places); }));
    calls(p);
    auto world = Group::world(std::move(endpoint), 1);
    formed(p, launch);
    return world;
  }

  // As reform_job and Context::reform.
  void reform(int p, LaunchEnvironment& launch, std::unique_ptr<Communicator>& world) {
    for (int attempts = std::max(1, launch.size);; --attempts) {
      std::vector<int> members;
      try {
        begin_to_reform();
        Host host(*this, p);
        members = agree_on_members(launch, *world_.store_of(p), host, s_.patience);
      } catch (const StoreError& error) {
        throw CommError({.rank = launch.rank,
                         .peer = launch.rank_now(error.culprit),
                         .operation = "reform",
                         .detail = error.what()});
      }
      launch = next_formation(std::move(launch), std::move(members));
      try {
        world = connect(p, launch);
        return;
      } catch (const CommError& error) {
        note(p, launch, error);
        if (attempts <= 1) throw;
      }
    }
  }

  void train(int p, const LaunchEnvironment& launch, Communicator& world) {
    nn::Commits<State>& commits = rank(p).commits;
    State state;
    const int64_t newest = least(p, launch, world, commits.last_step());
    const State* common = commits.return_to(newest);
    if (newest != nn::Commits<State>::kNothing) {
      if (common == nullptr)
        return broke(p, "survivors share a commit", fmt::format("step {} is not here", newest));
      state = *common;
    }
    restored(p, launch, newest, state);
    std::unique_ptr<Communicator> pair;
    if (s_.pairs) pair = split_into_pairs(p, launch, world);
    while (state.step < s_.steps) {
      world_.sleep(p, world_.random.up_to(s_.step_time));
      if (pair && rank(p).diverges && Random(mix(s_.seed, uint64_t(p))).chance(50)) {
        rank(p).diverges = false;
        was_diverged_.insert(p);
        crosses_ = true;
        sum_over_pair(p, launch, *pair, state.step);
      }
      if (pair) sum_over_pair(p, launch, *pair, state.step);
      step(p, launch, world, state);
      if (state.step % s_.commit_every != 0 && state.step != s_.steps) continue;
      commits.keep(state.step, state);
      least(p, launch, world, state.step);
      commits.all_have_last();
      committed(p, launch, state);
      if (s_.checkpoints) save(p, launch, world, state);
    }
    tell_results(p, launch, world);
    rank(p).final_state = state;
  }

  std::unique_ptr<Communicator> split_into_pairs(int p, const LaunchEnvironment& launch,
                                                 Communicator& world) {
    const int first = launch.rank / 2 * 2;
    std::vector<int> both{first};
    if (first + 1 < launch.size) both.push_back(first + 1);
    calls(p);
    return world.split(both, "pair");
  }

  void sum_over_pair(int p, const LaunchEnvironment& launch, Communicator& pair, int64_t step) {
    int64_t sum = term(p, step, 1000);
    const CommBuffer buffer{&sum};
    calls(p);
    wait(p, launch, pair.all_reduce({&buffer, 1}, {&buffer, 1}, 1, DType::I64));
    int64_t right = 0;
    for (int member = 0; member < pair.size(); ++member)
      right += term(launch.launched_as(pair.rank_of(member)), step, 1000);
    // Where one makes a call more, the sums of its pair are of different steps.
    if (sum != right && was_diverged_.empty())
      broke(p, "results are right", fmt::format("the sum of a pair in step {}", step));
  }

  // A single rank tells what it has found out, and is gone while the others still listen.
  void tell_results(int p, const LaunchEnvironment& launch, Communicator& world) {
    const int root = Random(s_.seed).below(world.size());
    for (int i = 0; i < s_.last_words; ++i) {
      if (launch.rank == root) world_.sleep(p, world_.random.up_to(30ms));
      uint64_t told = launch.rank == root ? s_.seed + uint64_t(i) : 0;
      const CommBuffer buffer{&told};
      calls(p);
      wait(p, launch, world.broadcast({&buffer, 1}, {&buffer, 1}, 1, DType::U64, root));
      if (told != s_.seed + uint64_t(i))
        broke(p, "results are right", fmt::format("word {} of rank {}", i, root));
    }
  }

  // Its waiting begins: with the call, as one that knows of a failure throws at once.
  void calls(int p) { rank(p).waits_since = world_.now(); }

  void wait(int p, const LaunchEnvironment& launch, Work work) {
    calls(p);
    work.wait();
    ++out_.collectives;
    for (int member : members_of(launch)) {
      if (rank(member).killed) check_told_of(p, member, "it got what it waited for");
    }
  }

  // A kill that comes alone is told to whoever waits within a second, whomever it waits for.
  void check_told_of(int p, int killed, const char* how) {
    const Rank& own = rank(p);
    if (std::ranges::count_if(s_.faults, is_harmful) != 1) return;
    const Time since = world_.now() - std::max(own.waits_since, rank(killed).killed_at);
    if (since > kReportsKill)
      broke(p, "a kill is told within a second",
            fmt::format("{:.1f} ms: {}", since.count() * 1e-6, how));
  }

  int64_t least(int p, const LaunchEnvironment& launch, Communicator& world, int64_t mine) {
    int64_t all = mine;
    const CommBuffer buffer{&all};
    calls(p);
    wait(p, launch, world.all_reduce({&buffer, 1}, {&buffer, 1}, 1, DType::I64, ReduceOp::Min));
    return all;
  }

  // A real checkpoint in a real folder. A rank may be held up, or killed, on both sides of each
  // agreement.
  void save(int p, const LaunchEnvironment& launch, Communicator& world, const State& state) {
    const auto agree = [&](bool mine) {
      world_.sleep(p, world_.random.up_to(3ms));
      const bool all = least(p, launch, world, mine ? 1 : 0) == 1;
      world_.sleep(p, world_.random.up_to(3ms));
      return all;
    };
    io::CheckpointWriter writer(folder_->path, state.step,
                                {.rank = launch.rank,
                                 .ranks = launch.size,
                                 .agree = agree,
                                 .keep = 2,
                                 .job = "simulated",
                                 .warn = [&](std::string_view s) { log(p, "{}", s); }});
    const uint64_t own = mix(state.value, uint64_t(launch.rank));
    writer.add_slice({"parts", DType::U64, {1}, std::as_bytes(std::span(&own, 1))}, {launch.size},
                     {launch.rank});
    writer.add({"whole", DType::U64, {1}, std::as_bytes(std::span(&state.value, 1))});
    try {
      writer.commit({{"value", std::to_string(state.value)}});
    } catch (const CommError&) {
      throw;
    } catch (const Error& error) {
      // A rank 0 of an earlier formation that is held up in its save has the folder's lock.
      log(p, "not saved: {}", error.what());
      if (!anyone_held_up()) broke(p, "ranks that are there save", error.what());
      return;
    }
    log(p, "saved step {}", state.step);
    if (launch.rank == 0) ++out_.checkpoints;
    saved_ = std::max(saved_, state.step);
    check_checkpoint(p);
  }

  bool anyone_held_up() const {
    return !broken_links_.empty() ||
           std::ranges::any_of(ranks_, [](const Rank& r) { return r.stopped || r.slow; });
  }

  // The last saved checkpoint is there and whole, and of one state.
  void check_checkpoint(int p) {
    const char* const promise = "a saved checkpoint is whole and survives";
    try {
      const auto warn = [&](std::string_view s) { broke(p, promise, std::string(s)); };
      const auto newest = io::Checkpoint::latest(folder_->path, {.check_all = true, .warn = warn});
      if (!newest && saved_ < 0) return;
      if (!newest || newest->step() < saved_)
        return broke(p, promise,
                     fmt::format("the newest is of step {}, and step {} was saved",
                                 newest ? newest->step() : -1, saved_));
      const uint64_t value = std::stoull(newest->metadata().at("value"));
      const auto known = committed_.find(newest->step());
      if (known == committed_.end() || known->second.value != value)
        broke(p, promise, fmt::format("step {} has other values", newest->step()));
      uint64_t whole = 0;
      newest->read("whole", std::as_writable_bytes(std::span(&whole, 1)));
      std::vector<uint64_t> parts(size_t(newest->tensor("parts").shape[0]));
      newest->read("parts", std::as_writable_bytes(std::span(parts)));
      bool same = whole == value;
      for (size_t r = 0; r < parts.size(); ++r) same = same && parts[r] == mix(value, r);
      if (!same) broke(p, promise, fmt::format("step {} is of several states", newest->step()));
    } catch (const Error& error) {
      broke(p, promise, error.what());
    }
  }

  static int64_t term(int p, int64_t step, size_t element) {
    return static_cast<int64_t>(mix(mix(uint64_t(p), uint64_t(step)), element) & 0xffffff);
  }

  void compute_long(int p, const LaunchEnvironment& launch, Communicator& world) {
    const int root = Random(s_.seed).below(world.size());
    if (launch.rank == root) {
      const Time end = world_.now() + s_.long_compute;
      while (world_.now() < end) world_.sleep(p, end - world_.now());
    }
    uint64_t told = launch.rank == root ? s_.seed : 0;
    const CommBuffer buffer{&told};
    rank(p).waits_for_long = true;
    calls(p);
    wait(p, launch, world.broadcast({&buffer, 1}, {&buffer, 1}, 1, DType::U64, root));
    rank(p).waits_for_long = false;
    if (told != s_.seed)
      broke(p, "results are right", fmt::format("what rank {} gave after it computed", root));
  }

  // Does a step of a program that is the same on all ranks, but for one that diverges.
  void step(int p, const LaunchEnvironment& launch, Communicator& world, State& state) {
    const int64_t own_step = std::exchange(rank(p).diverges, false)
                                 ? (was_diverged_.insert(p), state.step + 1)
                                 : state.step;
    Random random(mix(s_.seed, uint64_t(own_step)));
    if (s_.long_compute > 0ns && own_step == 0) compute_long(p, launch, world);
    const std::vector<int> members = members_of(launch);
    const size_t count = size_t(random.chance(50) ? random.between(1, 12) : random.between(13, 90));
    const RunIdentity identity{
        .run = uint64_t(own_step) + 1, .what = random.next(), .label = "step"};
    std::vector<int64_t> terms(count), sums(count);
    for (size_t i = 0; i < count; ++i) terms[i] = term(p, own_step, i);
    const CommBuffer from{terms.data()}, to{sums.data()};
    calls(p);
    Work work = world.start({.op = CollectiveOp::AllReduce,
                             .reduce = ReduceOp::Sum,
                             .dtype = DType::I64,
                             .count = count,
                             .identity = &identity},
                            {&from, 1}, {&to, 1});
    // Another one is under way at the same time.
    const int root = random.below(world.size());
    const size_t second_count = size_t(random.between(1, 40));
    std::vector<int64_t> second(second_count * size_t(world.size())), mine(second_count);
    for (size_t i = 0; i < second_count; ++i) mine[i] = term(p, -1 - own_step, i);
    const CommBuffer second_from{mine.data()}, second_to{second.data()};
    const int kind = random.below(4);
    Work other;
    if (kind == 1)
      other = world.all_gather({&second_from, 1}, {&second_to, 1}, second_count, DType::I64);
    if (kind == 2)
      other = world.broadcast({&second_from, 1}, {&second_to, 1}, second_count, DType::I64, root);
    wait(p, launch, work);
    for (size_t i = 0; i < count; ++i) {
      int64_t right = 0;
      for (int member : members) right += term(member, own_step, i);
      if (sums[i] != right) {
        broke(p, "results are right",
              fmt::format("step {}: sum {} is {} and not {}", own_step, i, sums[i], right));
        break;
      }
    }
    wait(p, launch, other);
    for (size_t m = 0; m < (kind == 1 ? members.size() : kind == 2 ? 1u : 0u); ++m) {
      const int source = members[kind == 1 ? m : size_t(root)];
      for (size_t i = 0; i < second_count; ++i) {
        if (second[m * second_count + i] != term(source, -1 - own_step, i)) {
          broke(p, "results are right",
                fmt::format("step {}: what rank {} gave", own_step, source));
          break;
        }
      }
    }
    calls(p);
    if (kind == 3) wait(p, launch, world.barrier());
    state.value = mix(state.value, uint64_t(sums[0]));
    ++state.step;
  }

  static std::vector<int> members_of(const LaunchEnvironment& launch) {
    std::vector<int> members;
    for (int rank = 0; rank < launch.size; ++rank) members.push_back(launch.launched_as(rank));
    return members;
  }

  // ----------------------------------------------------------------------------------------------
  // Promises.

  // All ranks of a formation mean the same one.
  void formed(int p, const LaunchEnvironment& launch) {
    const std::vector<int> members = members_of(launch);
    log(p, "formation {} of ranks {}", launch.formation, fmt::join(members, ", "));
    out_.formations = std::max(out_.formations, int(launch.formation) + 1);
    const auto [at, is_new] = formations_.emplace(launch.formation, members);
    for (const Fault& fault : s_.faults) {
      if (fault.when_some_met && is_new && launch.formation == 0)
        world_.after(0ns, [this, &fault] { happen(fault); });
    }
    if (!is_new && at->second != members)
      broke(p, "a formation has the same members on all ranks",
            fmt::format("formation {} is of {} and of {}", launch.formation,
                        fmt::join(at->second, ", "), fmt::join(members, ", ")));
  }

  // A world goes on from what was committed last, the same everywhere.
  void restored(int p, const LaunchEnvironment& launch, int64_t step, const State& state) {
    log(p, "goes on from step {}", step);
    if (s_.checkpoints) check_checkpoint(p);
    const auto [at, is_new] = restored_.emplace(launch.formation, std::pair(step, state.value));
    if (!is_new && at->second != std::pair(step, state.value))
      broke(p, "all ranks go on from the same state",
            fmt::format("formation {} from step {} and from step {}, or other values",
                        launch.formation, at->second.first, step));
    // A world that others have left already may begin, and gets nowhere.
    for (const auto& [known_step, known] : committed_) {
      if (step < known_step && known.formation <= launch.formation)
        broke(p, "a committed step survives",
              fmt::format("formation {} goes back to step {}, and step {} was committed in {}",
                          launch.formation, step, known_step, known.formation));
    }
    const auto known = committed_.find(step);
    if (known != committed_.end() && known->second.value != state.value)
      broke(p, "a committed step survives", fmt::format("step {} has another value", step));
  }

  // No two worlds commit one after the other's restart.
  void committed(int p, const LaunchEnvironment& launch, const State& state) {
    ++out_.commits;
    log(p, "committed step {} in formation {}", state.step, launch.formation);
    const auto [at, is_new] =
        committed_.emplace(state.step, Committed{launch.formation, state.value});
    if (!is_new && (at->second.formation != launch.formation || at->second.value != state.value))
      broke(p, "two sides never both commit",
            fmt::format("step {} in formation {} and in formation {}", state.step,
                        at->second.formation, launch.formation));
    for (auto later = restored_.upper_bound(launch.formation); later != restored_.end(); ++later) {
      if (later->second.first < state.step)
        broke(p, "two sides never both commit",
              fmt::format("step {} in formation {}, while formation {} went on from step {}",
                          state.step, launch.formation, later->first, later->second.first));
    }
  }

  // An error comes in time and names a rank that is to blame.
  void note(int p, const LaunchEnvironment& launch, const CommError& error) {
    ++out_.errors;
    log(p, "{}", error.what());
    const CommErrorInfo& info = error.info();
    rank(p).was_told = true;
    if (s_.faults.empty()) return broke(p, "no error without a fault", error.what());
    const int peer = info.peer < 0 ? -1 : launch.launched_as(info.peer);
    if (peer < 0) {
      if (info.operation != "connect") broke(p, "an error names a rank", error.what());
    } else if (info.operation != "connect" && !may_blame(p, peer, launch.size, error.what())) {
      broke(p, "an error names a rank that is to blame",
            fmt::format("it blames rank {}: {}", peer, error.what()));
    }
    const Rank& own = rank(p);
    const bool in_circle =
        std::string_view(error.what()).find("wait for each other") != std::string_view::npos;
    if (in_circle && was_diverged_.empty())
      broke(p, "ranks that only wait are in no circle", error.what());
    if (own.stopped || own.slow) return;
    const Time waited = world_.now() - own.waits_since;
    const bool alone = std::ranges::count_if(s_.faults, is_harmful) == 1 && s_.long_compute == 0ns;
    if ((in_circle || crosses_) && alone && waited > kCircleIsTold)
      broke(p, "ranks that wait for each other are told soon",
            fmt::format("{:.1f} ms: {}", waited.count() * 1e-6, error.what()));
    if (info.operation != "connect" && waited > s_.timeout + kSlack)
      broke(p, "nothing waits beyond its deadline",
            fmt::format("{:.1f} ms: {}", waited.count() * 1e-6, error.what()));
    if (peer >= 0 && rank(peer).killed && info.operation != "connect")
      check_told_of(p, peer, error.what());
  }

  // A rank that gives up for good was gone for too long, or cannot reach the store.
  void check_last(int p, const LaunchEnvironment& launch, const CommError& error) {
    const Rank& own = rank(p);
    if (own.stopped || own.slow || any_link_broken(p)) return;
    // Whoever is at another one's mercy twice in a row may run out of attempts.
    if (anyone_held_up()) return;
    broke(p, "survivors go on", fmt::format("formation {}: {}", launch.formation, error.what()));
  }

  void check_end() {
    if (s_.checkpoints) check_checkpoint(0);
    std::optional<uint64_t> value;
    for (int p = 0; p < s_.ranks; ++p) {
      const Rank& own = rank(p);
      if (!own.finished) continue;
      ++out_.finished;
      if (!value) value = own.final_state.value;
      if (*value != own.final_state.value)
        broke(p, "all ranks end with the same state", "it differs");
    }
  }

  const Scenario& s_;
  const bool with_log_;
  Outcome out_;
  std::set<std::pair<int, int>> broken_links_;  // ever; -1: the store's host
  std::set<std::pair<int, int>> could_tell_;    // of broken links, before later ones were cut
  std::set<int> was_diverged_;
  bool crosses_ = false;                 // by a call more in its pair
  bool first_reform_ = true;             // is still to come
  Time silenced_ = -2s, went_on_ = -2s;  // the last ones
  std::map<uint32_t, std::vector<int>> formations_;
  std::map<uint32_t, std::pair<int64_t, uint64_t>> restored_;  // by formation: step and value
  std::map<int64_t, Committed> committed_;                     // by step
  std::optional<Folder> folder_;                               // of its checkpoints
  int64_t saved_ = -1;  // the newest step whose save returned on any rank
  World world_;
  std::vector<Rank> ranks_;
};

}  // namespace

Outcome run(const Scenario& scenario, bool with_log) {
  Job job(scenario, with_log);
  return job.run();
}

}  // namespace simulator
