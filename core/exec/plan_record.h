// Describes a plan for observers that read records (core/base/observer.h), as JSON: the values with
// their shardings, what moves and why, items with bytes and arithmetic, buffers with their owners and
// lives, and with RecordForm::Graphs the graph after each pass and the kernels. docs/view.md shows it
// on a page, which reads this text:
//
//   {"plan": 3, "hash": "9f..", "for": "sum, train.cpp:21",
//    "meshes": [{"axes": [["data", 2]], "devices": ["CPU:0", "CPU:1"]}],
//    "origins": [["matmul", "train.cpp:20", "gradient of w"]],        named by their places
//    "values": [[node, "f32", [8, 4], mesh, [0], origin, label, choices]],
//                                                         a number: Shard(dim); [[taken, [["label", us]]]]
//    "moves": [{..., "from": ["P sum"], "to": ["R"], "bytes": 128}],
//    "nodes": [[id, "add f32[8, 4]", [sources], origin]], "passes": [...],
//    "rules": [[pass, "rule", id, "before", "after", origin, count]],
//    "buffers": [...], "items": [...], "code": [...], "memory": [...],
//    "speeds": [bytes of memory a second, operations a second]}
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/observer.h"
#include "core/rewrite/rule_log.h"
#include "core/schedule/schedule.h"
#include "multi/movement_log.h"

namespace tinyshard {

// Follows one plan from the user's graph to its schedule; keeps nothing where no observer reads it.
class PlanRecorder {
 public:
  explicit PlanRecorder(std::span<const UOp> roots);
  ~PlanRecorder();
  PlanRecorder(const PlanRecorder&) = delete;
  PlanRecorder& operator=(const PlanRecorder&) = delete;

  bool is_read() const { return form_ != RecordForm::None; }
  void after(std::string_view pass, std::span<const UOp> roots);
  void lie(std::vector<PlacedValue> values, std::vector<Movement> movements);
  // Tells the plan, unless an equal one was told to these observers; returns its number, or 0.
  uint64_t tell(const Schedule& schedule);

 private:
  RecordForm form_;
  OriginId origin_ = 0;
  std::vector<std::pair<std::string, std::vector<UOp>>> graphs_;
  std::vector<PlacedValue> values_;
  std::vector<Movement> movements_;
  std::unique_ptr<RuleLog> log_;                               // of the pass that runs
  std::vector<std::pair<size_t, RuleLog::Entry>> rules_made_;  // by the number of their pass
};

// Catches the record of the plans that this thread makes or tells in its scope, with their graphs.
// Observers are told nothing meanwhile.
class CaughtRecord {
 public:
  CaughtRecord();
  ~CaughtRecord();
  CaughtRecord(const CaughtRecord&) = delete;
  CaughtRecord& operator=(const CaughtRecord&) = delete;

  // The record of the last plan; empty where there was none.
  std::string text;

 private:
  CaughtRecord* outer_;
};

// The same of a schedule alone, for observers that came after it was made.
uint64_t tell_plan(const Schedule& schedule);

}  // namespace tinyshard
