// Where weights lie in the shards. Owns the checks that every row of a weight has exactly one place, of exactly its size,
// inside its file, overlapping no other, and that file names are plain names. Never reads a shard: shard_stream.h does.
#pragma once

#include "base/result.h"
#include "program/plan.h"

namespace gemma4::program {

// Fills plan->shards and plan->spans from the program. After ReadProgram.
Status ReadWeights(Plan* plan);

// A single file name that stays inside its folder on every system: no separators, drive, control characters, leading or
// trailing dot, trailing space; at most 200 bytes.
bool IsPlainFileName(std::string_view name);

}  // namespace gemma4::program
