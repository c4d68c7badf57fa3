// Routes of a 4-bit linear op (O6, G1-G5): which way for how many rows, on what device, and that every row count has one.
#include <algorithm>
#include <random>

#include "one_op.h"
#include "ops/linear_routes.h"
#include "test_limits.h"

namespace gemma4 {
namespace {

using test::LargeLimits;
using test::MakeTensor;
using test::OneOp;
namespace schema = ops::schema;

constexpr uint32_t kMaxRows = 512;

// A linear op of these sizes whose rows are those of the pass.
class Linear {
 public:
  Linear(uint32_t k, uint32_t n, schema::Dtype dtype = schema::Dtype_Q4)
      : op_(schema::OpKind_Linear, builder_, schema::CreateLinear(builder_).Union(),
            {Rows(k), Weight(n, k, dtype)}, {Rows(n)}) {}

  std::string Way(uint32_t rows, const gpu::Limits& limits, uint32_t mask = ops::kAllRoutes) {
    return op_.Way(limits, mask, {rows, 1}, kMaxRows);
  }
  program::RouteTable Table(const gpu::Limits& limits, uint32_t mask) const {
    return program::RouteTable::Make(op_.graph, limits, mask, kMaxRows, 3);
  }
  // Other scales of the 4-bit weight.
  void SetScales(uint32_t group, schema::ScaleDtype scale_dtype) {
    ops::Tensor& weight = op_.graph.tensors[1];
    weight.group = group;
    weight.scale_dtype = scale_dtype;
    const uint64_t bytes = weight.elements / group * (scale_dtype == schema::ScaleDtype_F32 ? 4 : 2);
    weight.scales_bytes = (bytes + 3) / 4 * 4;
  }
  const std::vector<ops::DispatchSpec>& specs() const { return op_.specs; }

