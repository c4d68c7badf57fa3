// Memory planning: sharing is safe, sizes add up, and what does not fit is refused with both numbers.
#include "check.h"
#include "program/planner.h"
#include "test_limits.h"

namespace gemma4 {
namespace {

using program::Lifetime;
using program::SharedSlots;
using test::LargeLimits;
using test::Random;
namespace schema = ops::schema;

void CheckSharing(const std::vector<Lifetime>& lifetimes) {
  const SharedSlots plan = program::ShareSlots(lifetimes);
  CHECK_EQ(plan.slot.size(), lifetimes.size());
  uint64_t naive = 0;
  for (size_t a = 0; a < lifetimes.size(); ++a) {
    naive += lifetimes[a].bytes;
    CHECK(plan.slot[a] < plan.slot_bytes.size());
    CHECK(plan.slot_bytes[plan.slot[a]] >= lifetimes[a].bytes);
    for (size_t b = 0; b < a; ++b) {
      const bool together = lifetimes[a].first <= lifetimes[b].last && lifetimes[b].first <= lifetimes[a].last;
      CHECK(!together || plan.slot[a] != plan.slot[b]);
    }
  }
  uint64_t planned = 0;
  for (const uint64_t bytes : plan.slot_bytes) planned += bytes;
  CHECK(planned <= naive);
}

GEMMA4_TEST(PlannerNeverSharesLiveTensors) {
  Random random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<Lifetime> lifetimes(1 + random.Below(80));
    for (Lifetime& lifetime : lifetimes) {
      lifetime.first = static_cast<uint32_t>(random.Below(100));
      lifetime.last = lifetime.first + static_cast<uint32_t>(random.Below(random.Below(4) == 0 ? 60 : 4));
      lifetime.bytes = 4 + 4 * random.Below(1000);
    }
    CheckSharing(lifetimes);
  }
  CheckSharing({});
}

// A chain x0 -> x1 -> x2 ... needs two buffers, whatever its length.
GEMMA4_TEST(PlannerReusesAlongAChain) {
  std::vector<Lifetime> chain;
  for (uint32_t i = 0; i < 50; ++i) chain.push_back({i, i + 1, 1024});
  CHECK_EQ(program::ShareSlots(chain).slot_bytes.size(), size_t{2});
}

ops::Tensor MakeTensor(std::string name, schema::Storage storage, uint64_t bytes) {
  ops::Tensor tensor;
  tensor.name = std::move(name);
  tensor.storage = storage;
  tensor.dims = {1, static_cast<uint32_t>(bytes / 4)};
  tensor.elements = bytes / 4;
  tensor.values_bytes = bytes;
  return tensor;
}

// in -> a -> b -> c(retained) -> out, each op one input and one output.
ops::Graph MakeChain() {
  ops::Graph graph;
  graph.tensors = {MakeTensor("in", schema::Storage_Input, 16),      MakeTensor("a", schema::Storage_Activation, 400),
                   MakeTensor("b", schema::Storage_Activation, 800), MakeTensor("c", schema::Storage_Activation, 1200),
                   MakeTensor("out", schema::Storage_Output, 8),     MakeTensor("w", schema::Storage_Weight, 4000),
                   MakeTensor("cache", schema::Storage_Cache, 2000)};
  graph.tensors[3].retain = true;
  for (uint32_t i = 0; i < 4; ++i) {
    ops::Op op;
    op.inputs = {static_cast<int32_t>(i), 5};
    op.outputs = {i + 1};
    graph.ops.push_back(std::move(op));
  }
  return graph;
}

GEMMA4_TEST(PlannerTotals) {
  const program::MemoryPlan plan = program::PlanMemory(MakeChain(), {}, LargeLimits()).value();
  CHECK_EQ(plan.weight_bytes, 4000u);
  CHECK_EQ(plan.cache_bytes, 2000u);
  CHECK_EQ(plan.owned_bytes, 16u + 1200u + 8u);
  CHECK_EQ(plan.shared_bytes, 400u + 800u);
  CHECK_EQ(plan.total_bytes, 4000u + 2000u + 1224u + 1200u);
  CHECK_EQ(plan.largest_tensor, "w");
  CHECK_EQ(plan.largest_binding_bytes, 4000u);
  for (const size_t own : {0, 3, 4, 5, 6}) CHECK_EQ(plan.slot[own], program::kNoSlot);
  CHECK(plan.slot[1] != plan.slot[2]);
}

GEMMA4_TEST(PlannerRefusesWhatTheAdapterCannotBind) {
  gpu::Limits limits = LargeLimits();
  limits.max_storage_binding_bytes = 3996;
  CHECK_REFUSED(program::PlanMemory(MakeChain(), {}, limits).status(), "tensor w", "4000", "3996");
  limits = LargeLimits();
  limits.max_buffer_bytes = 1996;
  CHECK_REFUSED(program::PlanMemory(MakeChain(), {}, limits).status(), "4000", "1996");
  limits.max_buffer_bytes = 4000;
  limits.max_storage_binding_bytes = 4000;
  CHECK_OK(program::PlanMemory(MakeChain(), {}, limits).status());
}

GEMMA4_TEST(PlannerRefusesAbsurdTotals) {
  ops::Graph graph = MakeChain();
  gpu::Limits limits = LargeLimits();
  limits.max_buffer_bytes = limits.max_storage_binding_bytes = uint64_t{1} << 40;
  for (int i = 0; i < 80; ++i) {
    graph.tensors.push_back(MakeTensor(Text("huge ", i), schema::Storage_Weight, uint64_t{16} << 30));
  }
  CHECK_REFUSED(program::PlanMemory(graph, {}, limits).status(), "GPU memory");
}

}  // namespace
}  // namespace gemma4
