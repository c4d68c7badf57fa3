#include "ops/attention_routes.h"

#include <algorithm>

#include "ops/attention.h"

namespace gemma4::ops {

namespace {

using kernels::AttentionParams;

enum Input : size_t { kQuery, kKeys, kValues, kPositions };

// As in the kernels: keys of a chunk, query heads that share a reading of them, columns of the combining workgroup.
constexpr uint32_t kChunk = 16;
constexpr uint32_t kSplitHeads = 8;
constexpr uint32_t kCombineColumns = 16;
// Of materialised attention: queries or slots of a tile, vec4s of its values.
constexpr uint32_t kTile = 32;
constexpr uint32_t kTileColumns = 16;

constexpr BindingRef kPartialValues = {BindingRef::Kind::kScratch, 0};
constexpr BindingRef kPartialStats = {BindingRef::Kind::kScratch, 1};
constexpr BindingRef kScores = {BindingRef::Kind::kScratch, 0};  // [rows, q_heads, capacity] f32, then the weights

uint64_t CeilDiv(uint64_t value, uint64_t divisor) { return (value + divisor - 1) / divisor; }

// What all guarded ways need: columns are read four at a time.
bool HasVectors(const AttentionParams& params) {
  return params.head_dim % 4 == 0 && params.head_dim > 0 && params.head_dim <= kMaxHeadDim && params.capacity > 0 &&
         params.kv_heads > 0 && params.q_heads > 0 && params.q_heads % params.kv_heads == 0 && params.rows > 0;
}

ScratchBytes DecodeScratch(const AttentionParams& params) {
  const uint64_t partials = uint64_t{params.rows} * params.q_heads * AttentionSplits(params);
  return {partials * params.head_dim * sizeof(float), partials * 4 * sizeof(float)};
}

ScratchBytes ScoresScratch(const AttentionParams& params) {
  return {uint64_t{params.rows} * params.q_heads * params.capacity * sizeof(float), 0};
}

bool FitsBinding(const ScratchBytes& scratch, const gpu::Limits& limits) {
  const uint64_t allowed = std::min(limits.max_storage_binding_bytes, limits.max_buffer_bytes);
  return std::ranges::all_of(scratch, [&](uint64_t bytes) { return bytes <= allowed; });
}

// Params of a stage that reads keys or values; all of them are named alike.
template <typename Params>
Params StageParams(const AttentionParams& all) {
  Params params;
  params.rows = all.rows;
  params.q_heads = all.q_heads;
  params.kv_heads = all.kv_heads;
  params.head_dim = all.head_dim;
  params.capacity = all.capacity;
  params.window = all.window;
  params.donor = all.donor;
  return params;
}

}  // namespace

uint32_t AttentionSplits(const AttentionParams& params) {
  // A run of n positions touches the most chunks when its first is the last of a chunk.
  const uint64_t chunks = params.window == 0
                              ? CeilDiv(params.capacity, kChunk)
                              : (uint64_t{std::min(params.window, params.capacity)} + 2 * kChunk - 2) / kChunk;
  return static_cast<uint32_t>(std::min<uint64_t>(chunks, kMaxSplits));
}

bool DecodeTakes(const AttentionParams& params, const gpu::Limits& limits) {
  return HasVectors(params) && params.rows <= kDecodeRows && FitsBinding(DecodeScratch(params), limits);
}

bool StreamingTakes(const AttentionParams& params) {
  return HasVectors(params) && params.rows > kDecodeRows && params.q_heads / params.kv_heads <= kStreamingQueries;
}

bool MaterialisedTakes(const AttentionParams& params, const gpu::Limits& limits) {
  // Every visible position has a slot of its own.
  return HasVectors(params) && params.rows > kDecodeRows && params.window <= params.capacity &&
         FitsBinding(ScoresScratch(params), limits);
}

bool AcceptsAttentionDecode(const Site& site, const PassRows& pass, const gpu::Limits& limits) {
  return DecodeTakes(AttentionParamsOf(site, pass), limits);
}

void RecordAttentionDecode(const Site& site, const PassRows& pass, const gpu::Limits&,
                           std::vector<DispatchSpec>& out) {
  const AttentionParams all = AttentionParamsOf(site, pass);
  auto split = StageParams<kernels::AttentionDecodeSplitParams>(all);
  split.splits = AttentionSplits(all);
  const uint64_t blocks = uint64_t{all.kv_heads} * CeilDiv(all.q_heads / all.kv_heads, kSplitHeads);
  out.push_back(MakeDispatch(kernels::kAttentionDecodeSplit,
                             {site.In(kQuery), site.In(kKeys), site.In(kValues), site.In(kPositions), kPartialValues,
                              kPartialStats},
                             split, all.rows * blocks * split.splits));
  out.back().scratch = DecodeScratch(all);
  kernels::AttentionCombineParams combine;
  combine.rows = all.rows;
  combine.q_heads = all.q_heads;
  combine.head_dim = all.head_dim;
  combine.window = all.window;
  combine.donor = all.donor;
  combine.splits = split.splits;
  out.push_back(MakeDispatch(kernels::kAttentionCombine,
                             {kPartialValues, kPartialStats, site.In(kPositions), site.Out(0)}, combine,
                             uint64_t{all.rows} * all.q_heads * CeilDiv(all.head_dim / 4, kCombineColumns)));
  out.back().scratch = DecodeScratch(all);
}

bool AcceptsAttentionStreaming(const Site& site, const PassRows& pass, const gpu::Limits&) {
  return StreamingTakes(AttentionParamsOf(site, pass));
}

void RecordAttentionStreaming(const Site& site, const PassRows& pass, const gpu::Limits&,
                              std::vector<DispatchSpec>& out) {
  const AttentionParams all = AttentionParamsOf(site, pass);
  auto params = StageParams<kernels::AttentionStreamingParams>(all);
  params.tile_rows = kStreamingQueries / (all.q_heads / all.kv_heads);
  out.push_back(MakeDispatch(kernels::kAttentionStreaming,
                             {site.In(kQuery), site.In(kKeys), site.In(kValues), site.In(kPositions), site.Out(0)},
                             params, all.kv_heads * CeilDiv(all.rows, params.tile_rows)));
}

bool AcceptsAttentionMaterialised(const Site& site, const PassRows& pass, const gpu::Limits& limits) {
  return MaterialisedTakes(AttentionParamsOf(site, pass), limits);
}

void RecordAttentionMaterialised(const Site& site, const PassRows& pass, const gpu::Limits&,
                                 std::vector<DispatchSpec>& out) {
  const AttentionParams all = AttentionParamsOf(site, pass);
  const uint64_t query_tiles = all.kv_heads * CeilDiv(uint64_t{all.rows} * (all.q_heads / all.kv_heads), kTile);
  kernels::AttentionSoftmaxParams softmax;
  softmax.rows = all.rows;
  softmax.q_heads = all.q_heads;
  softmax.capacity = all.capacity;
  softmax.window = all.window;
  softmax.donor = all.donor;
  out.push_back(MakeDispatch(kernels::kAttentionScores,
                             {site.In(kQuery), site.In(kKeys), site.In(kPositions), kScores},
                             StageParams<kernels::AttentionScoresParams>(all),
                             query_tiles * CeilDiv(all.capacity, kTile)));
  out.back().scratch = ScoresScratch(all);
  out.push_back(MakeDispatch(kernels::kAttentionSoftmax, {site.In(kPositions), kScores}, softmax,
                             uint64_t{all.rows} * all.q_heads));
  out.back().scratch = ScoresScratch(all);
  out.push_back(MakeDispatch(kernels::kAttentionValues,
                             {kScores, site.In(kValues), site.In(kPositions), site.Out(0)},
                             StageParams<kernels::AttentionValuesParams>(all),
                             query_tiles * CeilDiv(all.head_dim / 4, kTileColumns)));
  out.back().scratch = ScoresScratch(all);
}

}  // namespace gemma4::ops
