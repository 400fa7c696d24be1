// The identity of one run of one item of a schedule, the same on all ranks that run it.
#pragma once
#include <cstdint>
#include <string>

namespace tinyshard {

struct Ticket {
  uint64_t epoch = 0;     // of the context: how often one was made in this process, from 1
  uint64_t schedule = 0;  // its hash; 0 where this process runs it alone
  uint64_t item = 0;      // of a collective: its number in the schedule, from 1
  uint64_t run = 0;       // of the context, from 1; 0: no run
  bool operator==(const Ticket&) const = default;
};

// A collective of a schedule in the program's own terms: messages name it so.
struct CollectiveSite {
  std::string axis;     // of the mesh
  std::string purpose;  // "gradient of h.0.attn.weight"; empty: not known
  std::string source;   // "train.cpp:21"; empty: not known
};

}  // namespace tinyshard
