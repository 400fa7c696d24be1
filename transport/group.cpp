// The life of a group in the order of this file: it is made or split from another one, its calls
// are posted, moved along and waited for, it fails once and for one reason, and its ranks compare
// what they are about to run.
//
// A split takes messages of the group that is split. Example: ranks 1 and 3 make a group of their
// own. Rank 3 sends rank 1 a digest of what it means and the contexts that it has in use; rank 1
// takes the lowest context that is free on both, and answers with that and the new group's number.
// Messages of the new group carry the context in their tags, so that they meet no others.
#include "transport/group.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/origin.h"
#include "transport/text_field.h"

namespace tinyshard {
namespace {

constexpr uint32_t kPairBit = uint32_t{1} << Endpoint::kPayloadBits;
// Limits of what a tag tells apart: so many calls, above four bits for the steps of each; for a
// pair, so many participants of a rank.
constexpr uint32_t kSequences = 1u << 10;
constexpr size_t kLocalsOfPairs = 1u << 7;
// Time to wait for the headers of the other ranks when a message has come that does not fit.
constexpr Channel::Duration kHeadersTurn = std::chrono::milliseconds(500);
constexpr Channel::Duration kAnnouncementsTurn = std::chrono::seconds(1);

constexpr uint64_t kWorldId = 1;

// The place of a call that no item of a schedule makes: the line that the running method was called
// from. Null where no method runs.
std::shared_ptr<const CollectiveSite> site_of_running_call() {
  if (running_call() == nullptr) return nullptr;
  return std::make_shared<const CollectiveSite>(
      CollectiveSite{.axis = {}, .purpose = {}, .source = origin_of(origin_of_call()).source()});
}

double seconds(Channel::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// The message of a future group's member to the first one, and the first one's answer.
struct Proposal {
  uint64_t digest = 0;  // of the split: all have to mean the same group
  Endpoint::Contexts used = {};
};
struct Verdict {
  uint64_t id = 0;
  uint32_t context = 0;  // 0: no agreement
  int32_t culprit = -1;  // who means another group
};

// 0 when there is none: that context is never free.
uint32_t lowest_free(const Endpoint::Contexts& used) {
  for (uint32_t word = 0; word < used.size(); ++word) {
    if (~used[word] != 0) return word * 64 + static_cast<uint32_t>(std::countr_one(used[word]));
  }
  return 0;
}

// Texts as bytes, each after its length, and back.
std::vector<std::byte> pack(std::span<const std::string> items) {
  std::vector<std::byte> bytes;
  const auto append = [&](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  for (const std::string& item : items) {
    const size_t length = item.size();
    append(std::as_bytes(std::span(&length, 1)));
    append(std::as_bytes(std::span(item)));
  }
  return bytes;
}

std::vector<std::string> unpack(std::span<const std::byte> bytes) {
  std::vector<std::string> items;
  while (bytes.size() >= sizeof(size_t)) {
    size_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    bytes = bytes.subspan(sizeof(length));
    length = std::min(length, bytes.size());
    items.emplace_back(reinterpret_cast<const char*>(bytes.data()), length);
    bytes = bytes.subspan(length);
  }
  return items;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// "this" on rank a, "that" on rank b: what two lists have at a place, of which one may lack it.
template <class Items>
std::string both(const Items& a, int rank_a, const Items& b, int rank_b, size_t at,
                 std::string_view unit) {
  const auto show = [&](const Items& items) {
    return at < items.size() ? fmt::format("\"{}\"", items[at])
                             : fmt::format("missing (it has {} {})", items.size(), unit);
  };
  return fmt::format("{} on rank {}, {} on rank {}", show(a), rank_a, show(b), rank_b);
}

std::string first_difference(const std::vector<std::string>& a, int rank_a,
                             const std::vector<std::string>& b, int rank_b) {
  size_t at = 0;
  while (at < a.size() && at < b.size() && a[at] == b[at]) ++at;
  if (at == a.size() && at == b.size()) {
    return fmt::format("their {} items read the same, but not their hashes", at);
  }
  std::vector<std::string_view> heads_a, heads_b;
  for (const std::string& item : a) heads_a.push_back(lines_of(item)[0]);
  for (const std::string& item : b) heads_b.push_back(lines_of(item)[0]);
  if (at == a.size() || at == b.size() || heads_a[at] != heads_b[at])
    return fmt::format("item {} is {}", at, both(heads_a, rank_a, heads_b, rank_b, at, "items"));
  const std::vector<std::string_view> in_a = lines_of(a[at]), in_b = lines_of(b[at]);
  size_t line = 1;
  while (line < in_a.size() && line < in_b.size() && in_a[line] == in_b[line]) ++line;
  return fmt::format("item {}, \"{}\", differs inside: its line {} is {}", at, heads_a[at], line,
                     both(in_a, rank_a, in_b, rank_b, line, "lines"));
}

}  // namespace

// ------------------------------------------------------------------------------------------------
// Making groups.

std::unique_ptr<Communicator> Group::world(std::shared_ptr<Endpoint> endpoint,
                                           int local_participants) {
  if (local_participants < 1) {
    throw UserError(fmt::format("a rank holds {} devices, needs one or more", local_participants));
  }
  Channel& channel = endpoint->channel();
  std::vector<int> others;
  for (int rank = 0; rank < channel.ranks(); ++rank) {
    if (rank != channel.rank()) others.push_back(rank);
  }
  std::vector<int> counts(others.size());
  const Deadline deadline = channel.now() + endpoint->options().timeout;
  try {
    endpoint->exchange(others, &local_participants, counts.data(), sizeof(int), deadline,
                       "connect");
  } catch (const CommError& error) {
    // Others may have all that they waited for, and be in their first call.
    Notice notice{.group = kWorldId, .from = channel.rank(), .culprit = error.info().peer};
    error.info().detail.copy(notice.text, sizeof(notice.text) - 1);
    const std::lock_guard lock(endpoint->mutex);
    for (int rank : others) channel.send_notice(rank, notice);
    throw;
  }
  counts.insert(counts.begin() + channel.rank(), local_participants);

  std::vector<int> ranks;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    ranks.insert(ranks.end(), static_cast<size_t>(counts[rank]), static_cast<int>(rank));
  }
  std::string name = endpoint->options().name;
  return std::unique_ptr<Communicator>(new Group(std::move(endpoint), std::move(name),
                                                 std::move(ranks), {.id = kWorldId, .context = 1}));
}

Group::Group(std::shared_ptr<Endpoint> endpoint, std::string name, std::vector<int> ranks,
             Identity identity)
    : Communicator(std::move(name), endpoint->channel().rank(), ranks),
      endpoint_(std::move(endpoint)),
      layout_(ranks, endpoint_->channel().rank()),
      id_(identity.id),
      context_(identity.context),
      options_(endpoint_->options()),
      unwinding_(std::uncaught_exceptions()) {
  if (Recorder* recorder = endpoint_->recorder())
    recorded_ = recorder->name_group(id_, this->name(), layout_.ranks);
  std::lock_guard lock(endpoint_->mutex);
  endpoint_->attach(this);
}

Group::~Group() {
  const bool unwinding = std::uncaught_exceptions() > unwinding_;
  if (!unwinding) finish_announcements();
  std::lock_guard lock(endpoint_->mutex);
  if (unwinding && endpoint_->first_failure && endpoint_->first_failure->culprit >= 0) {
    const Endpoint::Failure& first = *endpoint_->first_failure;
    fail({first.culprit, first.detail, first.cause}, true);
  } else if (unwinding) {
    leave("its communicator was destroyed by an exception");
  } else if (!active_.empty()) {
    leave("its communicator was destroyed with calls under way");
  }
  endpoint_->detach(this, !failed());
}

std::unique_ptr<Communicator> Group::split(std::span<const int> participants, std::string name) {
  if (name.empty()) name = fmt::format("{}[{}]", this->name(), fmt::join(participants, ","));
  std::vector<int> ranks;
  std::vector<bool> seen(static_cast<size_t>(size()));
  uint64_t digest = combine(id_, participants.size());
  for (int p : participants) {
    if (p < 0 || p >= size() || seen[static_cast<size_t>(p)]) {
      throw UserError(
          fmt::format("split of group \"{}\" of {} into [{}]: {} is out of range or there twice",
                      this->name(), size(), fmt::join(participants, ","), p));
    }
    seen[static_cast<size_t>(p)] = true;
    ranks.push_back(rank_of(p));
    digest = combine(digest, static_cast<uint64_t>(p));
  }
  const GroupLayout layout(ranks, rank());
  if (layout.self < 0) {
    throw UserError(fmt::format("split of group \"{}\" into [{}]: rank {} holds none of these",
                                this->name(), fmt::join(participants, ","), rank()));
  }
  if (failed()) throw_failure({}, sequence(), 0);

  std::lock_guard splitting(endpoint_->split_mutex);
  const Deadline deadline = endpoint_->channel().now() + options_.timeout;
  try {
    const Identity identity = agree(*endpoint_, layout, digest, deadline);
    return std::unique_ptr<Communicator>(
        new Group(endpoint_, std::move(name), std::move(ranks), identity));
  } catch (const CommError& error) {
    // A message of this attempt may still come: it must not meet another one.
    std::lock_guard lock(endpoint_->mutex);
    fail({error.info().peer, error.what()}, true);
    throw;
  }
}

// The first member picks a context that is free on all of them.
Group::Identity Group::agree(Endpoint& endpoint, const GroupLayout& layout, uint64_t digest,
                             Deadline deadline) {
  std::vector<int> others;
  for (const auto& member : layout.members) {
    if (member.rank != endpoint.channel().rank()) others.push_back(member.rank);
  }
  Proposal own{.digest = digest};
  {
    std::lock_guard lock(endpoint.mutex);
    own.used = endpoint.contexts();
  }

  Verdict verdict;
  if (layout.self == 0) {
    std::vector<Proposal> proposals(others.size());
    endpoint.exchange(others, nullptr, proposals.data(), sizeof(Proposal), deadline, "split");
    for (size_t i = 0; i < others.size(); ++i) {
      if (proposals[i].digest != digest) verdict.culprit = others[i];
      for (size_t word = 0; word < own.used.size(); ++word) {
        own.used[word] |= proposals[i].used[word];
      }
    }
    verdict.id = combine(combine(digest, static_cast<uint64_t>(endpoint.channel().rank())),
                         ++endpoint.splits);
    if (verdict.culprit < 0) verdict.context = lowest_free(own.used);
    endpoint.exchange(others, &verdict, nullptr, sizeof(Verdict), deadline, "split");
  } else {
    const int leader = layout.members[0].rank;
    endpoint.exchange({&leader, 1}, &own, nullptr, sizeof(Proposal), deadline, "split");
    endpoint.exchange({&leader, 1}, nullptr, &verdict, sizeof(Verdict), deadline, "split");
  }
  if (verdict.culprit >= 0) {
    throw UserError(fmt::format(
        "the ranks split different groups at the same time: rank {} and rank {} do not agree",
        layout.members[0].rank, verdict.culprit));
  }
  if (verdict.context == 0) {
    throw UserError(fmt::format("more than {} groups at once", Endpoint::kContexts - 1));
  }
  return {verdict.id, verdict.context};
}

bool Group::supports(CollectiveOp, DType dtype, ReduceOp) const { return dtype != DType::Index; }

// ------------------------------------------------------------------------------------------------
// Calls and waits.

Work Group::start(const Collective& call, std::span<const CommBuffer> send,
                  std::span<const CommBuffer> recv) {
  check(call, send, recv);
  return start_checked(call, send, recv, options_.verify);
}

Work Group::start_checked(const Collective& of_caller, std::span<const CommBuffer> send,
                          std::span<const CommBuffer> recv, bool verify) {
  std::optional<Collective> placed;
  if (of_caller.identity != nullptr && of_caller.identity->run == 0 && !of_caller.site)
    placed.emplace(of_caller).site = site_of_running_call();
  const Collective& call = placed ? *placed : of_caller;
  std::unique_lock lock(endpoint_->mutex);
  while (!failed() && active_.size() >= kWindow) {
    const uint64_t oldest = ticket_of(active_.front());
    lock.unlock();
    wait(oldest, Deadline::max());
    lock.lock();
  }
  const uint64_t sequence = sequence_.load(std::memory_order_relaxed);
  if (failed()) {
    // The program learns of the failure here. The call that it was about to make is recorded:
    // blame() sees by it whether this rank was on the common path of the program. Calls that come
    // after it knows say nothing of that.
    Recorder* recorder = was_told_ ? nullptr : endpoint_->recorder();
    if (recorder) recorder->start(call, recorded_, sequence, endpoint_->channel().now());
    throw_failure(call, sequence, 0);
  }
  const uint32_t tag = tag_of(call, sequence);
  const uint64_t number =
      endpoint_->count_call(is_pair(call.op) ? place_of(call, call.op) : detector::kNoPlace);
  if (!is_pair(call.op)) sequence_.store(sequence + 1, std::memory_order_relaxed);

  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(pool_.size()));
    pool_.push_back(std::make_shared<Request>());
  }
  const uint32_t place = free_.back();
  Request& request = *pool_[place];
  bool done = false;
  free_.pop_back();
  active_.push_back(place);
  try {
    request.record = 0;
    request.number = number;
    if (Recorder* recorder = endpoint_->recorder()) {
      request.record = recorder->start(call, recorded_, sequence, endpoint_->channel().now());
    }
    request.begin(layout_, endpoint_->channel(), options_, call, send, recv, sequence, tag,
                  verify && !is_pair(call.op));
    done = request.advance();
  } catch (const ChannelError& error) {
    met(error, dynamic_cast<const Divergence*>(&error) != nullptr);
    if (failed()) throw_failure(call, sequence, 0);
  } catch (const std::exception& error) {  // out of memory: this rank cannot take part any more
    fail({-1, error.what()}, true);
    throw;
  }
  if (!done) return work(ticket_of(place));
  completed(request);
  active_.pop_back();
  free_.push_back(place);
  return {};
}

uint64_t Group::ticket_of(uint32_t place) const {
  return pool_[place]->generation << kPlaceBits | place;
}

uint32_t Group::tag_of(const Collective& call, uint64_t sequence) const {
  const uint32_t base = context_ << (Endpoint::kPayloadBits + 1);
  if (!is_pair(call.op)) return base | static_cast<uint32_t>(sequence % kSequences) << 4;
  const auto local = [&](int participant) {
    return static_cast<uint32_t>(layout_.local_index[static_cast<size_t>(participant)]);
  };
  if (local(call.from) >= kLocalsOfPairs || local(call.to) >= kLocalsOfPairs) {
    throw UserError(
        fmt::format("{}: send and recv serve {} devices per rank", describe(call), kLocalsOfPairs));
  }
  return base | kPairBit | local(call.from) * kLocalsOfPairs | local(call.to);
}

// With the endpoint's mutex held, as all below.
void Group::progress() {
  if (failed() || active_.empty()) return;
  std::optional<ChannelError> error;
  bool diverged = false;
  std::erase_if(active_, [&](uint32_t place) {
    try {
      if (!pool_[place]->advance()) return false;
    } catch (const Divergence& divergence) {
      error = divergence;
      diverged = true;
      return false;
    } catch (const ChannelError& other) {
      if (!error) error = other;
      return false;
    }
    ++pool_[place]->generation;
    completed(*pool_[place]);
    free_.push_back(place);
    return true;
  });
  if (error) met(*error, diverged);
  if (postponed_ && !failed()) settle_postponed(endpoint_->channel().now());
}

bool Group::awaits_headers() const {
  return std::ranges::any_of(active_,
                             [&](uint32_t place) { return pool_[place]->awaits_headers(); });
}

// Fails the group, unless headers are under way: a rank that runs something else sends messages of
// other sizes to all, and each blames the rank whose message it happens to see first; the headers
// say who it was.
void Group::met(const ChannelError& error, bool diverged) {
  if (diverged || !awaits_headers())
    return fail({error.peer, error.what(), FailureCause::Diverged}, true);
  if (!postponed_) postponed_.emplace(error, endpoint_->channel().now() + kHeadersTurn);
}

void Group::settle_postponed(Deadline now) {
  if (now < postponed_->second && awaits_headers()) return;
  ChannelError verdict = postponed_->first;
  for (uint32_t place : active_) {
    if (!pool_[place]->awaits_headers()) continue;
    try {
      pool_[place]->compare_known_headers();
    } catch (const Divergence& error) {
      verdict = error;
      break;
    } catch (const ChannelError&) {  // NOLINT(bugprone-empty-catch)
      // The first error stands.
    }
  }
  fail({verdict.peer, verdict.what(), FailureCause::Diverged}, true);
}

bool Group::test(uint64_t ticket) {
  std::lock_guard lock(endpoint_->mutex);
  endpoint_->progress(false);
  return settled(ticket, Deadline::max(), endpoint_->channel().now(), false);
}

void Group::wait(uint64_t ticket, Deadline deadline) {
  endpoint_->wait_until([&](Deadline now) { return settled(ticket, deadline, now, true); });
}

// True when the call is done. Throws when the group failed, or fails it when the call is late. `holds`:
// the program makes no other call before.
bool Group::settled(uint64_t ticket, Deadline deadline, Deadline now, bool holds) {
  Request& request = *pool_[ticket & kPlaceMask];
  if (request.generation != ticket >> kPlaceBits) return true;
  if (!failed())
    inspect(request, std::min(deadline, request.started() + options_.timeout), now, holds);
  if (failed()) throw_failure(request.call(), request.sequence(), seconds(now - request.started()));
  return false;
}

// ------------------------------------------------------------------------------------------------
// Failure: of the whole group, once, with one reason.

void Group::fail(Failure failure, bool tell_peers) {
  if (failed()) return;
  failure_ = std::move(failure);
  failed_.store(true, std::memory_order_release);
  if (!endpoint_->first_failure)
    endpoint_->first_failure = {failure_.culprit, failure_.detail, failure_.cause};
  if (Recorder* recorder = endpoint_->recorder())
    recorder->fail(failure_.culprit, failure_.cause, failure_.detail);
  for (uint32_t place : active_) {
    if (!pool_[place]->abandon()) keep_for_good(pool_[place]);
  }
  active_.clear();
  if (!tell_peers) return;
  Notice notice{.group = id_,
                .sequence = sequence(),
                .from = rank(),
                .culprit = failure_.culprit,
                .cause = failure_.cause};
  failure_.detail.copy(notice.text, sizeof(notice.text) - 1);
  for (const auto& member : layout_.members) {
    if (member.rank != rank()) endpoint_->channel().send_notice(member.rank, notice);
  }
}

// Passes it on: this rank will close its connections, and who sees that has to know why by then,
// though the first witness's own notice may be slower.
void Group::receive(const Notice& notice) {
  if (failed()) return;
  if (notice.culprit == rank()) {
    const std::string text =
        fmt::format("rank {} gave up on this rank: {}", notice.from, notice.text);
    // News is quicker than the headers that it was found in. They say here, too, who has diverged.
    if (notice.cause == FailureCause::Diverged && awaits_headers()) {
      const Deadline until =
          postponed_ ? postponed_->second : endpoint_->channel().now() + kHeadersTurn;
      postponed_.emplace(ChannelError(notice.from, text), until);
      return;
    }
    fail({notice.from, text, FailureCause::Aborted}, false);
  } else if (notice.culprit < 0) {
    fail({notice.from, fmt::format("rank {} left: {}", notice.from, notice.text), notice.cause},
         false);
  } else {
    fail({notice.culprit, fmt::format("rank {} reports: {}", notice.from, notice.text),
          notice.cause},
         false);
  }
  if (notice.culprit == rank()) return;
  for (const auto& member : layout_.members) {
    if (member.rank != rank() && member.rank != notice.from)
      endpoint_->channel().send_notice(member.rank, notice);
  }
}

void Group::abort(std::string_view reason) noexcept {
  std::lock_guard lock(endpoint_->mutex);
  leave("aborted: ", reason);
}

void Group::leave(std::string_view what, std::string_view reason) noexcept {
  try {
    fail({-1, std::string(what).append(reason), FailureCause::Aborted}, true);
  } catch (const std::exception&) {
    // Out of memory in the middle of it: the group may not know why, but it has failed.
    failed_.store(true, std::memory_order_release);
  }
}

void Group::completed(const Request& request) {
  if (request.record != 0)
    endpoint_->recorder()->complete(request.record, endpoint_->channel().now());
  const Collective& call = request.call();
  if (call.ticket.run > 0) completed_ = {call.op, call.ticket};
}

void Group::throw_failure(const Collective& call, uint64_t sequence, double elapsed) {
  was_told_ = true;
  std::string detail = failure_.detail + describe_place(call);
  if (const Ticket& last = completed_.ticket; last.run > 0)
    detail += fmt::format("; last completed: {} #{} of run {}", tinyshard::name(completed_.op),
                          last.item, last.run);
  throw CommError({.rank = rank(),
                   .peer = failure_.culprit,
                   .process = endpoint_->process_of(failure_.culprit),
                   .operation = describe_with_axis(call),
                   .sequence = call.ticket.run > 0 ? call.ticket.item : sequence,
                   .elapsed_s = elapsed,
                   .detail = std::move(detail)});
}

// ------------------------------------------------------------------------------------------------
// Comparing what the ranks are about to do.

// Everyone gets the bytes of every member, counts[m] of member m, in their order; `own` are those
// of this one.
std::vector<std::byte> Group::gather_bytes(std::span<const std::byte> own,
                                           std::span<const size_t> counts, RunIdentity identity) {
  std::vector<size_t> by_participant(static_cast<size_t>(size()));
  size_t total = 0;
  for (size_t m = 0; m < counts.size(); ++m) {
    by_participant[static_cast<size_t>(layout_.members[m].participants[0])] = counts[m];
    total += counts[m];
  }
  // Members are in the order of their first participants, and so are the parts.
  std::vector<std::byte> gathered(total * local().size()), outgoing(own.begin(), own.end());
  std::vector<CommBuffer> send(local().size(), CommBuffer{outgoing.data()}), recv;
  for (size_t l = 0; l < local().size(); ++l) recv.push_back({gathered.data() + l * total});
  Collective call{.op = CollectiveOp::AllGather, .dtype = DType::U8, .counts = by_participant};
  identity.label = "a comparison across ranks";
  call.identity = &identity;
  start_checked(call, send, recv, true).wait();
  gathered.resize(total);
  return gathered;
}

void Group::announce(const RunIdentity& identity) {
  {
    std::lock_guard lock(endpoint_->mutex);
    endpoint_->progress(false);  // nobody waits for the earlier ones
  }
  start_checked({.identity = &identity}, {}, {}, true);
}

void Group::record_run(const Ticket& run) {
  if (Recorder* recorder = endpoint_->recorder())
    recorder->run(run, recorded_, endpoint_->channel().now());
}

// Takes the peers' announcements of runs that are over: these were sent, though perhaps not taken.
void Group::finish_announcements() {
  Channel& channel = endpoint_->channel();
  const auto is_announcement = [&](uint32_t place) { return pool_[place]->announces(); };
  for (const Deadline end = channel.now() + kAnnouncementsTurn; channel.now() < end;) {
    {
      std::lock_guard lock(endpoint_->mutex);
      progress();
      if (failed() || active_.empty() || !std::ranges::all_of(active_, is_announcement)) return;
    }
    channel.idle(std::chrono::microseconds(50));
  }
}

void Group::check_same(uint64_t hash, const Items& items, std::string_view what,
                       const RunIdentity& identity) {
  struct Told {
    uint64_t hash = 0;
    char asked[72] = {};
  };
  const size_t members = layout_.members.size();
  if (members == 1) return;
  Told own{.hash = hash};
  const std::string_view asked = identity.asked;
  put_text(own.asked, asked);
  std::vector<size_t> counts(members, sizeof(own));
  const std::vector<std::byte> gathered =
      gather_bytes(std::as_bytes(std::span(&own, 1)), counts, identity);
  std::vector<Told> told(members);
  std::memcpy(told.data(), gathered.data(), gathered.size());
  const size_t other = static_cast<size_t>(
      std::ranges::find_if(told, [&](const Told& t) { return t.hash != told[0].hash; }) -
      told.begin());
  if (other == members) return;
  const auto differs = [&](const Told& t) { return text_in(t.asked) != text_in(told[0].asked); };
  if (std::ranges::any_of(told, differs)) {
    std::string texts;
    for (size_t m = 0; m < members; ++m) {
      texts += fmt::format("{}rank {}: {}", m == 0 ? "" : "; ", layout_.members[m].rank,
                           text_in(told[m].asked));
    }
    throw UserError(fmt::format(
        "the ranks do not compute the same: {}. A value over ranks is computed by all of them "
        "together: every rank makes the same calls, also where one alone uses the result",
        texts));
  }
  std::fill(counts.begin(), counts.end(), sizeof(size_t));

  // The first member and the first that differs show their items to all.
  const bool shows = layout_.self == 0 || layout_.self == static_cast<int>(other);
  const std::vector<std::byte> text = shows ? pack(items()) : std::vector<std::byte>();
  const size_t length = text.size();
  const std::vector<std::byte> lengths = gather_bytes(std::as_bytes(std::span(&length, 1)), counts);
  std::memcpy(counts.data(), lengths.data(), lengths.size());
  const std::vector<std::byte> texts = gather_bytes(text, counts);
  const std::span<const std::byte> all(texts);

  const int a = layout_.members[0].rank, b = layout_.members[other].rank;
  throw UserError(fmt::format(
      "{} of rank {} and rank {} differ, every rank has to build the same: {}{}", what, a, b,
      first_difference(unpack(all.first(counts[0])), a, unpack(all.subspan(counts[0])), b),
      asked.empty() ? "" : fmt::format("  (in {})", asked)));
}

}  // namespace tinyshard
