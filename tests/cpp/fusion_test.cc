// Fusions (G6): each pattern is found and so is nothing beside it; fused passes read what was written; masks and devices leave
// out what they should.
#include <algorithm>

#include "check.h"
#include "footprint.h"
#include "program/contracts.h"
#include "program/loader.h"
#include "program/one_pass.h"
#include "program/recorder.h"
#include "sketch.h"
#include "test_limits.h"

namespace gemma4 {
namespace {

using program::OpChain;
using program::Plan;
using program::RouteTable;
using test::Sketch;
namespace schema = ops::schema;

constexpr const char* kMethod = GEMMA4_MTP ? "k2_round" : "text_decoder";
constexpr bool kMtp = GEMMA4_MTP;
using ops::kFusions;

Plan Load(uint32_t mask, std::string_view model = "q4", const gpu::Limits& limits = test::LargeLimits()) {
  return program::LoadProgram(test::ReadFile(test::DataPath(Text(model, "/", kMethod, ".g4p"))), kMethod, limits, mask)
      .value();
}

RouteTable TableOf(const Sketch& sketch, uint32_t mask = ops::kAllRoutes) {
  CHECK_OK(sketch.Check());
  return RouteTable::Make(sketch.graph, test::LargeLimits(), mask, Sketch::kRows, 3);
}

size_t Count(const RouteTable& table, std::string_view fusion) {
  return static_cast<size_t>(std::ranges::count_if(
      table.chains(), [&](const RouteTable::FusedChain& chain) { return chain.fusion == fusion; }));
}

std::string WayOf(const RouteTable& table, uint32_t op, ops::PassRows rows) {
  const ops::Route* route = nullptr;
  return table.ChainOf(op, rows, &route) == nullptr ? "unfused" : route->name;
}

// Every pass that a model records.
struct PassOfPlan {
  bool round = false;
  ops::PassRows rows;
};
std::vector<PassOfPlan> PassesOf(const Plan& plan) {
  std::vector<PassOfPlan> passes;
  for (uint32_t rows = 1; rows <= plan.header.prefill_rows; ++rows) passes.push_back({false, {rows, 1}});
  if (kMtp) passes.push_back({true, {program::kRoundRows, program::kRoundRows}});
  return passes;
}

// h = (residual + norm(x) w) scalar, y = norm(h) w; then x, residual, h and y are looked at once more by nobody.
struct NormPair : Sketch {
  static constexpr uint32_t kWidth = 12;
  uint32_t x = Activation("x", kWidth), residual = Activation("residual", kWidth), h = Activation("h", kWidth);
  uint32_t y = Activation("y", kWidth), w = Weight({kWidth}), scalar = Weight({1});
  uint32_t first = 0, second = 0;

