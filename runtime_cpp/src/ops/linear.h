// Projection without bias: out [N,O] = x [N,K] . weight [O,K] transposed, weight f32 or q4. A row's sum runs in one
// order whatever the number of rows, so that verify and plain decode agree bit for bit.
#pragma once

#include "ops/row_parts.h"
#include "ops/site.h"

namespace gemma4::ops {

Status CheckLinear(const Site& site);
void RecordLinear(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);
// The columns of out that a part of the weight makes.
void RecordLinearPart(const Site& site, const PassRows& pass, const RowPart& part, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
