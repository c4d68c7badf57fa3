// How tensors pass from op to op. Owns the rules that hold for every op whatever it computes: it is in this build's
// registry, has its arity, reads what has been written, writes what nothing else writes; then runs each op's own check.
// Never looks at the method's contract: contracts.h does.
#pragma once

#include "base/result.h"
#include "ops/graph.h"

namespace gemma4::program {

// Also resolves donor views (Tensor::view_of and its companions).
Status CheckDataflow(ops::Graph* graph);

}  // namespace gemma4::program
