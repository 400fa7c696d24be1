// Gradients of looked up rows of a table, and updates of these rows alone (nn::optim, `sparse`).
//
// A lookup may name a row several times. Its entries find each other without a sort, and with a list
// of one number for each row of the table: each entry writes its number to the row's place there, in
// any order, and all read back whose number stayed. That entry leads: it has the sum, and only it
// writes the row.
//
//   index   7 2 7 9        numbers in the list    2: 1   7: 2   9: 3      (of other rows: anything)
//   leader  2 1 2 3        sums  -  g1  g0+g2  g3        rows to write  -  2  7  9
//
// Where the rows are divided among devices, each looks at all entries and keeps its own rows.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "core/tensor/tensor.h"

namespace tinyshard::nn::optim {

// A gradient that is zero outside of these rows. Entries that name the same row are added up.
struct LookedUp {
  Tensor index;  // [entries]; those out of range are of no row
  Tensor rows;   // [entries, ...]
};

// Nothing where the gradient is of another kind: made by other than lookups along the first dim,
// which may be scaled, converted, placed and added up.
std::optional<LookedUp> looked_up(const Tensor& gradient);

// The list of numbers, i32: one for each row of the table, where that lies.
Tensor leaders_of_rows(const Tensor& table);

// The looked up rows of several tables, on each device of those it holds.
class LookedUpRows {
 public:
  // The gradient's: zeros for an entry that does not lead.
  const Tensor& gradient() const { return sums_; }
  Tensor of(const Tensor& table) const;
  void write(const Tensor& table, const Tensor& rows);

 private:
  friend class RowChange;
  std::vector<Tensor> tables_, here_, next_;  // as named, on this device, and with what was written
  Tensor sums_, places_;                      // places: of the leaders, -1 of others
};

// Assigns the tables, which lie alike, what `change` writes to them. `leaders` is the list of the
// first one.
void change_rows(const std::vector<Tensor>& tables, const Tensor& leaders, const LookedUp& found,
                 const std::function<void(LookedUpRows&)>& change);

}  // namespace tinyshard::nn::optim
