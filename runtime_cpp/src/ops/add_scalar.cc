#include "ops/add_scalar.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckAddScalar(const Site& site) {
  const Tensor& x = site.in(0);
  const Tensor& out = site.out(0);
  return Check(site).I32(x).I32(out).SameShape(out, x).That(x.rows == schema::Rows_Fixed, "x has no fixed size").Take();
}

void RecordAddScalar(const Site& site, const PassRows&, std::vector<DispatchSpec>& out) {
  kernels::AddScalarParams params;
  params.count = static_cast<uint32_t>(site.in(0).elements);
  params.value = site.attributes<schema::AddScalar>().value();
  out.push_back(MakeDispatch(kernels::kAddScalar, {site.In(0), site.Out(0)}, params,
                             ElementGroups(kernels::kAddScalar, params.count)));
}

}  // namespace gemma4::ops
