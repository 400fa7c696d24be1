// Entries of all ledgers stand in one list, too, of which a header shows the latest that its group
// shares: their order is that of the program, the same on all ranks.
#include "core/exec/ledger.h"

#include <algorithm>

#include "core/base/hash.h"
#include "core/base/process.h"

namespace tinyshard {

Ledger* Ledgers::of(const Mesh& mesh) {
  const auto [known, added] = by_mesh_.try_emplace(mesh.id(), nullptr);
  if (!added) return known->second;
  std::vector<int> ranks;
  for (const DeviceRef& d : mesh.devices()) {
    if (d.rank != DeviceRef::kHere) ranks.push_back(d.rank);
  }
  return known->second = of(std::move(ranks));
}

Ledger* Ledgers::of(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  const auto repeated = std::ranges::unique(ranks);
  ranks.erase(repeated.begin(), repeated.end());
  if (ranks.size() < 2 || !std::ranges::binary_search(ranks, world().rank)) return nullptr;
  std::unique_ptr<Ledger>& ledger = ledgers_[ranks];
  if (!ledger) ledger = std::make_unique<Ledger>(std::move(ranks));
  return ledger.get();
}

bool Ledgers::written_here() const {
  return writer_ == std::thread::id() ? is_main_thread() : writer_ == std::this_thread::get_id();
}

void Ledgers::add(Ledger& ledger, uint64_t hash, GivenValue::Kind kind, std::string_view about) {
  ledger.hash_ = combine(combine(ledger.hash_, hash), static_cast<uint64_t>(kind));
  ++ledger.entries_;
  if (latest_.size() == kRemembered) latest_.pop_front();
  Entry& entry = latest_.emplace_back(&ledger, GivenValue{.hash = hash, .kind = kind});
  about.copy(entry.value.about, sizeof(entry.value.about) - 1);
}

void Ledgers::identify(std::span<const int> ranks, RunIdentity& identity) {
  const auto shared = [&](const Ledger& ledger) {
    return ledger.ranks_.size() >= ranks.size() && std::ranges::includes(ledger.ranks_, ranks);
  };
  identity.inputs = 0;
  for (const auto& [of, ledger] : ledgers_) {
    if (ledger->entries_ == 0 || !shared(*ledger)) continue;
    identity.inputs = combine(identity.inputs, ledger->hash_);
    if (ledger->ranks_.size() == ranks.size()) ledger->put_off();
  }
  identity.given = {};
  size_t place = identity.given.size();
  for (auto entry = latest_.rbegin(); entry != latest_.rend() && place > 0; ++entry) {
    if (shared(*entry->ledger)) identity.given[--place] = entry->value;
  }
}

std::vector<Ledger*> Ledgers::due(bool is_the_end) {
  std::vector<Ledger*> found;
  for (const auto& [of, ledger] : ledgers_) {
    if (ledger->entries_ < (is_the_end ? ledger->compared_ + 1 : ledger->due_)) continue;
    ledger->put_off();
    found.push_back(ledger.get());
  }
  return found;
}

}  // namespace tinyshard
