// Per-layer embeddings of a pass: (rms(context * context_scale) * weight + token) * scale over slices of P, context and
// token [N,L*P], weight [P].
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckPleCombine(const Site& site);
void RecordPleCombine(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