  NormPair() {
    Source(x);
    Source(residual);
    first = Norm(kWidth, 1e-6f, Ids(x, w, residual, scalar), h);
    second = Norm(kWidth, 1e-6f, {static_cast<int32_t>(h), static_cast<int32_t>(w), -1, -1}, y);
  }
  // An op that writes the tensor.
  void Source(uint32_t tensor) {
    const uint32_t input = Tensor("input", schema::Storage_Input, {kRows, graph.tensors[tensor].dims[1]});
    Norm(graph.tensors[tensor].dims[1], 1e-6f, {static_cast<int32_t>(input), -1, -1, -1}, tensor);
  }
  static std::vector<int32_t> Ids(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return {static_cast<int32_t>(a), static_cast<int32_t>(b), static_cast<int32_t>(c), static_cast<int32_t>(d)};
  }
};

GEMMA4_TEST(NormPairsAreFused) {
  NormPair plain;
  const RouteTable table = TableOf(plain);
  CHECK_EQ(table.chains().size(), size_t{1});
  CHECK(table.chains()[0].ops == OpChain({plain.first, plain.second}));
  for (const ops::PassRows rows : {ops::PassRows{1, 1}, {5, 1}, {8, 1}, {3, 3}}) {
    CHECK_EQ(WayOf(table, plain.second, rows), "rms_norm_pair");
  }
  // Both results are written, so anybody may want them.
  NormPair kept;
  kept.graph.tensors[kept.h].retain = kept.graph.tensors[kept.y].retain = true;
  kept.Norm(NormPair::kWidth, 1e-6f, NormPair::Ids(kept.y, kept.w, kept.h, kept.scalar), kept.Activation("z", NormPair::kWidth));
  CHECK_EQ(TableOf(kept).chains().size(), size_t{1});
  CHECK_EQ(TableOf(plain, ops::kAllRoutes & ~ops::kRouteFuseNormPair).chains().size(), size_t{0});
  CHECK_EQ(TableOf(plain, ops::kRouteFuseNormPair).chains().size(), size_t{1});
}

GEMMA4_TEST(NormsThatAreNoPairRunOneByOne) {
  const auto chains_of = [](auto change) {
    NormPair pair;
    change(pair);
    return TableOf(pair).chains().size();
  };
  const auto op = [](NormPair& pair, uint32_t index) -> ops::Op& { return pair.graph.ops[index]; };
  const auto no = size_t{0};
  CHECK_EQ(chains_of([&](NormPair& pair) { op(pair, pair.first).inputs[2] = -1; }), no);
  CHECK_EQ(chains_of([&](NormPair& pair) { op(pair, pair.second).inputs[1] = -1; }), no);
  CHECK_EQ(chains_of([&](NormPair& pair) { op(pair, pair.second).inputs[2] = static_cast<int32_t>(pair.x); }), no);
  CHECK_EQ(chains_of([&](NormPair& pair) { op(pair, pair.second).inputs[3] = static_cast<int32_t>(pair.scalar); }), no);
  CHECK_EQ(chains_of([&](NormPair& pair) { op(pair, pair.second).inputs[0] = static_cast<int32_t>(pair.x); }), no);
  CHECK_EQ(chains_of([&](NormPair& pair) { op(pair, pair.second).role = schema::Role_Assistant; }), no);
  CHECK_EQ(chains_of([&](NormPair& pair) { op(pair, pair.second).phase = schema::Phase_Round; }), no);
  // Another eps, another width.
  for (const auto& [width, eps] : {std::pair{12u, 1e-5f}, {6u, 1e-6f}}) {
    CHECK_EQ(chains_of([&](NormPair& pair) {
               const auto weight = static_cast<int32_t>(pair.Weight({width}));
               pair.graph.ops.pop_back();
               pair.Norm(width, eps, {static_cast<int32_t>(pair.h), weight, -1, -1}, pair.y);
             }),
             no);
  }
  // Its own weight.
  CHECK_EQ(chains_of([&](NormPair& pair) {
             for (ops::Tensor& tensor : pair.graph.tensors) {
               if (tensor.storage == schema::Storage_Weight) continue;
               tensor.rows = schema::Rows_Fixed;
               tensor.dims = {1, NormPair::kWidth};
               tensor.elements = NormPair::kWidth;
             }
             op(pair, pair.second).inputs[1] = static_cast<int32_t>(pair.h);
           }),
           no);
  // A weight that is not there yet where the first norm stands.
  CHECK_EQ(chains_of([&](NormPair& pair) {
             const uint32_t late = pair.Tensor("late", schema::Storage_Activation, {1, NormPair::kWidth});
             pair.graph.tensors[late].rows = schema::Rows_Fixed;
             const ops::Op second = pair.graph.ops.back();
             pair.graph.ops.pop_back();
             const uint32_t input = pair.Weight({1, NormPair::kWidth});
             pair.Norm(NormPair::kWidth, 1e-6f, {static_cast<int32_t>(input), -1, -1, -1}, late);
             pair.graph.ops.push_back(second);
             pair.graph.ops.back().inputs[1] = static_cast<int32_t>(late);
           }),
           no);
}

// out = gelu(x . gate) * (x . up), as a feed-forward block has it; a wide tensor beside it.
struct GatedLinear : Sketch {
  static constexpr uint32_t kWidth = 64, kInner = 36;
  uint32_t x = Tensor("x", schema::Storage_Input, {kRows, kWidth}), a = Activation("a", kInner), b = Activation("b", kInner);
  uint32_t out = Activation("out", kInner), wide = Activation("wide", 3 * kInner);
  uint32_t gate = Linear(x, Weight({kInner, kWidth}, schema::Dtype_Q4), a);
  uint32_t up = Linear(x, Weight({kInner, kWidth}, schema::Dtype_Q4), b);
  uint32_t last = GeluMul(a, b, 0, out);
};

// Two products of one x are a chain of their own, where nothing else takes them.
constexpr uint32_t kGatedAlone = ops::kAllRoutes & ~ops::kRouteFuseTwoLinears;

GEMMA4_TEST(GatedLinearsAreFused) {
  GatedLinear plain;
  const RouteTable table = TableOf(plain);
  CHECK_EQ(table.chains().size(), size_t{1});
  CHECK_EQ(Count(table, "gated_linear"), size_t{1});
  CHECK(table.chains()[0].ops == OpChain({plain.gate, plain.up, plain.last}));
  CHECK_EQ(WayOf(table, plain.last, {1, 1}), "linear_q4_gated_m1");
  CHECK_EQ(WayOf(table, plain.last, {3, 3}), "linear_q4_gated_m3");
  CHECK_EQ(WayOf(table, plain.last, {3, 1}), "linear_q4_gated_m3");
  for (const uint32_t rows : {2u, 4u, 8u}) CHECK_EQ(WayOf(table, plain.last, {rows, 1}), "unfused");
  // G5: where the mask or the device lacks a form, or the form that it stands for, the next one is asked.
  const auto way = [&](uint32_t mask, uint32_t subgroup_lanes) {
    gpu::Limits limits = test::LargeLimits();
    limits.subgroup_lanes = subgroup_lanes;
    return WayOf(RouteTable::Make(plain.graph, limits, mask, Sketch::kRows, 3), plain.gate, {1, 1});
  };
  CHECK_EQ(way(ops::kAllRoutes, 32), "linear_q4_gated_m1_subgroup");
  CHECK_EQ(way(ops::kAllRoutes, 1), "linear_q4_gated_m1");
  CHECK_EQ(way(ops::kAllRoutes & ~ops::kRouteLinearM1Subgroup, 32), "linear_q4_gated_m1");
  CHECK_EQ(way(kGatedAlone & ~ops::kRouteLinearM1, 1), "unfused");
  CHECK_EQ(way(kGatedAlone & ~ops::kRouteFuseGatedLinear, 32), "unfused");
  CHECK_EQ(way(ops::kSoftwareRoutes, 4), "unfused");
}

GEMMA4_TEST(LinearsWithAGateAreFused) {
  for (const uint32_t offset : {0u, 36u, 72u}) {
    GatedLinear graph;
    graph.graph.ops.pop_back();
    graph.graph.ops.pop_back();
    graph.graph.tensors[graph.wide].storage = schema::Storage_Input;
    const uint32_t last = graph.GeluMul(graph.a, graph.wide, offset, graph.out);
    const RouteTable table = TableOf(graph);
    CHECK_EQ(Count(table, "linear_with_gate"), size_t{1});
    CHECK_EQ(WayOf(table, last, {3, 3}), "linear_q4_gated_m3");
    std::vector<ops::DispatchSpec> specs;
    const ops::Route* route = nullptr;
    table.ChainOf(last, {3, 3}, &route);
    route->record(ops::Site(graph.graph, table.chains()[0].ops), {3, 3}, test::LargeLimits(), specs);
    CHECK_EQ(test::FindOutOfBounds(graph.graph, specs), "");
    kernels::LinearQ4GatedM3Params params;
    std::memcpy(&params, specs[0].params.data(), sizeof(params));
    CHECK_EQ(params.offset, offset);
    CHECK_EQ(params.stride, 3 * GatedLinear::kInner);
  }
}

GEMMA4_TEST(LinearsThatAreNotGatedRunOneByOne) {
  const auto chains_of = [](auto change) {
    GatedLinear graph;
    change(graph);
    return TableOf(graph, kGatedAlone).chains().size();
  };
  const auto no = size_t{0};
  const auto read_again = [](GatedLinear& graph, uint32_t tensor) {
    graph.Norm(GatedLinear::kInner, 1e-6f, {static_cast<int32_t>(tensor), -1, -1, -1},
               graph.Activation("reader", GatedLinear::kInner));
  };
  CHECK_EQ(chains_of([&](GatedLinear& graph) { read_again(graph, graph.a); }), no);
  CHECK_EQ(chains_of([&](GatedLinear& graph) { graph.graph.tensors[graph.a].retain = true; }), no);
  CHECK_EQ(chains_of([&](GatedLinear& graph) { graph.graph.tensors[graph.a].storage = schema::Storage_Output; }), no);
  // The second product is somebody else's too, and does not exist yet where the first stands.
  CHECK_EQ(chains_of([&](GatedLinear& graph) { read_again(graph, graph.b); }), no);
  CHECK_EQ(chains_of([&](GatedLinear& graph) { graph.graph.tensors[graph.b].retain = true; }), no);
  // A weight in f32.
  for (const bool second : {false, true}) {
    CHECK_EQ(chains_of([&](GatedLinear& graph) {
               graph.graph.ops[second ? graph.up : graph.gate].inputs[1] =
                   static_cast<int32_t>(graph.Weight({GatedLinear::kInner, GatedLinear::kWidth}));
             }),
             no);
  }
  // Another x, of another width; a slice that is not the whole; other phases.
  CHECK_EQ(chains_of([&](GatedLinear& graph) {
             const uint32_t other = graph.Tensor("other", schema::Storage_Input, {Sketch::kRows, 96});
             graph.graph.ops[graph.up].inputs = {static_cast<int32_t>(other),
                                                 static_cast<int32_t>(graph.Weight({36, 96}, schema::Dtype_Q4))};
           }),
           no);
  CHECK_EQ(chains_of([&](GatedLinear& graph) {
             graph.graph.tensors[graph.b].dims = {Sketch::kRows, 2 * GatedLinear::kInner};
             graph.graph.ops[graph.up].inputs[1] =
                 static_cast<int32_t>(graph.Weight({2 * GatedLinear::kInner, GatedLinear::kWidth}, schema::Dtype_Q4));
             graph.graph.ops.pop_back();
             graph.GeluMul(graph.a, graph.b, 1, graph.out);
           }),
           no);
  CHECK_EQ(chains_of([&](GatedLinear& graph) { graph.graph.ops[graph.gate].phase = schema::Phase_Round; }), no);
  CHECK_EQ(chains_of([&](GatedLinear& graph) { graph.graph.ops[graph.last].phase = schema::Phase_Round; }), no);
  // The square of a product.
  CHECK_EQ(chains_of([&](GatedLinear& graph) {
             graph.graph.ops[graph.last].inputs[1] = static_cast<int32_t>(graph.a);
           }),
           no);
}

// Products of one x, the later ones behind an op that reads the first; each of a width of its own.
struct Linears : Sketch {
  static constexpr uint32_t kWidth = 64;
  uint32_t x = Tensor("x", schema::Storage_Input, {kRows, kWidth});
  std::vector<uint32_t> ops, outputs;

