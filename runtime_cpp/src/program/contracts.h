// The contract of the two methods: which inputs and outputs, in which order; how drafts, accept step and state hang
// together; ring capacities; query positions; embedding scale; census. Owns every rule that knows what a program is
// for. Runs after dataflow.h, so indices, arity and shapes of single ops hold already.
#pragma once

#include "base/result.h"
#include "program/plan.h"

namespace gemma4::program {

constexpr uint32_t kDrafts = 2;     // K
constexpr uint32_t kRoundRows = 3;  // K + 1 rows are verified

// Rows of the largest pass, and how many of them want logits at most.
uint32_t LargestPassRows(const Header& header);
uint32_t LargestTailRows(const Header& header);

Status CheckContracts(const Plan& plan);

}  // namespace gemma4::program
