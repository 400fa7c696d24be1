// Scans in smaller ops: all pairs of the elements of short chunks, and the totals of the chunks before.
#pragma once
#include <functional>

#include "core/uop/scan.h"

namespace tinyshard {

// How long rows are cut where scans are spelled. Each element of a chunk is combined with all before
// it: short chunks compute little, and long ones make few kernels.
struct ScanChunks {
  int64_t chunk = 32;
  int64_t long_row = int64_t{1} << 62;  // of at least so many chunks the scanned totals are stored
};
// Suits a device that is slow at computing, and quick to begin a kernel.
ScanChunks short_chunks(const UOp& x, ScanKind kind);

// Returns the value of a Scan in smaller ops.
UOp spelled_scan(const UOp& x, const ScanArg& arg, const ScanChunks& chunks);

// Where each of the running maxima or minima was reached: the last place so far at which it changed.
// `scanned` gives the running maximum of places.
UOp places_of(const UOp& best, const std::function<UOp(const UOp&)>& scanned);

// Makes a row of `size` elements of parts [.., parts, n] that follow each other and were scanned
// apart: each comes after the total of those before it. `at_hand` brings their totals to where they
// are scanned.
UOp joined_scans(const UOp& inside, int64_t size, ScanKind kind, const ScanChunks& chunks,
                 const std::function<UOp(const UOp&)>& at_hand);

// Cuts rows [.., n] into [.., parts, each], with what changes no total behind their ends.
UOp in_parts(const UOp& x, int64_t parts, int64_t each, ScanKind kind);

}  // namespace tinyshard
