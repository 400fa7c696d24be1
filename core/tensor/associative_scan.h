// Running combinations along a dim by an operation of one's own, in logarithmically many rounds. The
// operation must be associative; it gets and gives a list of tensors, since a state is often several:
//
//   // h[t] = a[t] * h[t - 1] + b[t], for a decay a of its own at each place
//   auto h = associative_scan(
//       [](const Tensors& p, const Tensors& q) { return Tensors{p[0] * q[0], p[1] * q[0] + q[1]}; },
//       {a, b}, 1)[1];
//   Tensor same = linear_recurrence(a, b, 1);
//
// Pairs of neighbours are combined, the shorter list of pairs is scanned, and each odd place takes what
// came before it:
//
//   a   b    c    d        ab   cd        ab   abcd        a   ab   abc   abcd
//
// A scan of n places combines less than 2 n times, and has gradients like everything that is made of
// tensors.
#pragma once
#include <functional>
#include <vector>

#include "core/tensor/tensor.h"

namespace tinyshard {

using Tensors = std::vector<Tensor>;
// combine(left, right) of places that follow each other, elementwise along the dim.
using Combine = std::function<Tensors(const Tensors& left, const Tensors& right)>;

// `reverse` begins at the end. Elements are tensors of the same size along `dim`. UserError where
// combine() gives another number of tensors, or other shapes or types, than it is given.
Tensors associative_scan(const Combine& combine, const Tensors& elements, int64_t dim = 0,
                         bool reverse = false, Caller caller = Caller::current());

// h[t] = decay[t] * h[t - 1] + input[t] along a dim, with h[-1] = `initial`, zeros unless given: a
// tensor that broadcasts to the input without that dim. decay and input broadcast to each other.
Tensor linear_recurrence(const Tensor& decay, const Tensor& input, int64_t dim,
                         const Tensor& initial = {}, bool reverse = false,
                         Caller caller = Caller::current());

}  // namespace tinyshard
