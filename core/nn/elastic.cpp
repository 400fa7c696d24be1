// Rank 0 commits step 7, and rank 1 dies in step 8:
//
//   state on every rank, in place   ranks whose sums of step 8 came have step 8 in their tensors, the others
//                                   step 7. Had a rank begun step 9, all would have had step 8: so
//                                   there are two steps at most, and who has the older one gets the newer.
//   copied                          the same with copies; of divided state all need the same step, and
//                                   the copy before the last is kept until all are known to have the last.
//
// A commit begins to share what it keeps, and the next one waits for the end of that: copies go to the
// neighbour, and the words of all ranks come together, while the next step is computed.
#include "core/nn/elastic.h"

#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/exec/capture.h"
#include "core/exec/context.h"
#include "core/exec/kept_in_place.h"
#include "core/nn/agreement.h"
#include "core/nn/commits.h"
#include "core/nn/give_snapshot.h"
#include "core/nn/snapshot.h"

namespace tinyshard::nn {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// The least of each of all ranks' numbers.
Message least_of_all(Message mine) {
  return Context::get().ranks() == 1 ? mine : exchange(mine, ReduceOp::Min, kMost);
}

// A number of each rank, by rank.
std::vector<int> numbers_of_all(int mine) {
  const Context::Turn turn;
  Communicator& world = Context::get().world();
  const size_t local = world.local().size(), all = size_t(world.size());
  std::vector<int64_t> own(local, mine), gathered(local * all);
  std::vector<CommBuffer> send, recv;
  for (size_t i = 0; i < local; ++i) {
    send.push_back({&own[i]});
    recv.push_back({&gathered[i * all]});
  }
  world.all_gather(send, recv, 1, DType::I64).wait();
  std::vector<int> numbers;
  for (int p : first_participants(Context::get().ranks()))
    numbers.push_back(int(gathered[size_t(p)]));
  return numbers;
}

// From one rank to all, who do not know how many there are.
std::vector<std::byte> broadcast(std::vector<std::byte> bytes, int from) {
  const int size = numbers_of_all(int(bytes.size()))[size_t(from)];
  const Context::Turn turn;
  Communicator& world = Context::get().world();
  bytes.resize(size_t(size));
  std::vector<std::vector<std::byte>> into(world.local().size(),
                                           std::vector<std::byte>(bytes.size()));
  std::vector<CommBuffer> send, recv;
  for (auto& memory : into) {
    send.push_back({bytes.data()});
    recv.push_back({memory.data()});
  }
  const std::vector<int> first = first_participants(Context::get().ranks());
  world.broadcast(send, recv, bytes.size(), DType::U8, first[size_t(from)]).wait();
  return into[0];
}

// A commit on its way: the copies that neighbours give each other, then a word of each rank to all.
struct Sharing {
  int64_t number;
  Progress progress;
  std::vector<Work> sends = {}, receives = {};
  std::unique_ptr<Exchange> told = {};
};

}  // namespace

class Elastic::Ranks {
 public:
  explicit Ranks(ElasticOptions options) : options_(options) {}
  ~Ranks() {
    end_sharing();
    // A group that failed and is not gone may still touch these.
    if (!failed_.empty())
      static_cast<void>(new (std::nothrow) std::vector<Failed>(std::move(failed_)));
  }

  void commit(const StateDict& tensors, const Progress& progress);
  Progress restore(const StateDict& tensors);
  Progress agreed() const { return agreed_; }

 private:
  static constexpr int64_t kNothing = Commits<Snapshot>::kNothing;
  struct Failed {
    std::unique_ptr<Sharing> sharing;
    std::optional<Snapshot> snapshot;
  };

  bool stays_in_place() const;
  void look_at_step();
  void put(Snapshot now, int64_t number);
  void share();
  void tell();
  bool finish();
  void end_sharing() noexcept;
  void settle();
  [[noreturn]] void lose(std::string why);
  int64_t agree_on_commit();
  const Snapshot* spread(const Snapshot* own, int64_t number, const std::vector<int>& left);

  ElasticOptions options_;
  Commits<Snapshot> commits_;  // by their numbers
  int64_t committed_ = -1;     // step of the last one
  Progress agreed_;
  bool was_there_ = false;         // in a world that knew what was committed, if anything
  bool is_calm_ = false;           // a step was seen that wrote the state behind all of its sums
  bool is_rough_ = false;          // and one that did not
  std::optional<Snapshot> told_;   // to a newcomer: what there is, without its bytes
  std::optional<Snapshot> spare_;  // memory for the next copy
  std::unique_ptr<Sharing> sharing_;
  std::vector<Failed> failed_;  // until their group is gone
  SnapshotGiver giver_;
  std::string lost_;  // what StateLost said
  KeptInPlace watch_{[this] { settle(); }};
};

