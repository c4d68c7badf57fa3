// Guarded ways to run an op beside its generic kernels. Owns nothing: an op lists its routes in one constant table, the
// best first, and program/routes.h decides. A route is never taken outside what its guard accepts, on a device that its
// kernels do not fit, or when the mask of the load forbids it; then the next one is asked, and at last the generic kernels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/context.h"
#include "ops/dispatch.h"
#include "ops/site.h"

namespace gemma4::ops {

// Bits of the route mask; an op's block of eight is its own.
enum RouteBit : uint32_t {
  kRouteAttentionDecode = 1u << 16,
  kRouteAttentionStreaming = 1u << 17,
};

struct Route {
  const char* name = "";  // of its first kernel, which names the route in records
  uint32_t bit = 0;       // of the route mask; unique over all ops
  std::span<const kernels::Kernel* const> kernels;
  // The shape guard: whether the route may run this op in a pass of this size. Only after the op's check.
  bool (*accepts)(const Site&, const PassRows&, const gpu::Limits&) = nullptr;
  void (*record)(const Site&, const PassRows&, const gpu::Limits&, std::vector<DispatchSpec>&) = nullptr;
};

inline constexpr uint32_t kAllRoutes = UINT32_MAX;

}  // namespace gemma4::ops
