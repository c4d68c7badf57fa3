#include "ops/argmax.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckArgmax(const Site& site) {
  const Tensor& x = site.in(0);
  return Check(site).F32(x).Width(x, MatrixWidth(x)).Indexes(site.out(0), MatrixRows(x)).Take();
}

void RecordArgmax(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const Tensor& x = site.in(0);
  kernels::ArgmaxParams params;
  params.rows = RowsIn(MatrixRows(x), pass);
  params.width = static_cast<uint32_t>(MatrixWidth(x));
  out.push_back(MakeDispatch(kernels::kArgmax, {site.In(0), site.Out(0)}, params, params.rows));
}

}  // namespace gemma4::ops
