// Writes through an index into a dim that is divided over devices as the entries are: scatter and
// setitem, of which the last entry that names a place counts.
//
// The graph has them as four ops (core/passes/scatters.cpp): the scattered numbers of entries, whether
// there is one, a lookup of what the entry says, and the choice between that and what was there. To
// know the number, devices would have to complete a maximum of numbers, and to look up what it says,
// each would have to receive all that is written. But entries of a device come before those of the
// next one, so owners need no numbers: they are told what each device would write, and whether it
// does.
//
//   places 0 1 | 2 3 on two devices, entries a to 2, b to 1 | c to 2, d to 2
//     device 0 would write   - b a -    and sends  a -  to device 1
//     device 1 would write   - - d -    and sends  - -  to device 0
//     device 1 takes d for place 2, as it comes after device 0, which takes b for place 1
//
// Of T places and n entries of B bytes each of s devices sends (s - 1) / s * T * (B + 1 / 8), a bit
// for whether there is one, and not (s - 1) / s * (4 T + n B). Entries of neighbours may come together
// before that (groups.h): the groups then take the place of devices.
#pragma once
#include "multi/strategies/local_values.h"

namespace tinyshard {

// Returns, in place of the scattered numbers x of entries, for each place the number of the group
// of devices whose entry counts: from 1, and 0 if there is none, divided as `index` is. Nothing if
// x is something else, if somebody else reads the numbers, or if another way takes less time.
std::optional<LocalValue> writers(const UOp& x, const Mesh& mesh, const LocalValue& index,
                                  LocalValues& values);

// Returns the values that these entries write, in place of the lookup `gather`, which finds them by
// their numbers. Nothing if the numbers were left as they are.
std::optional<LocalValue> what_writers_say(const UOp& gather, LocalValues& values);

}  // namespace tinyshard
