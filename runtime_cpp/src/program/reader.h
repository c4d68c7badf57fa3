// First half of loading: untrusted bytes become a plan's plain data. Owns the FlatBuffers verification and everything
// that can be said of one tensor, op or header field alone: ranges, sizes, names, indices. Never looks at how they fit
// together; dataflow.h, weights.h and contracts.h do.
#pragma once

#include <string_view>

#include "base/result.h"
#include "program/plan.h"

namespace gemma4::program {

constexpr size_t kMaxProgramBytes = size_t{64} << 20;

// Reads plan->bytes into the rest of the plan (memory excepted). `expected_method` other than the program's is refused
// before anything else of the program is looked at.
Status ReadProgram(Plan* plan, std::string_view expected_method);

// The verified root of the plan's bytes. Only after ReadProgram succeeded.
const ops::schema::Program& Root(const Plan& plan);

bool IsSha256(std::string_view text);  // 64 lower-case hexadecimal digits

}  // namespace gemma4::program
