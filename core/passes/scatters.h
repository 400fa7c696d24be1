// Fuses x + scatter_add(...) into one scatter that begins with x, as the gradient of a table that is
// also a layer's weight needs it; finds scatters that write; and spells out other scattered reductions
// where no library does them.
#pragma once
#include <functional>
#include <vector>

#include "core/runtime/device.h"
#include "core/uop/graph.h"

namespace tinyshard {

// x + scatter_add(index, rows) becomes scatter_add(index, rows, x): one item that writes the result
// once, instead of one that fills zeros and another that reads all of them back. Only where x is in
// memory anyway (a storage or what a library or a collective made, widened or not), nobody else
// reads the scatter, and `library_supports` takes it (asked with row-major operands). A sum of widened
// rows that is rounded to their type becomes one of the rows themselves: the library sums in the wider
// type and rounds once, and no widened rows go through memory. 0 + scatter_add is the scatter.
std::vector<UOp> start_scatters(const Graph& graph,
                                const std::function<bool(const LibraryCall&)>& library_supports);

// Scatters that write become one item where `library_supports` takes it. The tensor's methods spell
// them as a scattered maximum of the numbers of the entries, of which the last stays, a gather of
// what these entries hold, and a choice between that and x: three items, two of which go through
// memory in any order. Tables that are written by one index share the numbers. Not where
// somebody else reads these, as gradients do.
std::vector<UOp> write_scatters(const Graph& graph,
                                const std::function<bool(const LibraryCall&)>& library_supports);

// Scattered maxima, minima and products that `library_supports` refuses, as reductions over all
// pairs of a place and an element.
std::vector<UOp> lower_scatters(const Graph& graph,
                                const std::function<bool(const LibraryCall&)>& library_supports);

}  // namespace tinyshard