// Learns from the step that was done since the last commit.
void Elastic::Ranks::look_at_step() {
  is_calm_ = is_calm_ || watch_.state() == KeptInPlace::State::Updated;
  const bool at_once =
      watch_.state() == KeptInPlace::State::Updated || watch_.state() == KeptInPlace::State::Kept;
  // The first commit has watched nothing yet.
  if (commits_.last() && !at_once) is_rough_ = true;
}

bool Elastic::Ranks::stays_in_place() const {
  return !options_.copies && is_calm_ && !is_rough_ && Context::get().ranks() > 1;
}

void Elastic::Ranks::put(Snapshot now, int64_t number) {
  now.number = number;
  committed_ = now.progress.step;
  watch_.keep(now.storages);
  if (const Snapshot* last = commits_.last(); last && last->in_place)
    commits_.replace_last(number, std::move(now));
  else
    commits_.keep(number, std::move(now));
}

// Begins to give the last commit's boxes to the rank behind where nobody else has them, and to take those
// of the rank before.
void Elastic::Ranks::share() {
  Snapshot& now = *commits_.last();
  sharing_ = std::make_unique<Sharing>(Sharing{.number = now.number, .progress = now.progress});
  if (now.ranks == 1) return;
  if (!now.is_divided()) return tell();
  const Context::Turn turn;
  Communicator& world = Context::get().world();
  const std::vector<int> first = first_participants(now.ranks);
  const int before = (now.rank + now.ranks - 1) % now.ranks, behind = (now.rank + 1) % now.ranks;
  const int own_place = first[size_t(now.rank)];
  for (auto& [name, value] : now.values) {
    if (value.is_copied(now.rank) && !value.own.empty())
      sharing_->sends.push_back(world.send({value.own.data()}, value.own.size(), DType::U8,
                                           own_place, first[size_t(behind)]));
    if (!value.is_copied(before)) continue;
    value.copy.resize(bytes_of(value.boxes[size_t(before)], value.dtype));
    if (!value.copy.empty())
      sharing_->receives.push_back(world.recv({value.copy.data()}, value.copy.size(), DType::U8,
                                              first[size_t(before)], own_place));
  }
}

// Tells all ranks that this one has the commit; rank 0 also whether others wait to join.
void Elastic::Ranks::tell() {
  const bool asks = Context::get().rank() == 0 && builtins().ranks_wait_to_join();
  sharing_->told =
      std::make_unique<Exchange>(Message{sharing_->number, asks ? 0 : 1, 0}, ReduceOp::Min, kMost);
}

// Waits until all ranks have the commit that was shared last: whether others wait to join.
bool Elastic::Ranks::finish() {
  if (!sharing_) return false;
  bool some_wait = false;
  if (Context::get().ranks() > 1) {
    for (Work& work : sharing_->sends) work.wait();
    for (Work& work : sharing_->receives) work.wait();
    if (!sharing_->told) tell();
    some_wait = sharing_->told->wait()[1] == 0;
  }
  if (auto before = commits_.all_have(sharing_->number); before && !before->in_place)
    spare_ = std::move(before);
  agreed_ = sharing_->progress;
  sharing_.reset();
  failed_.clear();
  lost_.clear();
  return some_wait;
}

// Ends what is under way, well or not. Afterwards the last commit is one that this rank has in full.
void Elastic::Ranks::end_sharing() noexcept {
  if (!sharing_) return;
  bool received = false;
  try {
    for (Work& work : sharing_->receives) work.wait();
    received = true;
    for (Work& work : sharing_->sends) work.wait();
    if (sharing_->told) sharing_->told->wait();
    sharing_.reset();
  } catch (const Error&) {
    // Memory that was sent is read by the group for as long as it lives, and so it is kept as well.
    Failed failed{std::move(sharing_), {}};
    if (!received) failed.snapshot = commits_.take_last();
    failed_.push_back(std::move(failed));
  }
}

// Before the memory of the devices goes, or for restore(): what is kept in place is copied where the
// storages still hold it.
void Elastic::Ranks::settle() {
  end_sharing();
  Snapshot* last = commits_.last();
  if (!last || !last->in_place) return;
  if (watch_.state() == KeptInPlace::State::Kept) {
    last->copy_now();
  } else {
    commits_.take_last();
  }
  watch_.keep({});
}

void Elastic::Ranks::commit(const StateDict& tensors, const Progress& progress) {
  if (current_capture()) fail("a captured step has no values to keep yet; commit behind it");
  if (progress.step < 0 || progress.step <= committed_)
    fail(
        fmt::format("step {} is not behind the last committed one, {}", progress.step, committed_));
  look_at_step();
  const Snapshot* last = commits_.last();
  bool in_place = stays_in_place() && last && last->can_stay;
  const bool must_copy = last && last->in_place;
  if (!in_place && !must_copy && progress.step % options_.every != 0) return watch_.rearm();
  const int64_t number = commits_.last_step() + 1;
  bool some_wait = false;
  if (in_place) {
    Snapshot now = take_snapshot(tensors, progress, true, nullptr);
    put(std::move(now), number);  // before a rank that is gone is noticed
    some_wait = finish();
  } else {
    some_wait = finish();
    Snapshot now = take_snapshot(tensors, progress, false, spare_ ? &*spare_ : nullptr);
    spare_.reset();
    put(std::move(now), number);
  }
  share();
  if (!some_wait) return;
  finish();
  CommErrorInfo info;
  info.rank = Context::get().rank();
  info.operation = "commit";
  info.detail = fmt::format(
      "no rank failed: step {} is committed, and ranks that were started later wait to join; "
      "Runtime::reform() takes them in",
      progress.step);
  throw RanksJoin(info);
}

