// Guarded ways to run attention: a step of few rows in splits of the keys that a second dispatch combines, and prefill in
// tiles, or with all its scores in memory. Owns their shape guards; a shape outside them takes the generic kernel of
// ops/attention.h.
#pragma once

#include "kernels.h"
#include "ops/route.h"

namespace gemma4::ops {

constexpr uint32_t kDecodeRows = 8;         // of a pass, at most, for the decode way; larger ones stream
constexpr uint32_t kMaxSplits = 128;        // of the keys of one row
constexpr uint32_t kStreamingQueries = 16;  // of a tile: some rows, all query heads of a KV head

// Splits that the rows of a pass have, whatever their number: the chunks that a window, or the whole cache, can touch.
uint32_t AttentionSplits(const kernels::AttentionParams& params);

// The shape guards.
bool DecodeTakes(const kernels::AttentionParams& params, const gpu::Limits& limits);
bool StreamingTakes(const kernels::AttentionParams& params);
bool MaterialisedTakes(const kernels::AttentionParams& params, const gpu::Limits& limits);

bool AcceptsAttentionDecode(const Site& site, const PassRows& pass, const gpu::Limits& limits);
void RecordAttentionDecode(const Site& site, const PassRows& pass, const gpu::Limits& limits,
                           std::vector<DispatchSpec>& out);
bool AcceptsAttentionStreaming(const Site& site, const PassRows& pass, const gpu::Limits& limits);
void RecordAttentionStreaming(const Site& site, const PassRows& pass, const gpu::Limits& limits,
                              std::vector<DispatchSpec>& out);
bool AcceptsAttentionMaterialised(const Site& site, const PassRows& pass, const gpu::Limits& limits);
void RecordAttentionMaterialised(const Site& site, const PassRows& pass, const gpu::Limits& limits,
                                 std::vector<DispatchSpec>& out);

inline constexpr const kernels::Kernel* kAttentionDecodeKernels[] = {&kernels::kAttentionDecodeSplit,
                                                                     &kernels::kAttentionCombine};
inline constexpr const kernels::Kernel* kAttentionStreamingKernels[] = {&kernels::kAttentionStreaming};
inline constexpr const kernels::Kernel* kAttentionMaterialisedKernels[] = {
    &kernels::kAttentionScores, &kernels::kAttentionSoftmax, &kernels::kAttentionValues};

inline constexpr Route kAttentionRoutes[] = {
    {"attention_decode_split", kRouteAttentionDecode, kAttentionDecodeKernels, &AcceptsAttentionDecode,
     &RecordAttentionDecode},
    {"attention_streaming", kRouteAttentionStreaming, kAttentionStreamingKernels, &AcceptsAttentionStreaming,
     &RecordAttentionStreaming},
    // Last: a load that wants it leaves streaming out of the mask.
    {"attention_materialised", kRouteAttentionMaterialised, kAttentionMaterialisedKernels, &AcceptsAttentionMaterialised,
     &RecordAttentionMaterialised},
};

}  // namespace gemma4::ops