  explicit Linears(size_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t n = 20 + 4096 * i;
      outputs.push_back(Activation(Text("product ", i), n));
      ops.push_back(Linear(x, Weight({n, kWidth}, schema::Dtype_Q4), outputs[i]));
      Norm(n, 1e-6f, {static_cast<int32_t>(outputs[i]), -1, -1, -1}, Activation(Text("normed ", i), n));
    }
  }
};

GEMMA4_TEST(LinearsOfOneInputAreFused) {
  Linears three(3);
  const RouteTable table = TableOf(three);
  CHECK_EQ(table.chains().size(), size_t{1});
  CHECK_EQ(Count(table, "three_linears"), size_t{1});
  CHECK(table.chains()[0].ops == three.ops);
  CHECK_EQ(WayOf(table, three.ops[2], {1, 1}), "linear_q4_three_m1");
  CHECK_EQ(WayOf(table, three.ops[2], {3, 3}), "linear_q4_three_m3");
  CHECK_EQ(WayOf(table, three.ops[2], {4, 1}), "unfused");
  CHECK_EQ(WayOf(table, three.ops[0] + 1, {1, 1}), "unfused");
  // R12: each has the lanes that it has alone, and workgroups enough.
  std::vector<ops::DispatchSpec> fused, alone;
  const ops::Route* route = nullptr;
  table.ChainOf(three.ops[0], {3, 3}, &route);
  route->record(ops::Site(three.graph, three.ops), {3, 3}, test::LargeLimits(), fused);
  CHECK_EQ(test::FindOutOfBounds(three.graph, fused), "");
  for (const uint32_t op : three.ops) {
    table.Of(op, {3, 3})->record(ops::Site(three.graph, op), {3, 3}, test::LargeLimits(), alone);
  }
  kernels::LinearQ4ThreeM3Params params;
  std::memcpy(&params, fused[0].params.data(), sizeof(params));
  const std::pair<uint32_t, uint32_t> found[] = {
      {params.n_0, params.lanes_0}, {params.n_1, params.lanes_1}, {params.n_2, params.lanes_2}};
  uint64_t groups = 0;
  for (size_t i = 0; i < 3; ++i) {
    kernels::LinearQ4M3Params wanted;
    std::memcpy(&wanted, alone[i].params.data(), sizeof(wanted));
    CHECK(found[i] == std::pair(wanted.n, wanted.lanes));
    groups += alone[i].groups;
  }
  CHECK_EQ(fused[0].groups, groups);
}

// Ten storage buffers where the device has them, else keys and values together, else each alone.
// One dispatch has one form of scales: where the weights' differ, each runs alone.
GEMMA4_TEST(LinearsOfDifferentScalesRunOneByOne) {
  for (const bool alike : {false, true}) {
    Linears three(3);
    GatedLinear gated;
    for (ops::Tensor& tensor : three.graph.tensors) {
      if (tensor.dtype == schema::Dtype_Q4) tensor.group = 64, tensor.scales_bytes /= 2;
    }
    for (ops::Tensor& tensor : gated.graph.tensors) {
      if (tensor.dtype == schema::Dtype_Q4) tensor.scale_dtype = schema::ScaleDtype_F32, tensor.scales_bytes *= 2;
    }
    const auto weight = [](Sketch& sketch, uint32_t op) -> ops::Tensor& {
      return sketch.graph.tensors[static_cast<size_t>(sketch.graph.ops[op].inputs[1])];
    };
    if (!alike) weight(three, three.ops[1]).group = 32, weight(three, three.ops[1]).scales_bytes *= 2;
    if (!alike) weight(gated, gated.up).scale_dtype = schema::ScaleDtype_F16;
    CHECK_EQ(Count(TableOf(three), "three_linears"), size_t{alike});
    CHECK_EQ(Count(TableOf(gated), "gated_linear"), size_t{alike});
    if (!alike) continue;
    std::vector<ops::DispatchSpec> specs;
    const ops::Route* route = nullptr;
    const RouteTable table = TableOf(three);
    table.ChainOf(three.ops[0], {1, 1}, &route);
    route->record(ops::Site(three.graph, three.ops), {1, 1}, test::LargeLimits(), specs);
    kernels::LinearQ4ThreeM1Params params;
    std::memcpy(&params, specs[0].params.data(), sizeof(params));
    CHECK_EQ(params.group_shift, 2u);
    CHECK_EQ(params.flags, 0u);
    CHECK_EQ(test::FindOutOfBounds(three.graph, specs), "");
  }
}

// O10: what one binding does not hold is multiplied in parts, alone.
GEMMA4_TEST(LinearsAboveTheBindingLimitRunOneByOne) {
  const Linears three(3);
  const GatedLinear gated;
  CHECK_OK(three.Check());
  const auto fused = [](const Sketch& sketch, uint64_t limit) {
    gpu::Limits limits = test::LargeLimits();
    limits.max_storage_binding_bytes = limit;
    return RouteTable::Make(sketch.graph, limits, ops::kAllRoutes, Sketch::kRows, 3);
  };
  uint64_t largest = 0, gate = 0;
  for (const ops::Tensor& tensor : three.graph.tensors) {
    if (tensor.dtype == schema::Dtype_Q4) largest = std::max(largest, tensor.values_bytes);
  }
  for (const ops::Tensor& tensor : gated.graph.tensors) {
    if (tensor.dtype == schema::Dtype_Q4) gate = std::max(gate, tensor.values_bytes);
  }
  CHECK_EQ(Count(fused(three, largest), "three_linears"), size_t{1});
  CHECK_EQ(Count(fused(three, largest - 4), "three_linears"), size_t{0});
  CHECK_EQ(Count(fused(gated, gate), "gated_linear"), size_t{1});
  CHECK_EQ(Count(fused(gated, gate - 4), "gated_linear"), size_t{0});
}

GEMMA4_TEST(LinearsOfOneInputFallBack) {
  Linears three(3), two(2);
  gpu::Limits limits = test::LargeLimits();
  const auto table = [&](const Sketch& sketch, uint32_t mask) {
    return RouteTable::Make(sketch.graph, limits, mask, Sketch::kRows, 3);
  };
  CHECK_EQ(Count(table(two, ops::kAllRoutes), "two_linears"), size_t{1});
  CHECK_EQ(Count(table(three, ops::kAllRoutes & ~ops::kRouteFuseThreeLinears), "two_linears"), size_t{1});
  limits.max_storage_buffers_per_stage = 9;
  const RouteTable narrow = table(three, ops::kAllRoutes);
  CHECK_EQ(narrow.chains().size(), size_t{1});
  CHECK(narrow.chains()[0].ops == OpChain({three.ops[1], three.ops[2]}));
  CHECK_EQ(WayOf(narrow, three.ops[1], {1, 1}), "linear_q4_two_m1");
  CHECK_EQ(WayOf(narrow, three.ops[0], {1, 1}), "unfused");
  std::vector<ops::DispatchSpec> specs;
  const ops::Route* route = nullptr;
  narrow.ChainOf(three.ops[1], {1, 1}, &route);
  route->record(ops::Site(three.graph, narrow.chains()[0].ops), {1, 1}, limits, specs);
  CHECK_EQ(test::FindOutOfBounds(three.graph, specs), "");
  limits.max_storage_buffers_per_stage = 6;
  CHECK(table(three, ops::kAllRoutes).chains().empty());
  limits = test::LargeLimits();
  CHECK(table(three, ops::kAllRoutes & ~(ops::kRouteFuseThreeLinears | ops::kRouteFuseTwoLinears)).chains().empty());
}

GEMMA4_TEST(LinearsThatDoNotBelongTogetherRunOneByOne) {
  CHECK(TableOf(Linears(1)).chains().empty());
  CHECK(TableOf(Linears(4)).chains().empty());
  // One in f32, one of another phase: two are left where they do not depend on it.
  Linears dense(3);
  dense.graph.ops[dense.ops[0]].inputs[1] = static_cast<int32_t>(dense.Weight({20, Linears::kWidth}));
  CHECK_EQ(Count(TableOf(dense), "two_linears"), size_t{1});
  Linears phases(2);
  phases.graph.ops[phases.ops[1]].phase = schema::Phase_Round;
  CHECK(TableOf(phases).chains().empty());
  Linears inputs(2);
  inputs.graph.ops[inputs.ops[1]].inputs[0] = static_cast<int32_t>(
      inputs.Tensor("another x", schema::Storage_Input, {Sketch::kRows, Linears::kWidth}));
  CHECK(TableOf(inputs).chains().empty());
}

// Every pass of a plan, fused in every way, reads what was written, and its dispatches stay inside their buffers.
GEMMA4_TEST(FusedPassesReadWhatWasWritten) {
  for (const std::string_view model : {"f32", "q4", "all_logits"}) {
    for (const uint32_t mask : {0u, kFusions, ops::kAllRoutes, ops::kDefaultRoutes & ~kFusions, ops::kDefaultRoutes}) {
      const Plan plan = Load(mask, model);
      CHECK_EQ(plan.routes.chains().empty(), (mask & kFusions) == 0);
      for (const PassOfPlan& pass : PassesOf(plan)) {
        const std::vector<ops::DispatchSpec> specs = BuildPass(plan, pass.round, pass.rows);
        CHECK_OK(program::CheckRecorded(plan.graph, plan.memory, specs, pass.round));
        CHECK_EQ(test::FindOutOfBounds(plan.graph, specs), "");
      }
    }
  }
}

// The check above can fail: buffers that are planned for passes without fusions do not do for those with them.
GEMMA4_TEST(FusedPassesNeedTheirOwnLifetimes) {
  const Plan plan = Load(ops::kAllRoutes);
  const program::MemoryPlan careless = program::PlanMemory(plan.graph, {}, plan.limits).value();
  bool noticed = false;
  for (const PassOfPlan& pass : PassesOf(plan)) {
    noticed |= !program::CheckRecorded(plan.graph, careless, BuildPass(plan, pass.round, pass.rows), pass.round).ok();
  }
  CHECK(noticed);
}

// Every op runs once: in its chain, or by itself.
GEMMA4_TEST(FusedPassesHaveFewerDispatches) {
  const Plan fused = Load(ops::kDefaultRoutes), apart = Load(ops::kDefaultRoutes & ~kFusions);
  for (const PassOfPlan& pass : PassesOf(fused)) {
    size_t spared = 0;
    for (const RouteTable::FusedChain& chain : fused.routes.chains()) {
      const ops::Route* route = nullptr;
      const bool runs = pass.round || fused.graph.ops[chain.ops[0]].phase == schema::Phase_Always;
      if (runs && fused.routes.ChainOf(chain.ops[0], pass.rows, &route) != nullptr) spared += chain.ops.size() - 1;
    }
    CHECK(spared > 0);
    CHECK_EQ(BuildPass(fused, pass.round, pass.rows).size() + spared, BuildPass(apart, pass.round, pass.rows).size());
  }
}

// The record names fusions and their number of sites, and what was refused.
GEMMA4_TEST(FusionsStandInTheRecord) {
  const Plan plan = Load(ops::kDefaultRoutes);
  const std::string told = plan.ToJson();
  CHECK(told.find(Text("{\"fusion\":\"norm_pair\",\"count\":", Count(plan.routes, "norm_pair"))) != std::string::npos);
  CHECK(told.find("{\"route\":\"rms_norm_pair\"") == std::string::npos);
  const std::string apart = Load(ops::kDefaultRoutes & ~kFusions).ToJson();
  CHECK(apart.find("\"fusions\":[]") != std::string::npos);
  CHECK(apart.find("{\"route\":\"rms_norm_pair\",\"reason\":\"the route mask") != std::string::npos);
  gpu::Limits small = test::LargeLimits();
  small.max_storage_buffers_per_stage = 6;
  const Plan narrow = Load(ops::kDefaultRoutes & ~ops::kRouteAttentionDecode, "q4", small);
  CHECK_EQ(Count(narrow.routes, "norm_pair"), size_t{0});
  CHECK(narrow.ToJson().find("{\"route\":\"rms_norm_pair\",\"reason\":\"kernel rms_norm_pair needs 7 storage") !=
        std::string::npos);
}

}  // namespace
}  // namespace gemma4
