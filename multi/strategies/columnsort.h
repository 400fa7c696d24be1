// Sorting a row that is divided over the devices of a mesh axis, without bringing it to any of them:
// Leighton's columnsort. What is sent does not depend on the values, as that of a sort by samples
// would. Each of s devices has a column of r elements, where s divides r:
//
//                                                      1 0 2 5 | 3 4 6 7
//   1  sorts its column                                0 1 2 5 | 3 4 6 7
//   2  deals it: element i goes to device i mod s      0 2 3 6 | 1 5 4 7     an all-to-all
//   3  sorts what it got                               0 2 3 6 | 1 4 5 7
//   4  gives block b of r / s to device b              0 2 1 4 | 3 6 5 7     an all-to-all
//   5  sorts what it got                               0 1 2 4 | 3 5 6 7
//   6  changes its last h elements with the first h    0 1 2 3 | 4 5 6 7     with neighbours
//      of the device behind it, where those are less
//   7  sorts its first e elements, and its last e
//
// In step 6 the windows are compared pair by pair, one of them in reverse: then the smaller ones of
// all pairs are the smallest h of both.
//
// Why that is enough. What only compares sorts everything if it sorts zeros and ones. After 1 the
// zeros of a column lead, so each column deals any two devices the same number of zeros, or one more
// to the one that stands before: after 3 the counts of zeros fall from device to device, by s at
// most in all. Step 4 reads this table [r / s, s] of columns row by row. Rows that are neither all
// zeros nor all ones are s at most and follow each other, so of the ends of devices, which are r / s
// rows apart, at most one is inside of them if r / s >= s - 1; all else is in order after 5.
//
// At that end some g columns have zeros behind it, u each at most, and the s - g others ones before
// it, v each at most, with u + v <= s. The fewer of both have to cross over, which step 6 does, as
//
//   min(g u, (s - g) v) <= sqrt(g (s - g) u v) <= s / 2 * s / 2,  so h = s * s / 4 rounded down
//
// and windows at both ends of a column do not meet, as r >= s (s - 1) >= 2 h. Where both are there, g,
// u, s - g and v are s - 1 at most: zeros and ones are mixed in e = (s - 1) (s - 1) elements on each
// side. All three bounds are tight for s from 2 to 4 (tests/multi/sort_along_shards_test.cpp).
//
// What travels: 2 (s - 1) / s of what a device has and a few elements, where to gather the row takes
// s - 1 times what a device has. A million f32 on four devices: 1.5 MB and not 3 MB.
//
// Elements that are equal lose their order on the way. Where that counts their places travel as well,
// and are compared where keys are equal.
//
// The gradient of what is sorted goes the same way back: each device knows in which order it has put
// its elements in each step, so it undoes them from 7 to 1, each exchange by its inverse. In the
// picture the gradient of 3 arrives at the last place of device 0. Step 6 brought 3 there from the
// first place of device 1, step 4 from the third of device 0, and step 2 from the first of device 1,
// where it was from the beginning.
#pragma once
#include <functional>

#include "multi/redistribute.h"

namespace tinyshard {

struct Columns {
  int64_t length, devices;  // of the row
  int64_t part;             // elements that a device has of it, the last ones fewer
  int64_t rows;             // r: what a device has with padding, which comes last of all
  int64_t window, mixed;    // h and e

  // Returns whether the parts are long enough.
  bool suffice() const { return devices > 1 && rows >= devices * (devices - 1); }
  // Elements of a row that a device sends in each all-to-all, and to its neighbours, at most.
  int64_t dealt() const { return rows / devices * (devices - 1); }
  int64_t to_neighbours() const;
};
Columns columns_of(int64_t length, int64_t devices);

// Says how sorted values are compared.
struct ColumnKeys {
  std::function<UOp(const UOp&)> of;  // unsigned keys of them
  UOp last;                           // a constant that no value comes after
};

// The way that each element took, as devices know it: in which order each had its elements after
// steps 1, 3, 5 and 7, and which of the elements at its ends crossed over in step 6.
struct ColumnRoute {
  UOp first, dealt, blocks, ends;
  UOp crossed;
};

// Rows that lie as the values did, sorted along their last dim, and of each element its i32 place in
// the row, of equal keys the earlier one first. Without places equal keys come in any order.
struct SortedColumns {
  UOp values, places;
  ColumnRoute route;
};
SortedColumns sorted_columns(const LocalValue& values, DimSpan global, int axis,
                             const ColumnKeys& keys, bool with_places);

// The way back: elements that lie as sorted ones do, each to where the one came from that is sorted
// to its place. It is as long as the way there, and no keys and no places travel on it.
UOp columns_put_back(const LocalValue& sorted, DimSpan global, int axis, const ColumnRoute& route);

}  // namespace tinyshard
