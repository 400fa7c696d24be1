// Recorded cases of layers (nn.Conv2d) and optimizers (nn.optim.AdamW).
#pragma once
#include "tests/golden/golden_case.h"

namespace tinyshard::golden {

inline bool is_layer(const std::string& op) { return op.starts_with("nn."); }

// Makes the layer, sets its parameters, calls it; or makes the optimizer and its steps. The case's
// inputs become the tensors that gradients are taken for. Mismatch for one that is not known.
Tensors run_layer(Case& c);

}  // namespace tinyshard::golden
