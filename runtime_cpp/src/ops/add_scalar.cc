#include "ops/add_scalar.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckAddScalar(const Site& site) {
  const Tensor& x = site.in(0);
  const Tensor& out = site.out(0);
  return Check(site).I32(x).I32(out).SameShape(out, x).Take();
}

void RecordAddScalar(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const kernels::OffsetIntegersParams params{.count = ElementsIn(site.in(0), pass),
                                             .value = site.attributes<schema::AddScalar>().value()};
  out.push_back(MakeDispatch(kernels::kOffsetIntegers, {site.In(0), BindingRef{}, site.Out(0)}, params,
                             ElementGroups(kernels::kOffsetIntegers, params.count)));
}

}  // namespace gemma4::ops
