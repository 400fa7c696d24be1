// How steps are drawn, one function for each kind of op. Each looks for operands in the draft, adds
// leaves or steps that its step needs, and fills the step; false where nothing fits. Whether the
// value of a step is worth keeping is up to Draft::keep.
#pragma once
#include "tests/fuzz/draft.h"

namespace fuzz {

bool draw_unary(Draft& d, Step& s);
bool draw_binary(Draft& d, Step& s);
bool draw_comparison(Draft& d, Step& s);
bool draw_types(Draft& d, Step& s);
bool draw_making(Draft& d, Step& s);
bool draw_movement(Draft& d, Step& s);
bool draw_joining(Draft& d, Step& s);
bool draw_reduction(Draft& d, Step& s);
bool draw_identity(Draft& d, Step& s);
bool draw_norm(Draft& d, Step& s);
bool draw_scan(Draft& d, Step& s);
bool draw_ordering(Draft& d, Step& s);
bool draw_product(Draft& d, Step& s);
bool draw_indexing(Draft& d, Step& s);
bool draw_selection(Draft& d, Step& s);
bool draw_pooling(Draft& d, Step& s);
bool draw_layer(Draft& d, Step& s);
bool draw_decomposition(Draft& d, Step& s);
bool draw_statement(Draft& d, Step& s);

// Indices below n of this shape: integers of the draft modulo n, or a leaf; -1.
int draw_indices(Draft& d, const Shape& shape, int64_t n);

}  // namespace fuzz
