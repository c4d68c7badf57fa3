#include "ops/amin.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckAmin(const Site& site) {
  const Tensor& x = site.in(0);
  return Check(site).F32(x).Dims(x, {1, x.dims.back()}).F32(site.out(0)).Dims(site.out(0), {1, 1}).Take();
}

void RecordAmin(const Site& site, const PassRows&, std::vector<DispatchSpec>& out) {
  kernels::AminParams params;
  params.count = site.in(0).dims.back();
  out.push_back(MakeDispatch(kernels::kAmin, {site.In(0), site.Out(0)}, params, 1));
}

}  // namespace gemma4::ops
