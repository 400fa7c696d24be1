// Values of one device that are computed from much less than they are: random numbers, from a count
// and a seed. On their way to a mesh that little is brought over, and each device computes its part.
#pragma once
#include "multi/mesh.h"

namespace tinyshard {

// `local`, a value of one device, as each device of the mesh computes the whole of it; null where
// what it is computed from, once for each device, has more bytes than the value itself.
UOp grown_on(const UOp& local, const Mesh& mesh);

// `local` without the storages that draws in it wait to be written to, as a parameter's: where the value
// goes elsewhere at once, nothing needs them.
UOp past_storages(const UOp& local);

// True if `local` is computed from random numbers, constants and iotas alone, drawn where its count
// and seed lie: nobody stored it or said where it shall be, so it is the same wherever it is grown.
bool is_unplaced_draw(const UOp& local);

}  // namespace tinyshard
