#include "ops/linear_routes.h"

#include <algorithm>
#include <span>
#include <utility>

#include "ops/linear.h"

namespace gemma4::ops {
namespace {

using Shape = LinearShape;

constexpr uint32_t kColumns = 4;      // a block of linear_q4_m1 and m3

std::vector<BindingRef> Bindings(const Site& site, const RowPart& part, BindingRef out) {
  return {site.In(0), ValuesOf(part, site.In(1)), ScalesOf(part, site.InScales(1)), BindingRef{}, out};
}

template <uint32_t kRows>
bool AcceptsRows(const Site& site, const PassRows& pass, const gpu::Limits& limits) {
  return ShapeOf(site, pass).rows == kRows && CanBind(site.in(1), limits);
}

// The part's columns of out. How many threads share one is the whole weight's, so that parts have its bits.
template <typename Params>
void SetColumns(const Tensor& weight, const RowPart& part, Params* params) {
  params->n = part.count;
  params->first = part.first;
  params->stride = weight.dims[0];
}

template <typename Params>
void RecordFew(const kernels::Kernel& kernel, const Site& site, const PassRows& pass, const gpu::Limits& limits,
               std::vector<DispatchSpec>& out) {
  auto params = FewRowsParams<Params>(kernel, site.in(1), ShapeOf(site, pass), limits);
  for (const RowPart& part : RowPartsOf(site.in(1), limits)) {
    SetColumns(site.in(1), part, &params);
    out.push_back(
        MakeDispatch(kernel, Bindings(site, part, site.Out(0)), params, FewRowsGroups(kernel, params.n, params.lanes)));
  }
}

void RecordM1(const Site& site, const PassRows& pass, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  RecordFew<kernels::LinearQ4M1Params>(kernels::kLinearQ4M1, site, pass, limits, out);
}
void RecordM1Subgroup(const Site& site, const PassRows& pass, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  RecordFew<kernels::LinearQ4M1SubgroupParams>(kernels::kLinearQ4M1Subgroup, site, pass, limits, out);
}
void RecordM3(const Site& site, const PassRows& pass, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  RecordFew<kernels::LinearQ4M3Params>(kernels::kLinearQ4M3, site, pass, limits, out);
}
void RecordM3Subgroup(const Site& site, const PassRows& pass, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  RecordFew<kernels::LinearQ4M3SubgroupParams>(kernels::kLinearQ4M3Subgroup, site, pass, limits, out);
}

// A wide weight outweighs the pass that makes digits of x. Measured on an NVIDIA H200: 1.2 times faster with 65536 columns,
// slower with 16384.
constexpr uint32_t kDp4aColumns = 32768;
constexpr uint32_t kDp4aLanes = 8;
constexpr uint32_t kDp4aUnit = 32;  // columns of x that share a power of two

template <uint32_t kRows>
bool AcceptsDp4a(const Site& site, const PassRows& pass, const gpu::Limits& limits) {
  const Shape shape = ShapeOf(site, pass);
  return AcceptsRows<kRows>(site, pass, limits) && shape.n >= kDp4aColumns && shape.k % kDp4aUnit == 0;
}

template <typename Params>
void RecordDp4a(const kernels::Kernel& kernel, const Site& site, const PassRows& pass, const gpu::Limits& limits,
                std::vector<DispatchSpec>& out) {
  const Shape shape = ShapeOf(site, pass);
  const uint32_t units = shape.k / kDp4aUnit;
  const uint64_t powers_bytes = uint64_t{4} * shape.rows * units;
  const ScratchBytes scratch = {24 * powers_bytes, powers_bytes};  // three digits of 32 columns are 24 words
  const BindingRef digits{BindingRef::Kind::kScratch, 0}, powers{BindingRef::Kind::kScratch, 1};
  const kernels::ToDigitsParams made{.rows = shape.rows, .units = units};
  out.push_back(MakeDispatch(kernels::kToDigits, {site.In(0), digits, powers}, made,
                             ElementGroups(kernels::kToDigits, uint64_t{4} * shape.rows * units)));
  out.back().scratch = scratch;
  auto params = FewRowsParams<Params>(kernel, site.in(1), shape, limits);
  params.lanes = kDp4aLanes;
  for (const RowPart& part : RowPartsOf(site.in(1), limits)) {
    SetColumns(site.in(1), part, &params);
    const BindingRef values = ValuesOf(part, site.In(1)), scales = ScalesOf(part, site.InScales(1));
    out.push_back(MakeDispatch(kernel, {digits, powers, values, scales, BindingRef{}, site.Out(0)}, params,
                               FewRowsGroups(kernel, params.n, params.lanes)));
    out.back().scratch = scratch;
  }
}

void RecordDp4aM1(const Site& site, const PassRows& pass, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  RecordDp4a<kernels::LinearQ4Dp4aParams>(kernels::kLinearQ4Dp4a, site, pass, limits, out);
}
void RecordDp4aM1Subgroup(const Site& site, const PassRows& pass, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  RecordDp4a<kernels::LinearQ4Dp4aSubgroupParams>(kernels::kLinearQ4Dp4aSubgroup, site, pass, limits, out);
}
void RecordDp4aM3(const Site& site, const PassRows& pass, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  RecordDp4a<kernels::LinearQ4Dp4aM3Params>(kernels::kLinearQ4Dp4aM3, site, pass, limits, out);
}
void RecordDp4aM3Subgroup(const Site& site, const PassRows& pass, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  RecordDp4a<kernels::LinearQ4Dp4aM3SubgroupParams>(kernels::kLinearQ4Dp4aM3Subgroup, site, pass, limits, out);
}

// What a workgroup of a blocked product makes, and the columns of x that it takes in one step.
struct Tile {
  uint32_t rows = 0;
  uint32_t columns = 64;
  uint32_t block_k = 32;
  // Workgroups that fill a GPU: about so many run at once (measured on an NVIDIA H200).
  uint64_t enough_groups = 400;
};
// Small tiles waste less on few rows, large ones read the weights less often.
constexpr Tile kTiled = {.rows = 32};
constexpr Tile kSteel = {.rows = 64};
constexpr Tile kMatrix = {.rows = 64, .enough_groups = 200};
constexpr Tile kMatrixF16 = {.rows = 128, .columns = 128, .block_k = 64, .enough_groups = 200};

uint64_t TilesOf(const Shape& shape, const Tile& tile) {
  return (uint64_t{shape.rows} + tile.rows - 1) / tile.rows * ((uint64_t{shape.n} + tile.columns - 1) / tile.columns);
}

// Parts of k: a power of two, so that there are enough workgroups where there are few tiles, and none is shorter than four
// steps. Depends on the shape alone.
constexpr uint32_t kMostSplits = 8;

uint32_t SplitsOf(const Shape& shape, const Tile& tile) {
  const uint64_t tiles = TilesOf(shape, tile);
  uint32_t splits = 1;
  while (splits < kMostSplits && tiles * splits * 2 <= tile.enough_groups && shape.k / tile.block_k / (splits * 2) >= 4) splits *= 2;
  return splits;
}

// What the parts of any number of rows take at most, so that it is the same for all of a route's row counts: fewer rows
// may run in more parts. There are at most enough_groups tiles where there is more than one part.
uint64_t PartsBytes(const Shape& shape, const Tile& tile) {
  return uint64_t{4} * std::min(tile.enough_groups * tile.rows * tile.columns, kMostSplits * shape.max_rows * shape.n);
}

bool FitsTiles(const Site& site, const Shape& shape, const Tile& tile, const gpu::Limits& limits) {
  return !ExceedsBinding(site.in(1), limits) &&
         PartsBytes(shape, tile) <= std::min(limits.max_storage_binding_bytes, limits.max_buffer_bytes);
}

// The tiles of `x`, which the route's earlier dispatches may have made, and what adds their parts.
template <typename Params>
void RecordTiles(const kernels::Kernel& kernel, const Tile& tile, const Site& site, const PassRows& pass,
                 std::vector<BindingRef> x, std::vector<DispatchSpec>& out) {
  const size_t first = out.size();
  const Shape shape = ShapeOf(site, pass);
  Params params;
  params.k = shape.k;
  params.n = shape.n;
  TellScales(site.in(1), &params);
  params.rows = shape.rows;
  params.splits = SplitsOf(shape, tile);
  const BindingRef parts{BindingRef::Kind::kScratch, 0};
  const bool whole = params.splits == 1;
  std::vector<BindingRef> bindings = std::move(x);
  bindings.insert(bindings.end(), {site.In(1), site.InScales(1), BindingRef{}, whole ? site.Out(0) : parts});
  out.push_back(MakeDispatch(kernel, bindings, params, TilesOf(shape, tile) * params.splits));
  if (!whole) {
    const uint64_t count = uint64_t{shape.rows} * shape.n;
    const kernels::SumPartsParams sum{.count = static_cast<uint32_t>(count), .n = shape.n, .splits = params.splits};
    out.push_back(MakeDispatch(kernels::kSumParts, {parts, BindingRef{}, site.Out(0)}, sum,
                               ElementGroups(kernels::kSumParts, count)));
  }
  for (DispatchSpec& dispatch : std::span(out).subspan(first)) dispatch.scratch[0] = PartsBytes(shape, tile);
}

bool AcceptsTiled(const Site& site, const PassRows& pass, const gpu::Limits& limits) {
  const Shape shape = ShapeOf(site, pass);
  return shape.rows > 1 && FitsTiles(site, shape, kTiled, limits);
}
bool AcceptsSteel(const Site& site, const PassRows& pass, const gpu::Limits& limits) {
  const Shape shape = ShapeOf(site, pass);
  return shape.rows > kTiled.rows && FitsTiles(site, shape, kSteel, limits);
}
// Where weights become f16, a scale beyond its range would be infinite or vanish.
bool ScalesFitF16(const Site& site) { return !HasF32Scales(site.in(1)); }

bool AcceptsSteelHalf(const Site& site, const PassRows& pass, const gpu::Limits& limits) {
  return ScalesFitF16(site) && AcceptsSteel(site, pass, limits);
}
bool AcceptsBk64(const Site& site, const PassRows& pass, const gpu::Limits& limits) {
  const Shape shape = ShapeOf(site, pass);
  const bool live = shape.rows == 128 || shape.rows == 508 || shape.rows == 512;
  return live && ScalesFitF16(site) && IsBk64Shape(shape.k, shape.n, site.in(1).group) &&
         FitsTiles(site, shape, kSteel, limits);
}

void RecordTiled(const Site& site, const PassRows& pass, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  RecordTiles<kernels::LinearQ4TiledParams>(kernels::kLinearQ4Tiled, kTiled, site, pass, {site.In(0)}, out);
}
void RecordSteel(const Site& site, const PassRows& pass, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  RecordTiles<kernels::LinearQ4SteelParams>(kernels::kLinearQ4Steel, kSteel, site, pass, {site.In(0)}, out);
}
void RecordSteelF16(const Site& site, const PassRows& pass, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  RecordTiles<kernels::LinearQ4SteelF16Params>(kernels::kLinearQ4SteelF16, kSteel, site, pass, {site.In(0)}, out);
}
void RecordSteelPacked(const Site& site, const PassRows& pass, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  RecordTiles<kernels::LinearQ4SteelPackedParams>(kernels::kLinearQ4SteelPacked, kSteel, site, pass, {site.In(0)}, out);
}
void RecordBk64(const Site& site, const PassRows& pass, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  RecordTiles<kernels::LinearQ4Bk64Params>(kernels::kLinearQ4Bk64, kSteel, site, pass, {site.In(0)}, out);
}

// Bytes of x as halves, for any number of rows.
uint64_t HalvesBytes(const Shape& shape, uint32_t parts) { return 2 * parts * shape.max_rows * shape.k; }

template <const Tile& kTile, uint32_t kParts>
bool AcceptsMatrix(const Site& site, const PassRows& pass, const gpu::Limits& limits) {
  const Shape shape = ShapeOf(site, pass);
  return shape.rows > kTiled.rows && shape.k % kTile.block_k == 0 && ScalesFitF16(site) && FitsTiles(site, shape, kTile, limits) &&
         HalvesBytes(shape, kParts) <= std::min(limits.max_storage_binding_bytes, limits.max_buffer_bytes);
}

template <typename MadeParams, typename Params>
void RecordMatrix(const kernels::Kernel& made, const kernels::Kernel& kernel, const Tile& tile, uint32_t parts,
                  const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const size_t first = out.size();
  const Shape shape = ShapeOf(site, pass);
  const BindingRef halves{BindingRef::Kind::kScratch, 1}, powers{BindingRef::Kind::kScratch, 2};
  out.push_back(MakeDispatch(made, {site.In(0), halves, powers}, MadeParams{.rows = shape.rows, .eights = shape.k / 8},
                             shape.rows));
  RecordTiles<Params>(kernel, tile, site, pass, {halves, powers}, out);
  for (DispatchSpec& dispatch : std::span(out).subspan(first)) {
    dispatch.scratch = {PartsBytes(shape, tile), HalvesBytes(shape, parts), 4 * shape.max_rows};
  }
}

void RecordMatrixF32(const Site& site, const PassRows& pass, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  RecordMatrix<kernels::ToHalvesParams, kernels::LinearQ4MatrixParams>(kernels::kToHalves, kernels::kLinearQ4Matrix, kMatrix,
                                                                       2, site, pass, out);
}
void RecordMatrixF16(const Site& site, const PassRows& pass, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  RecordMatrix<kernels::ToHalvesF16Params, kernels::LinearQ4MatrixF16Params>(
      kernels::kToHalvesF16, kernels::kLinearQ4MatrixF16, kMatrixF16, 1, site, pass, out);
}

bool AcceptsParts(const Site& site, const PassRows&, const gpu::Limits& limits) {
  return ExceedsBinding(site.in(1), limits) && CanBind(site.in(1), limits);
}
void RecordParts(const Site& site, const PassRows& pass, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  for (const RowPart& part : RowPartsOf(site.in(1), limits)) RecordLinearPart(site, pass, part, out);
}

constexpr const kernels::Kernel* kM1[] = {&kernels::kLinearQ4M1};
constexpr const kernels::Kernel* kM1Subgroup[] = {&kernels::kLinearQ4M1Subgroup};
constexpr const kernels::Kernel* kM3[] = {&kernels::kLinearQ4M3};
constexpr const kernels::Kernel* kM3Subgroup[] = {&kernels::kLinearQ4M3Subgroup};
constexpr const kernels::Kernel* kDp4a[] = {&kernels::kLinearQ4Dp4a, &kernels::kToDigits};
constexpr const kernels::Kernel* kDp4aSubgroup[] = {&kernels::kLinearQ4Dp4aSubgroup, &kernels::kToDigits};
constexpr const kernels::Kernel* kDp4aM3[] = {&kernels::kLinearQ4Dp4aM3, &kernels::kToDigits};
constexpr const kernels::Kernel* kDp4aM3Subgroup[] = {&kernels::kLinearQ4Dp4aM3Subgroup, &kernels::kToDigits};
constexpr const kernels::Kernel* kTiledKernels[] = {&kernels::kLinearQ4Tiled, &kernels::kSumParts};
constexpr const kernels::Kernel* kSteelKernels[] = {&kernels::kLinearQ4Steel, &kernels::kSumParts};
constexpr const kernels::Kernel* kSteelF16[] = {&kernels::kLinearQ4SteelF16, &kernels::kSumParts};
constexpr const kernels::Kernel* kSteelPacked[] = {&kernels::kLinearQ4SteelPacked, &kernels::kSumParts};
constexpr const kernels::Kernel* kMatrixKernels[] = {&kernels::kLinearQ4Matrix, &kernels::kToHalves, &kernels::kSumParts};
constexpr const kernels::Kernel* kMatrixF16Kernels[] = {&kernels::kLinearQ4MatrixF16, &kernels::kToHalvesF16,
                                                        &kernels::kSumParts};
constexpr const kernels::Kernel* kBk64[] = {&kernels::kLinearQ4Bk64, &kernels::kSumParts};
constexpr const kernels::Kernel* kGenericParts[] = {&kernels::kLinearQ4, &kernels::kLinearF32};

}  // namespace

LinearShape ShapeOf(const Site& site, const PassRows& pass) {
  const Tensor& weight = site.in(1);
  if (weight.dtype != schema::Dtype_Q4) return {};
  const RowCount rows = MatrixRows(site.in(0));
  return {RowsIn(rows, pass), weight.dims[1], weight.dims[0], rows.max};
}

// Measured on an NVIDIA H200: a wide weight has enough columns to fill the GPU, a narrow one needs more threads a column; a
// software adapter, told by its subgroups of 4, does best without barriers.
uint32_t LanesOf(const LinearShape& shape, const gpu::Limits& limits) {
  if (limits.subgroup_lanes == 4) return 4;
  if (shape.n >= 65536) return 16;
  return shape.n >= 4096 || shape.k < 1024 ? 32 : 128;
}

uint64_t FewRowsGroups(const kernels::Kernel& kernel, uint32_t n, uint32_t lanes) {
  const uint64_t blocks = (uint64_t{n} + kColumns - 1) / kColumns;
  const uint64_t blocks_a_group = kernel.workgroup[0] / lanes;
  return (blocks + blocks_a_group - 1) / blocks_a_group;
}

constexpr Route kLinearRoutes[] = {
    {"linear_q4_dp4a_subgroup", kRouteLinearDp4aSubgroup, kDp4aSubgroup, &AcceptsDp4a<1>, &RecordDp4aM1Subgroup},
    {"linear_q4_dp4a", kRouteLinearDp4a, kDp4a, &AcceptsDp4a<1>, &RecordDp4aM1},
    {"linear_q4_dp4a_m3_subgroup", kRouteLinearDp4aM3Subgroup, kDp4aM3Subgroup, &AcceptsDp4a<3>, &RecordDp4aM3Subgroup},
    {"linear_q4_dp4a_m3", kRouteLinearDp4aM3, kDp4aM3, &AcceptsDp4a<3>, &RecordDp4aM3},
    {"linear_q4_m1_subgroup", kRouteLinearM1Subgroup, kM1Subgroup, &AcceptsRows<1>, &RecordM1Subgroup},
    {"linear_q4_m1", kRouteLinearM1, kM1, &AcceptsRows<1>, &RecordM1},
    {"linear_q4_m3_subgroup", kRouteLinearM3Subgroup, kM3Subgroup, &AcceptsRows<3>, &RecordM3Subgroup},
    {"linear_q4_m3", kRouteLinearM3, kM3, &AcceptsRows<3>, &RecordM3},
    {"linear_q4_matrix_f16", kRouteLinearMatrixF16, kMatrixF16Kernels, &AcceptsMatrix<kMatrixF16, 1>, &RecordMatrixF16},
    {"linear_q4_matrix", kRouteLinearMatrix, kMatrixKernels, &AcceptsMatrix<kMatrix, 2>, &RecordMatrixF32},
    {"linear_q4_bk64", kRouteLinearBk64, kBk64, &AcceptsBk64, &RecordBk64},
    {"linear_q4_steel_f16", kRouteLinearSteelF16, kSteelF16, &AcceptsSteelHalf, &RecordSteelF16},
    {"linear_q4_steel_packed", kRouteLinearSteelPacked, kSteelPacked, &AcceptsSteelHalf, &RecordSteelPacked},
    {"linear_q4_steel", kRouteLinearSteel, kSteelKernels, &AcceptsSteel, &RecordSteel},
    {"linear_q4_tiled", kRouteLinearTiled, kTiledKernels, &AcceptsTiled, &RecordTiled},
    {"linear_parts", kRouteLinearParts, kGenericParts, &AcceptsParts, &RecordParts},
};

namespace {

struct Bk64Shape {
  uint32_t k = 0;
  uint32_t n = 0;
  uint32_t group = 0;
};
constexpr Bk64Shape kBk64Shapes[] = {
    {2048, 8192, 64},  {8192, 2048, 64}, {2048, 2048, 64},  {1536, 2048, 32},  {2048, 1536, 32},
    {1536, 4096, 32},  {4096, 1536, 32}, {1536, 6144, 32},  {6144, 1536, 32},  {1536, 12288, 32},
    {12288, 1536, 32},
};

}  // namespace

bool IsBk64Shape(uint32_t k, uint32_t n, uint32_t group) {
  return std::any_of(std::begin(kBk64Shapes), std::end(kBk64Shapes),
                     [&](const Bk64Shape& shape) { return shape.k == k && shape.n == n && shape.group == group; });
}

}  // namespace gemma4::ops
