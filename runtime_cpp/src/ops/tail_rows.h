// The rows whose logits are wanted: the last Tail rows of x [Pass,D], any 4-byte dtype. Everything behind it in the
// program runs on those rows only (prefill shortcut of the KV-shared layers).
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckTailRows(const Site& site);
void RecordTailRows(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
