// Passes of one's own: rewrites of every graph that is planned while a scope is open.
//
//   ProgramPass pass("cheap_sigmoid", PatternMatcher({...}));
//   { PassScope on(pass);  y.realize();  step(x); }
//
// A pass sees a graph as it was written, right after names ended, with global shapes, before it is
// divided among devices: a GELU is one node (spelled_out() in core/uop/expressions.h opens it).
// core/passes/passes.cpp lists what follows. Passes of scopes run in the order
// in which the scopes were opened. A step that is captured is captured anew where it is called with
// other passes than before, and keeps both plans. Within its function nothing is planned: a scope
// that is opened there is a UserError.
//
// The scope holds for the whole process, whichever thread opens it; in a job of several ranks all of
// them open it. UserErrors name the pass, and the rule and the node where there is one: another
// number of roots, another type or shape of one, a root that no longer writes to its storage, an op
// that has no place in a graph of tensors (those of kernels, parts and collectives).
//
// Threads: any.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/rewrite/match.h"

namespace tinyshard {

// Cheap to copy; copies are one pass. Two passes that are made of equal rules are two.
class ProgramPass {
 public:
  using Rewrite = std::function<std::vector<UOp>(std::span<const UOp> roots)>;
  ProgramPass(std::string name, PatternMatcher rules);
  // All roots of a plan at once, and as many back.
  ProgramPass(std::string name, Rewrite rewrite);
  const std::string& name() const;

  struct Data;
  const std::shared_ptr<const Data>& data() const { return data_; }

 private:
  std::shared_ptr<const Data> data_;
};

class PassScope {
 public:
  explicit PassScope(const ProgramPass& pass);
  ~PassScope();
  PassScope(const PassScope&) = delete;
  PassScope& operator=(const PassScope&) = delete;

 private:
  uint64_t number_;
};

// --- for the engine ------------------------------------------------------------------------------

class Graph;

// The passes whose scopes are open: their numbers, in order. Equal lists do the same.
std::vector<uint64_t> program_passes();
// The number of scopes that the calling thread has opened so far.
uint64_t pass_scopes_opened();
void run_program_passes(Graph& graph);

}  // namespace tinyshard
