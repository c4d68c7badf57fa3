#include "ops/linear.h"

#include "ops/check.h"
#include "ops/q4_scales.h"

namespace gemma4::ops {

Status CheckLinear(const Site& site) {
  const Tensor& x = site.in(0);
  const Tensor& weight = site.in(1);
  const Tensor& out = site.out(0);
  return Check(site)
      .F32(x)
      .F32(out)
      .Weight(weight)
      .Width(x, weight.dims.back())
      .Width(out, weight.dims.front())
      .Rows(out, MatrixRows(x))
      .Take();
}

void RecordLinear(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const Tensor& weight = site.in(1);
  const uint32_t rows = RowsIn(MatrixRows(site.in(0)), pass);
  const uint32_t n = weight.dims[0];
  const uint32_t k = weight.dims[1];
  const uint64_t elements = uint64_t{rows} * n;
  if (weight.dtype == schema::Dtype_Q4) {
    kernels::LinearQ4Params params{.rows = rows, .k = k, .n = n};
    TellScales(weight, &params);
    out.push_back(MakeDispatch(kernels::kLinearQ4, {site.In(0), site.In(1), site.InScales(1), site.Out(0)}, params,
                               ElementGroups(kernels::kLinearQ4, elements)));
    return;
  }
  const kernels::LinearF32Params params{.rows = rows, .k = k, .n = n};
  out.push_back(MakeDispatch(kernels::kLinearF32, {site.In(0), site.In(1), site.Out(0)}, params,
                             ElementGroups(kernels::kLinearF32, elements)));
}

}  // namespace gemma4::ops
