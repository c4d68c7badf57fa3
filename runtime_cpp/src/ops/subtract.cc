#include "ops/subtract.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckSubtract(const Site& site) {
  const Tensor& a = site.in(0);
  const Tensor& b = site.in(1);
  const Tensor& out = site.out(0);
  Check check(site);
  check.I32(a).I32(b).I32(out).SameShape(out, a);
  if (b.elements != 1 || b.rows != schema::Rows_Fixed) check.SameShape(b, a);
  return check.Take();
}

void RecordSubtract(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const Tensor& a = site.in(0);
  const uint32_t count = ElementsIn(a, pass);
  const bool one = site.in(1).elements == 1 && site.in(1).rows == schema::Rows_Fixed;
  const kernels::OffsetIntegersParams params{.count = count, .value = 0, .others = one ? 1 : count};
  out.push_back(MakeDispatch(kernels::kOffsetIntegers, {site.In(0), site.In(1), site.Out(0)}, params,
                             ElementGroups(kernels::kOffsetIntegers, count)));
}

}  // namespace gemma4::ops
