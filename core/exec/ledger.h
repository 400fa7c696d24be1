// A ledger holds what ranks have to give alike, as each writes it down. A value that each process has
// made for itself and that goes to devices of several ranks, by shard() or as an operand beside values
// there, is one value: it has to be the same on all ranks that it goes to. The same holds for what is
// written from the host into a value over ranks, copies of one part given to from_local(), and the
// steps that change what lies there. Each process adds the hash of each to the ledger of these ranks;
// the first collective of a run tells its group the hashes of all ledgers that the whole group shares.
//
// Example: ranks 0 to 3 as mesh(data=2, model=2). A batch goes to all of them: each adds its hash to the
// ledger of {0, 1, 2, 3}. An all-reduce over "data" joins ranks 0 and 2: it compares that ledger and
// any of {0, 2} alone. Where no collective has compared a ledger, as in steps that need none, its ranks
// meet for that: at its first entries, again at the latest after kMost more, and for what is left when
// the runtime ends.
//
// Written to in turns (Context::Turn), by the one thread whose runs communicate: entries come in one
// order on all ranks. What other threads give, as a loader's batches, is kept with the values
// (Storage::given) until that thread's runs read them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/runtime/communicator.h"
#include "multi/mesh.h"

namespace tinyshard {

class Ledger {  // of several ranks, of which this process is one
 public:
  explicit Ledger(std::vector<int> ranks) : ranks_(std::move(ranks)) {}
  const std::vector<int>& ranks() const { return ranks_; }  // sorted
  uint64_t hash() const { return hash_; }                   // of all entries; 0: there are none

 private:
  friend class Ledgers;
  static constexpr int64_t kMost = 16;  // entries that nobody has compared
  std::vector<int> ranks_;
  uint64_t hash_ = 0;
  int64_t entries_ = 0;
  int64_t compared_ = 0;  // of the entries
  int64_t due_ = 1;       // how many entries there are when its ranks meet
  // They were compared: at first each time that there are twice as many, then after so many more.
  void put_off() {
    compared_ = entries_;
    due_ = entries_ + std::min(entries_, kMost);
  }
};

// Something that was given and is in no ledger yet.
struct Given {
  Ledger* ledger;
  uint64_t hash;
  GivenValue::Kind kind;
  std::string about;
};

class Ledgers {  // of an epoch
 public:
  // Returns the ledger of the ranks that hold a device of the mesh; null where these are not
  // several, or this process is none of them.
  Ledger* of(const Mesh& mesh);
  Ledger* of(std::vector<int> ranks);

  // Tells whether what this thread gives is written down at once; write_here() makes it so.
  bool written_here() const;
  void write_here() { writer_ = std::this_thread::get_id(); }

  void add(Ledger& ledger, uint64_t hash, GivenValue::Kind kind, std::string_view about);
  void add(const Given& given) { add(*given.ledger, given.hash, given.kind, given.about); }

  // Fills in what a call of a group of these ranks compares.
  void identify(std::span<const int> ranks, RunIdentity& identity);
  // Ledgers for which their ranks have to meet now; they count as compared. At the end: all that have
  // entries which nobody has compared.
  std::vector<Ledger*> due(bool is_the_end = false);

 private:
  struct Entry {
    const Ledger* ledger;
    GivenValue value;
  };
  static constexpr size_t kRemembered = 12;
  std::map<std::vector<int>, std::unique_ptr<Ledger>> ledgers_;
  std::unordered_map<int64_t, Ledger*> by_mesh_;  // by the mesh's identity
  std::deque<Entry> latest_;
  std::thread::id writer_;
};

}  // namespace tinyshard
