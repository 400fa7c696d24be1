// The graph itself, for programs that look at it, rewrite it or add to it: #include <tinyshard/uop.h>,
// beside <tinyshard/tinyshard.h>. docs/uops.md shows each with an example.
//
//   UOp, Op, print()                 nodes of graphs: op, sources, type, shape, argument
//   Pattern, PatternMatcher          rules; graph_rewrite() applies them to a graph
//   ProgramPass, PassScope           a rewrite of everything that is planned while a scope is open
//   custom_kernel                    a kernel written in UOps
//   Function                         a function with a gradient of its own
#pragma once
#include "core/passes/program_pass.h"
#include "core/rewrite/match.h"
#include "core/tensor/custom_kernel.h"
#include "core/tensor/function.h"
#include "core/tensor/tensor_graph.h"
#include "core/uop/args.h"
#include "core/uop/expressions.h"
#include "core/uop/uop.h"
