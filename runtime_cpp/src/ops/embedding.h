// Token embedding: out [N,D] f32 = table[id] * scale, table [V,D] f32 or q4. Also reads the per-layer table and, in a
// draft step, the target's table. An id outside [0,V) gives a zero row. Never touches ids.
#pragma once

#include "ops/route.h"
#include "ops/site.h"

namespace gemma4::ops {

Status CheckEmbedding(const Site& site);
void RecordEmbedding(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

// embedding_parts: a dispatch for every part of a table that is too large for one binding; each writes the rows of its
// own ids.
extern const Route kEmbeddingRoutes[1];

}  // namespace gemma4::ops
