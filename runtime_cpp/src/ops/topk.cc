#include "ops/topk.h"

#include "ops/check.h"

namespace gemma4::ops {

namespace {
// The shape that the staged kernel is written for.
constexpr uint32_t kStagedElements = 2048;
constexpr uint32_t kStagedK = 32;
}  // namespace

Status CheckTopK(const Site& site) {
  const Tensor& x = site.in(0);
  const uint32_t k = site.attributes<schema::TopK>().k();
  return Check(site)
      .F32(x)
      .Dims(x, {1, x.dims.back()})
      .That(k > 0, "top-k k is 0")
      .AtMost("top-k k", k, x.dims.back())
      .F32(site.out(0))
      .Dims(site.out(0), {1, k})
      .I32(site.out(1))
      .Dims(site.out(1), {1, k})
      .Take();
}

void RecordTopK(const Site& site, const PassRows&, std::vector<DispatchSpec>& out) {
  kernels::TopkParams params;
  params.n = site.in(0).dims.back();
  params.k = site.attributes<schema::TopK>().k();
  out.push_back(MakeDispatch(kernels::kTopk, {site.In(0), site.Out(0), site.Out(1)}, params,
                             ElementGroups(kernels::kTopk, params.n)));
}

namespace {

bool AcceptsStaged(const Site& site, const PassRows&, const gpu::Limits&) {
  return site.in(0).dims.back() == kStagedElements && site.attributes<schema::TopK>().k() == kStagedK;
}

void RecordStaged(const Site& site, const PassRows&, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  const kernels::TopkStagedParams params{.k = kStagedK};
  out.push_back(MakeDispatch(kernels::kTopkStaged, {site.In(0), site.Out(0), site.Out(1)}, params, 1));
}

constexpr const kernels::Kernel* kStagedKernels[] = {&kernels::kTopkStaged};

}  // namespace

const Route kTopKRoutes[1] = {{"topk_staged", kRouteTopkStaged, kStagedKernels, &AcceptsStaged, &RecordStaged}};

}  // namespace gemma4::ops
