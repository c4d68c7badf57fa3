// Chains of ops that one kernel can run (G6). Finds them in a validated graph by strict patterns: whatever departs from one is
// no chain, and runs op by op. Pure data; never changes the graph, and leaves to program/routes.h which chains are run fused.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/graph.h"
#include "ops/route.h"

namespace gemma4::program {

// Ascending op indices of one phase. All of them run in the place of the first, where every input that comes from outside
// the chain is there already. Nobody but the chain reads what its kernel does not write.
using OpChain = std::vector<uint32_t>;

// A pattern and the kernels that run it.
struct Fusion {
  const char* name = "";  // in records
  std::span<const ops::Route> routes;
  // Chains of ops that are not `taken`, without a common op.
  std::vector<OpChain> (*find)(const ops::Graph& graph, const std::vector<bool>& taken) = nullptr;
};

// In the order in which they take ops.
std::span<const Fusion> Fusions();

}  // namespace gemma4::program
