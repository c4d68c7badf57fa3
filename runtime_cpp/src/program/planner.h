// Memory of a program: which activations share a GPU buffer, and the totals. Pure functions of lifetimes and sizes;
// never allocates. Two tensors that live at the same time never share, so neither do an op's outputs and its inputs
// (WebGPU forbids one buffer read-only and writable in one dispatch). Weights, caches, inputs, outputs and retained
// tensors own their memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/context.h"
#include "ops/dispatch.h"
#include "ops/graph.h"
#include "program/fusions.h"

namespace gemma4::program {

// Ops [first, last], both included, during which the bytes must stay: first write to last read.
struct Lifetime {
  uint32_t first = 0;
  uint32_t last = 0;
  uint64_t bytes = 0;
};

struct SharedSlots {
  std::vector<uint32_t> slot;        // of each lifetime
  std::vector<uint64_t> slot_bytes;  // the largest tensor of each slot
};

// Largest first; each takes the first slot that is free for its whole life.
SharedSlots ShareSlots(std::span<const Lifetime> lifetimes);

constexpr uint32_t kNoSlot = UINT32_MAX;  // own memory, or none (views)

struct MemoryPlan {
  std::vector<uint32_t> slot;  // of each tensor, or kNoSlot
  std::vector<uint64_t> slot_bytes;
  uint64_t weight_bytes = 0;
  uint64_t cache_bytes = 0;
  uint64_t shared_bytes = 0;  // sum of slot_bytes
  uint64_t owned_bytes = 0;   // inputs, outputs, retained tensors
  ops::ScratchBytes scratch_bytes{};  // each is 0 where no route needs it
  uint64_t total_bytes = 0;
  std::string largest_tensor;  // of a single binding
  uint64_t largest_binding_bytes = 0;
};

// Plans the tensors of a validated graph. kLimitExceeded names the tensor and both numbers when it exceeds what a
// binding or a buffer may hold, or the total when no machine could hold it.
// `parts` (of each tensor, or none at all): the largest binding of a weight that is only ever bound in parts, else 0.
// `fused`: chains that some pass runs in the place of their first op and some pass op by op; both ways find their bytes.
Result<MemoryPlan> PlanMemory(const ops::Graph& graph, const ops::ScratchBytes& scratch, const gpu::Limits& limits,
                              std::span<const uint64_t> parts = {}, std::span<const OpChain> fused = {});

}  // namespace gemma4::program
