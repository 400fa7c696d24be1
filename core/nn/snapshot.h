// A rank's part of a state, for nn::Elastic: the boxes that its devices hold and, of tensors that
// are divided over ranks, those of the rank before it.
//
// Example: f32[8] on three ranks is [0, 3), [3, 6), [6, 8); rank 0 has a copy of [6, 8), rank 1 of
// [0, 3), rank 2 of [3, 6). A box that several ranks hold has no such copy.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/exec/box_rows.h"
#include "core/exec/storage.h"
#include "core/nn/elastic.h"
#include "core/nn/state_dict.h"
#include "core/tensor/random.h"
#include "multi/local_box.h"

namespace tinyshard::nn {

struct KeptValue {
  DType dtype = DType::F32;
  Dims shape = {};
  std::vector<std::vector<LocalBox>> boxes = {};  // of each rank, none twice
  bool whole = true;                              // on every rank
  std::vector<std::byte> own = {},
                         copy = {};  // own boxes behind each other; those of the rank before

  // Tells whether the rank behind this one has a copy of its boxes: where no other one holds them.
  bool is_copied(int rank) const;
};

struct Snapshot {
  Progress progress = {};
  int64_t number = 0;       // of the commits, those of restore() among them; the same on all ranks
  int rank = 0, ranks = 1;  // of the world that committed; rank kNewcomer: this one was not there
  std::map<std::string, KeptValue> values = {};
  RandomState random = {};
  bool can_stay = false;  // whole on every rank, and in reach of the host
  bool in_place = false;  // values lie where they lay: `own` is empty until copy_now()

  // Where a box is: in memory of the host, until somebody writes over it.
  struct Place {
    KeptValue* into;
    size_t at;  // in own
    const std::byte* memory;
    BoxRows rows;
  };
  std::vector<Place> places = {};
  std::vector<std::shared_ptr<Storage>> storages = {};

  bool is_divided() const;
  void copy_now();
};

constexpr int kNewcomer = -1;  // in the place of the rank that a rank was
constexpr size_t kNoOffset = SIZE_MAX;

// The different boxes that the devices of a rank hold, in the order of the mesh.
std::vector<LocalBox> boxes_of(const Sharding& where, DimSpan shape, int rank);
size_t bytes_of(const std::vector<LocalBox>& boxes, DType dtype);
// Where a box begins among others that lie behind each other; kNoOffset where it is not one of them.
size_t offset_of(const LocalBox& box, const std::vector<LocalBox>& boxes, DType dtype);

// Takes a snapshot of what these tensors hold, which it computes where they do not yet. UserError for a
// sum that is pending. Values that are whole stay where they lie if `in_place` is set, the devices are in reach of
// the host, and no value is divided. `spare`: a snapshot whose memory may be used again.
Snapshot take_snapshot(const StateDict& tensors, const Progress& progress, bool in_place,
                       Snapshot* spare);

// Progress, random numbers, and of each tensor type, shape and whose the boxes are; not the boxes.
std::vector<std::byte> description_of(const Snapshot& snapshot);
Snapshot described(const std::vector<std::byte>& bytes, int64_t number);

}  // namespace tinyshard::nn
