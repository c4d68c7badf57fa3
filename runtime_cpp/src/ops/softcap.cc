#include "ops/softcap.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckSoftcap(const Site& site) {
  return Check(site)
      .F32(site.in(0))
      .F32(site.out(0))
      .SameShape(site.out(0), site.in(0))
      .Positive("soft cap", site.attributes<schema::Softcap>().cap())
      .Take();
}

void RecordSoftcap(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const Tensor& x = site.in(0);
  kernels::SoftcapParams params;
  params.count = static_cast<uint32_t>(RowsIn(MatrixRows(x), pass) * MatrixWidth(x));
  params.cap = site.attributes<schema::Softcap>().cap();
  out.push_back(MakeDispatch(kernels::kSoftcap, {site.In(0), site.Out(0)}, params,
                             ElementGroups(kernels::kSoftcap, params.count)));
}

}  // namespace gemma4::ops
