// Writes values into a model, from files above all.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file_jobs.h"
#include "core/exec/storage.h"
#include "core/nn/state_dict.h"

namespace tinyshard::nn {

// Fails the running call (UserError) where a step is captured: it would load at its first call alone.
void check_no_capture();

// Each first tensor takes the values of its second, of the same shape: see load(). Of several pairs
// for one tensor the last counts.
void write_over(const std::vector<std::pair<Tensor, Tensor>>& pairs, const ByteProgress& progress);

// A tensor that takes values of its shape from outside, which are of type `stored` there.
struct Wanted {
  Tensor into;
  DType stored;
};
// Tells whether parts of its storage are parts of its value, and it can be filled from outside.
bool can_be_filled(const Tensor& x);
// Fills these storages with the values of wanted[index]; tells the bytes that it has moved.
using FillStorages = std::function<void(std::span<const std::pair<Storage*, size_t>> storages,
                                        const ByteProgress& progress)>;
// Tensors of the type that the values have are filled in their own storage; for others the values
// come to storages beside them, for a group of tensors at a time, and are cast.
void fill_in_place(std::span<const Wanted> wanted, const FillStorages& fill,
                   const ByteProgress& progress);
int64_t bytes_to_fill(std::span<const Wanted> wanted);  // of one device

}  // namespace tinyshard::nn
