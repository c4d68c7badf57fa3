// Guarded ways to run an op beside its generic kernels, or a chain of ops in one kernel. Owns nothing: an op lists its routes
// in one constant table, the best first, and so does a fusion (program/fusions.h); program/routes.h decides. A route is
// never taken outside what its guard accepts, on a device that its kernels do not fit, or when the mask of the load forbids
// it; then the next one is asked, and at last the generic kernels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/context.h"
#include "ops/dispatch.h"
#include "ops/site.h"

namespace gemma4::ops {

// Bits of the route mask: one a route, and one a fusion, whose forms need the bits of what they stand for too.
enum RouteBit : uint32_t {
  kRouteLinearM1 = 1u << 0,
  kRouteLinearM1Subgroup = 1u << 1,
  kRouteLinearM3 = 1u << 2,
  kRouteLinearM3Subgroup = 1u << 3,
  kRouteLinearTiled = 1u << 4,
  kRouteLinearSteel = 1u << 5,
  kRouteLinearSteelF16 = 1u << 6,
  kRouteLinearBk64 = 1u << 7,
  kRouteTopkStaged = 1u << 8,
  kRouteArgmaxParts = 1u << 9,
  kRouteEmbeddingParts = 1u << 10,
  kRouteLinearDp4a = 1u << 11,
  kRouteLinearDp4aSubgroup = 1u << 12,
  kRouteLinearDp4aM3 = 1u << 13,
  kRouteLinearDp4aM3Subgroup = 1u << 14,
  kRouteLinearMatrix = 1u << 15,
  kRouteAttentionDecode = 1u << 16,
  kRouteAttentionStreaming = 1u << 17,
  kRouteAttentionMaterialised = 1u << 18,
  kRouteNormWide = 1u << 19,
  kRouteLinearSteelPacked = 1u << 20,
  kRouteLinearParts = 1u << 21,
  kRouteGatherLinearParts = 1u << 22,
  kRouteLinearMatrixF16 = 1u << 23,
  kRouteFuseNormPair = 1u << 24,
  kRouteFuseGatedLinear = 1u << 25,
  kRouteFuseThreeLinears = 1u << 26,
  kRouteFuseTwoLinears = 1u << 27,
  kRouteFuseCachePair = 1u << 28,
};

struct Route {
  const char* name = "";  // of its first kernel, which names the route in records
  uint32_t bits = 0;      // of the route mask, all of which it must have; no two ops or fusions share one
  std::span<const kernels::Kernel* const> kernels;
  // The shape guard: whether the route may run this op, or chain of ops, in a pass of this size. Only after the ops' check.
  bool (*accepts)(const Site&, const PassRows&, const gpu::Limits&) = nullptr;
  void (*record)(const Site&, const PassRows&, const gpu::Limits&, std::vector<DispatchSpec>&) = nullptr;
};

// The guard of a route that has nothing to refuse.
inline bool AcceptsAll(const Site&, const PassRows&, const gpu::Limits&) { return true; }

inline constexpr uint32_t kAllRoutes = UINT32_MAX;
inline constexpr uint32_t kFusions =
    kRouteFuseNormPair | kRouteFuseGatedLinear | kRouteFuseThreeLinears | kRouteFuseTwoLinears | kRouteFuseCachePair;
// Activations are rounded to f16, and all scores of a prefill kept in memory, only where somebody asks for it.
inline constexpr uint32_t kDefaultRoutes = ~uint32_t{kRouteLinearSteelF16 | kRouteLinearSteelPacked | kRouteLinearBk64 |
                                                     kRouteLinearMatrixF16 | kRouteAttentionMaterialised};
// Four products an instruction: where the hardware has none, the browser makes each of them out of about twenty.
inline constexpr uint32_t kDotRoutes =
    kRouteLinearDp4a | kRouteLinearDp4aSubgroup | kRouteLinearDp4aM3 | kRouteLinearDp4aM3Subgroup;
// A software adapter pays for every instruction and barrier, and has no width that more workgroups would fill: measured on
// SwiftShader, the generic kernels are faster there but for the top-k, linear two to five times, attention of a short
// context ten times.
inline constexpr uint32_t kSoftwareRoutes =
    kRouteTopkStaged | kRouteEmbeddingParts | kRouteLinearParts | kRouteGatherLinearParts;

// Products of 16 by 16 by 16 halves by subgroups of 32, which WebGPU's feature does not promise: every GPU of NVIDIA's that has
// a matrix unit has them, and keeps halves below the smallest normal one, which the exact form needs.
inline constexpr uint32_t kMatrixRoutes = kRouteLinearMatrix | kRouteLinearMatrixF16;

// The routes that suit an adapter. Apple's GPUs have no dot product of packed integers.
inline uint32_t RoutesFor(const gpu::AdapterInfo& adapter) {
  if (adapter.software) return kSoftwareRoutes;
  if (adapter.vendor == "nvidia") return kDefaultRoutes;
  return kDefaultRoutes & ~(kMatrixRoutes | (adapter.vendor == "apple" ? kDotRoutes : 0u));
}

}  // namespace gemma4::ops