void Elastic::Ranks::lose(std::string why) {
  lost_ = std::move(why);
  committed_ = -1;
  CommErrorInfo info;
  info.rank = Context::get().rank();
  info.operation = "restore";
  info.detail = lost_;
  throw StateLost(info);
}

// Tells ranks that do not have the commit what there is, without the boxes. The commit for write().
const Snapshot* Elastic::Ranks::spread(const Snapshot* own, int64_t number,
                                       const std::vector<int>& left) {
  const auto teller = std::ranges::find_if(left, [](int was) { return was != kNewcomer; });
  const std::vector<std::byte> bytes =
      broadcast(own ? description_of(*own) : std::vector<std::byte>(), int(teller - left.begin()));
  if (own != nullptr) return own;
  told_ = described(bytes, number);
  return &*told_;
}

// The commit that all ranks go on from; kNothing: there is none. A commit of whole values needs one rank
// that has it. Ranks that came later have none, and do not count where another one knows that all of its
// world had one. Example: ranks 0 and 1 have commit 7 of divided values and know that all had it, rank 2
// has just joined: 7. Rank 0 has commit 0 and does not know that of rank 1, which has none and was
// there: nothing, they begin again.
int64_t Elastic::Ranks::agree_on_commit() {
  enum : int64_t { WasThere, CameLater, HasOne };
  const int64_t last = commits_.last_step();
  const bool came_later = !was_there_ && builtins().joined_later();
  const int64_t state = last != kNothing ? HasOne : came_later ? CameLater : WasThere;
  const Message all = least_of_all({last == kNothing ? kMost : last, -commits_.sure(), state});
  const bool is_whole = last != kNothing && !commits_.last()->is_divided();
  const int64_t newest_whole = -least_of_all({is_whole ? -last : -kNothing, 0, 0})[0];
  const bool some_sure = -all[1] != kNothing;
  if (all[0] == kMost && some_sure)
    lose(
        "the ranks that are left were between two steps, with an update of the state behind them "
        "and a "
        "call to the others that was part of none; load the checkpoint, and let nn::Elastic copy "
        "({.copies = true})");
  if (all[0] == kMost && all[2] == CameLater)
    lose(
        "all ranks that could have had a commit are gone, those that are left came later; load the "
        "checkpoint");
  if (all[0] == kMost) return kNothing;
  if (newest_whole != kNothing) return newest_whole;
  return some_sure || all[2] != WasThere ? all[0] : kNothing;
}

Progress Elastic::Ranks::restore(const StateDict& tensors) {
  if (current_capture()) fail("a captured step cannot be restored inside of itself");
  if (!lost_.empty()) fail(lost_);
  settle();
  const int64_t number = agree_on_commit();
  const bool has_it = commits_.has(number);
  const Snapshot* common = commits_.return_to(has_it ? number : kNothing);
  told_.reset();
  was_there_ = true;
  committed_ = -1;
  watch_.keep({});
  if (number == kNothing) return agreed_ = {};
  const std::vector<int> left = numbers_of_all(common ? common->rank : kNewcomer);
  const bool some_new = std::ranges::find(left, kNewcomer) != left.end();
  if (some_new) common = spread(common, number, left);
  if (std::string part = lost_part(*common, left); !part.empty()) lose(std::move(part));
  giver_.write(*common, tensors, left);
  const Progress progress = agreed_ = common->progress;
  committed_ = progress.step;
  if (some_new || common->is_divided()) {
    put(take_snapshot(tensors, progress, false, nullptr), number + 1);
    share();
    finish();
  }
  watch_.keep({});
  told_.reset();
  return progress;
}

Elastic::Elastic(ElasticOptions options, Caller caller) {
  const Call call("Elastic", caller);
  if (options.every < 1)
    fail(fmt::format("every is {}: commits come each step or less often", options.every));
  ranks_ = std::make_unique<Ranks>(options);
}

Elastic::~Elastic() = default;

void Elastic::commit(const StateDict& tensors, const Progress& progress, Caller caller) {
  const Call call("commit", caller);
  ranks_->commit(tensors, progress);
}

Progress Elastic::restore(const StateDict& tensors, Caller caller) {
  const Call call("restore", caller);
  return ranks_->restore(tensors);
}

Progress Elastic::agreed() const { return ranks_->agreed(); }

}  // namespace tinyshard::nn