 private:
  static ops::Tensor Rows(uint32_t width) {
    ops::Tensor tensor = MakeTensor(schema::Dtype_F32, {kMaxRows, width});
    tensor.rows = schema::Rows_Pass;
    return tensor;
  }
  static ops::Tensor Weight(uint32_t n, uint32_t k, schema::Dtype dtype) {
    ops::Tensor tensor = MakeTensor(dtype, {n, k});
    tensor.storage = schema::Storage_Weight;
    if (dtype == schema::Dtype_Q4) {
      tensor.values_bytes = tensor.elements / 2;
      tensor.scales_bytes = (tensor.elements / 32 * 2 + 3) / 4 * 4;
    }
    return tensor;
  }
  flatbuffers::FlatBufferBuilder builder_;
  OneOp op_;
};

gpu::Limits Gpu(uint32_t subgroup_lanes, bool f16) {
  gpu::Limits limits = LargeLimits();
  limits.subgroup_lanes = subgroup_lanes;
  limits.shader_f16 = f16;
  limits.packed_dot = true;
  return limits;
}

gpu::Limits Matrix() {
  gpu::Limits limits = Gpu(32, true);
  limits.buffer_view = limits.matrix_unit = true;
  limits.max_workgroup_storage_bytes = 49152;
  return limits;
}

// O6: chosen at M == 3 only, again after other row counts, and an M = 3 that may not take it names its fallback.
GEMMA4_TEST(LinearOfThreeRowsHasItsOwnRoute) {
  Linear linear(1536, 2048);
  const gpu::Limits limits = Gpu(32, false);
  for (const uint32_t rows : {1u, 3u, 4u, 3u}) {
    CHECK_EQ(linear.Way(rows, limits),
             rows == 1 ? "linear_q4_m1_subgroup" : rows == 3 ? "linear_q4_m3_subgroup" : "linear_q4_tiled");
  }
  CHECK_EQ(linear.Way(3, Gpu(1, false)), "linear_q4_m3");
  CHECK_EQ(linear.Way(3, limits, ops::kRouteLinearM1 | ops::kRouteLinearTiled), "linear_q4_tiled");
  CHECK_EQ(linear.Way(3, limits, ops::kRouteLinearM1), "generic");
  Linear dense(1536, 2048, schema::Dtype_F32);
  for (const uint32_t rows : {1u, 3u, 64u}) CHECK_EQ(dense.Way(rows, limits), "generic");
}

// R12: one row and three share the threads of a column in the same way, whatever the device.
GEMMA4_TEST(LinearOfOneRowAndThreeSplitTheirColumnsAlike) {
  for (const uint32_t subgroup : {1u, 4u, 8u, 32u}) {
    for (const auto& [k, n] : {std::pair{32u, 5u}, {256u, 1536u}, {1536u, 256u}, {1536u, 6144u}, {6144u, 1536u}}) {
      Linear linear(k, n);
      kernels::LinearQ4M1Params one;
      kernels::LinearQ4M3Params three;
      linear.Way(1, Gpu(subgroup, false));
      std::memcpy(&one, linear.specs()[0].params.data(), sizeof(one));
      const uint64_t groups = linear.specs()[0].groups;
      linear.Way(3, Gpu(subgroup, false));
      std::memcpy(&three, linear.specs()[0].params.data(), sizeof(three));
      CHECK_EQ(one.lanes, three.lanes);
      CHECK_EQ(one.subgroup, three.subgroup);
      CHECK_EQ(groups, linear.specs()[0].groups);
      CHECK(one.lanes >= 4 && one.lanes <= 128 && (one.lanes & (one.lanes - 1)) == 0);
      CHECK(one.subgroup <= one.lanes && one.subgroup <= subgroup);
    }
  }
}

// Wide weights go over digits of x, which takes a language feature and hardware that has it.
GEMMA4_TEST(LinearOfAWideWeightGoesOverDigits) {
  Linear head(1536, 32768);
  gpu::Limits limits = Gpu(32, false);
  const auto way = [&](uint32_t rows, uint32_t mask) { return head.Way(rows, limits, mask); };
  CHECK_EQ(way(1, ops::kDefaultRoutes), "linear_q4_dp4a_subgroup");
  CHECK_EQ(head.specs().size(), size_t{2});
  CHECK_EQ(head.specs()[1].groups, uint64_t{32768 / 4 / 16});
  CHECK_EQ(way(3, ops::kDefaultRoutes), "linear_q4_dp4a_m3_subgroup");
  CHECK_EQ(head.specs()[1].scratch[0], uint64_t{3 * 1536 / 32 * 96});
  CHECK_EQ(head.specs()[1].scratch[1], uint64_t{3 * 1536 / 32 * 4});
  CHECK_EQ(way(4, ops::kDefaultRoutes), "linear_q4_tiled");
  CHECK_EQ(way(1, ops::kDefaultRoutes & ~ops::kDotRoutes), "linear_q4_m1_subgroup");
  limits.packed_dot = false;
  CHECK_EQ(way(3, ops::kDefaultRoutes), "linear_q4_m3_subgroup");
  limits = Gpu(1, false);
  CHECK_EQ(way(1, ops::kDefaultRoutes), "linear_q4_dp4a");
  CHECK_EQ(way(3, ops::kDefaultRoutes), "linear_q4_dp4a_m3");
  Linear narrow(1536, 32767);
  CHECK_EQ(narrow.Way(1, limits, ops::kDefaultRoutes), "linear_q4_m1");
}

// More than 32 rows go to the matrix unit, which takes two features, subgroups of 32 and more memory than every device has.
GEMMA4_TEST(LinearOfManyRowsGoesToTheMatrixUnit) {
  Linear linear(6144, 1536);
  const gpu::Limits full = Matrix();
  const auto way = [&](uint32_t rows, const gpu::Limits& limits, uint32_t mask = ops::kDefaultRoutes) {
    return linear.Way(rows, limits, mask);
  };
  CHECK_EQ(way(32, full), "linear_q4_tiled");
  CHECK_EQ(way(512, full), "linear_q4_matrix");
  CHECK_EQ(way(128, full), "linear_q4_matrix");
  CHECK_EQ(linear.specs().size(), size_t{3});
  CHECK_EQ(linear.specs()[0].groups, uint64_t{128});
  CHECK_EQ(linear.specs()[1].groups, uint64_t{2 * 24 * 4});
  for (const ops::DispatchSpec& spec : linear.specs()) {
    CHECK_EQ(spec.scratch[0], uint64_t{4} * 200 * 64 * 64);
    CHECK_EQ(spec.scratch[1], uint64_t{4} * kMaxRows * 6144);
    CHECK_EQ(spec.scratch[2], uint64_t{4} * kMaxRows);
  }
  const uint32_t rounded = ops::kDefaultRoutes | ops::kRouteLinearMatrixF16;
  CHECK_EQ(way(512, full, rounded), "linear_q4_matrix_f16");
  CHECK_EQ(linear.specs()[1].groups, uint64_t{4 * 12 * 4});
  CHECK_EQ(linear.specs()[1].scratch[1], uint64_t{2} * kMaxRows * 6144);
  gpu::Limits less = full;
  less.matrix_unit = false;
  CHECK_EQ(way(512, less), "linear_q4_steel");
  less = full;
  less.buffer_view = false;
  CHECK_EQ(way(512, less), "linear_q4_steel");
  less = full;
  less.max_workgroup_storage_bytes = 36864 - 16;
  CHECK_EQ(way(512, less, rounded), "linear_q4_matrix");
  less.max_workgroup_storage_bytes = 20480 - 16;
  CHECK_EQ(way(512, less), "linear_q4_steel");
  less = full;
  less.max_storage_binding_bytes = uint64_t{4} * kMaxRows * 6144 - 4;
  CHECK_EQ(way(512, less), "linear_q4_steel");
  Linear odd(96, 64);
  CHECK_EQ(odd.Way(64, full, rounded), "linear_q4_matrix");
}

GEMMA4_TEST(RoutesSuitTheAdapter) {
  gpu::AdapterInfo adapter;
  CHECK_EQ(ops::RoutesFor(adapter), ops::kDefaultRoutes & ~ops::kMatrixRoutes);
  adapter.vendor = "nvidia";
  CHECK_EQ(ops::RoutesFor(adapter), ops::kDefaultRoutes);
  adapter.vendor = "apple";
  CHECK_EQ(ops::RoutesFor(adapter), ops::kDefaultRoutes & ~(ops::kDotRoutes | ops::kMatrixRoutes));
  adapter.software = true;
  CHECK_EQ(ops::RoutesFor(adapter), ops::kSoftwareRoutes);
}

// G1-G3: exact shapes, exact row counts, f16 and enough of everything; else the generic tiles.
GEMMA4_TEST(LinearBk64IsForItsShapesAndRowsOnly) {
  Linear linear(1536, 6144);
  const gpu::Limits limits = Gpu(32, true);
  const uint32_t mask = ops::kDefaultRoutes | ops::kRouteLinearBk64;
  const std::pair<uint32_t, std::string> turns[] = {
      {512, "linear_q4_bk64"}, {511, "linear_q4_steel"}, {512, "linear_q4_bk64"}, {1, "linear_q4_m1_subgroup"},
      {508, "linear_q4_bk64"}, {128, "linear_q4_bk64"},  {129, "linear_q4_steel"}, {127, "linear_q4_steel"}};
  for (const auto& [rows, way] : turns) CHECK_EQ(linear.Way(rows, limits, mask), way);
  CHECK_EQ(linear.Way(512, Gpu(32, false), mask), "linear_q4_steel");
  CHECK_EQ(linear.Way(512, limits, ops::kDefaultRoutes), "linear_q4_steel");
  CHECK_EQ(linear.Way(512, limits, ops::kDefaultRoutes | ops::kRouteLinearSteelPacked), "linear_q4_steel_packed");
  gpu::Limits small = limits;
  small.max_workgroup_storage_bytes = 16384 - 16;
  CHECK_EQ(linear.Way(512, small, mask), "linear_q4_tiled");
  Linear other(1536, 6080);
  CHECK_EQ(other.Way(512, limits, mask), "linear_q4_steel");
  for (const auto& [k, n] : {std::pair{2048u, 8192u}, {8192u, 2048u}, {2048u, 2048u}}) {
    CHECK(ops::IsBk64Shape(k, n, 64));
    CHECK(!ops::IsBk64Shape(k, n, 32));
  }
}

// Every kernel of a 4-bit weight is told its groups and scales; what makes f16 of weights takes f16 scales alone.
GEMMA4_TEST(LinearsAreToldTheirScales) {
  const uint32_t halves = ops::kRouteLinearSteelF16 | ops::kRouteLinearSteelPacked | ops::kRouteLinearBk64;
  for (const uint32_t group : {32u, 64u, 128u}) {
    for (const auto scales : {schema::ScaleDtype_F16, schema::ScaleDtype_F32}) {
      Linear linear(2048, 65536);
      linear.SetScales(group, scales);
      std::vector<std::string> ways;
      for (const uint32_t mask : {ops::kDefaultRoutes, ops::kDefaultRoutes & ~ops::kDotRoutes, 0u}) {
        for (const uint32_t rows : {1u, 3u, 4u, 128u}) {
          ways.push_back(linear.Way(rows, Gpu(32, true), mask));
          const ops::DispatchSpec& spec = linear.specs()[linear.specs()[0].kernel == &kernels::kToDigits ? 1 : 0];
          const auto told = [&](auto params) {
            std::memcpy(&params, spec.params.data(), sizeof(params));
            CHECK_EQ(16u << params.group_shift, group);
            CHECK_EQ(params.flags, scales == schema::ScaleDtype_F32 ? 1u : 0u);
          };
          if (ways.back() == "generic") told(kernels::LinearQ4Params{});
          else if (rows == 1 || rows == 3) told(kernels::LinearQ4M1Params{});
          else told(kernels::LinearQ4TiledParams{});
        }
      }
      CHECK(ways == std::vector<std::string>({"linear_q4_dp4a_subgroup", "linear_q4_dp4a_m3_subgroup", "linear_q4_tiled",
                                              "linear_q4_steel", "linear_q4_m1_subgroup", "linear_q4_m3_subgroup",
                                              "linear_q4_tiled", "linear_q4_steel", "generic", "generic", "generic",
                                              "generic"}));
      const bool narrow = scales == schema::ScaleDtype_F16;
      for (const uint32_t bit : {ops::kRouteLinearSteelF16, ops::kRouteLinearSteelPacked}) {
        const std::string way = linear.Way(128, Gpu(32, true), ops::kDefaultRoutes | bit);
        CHECK_EQ(way == "linear_q4_steel", !narrow);
      }
      Linear llama(2048, 8192), own(1536, 6144);
      llama.SetScales(group, scales);
      own.SetScales(group, scales);
      CHECK_EQ(llama.Way(512, Gpu(32, true), halves) == "linear_q4_bk64", narrow && group == 64);
      CHECK_EQ(own.Way(512, Gpu(32, true), halves) == "linear_q4_bk64", narrow && group == 32);
    }
  }
}

// Rows of a weight, and its row in out, that a dispatch is told.
struct Columns {
  uint32_t first = 0, n = 0, stride = 0;
};
template <typename Params>
Columns ColumnsOf(const ops::DispatchSpec& spec) {
  Params params;
  std::memcpy(&params, spec.params.data(), sizeof(params));
  return {params.first, params.n, params.stride};
}

// O10: a weight above the binding limit is multiplied in parts that begin at offsets which the device takes; each writes
// its own columns, with the threads a column of the whole weight. Tiles need it whole.
GEMMA4_TEST(LinearsAboveTheBindingLimitAreInParts) {
  constexpr uint32_t kColumns = 65600;  // the last part alone would get other lanes
  struct Way {
    uint32_t rows, mask;
    std::string name;
  };
  const Way ways[] = {{1, ops::kDefaultRoutes, "linear_q4_dp4a_subgroup"},
                      {3, ops::kDefaultRoutes, "linear_q4_dp4a_m3_subgroup"},
                      {1, ops::kDefaultRoutes & ~ops::kDotRoutes, "linear_q4_m1_subgroup"},
                      {3, ops::kDefaultRoutes & ~ops::kDotRoutes, "linear_q4_m3_subgroup"},
                      {4, ops::kDefaultRoutes, "linear_parts"},
                      {128, ops::kDefaultRoutes, "linear_parts"},
                      {1, ops::kRouteLinearParts, "linear_parts"}};
  for (const auto dtype : {schema::Dtype_Q4, schema::Dtype_F32}) {
    for (const uint32_t k : {32u, 1536u}) {
      const uint64_t bytes = uint64_t{kColumns} * k * (dtype == schema::Dtype_Q4 ? 1 : 8) / 2;
      gpu::Limits limits = Gpu(32, false);
      limits.max_storage_binding_bytes = bytes / 3 + 4096 * k;
      for (const Way& way : ways) {
        Linear head(k, kColumns, dtype), whole(k, kColumns, dtype);
        const bool dense = dtype == schema::Dtype_F32;
        CHECK_EQ(head.Way(way.rows, limits, way.mask), dense ? "linear_parts" : way.name);
        whole.Way(way.rows, Gpu(32, false), way.mask);
        uint32_t next = 0, parts = 0;
        for (const ops::DispatchSpec& spec : head.specs()) {
          if (spec.kernel == &kernels::kToDigits) continue;
          const bool generic = spec.kernel == &kernels::kLinearQ4 || dense;
          const Columns part = dense     ? ColumnsOf<kernels::LinearF32Params>(spec)
                               : generic ? ColumnsOf<kernels::LinearQ4Params>(spec)
                                         : ColumnsOf<kernels::LinearQ4M1Params>(spec);
          CHECK_EQ(part.first, next);
          CHECK_EQ(part.stride, kColumns);
          CHECK(uint64_t{part.n} * k * (dense ? 8 : 1) / 2 <= limits.max_storage_binding_bytes);
          if (!generic) {
            kernels::LinearQ4M1Params mine, of_whole;
            std::memcpy(&mine, spec.params.data(), sizeof(mine));
            std::memcpy(&of_whole, whole.specs().back().params.data(), sizeof(of_whole));
            CHECK_EQ(mine.lanes, of_whole.lanes);
            CHECK_EQ(mine.subgroup, of_whole.subgroup);
          }
          next += part.n;
          ++parts;
        }
        CHECK_EQ(next, kColumns);
        CHECK_EQ(parts, 3u);
      }
      // Not even one aligned part fits, or the mask forbids parts: the generic way, which the memory plan refuses.
      Linear head(k, kColumns, dtype);
      CHECK_EQ(head.Way(4, limits, ops::kDefaultRoutes & ~ops::kRouteLinearParts), "generic");
      limits.max_storage_binding_bytes = 16;
      for (const Way& way : ways) CHECK_EQ(head.Way(way.rows, limits, way.mask), "generic");
    }
  }
}

// G5: the ranges of every op cover all row counts once, and are what each single row count is told.
GEMMA4_TEST(LinearRangesCoverEveryRowCountOnce) {
  std::mt19937 random(20261130);
  for (int turn = 0; turn < 24; ++turn) {
    Linear linear(32 * (1 + random() % 96), 1 + random() % 4096);
    const gpu::Limits limits = random() % 3 == 0 ? Matrix() : Gpu(random() % 2 == 0 ? 1 : 32, random() % 2 == 0);
    const uint32_t mask = random();
    const program::RouteTable table = linear.Table(limits, mask);
    uint32_t next = 1;
    for (const auto& range : table.RangesOf(0)) {
      CHECK_EQ(range.first, next);
      CHECK(range.last >= range.first);
      if (range.route != nullptr) CHECK_EQ(mask & range.route->bits, range.route->bits);
      next = range.last + 1;
    }
    CHECK_EQ(next, kMaxRows + 1);
    // Any sequence of row counts: each is told the way of its own range, whatever came before.
    for (int step = 0; step < 64; ++step) {
      const uint32_t rows = 1 + random() % kMaxRows;
      const auto& ranges = table.RangesOf(0);
      const auto mine = std::find_if(ranges.begin(), ranges.end(), [&](const auto& range) { return rows <= range.last; });
      CHECK(table.Of(0, {rows, 1}) == mine->route);
    }
  }
}

// Few tiles run k in parts through scratch; many do not.
GEMMA4_TEST(LinearTilesRunInPartsWhereTheyAreFew) {
  Linear narrow(6144, 1536);
  CHECK_EQ(narrow.Way(128, Gpu(32, false), ops::kDefaultRoutes), "linear_q4_steel");
  CHECK_EQ(narrow.specs().size(), size_t{2});
  kernels::LinearQ4SteelParams params;
  std::memcpy(&params, narrow.specs()[0].params.data(), sizeof(params));
  CHECK_EQ(params.splits, 8u);
  Linear wide(1536, 6144);
  CHECK_EQ(wide.Way(512, Gpu(32, false), ops::kDefaultRoutes), "linear_q4_steel");
  CHECK_EQ(wide.specs().size(), size_t{1});
  gpu::Limits small = Gpu(32, false);
  small.max_storage_binding_bytes = uint64_t{4} * 400 * 64 * 64 - 4;
  CHECK_EQ(narrow.Way(128, small, ops::kDefaultRoutes), "linear_q4_tiled");
}

// Fewer rows run in more parts: what is planned for a range's last row count has to do for every other one.
GEMMA4_TEST(LinearScratchOfTheMostRowsIsEnoughForAll) {
  for (const gpu::Limits& limits : {Gpu(32, true), Matrix()}) for (const auto& [k, n] : {std::pair{1536u, 6144u}, {6144u, 1536u}, {1536u, 12288u}, {640u, 640u}, {12288u, 1536u}}) {
    Linear linear(k, n);
    const program::RouteTable table = linear.Table(limits, ops::kAllRoutes);
    for (const auto& range : table.RangesOf(0)) {
      linear.Way(range.last, limits);
      const ops::ScratchBytes all = linear.specs()[0].scratch;
      const uint64_t planned = all[0];
      for (uint32_t rows = range.first; rows <= range.last; ++rows) {
        linear.Way(rows, limits);
        for (const ops::DispatchSpec& spec : linear.specs()) {
          for (size_t i = 0; i < all.size(); ++i) CHECK(spec.scratch[i] <= all[i]);
          CHECK(std::ranges::find(range.route->kernels, spec.kernel) != range.route->kernels.end());
          if (spec.kernel != &kernels::kSumParts) continue;
          kernels::SumPartsParams sum;
          std::memcpy(&sum, spec.params.data(), sizeof(sum));
          CHECK(uint64_t{4} * sum.splits * sum.count <= planned);
        }
      }
    }
  }
}

}  // namespace
}  // namespace gemma4
