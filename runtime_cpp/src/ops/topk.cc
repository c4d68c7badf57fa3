#include "ops/topk.h"

#include "ops/check.h"

namespace gemma4::ops {

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

}  // namespace gemma4::ops
