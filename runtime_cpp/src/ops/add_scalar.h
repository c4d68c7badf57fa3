// i32 + constant, wrapping, of any number of rows; moves the query position of progressive drafts. Only in MTP builds.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckAddScalar(const Site& site);
void RecordAddScalar(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
