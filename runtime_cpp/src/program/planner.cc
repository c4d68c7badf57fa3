#include "program/planner.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"

namespace gemma4::program {

namespace {

using ops::Graph;
using ops::Tensor;
namespace schema = ops::schema;

// More than any machine with a WebGPU browser has; a larger sum is a malformed program.
constexpr uint64_t kLargestTotalBytes = uint64_t{1} << 40;

bool Overlap(const Lifetime& a, const Lifetime& b) { return a.first <= b.last && b.first <= a.last; }

// Lifetime of every tensor that may share; index of the tensor beside it.
struct Candidates {
  std::vector<uint32_t> tensor;
  std::vector<Lifetime> lifetime;
};

Candidates FindCandidates(const Graph& graph, std::span<const OpChain> fused) {
  constexpr uint32_t kUnseen = UINT32_MAX;
  std::vector<Lifetime> all(graph.tensors.size(), Lifetime{kUnseen, 0, 0});
  // The tensors of an op that runs in the place of another one.
  const auto touch_all = [&](uint32_t op, uint32_t place) {
    const auto touch = [&](uint32_t tensor) {
      all[tensor].first = std::min(all[tensor].first, place);
      all[tensor].last = std::max(all[tensor].last, place);
    };
    for (const int32_t tensor : graph.ops[op].inputs) {
      if (tensor >= 0) touch(static_cast<uint32_t>(tensor));
    }
    for (const uint32_t tensor : graph.ops[op].outputs) touch(tensor);
  };
  for (uint32_t i = 0; i < graph.ops.size(); ++i) touch_all(i, i);
  for (const OpChain& chain : fused) {
    for (const uint32_t op : chain) touch_all(op, chain.front());
  }
  Candidates found;
  for (uint32_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.storage != schema::Storage_Activation || tensor.retain || all[t].first == kUnseen) continue;
    all[t].bytes = tensor.values_bytes;
    found.tensor.push_back(t);
    found.lifetime.push_back(all[t]);
  }
  return found;
}

Status CheckBinding(const std::string& name, uint64_t binding, uint64_t bytes, const gpu::Limits& limits) {
  if (binding > limits.max_storage_binding_bytes) {
    return LimitExceeded(Text("tensor ", name, " needs a binding of ", binding, " bytes; this adapter allows ",
                              limits.max_storage_binding_bytes));
  }
  if (bytes > limits.max_buffer_bytes) {
    return LimitExceeded(
        Text("tensor ", name, " needs a buffer of ", bytes, " bytes; this adapter allows ", limits.max_buffer_bytes));
  }
  return {};
}

}  // namespace

SharedSlots ShareSlots(std::span<const Lifetime> lifetimes) {
  std::vector<uint32_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
  SharedSlots plan;
  plan.slot.assign(lifetimes.size(), kNoSlot);
  std::vector<std::vector<uint32_t>> members;  // of each slot
  for (const uint32_t candidate : order) {
    const auto is_free = [&](const std::vector<uint32_t>& slot) {
      return std::none_of(slot.begin(), slot.end(),
                          [&](uint32_t member) { return Overlap(lifetimes[member], lifetimes[candidate]); });
    };
    const auto place = std::find_if(members.begin(), members.end(), is_free);
    const auto slot = static_cast<uint32_t>(place - members.begin());
    if (place == members.end()) {
      members.emplace_back();
      plan.slot_bytes.push_back(lifetimes[candidate].bytes);
    }
    members[slot].push_back(candidate);
    plan.slot[candidate] = slot;
  }
  return plan;
}

Result<MemoryPlan> PlanMemory(const Graph& graph, const ops::ScratchBytes& scratch, const gpu::Limits& limits,
                              std::span<const uint64_t> parts, std::span<const OpChain> fused) {
  MemoryPlan plan;
  plan.scratch_bytes = scratch;
  for (const uint64_t bytes : scratch) {
    GEMMA4_RETURN_IF_ERROR(CheckBinding("scratch", bytes, bytes, limits));
    plan.total_bytes += bytes;
  }
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const Tensor& tensor = graph.tensors[i];
    if (tensor.storage == schema::Storage_View) continue;
    const uint64_t whole = std::max(tensor.values_bytes, tensor.scales_bytes);
    const bool in_parts = i < parts.size() && parts[i] != 0 && tensor.storage == schema::Storage_Weight;
    const uint64_t largest = in_parts ? parts[i] : whole;
    GEMMA4_RETURN_IF_ERROR(CheckBinding(tensor.name, largest, whole, limits));
    if (largest > plan.largest_binding_bytes) {
      plan.largest_binding_bytes = largest;
      plan.largest_tensor = tensor.name;
    }
    const uint64_t bytes = tensor.values_bytes + tensor.scales_bytes;
    switch (tensor.storage) {
      case schema::Storage_Weight:
        plan.weight_bytes += bytes;
        break;
      case schema::Storage_Cache:
        plan.cache_bytes += bytes;
        break;
      case schema::Storage_Activation:
        if (tensor.retain) plan.owned_bytes += bytes;
        break;
      default:
        plan.owned_bytes += bytes;
    }
  }
  const Candidates candidates = FindCandidates(graph, fused);
  SharedSlots shared = ShareSlots(candidates.lifetime);
  plan.slot.assign(graph.tensors.size(), kNoSlot);
  for (size_t i = 0; i < candidates.tensor.size(); ++i) plan.slot[candidates.tensor[i]] = shared.slot[i];
  plan.slot_bytes = std::move(shared.slot_bytes);
  plan.shared_bytes = std::accumulate(plan.slot_bytes.begin(), plan.slot_bytes.end(), uint64_t{0});
  plan.total_bytes += plan.weight_bytes + plan.cache_bytes + plan.shared_bytes + plan.owned_bytes;
  if (plan.total_bytes > kLargestTotalBytes) {
    return LimitExceeded(Text("the program needs ", plan.total_bytes, " bytes of GPU memory, more than the ",
                              kLargestTotalBytes, " that any program may need"));
  }
  return plan;
}

}  // namespace gemma4::program
