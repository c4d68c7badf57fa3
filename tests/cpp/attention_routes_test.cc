// Guarded ways of attention: which passes take them, what they refuse, how many splits and how much scratch they need.
#include <algorithm>
#include <initializer_list>

#include "check.h"
#include "footprint.h"
#include "ops/attention.h"
#include "ops/attention_routes.h"
#include "program/loader.h"
#include "program/recorder.h"
#include "program/routes.h"
#include "test_limits.h"

namespace gemma4 {
namespace {

using kernels::AttentionParams;
using program::RouteTable;
using Ranges = std::vector<RouteTable::Range>;

constexpr const char* kMethod = GEMMA4_MTP ? "k2_round" : "text_decoder";
constexpr uint32_t kMaxRows = 20;

program::Plan LoadPlan() {
  return program::LoadProgram(test::ReadFile(test::DataPath(Text("f32/", kMethod, ".g4p"))), kMethod,
                              test::LargeLimits())
      .value();
}

AttentionParams Shape(uint32_t rows, uint32_t q_heads, uint32_t kv_heads, uint32_t head_dim, uint32_t capacity,
                      uint32_t window) {
  AttentionParams params;
  params.rows = rows;
  params.q_heads = q_heads;
  params.kv_heads = kv_heads;
  params.head_dim = head_dim;
  params.capacity = capacity;
  params.window = window;
  return params;
}

// Ways of every attention whose rows are the pass's.
void CheckWays(const gpu::Limits& limits, uint32_t mask, const Ranges& wanted) {
  const program::Plan plan = LoadPlan();
  const RouteTable table = RouteTable::Make(plan.graph, limits, mask, kMaxRows, GEMMA4_MTP ? 3 : 0);
  size_t seen = 0;
  for (uint32_t op = 0; op < plan.graph.ops.size(); ++op) {
    if (plan.graph.ops[op].kind != ops::schema::OpKind_Attention) continue;
    const ops::Site site(plan.graph, op);
    if (ops::MatrixRows(site.in(0)).kind != ops::schema::Rows_Pass) continue;
    ++seen;
    CHECK(table.RangesOf(op) == wanted);
    for (uint32_t rows = 1; rows <= kMaxRows; ++rows) {
      std::vector<ops::DispatchSpec> specs;
      if (const ops::Route* route = table.Of(op, {rows, 1})) route->record(site, {rows, 1}, limits, specs);
      if (rows <= 8) CHECK_EQ(test::FindOutOfBounds(plan.graph, specs), "");  // tensors have 8 rows
    }
  }
  CHECK_EQ(seen, size_t{3});  // the layers that own a cache; the others see the tail alone
}

const ops::Route* const kDecode = &ops::kAttentionRoutes[0];
const ops::Route* const kStreaming = &ops::kAttentionRoutes[1];
const ops::Route* const kMaterialised = &ops::kAttentionRoutes[2];

// G5: few rows are split, more stream, and what the mask or the device leaves out is the generic kernel's.
GEMMA4_TEST(AttentionWaysByRows) {
  CheckWays(test::LargeLimits(), ops::kAllRoutes, {{1, 8, kDecode}, {9, kMaxRows, kStreaming}});
  CheckWays(test::LargeLimits(), ops::kRouteAttentionDecode, {{1, 8, kDecode}, {9, kMaxRows, nullptr}});
  CheckWays(test::LargeLimits(), ops::kRouteAttentionStreaming, {{1, 8, nullptr}, {9, kMaxRows, kStreaming}});
  CheckWays(test::LargeLimits(), 0, {{1, kMaxRows, nullptr}});
  // All scores in memory: only where streaming is left out and this way is asked for, or streaming does not fit the device.
  constexpr uint32_t kAsked = ops::kAllRoutes & ~ops::kRouteAttentionStreaming;
  CheckWays(test::LargeLimits(), kAsked, {{1, 8, kDecode}, {9, kMaxRows, kMaterialised}});
  CheckWays(test::LargeLimits(), ops::kRouteAttentionMaterialised, {{1, 8, nullptr}, {9, kMaxRows, kMaterialised}});
  CheckWays(test::LargeLimits(), kAsked & ops::kDefaultRoutes, {{1, 8, kDecode}, {9, kMaxRows, nullptr}});
  gpu::Limits small = test::LargeLimits();
  small.max_invocations_per_workgroup = 64;
  CheckWays(small, ops::kDefaultRoutes, {{1, 8, kDecode}, {9, kMaxRows, nullptr}});
  CheckWays(small, ops::kAllRoutes, {{1, 8, kDecode}, {9, kMaxRows, kMaterialised}});
  small.max_workgroup_storage_bytes = 1024;
  CheckWays(small, ops::kAllRoutes, {{1, kMaxRows, nullptr}});
}

GEMMA4_TEST(AttentionGuardsFailClosed) {
  const gpu::Limits limits = test::LargeLimits();
  CHECK(ops::DecodeTakes(Shape(1, 8, 1, 512, 8962, 0), limits));
  CHECK(ops::DecodeTakes(Shape(8, 11, 1, 4, 1, 1), limits));
  CHECK(ops::StreamingTakes(Shape(9, 8, 1, 256, 1023, 512)));
  CHECK(ops::StreamingTakes(Shape(512, 16, 1, 512, 8962, 0)));
  CHECK(!ops::DecodeTakes(Shape(9, 8, 1, 256, 1023, 512), limits));
  CHECK(!ops::StreamingTakes(Shape(8, 8, 1, 256, 1023, 512)));
  CHECK(!ops::StreamingTakes(Shape(9, 17, 1, 256, 1023, 512)));
  for (const uint32_t head_dim : {0u, 1u, 6u, 255u, 516u}) {
    CHECK(!ops::DecodeTakes(Shape(1, 8, 1, head_dim, 1023, 512), limits));
    CHECK(!ops::StreamingTakes(Shape(9, 8, 1, head_dim, 1023, 512)));
  }
  for (const auto& wrong : {Shape(1, 7, 2, 64, 99, 0), Shape(1, 8, 0, 64, 99, 0), Shape(1, 0, 1, 64, 99, 0),
                            Shape(1, 8, 1, 64, 0, 0), Shape(0, 8, 1, 64, 99, 0)}) {
    CHECK(!ops::DecodeTakes(wrong, limits));
    AttentionParams more = wrong;
    more.rows *= 9;
    CHECK(!ops::StreamingTakes(more));
  }
  // 8 rows * 8 heads * 128 splits * 512 values of 4 bytes.
  gpu::Limits tight = limits;
  tight.max_storage_binding_bytes = 16777216;
  CHECK(ops::DecodeTakes(Shape(8, 8, 1, 512, 8962, 0), tight));
  tight.max_storage_binding_bytes -= 4;
  CHECK(!ops::DecodeTakes(Shape(8, 8, 1, 512, 8962, 0), tight));
  CHECK(ops::DecodeTakes(Shape(7, 8, 1, 512, 8962, 0), tight));
}

// G3, G8: only where every visible position has a slot, and all scores fit one binding.
GEMMA4_TEST(MaterialisedAttentionGuardFailsClosed) {
  const gpu::Limits limits = test::LargeLimits();
  CHECK(ops::MaterialisedTakes(Shape(9, 8, 1, 256, 1023, 512), limits));
  CHECK(ops::MaterialisedTakes(Shape(512, 40, 2, 512, 8962, 0), limits));
  CHECK(ops::MaterialisedTakes(Shape(9, 8, 1, 256, 512, 512), limits));
  CHECK(!ops::MaterialisedTakes(Shape(9, 8, 1, 256, 511, 512), limits));
  CHECK(!ops::MaterialisedTakes(Shape(8, 8, 1, 256, 1023, 512), limits));
  for (const uint32_t head_dim : {0u, 1u, 6u, 255u, 516u}) {
    CHECK(!ops::MaterialisedTakes(Shape(9, 8, 1, head_dim, 1023, 512), limits));
  }
  for (const auto& wrong : {Shape(9, 7, 2, 64, 99, 0), Shape(9, 8, 0, 64, 99, 0), Shape(9, 0, 1, 64, 99, 0),
                            Shape(9, 8, 1, 64, 0, 0), Shape(0, 8, 1, 64, 99, 0)}) {
    CHECK(!ops::MaterialisedTakes(wrong, limits));
  }
  // The default limits: 468 rows of 8 heads over 8962 slots of 4 bytes.
  gpu::Limits tight = limits;
  tight.max_storage_binding_bytes = 134217728;
  CHECK(ops::MaterialisedTakes(Shape(468, 8, 1, 512, 8962, 0), tight));
  CHECK(!ops::MaterialisedTakes(Shape(469, 8, 1, 512, 8962, 0), tight));
  tight.max_storage_binding_bytes = limits.max_storage_binding_bytes;
  tight.max_buffer_bytes = 468 * 8 * 8962 * 4 - 4;
  CHECK(!ops::MaterialisedTakes(Shape(468, 8, 1, 512, 8962, 0), tight));
  CHECK(ops::MaterialisedTakes(Shape(467, 8, 1, 512, 8962, 0), tight));
}

// As many as the chunks of 16 that any visible run touches, and never more than the combining kernel may have to wait for.
GEMMA4_TEST(AttentionSplitsCoverEveryRun) {
  for (const uint32_t window : {0u, 1u, 2u, 15u, 16u, 17u, 31u, 64u, 512u}) {
    for (const uint32_t capacity : {1u, 15u, 16u, 17u, 64u, 700u}) {
      uint32_t most = 0;
      for (uint32_t p = 0; p < (window == 0 ? capacity : capacity + 64); ++p) {
        const uint32_t visible = std::min(window == 0 ? p + 1 : std::min(window, capacity), p + 1);
        const uint32_t first = p + 1 - visible;
        most = std::max(most, p / 16 - first / 16 + 1);
      }
      CHECK_EQ(ops::AttentionSplits(Shape(1, 8, 1, 64, capacity, window)), most);
    }
  }
  CHECK_EQ(ops::AttentionSplits(Shape(1, 8, 1, 256, 1023, 512)), 33u);
  CHECK_EQ(ops::AttentionSplits(Shape(3, 8, 1, 512, 8962, 0)), 128u);
}

// P33: a row of a round has the splits of a row alone.
GEMMA4_TEST(AttentionScratchAndSplitsOfARound) {
  const program::Plan plan = LoadPlan();
  const gpu::Limits limits = test::LargeLimits();
  for (uint32_t op = 0; op < plan.graph.ops.size(); ++op) {
    if (plan.graph.ops[op].kind != ops::schema::OpKind_Attention) continue;
    const ops::Site site(plan.graph, op);
    std::vector<ops::DispatchSpec> one, three;
    ops::RecordAttentionDecode(site, {1, 1}, limits, one);
    ops::RecordAttentionDecode(site, {3, 3}, limits, three);
    CHECK_EQ(one.size(), size_t{2});
    kernels::AttentionDecodeSplitParams alone, together;
    std::memcpy(&alone, one[0].params.data(), sizeof(alone));
    std::memcpy(&together, three[0].params.data(), sizeof(together));
    CHECK_EQ(alone.splits, together.splits);
    const uint64_t partials = uint64_t{together.rows} * together.q_heads * together.splits;
    CHECK_EQ(three[0].scratch[0], partials * together.head_dim * 4);
    CHECK_EQ(three[0].scratch[1], partials * 16);
    CHECK(three[1].scratch == three[0].scratch);
  }
}

}  // namespace
}  // namespace gemma4
