// Softmax attention, scale 1, grouped queries: q [N,heads*d] over a cache [1,S,kv_heads,d] (causal, windowed when
// window > 0) or over a donor view of one (every visible row of the frozen prefix). Never writes a cache.
#pragma once

#include "kernels.h"
#include "ops/site.h"

namespace gemma4::ops {

constexpr uint32_t kMaxHeadDim = 512;  // what the attention kernel's workgroup memory holds

// The op in a pass of this size, as the generic kernel wants it.
kernels::AttentionParams AttentionParamsOf(const Site& site, const PassRows& pass);

Status CheckAttention(const Site& site);
void RecordAttention(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
