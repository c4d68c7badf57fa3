// The ops that this build has: one constant table a build. A plain build's table names no MTP op, so none of them
// links. Owns arity; never registers anything at run time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/route.h"
#include "ops/site.h"

namespace gemma4::ops {

struct OpEntry {
  schema::OpKind kind = schema::OpKind_NONE;
  uint32_t inputs = 0;
  uint32_t optional_inputs = 0;  // bit i: input i may be absent (-1)
  uint32_t outputs = 0;
  Status (*check)(const Site&) = nullptr;
  // The generic way, which takes every shape: appends the op's dispatches for a pass of this size. Only after `check`
  // accepted the op.
  void (*record)(const Site&, const PassRows&, std::vector<DispatchSpec>&) = nullptr;
  std::span<const Route> routes = {};  // guarded ways, the best first
};

// Null when this build does not have the op.
const OpEntry* FindOp(schema::OpKind kind);

// The schema's name of any op, registered or not; "unknown op" for numbers outside the schema.
const char* KindName(schema::OpKind kind);

}  // namespace gemma4::ops
