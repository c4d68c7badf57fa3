// Loading of a program: untrusted bytes in, a validated plan out, or the first thing that is wrong with them. Owns the
// order of the checks. Never touches the GPU and keeps nothing of a refused program.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "gpu/context.h"
#include "program/plan.h"

namespace gemma4::program {

// `route_mask`: the routes that may be taken (ops/route.h).
Result<Plan> LoadProgram(std::span<const uint8_t> program, std::string_view expected_method, const gpu::Limits& limits,
                         uint32_t route_mask = ops::kDefaultRoutes);

}  // namespace gemma4::program
