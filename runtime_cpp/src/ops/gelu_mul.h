// Gated activation: out [N,F] = gelu_tanh(a [N,F]) * b[:, offset : offset+F], b [N,S]. The slice serves per-layer
// embeddings, which are packed layer after layer in one row.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckGeluMul(const Site& site);
void RecordGeluMul(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
