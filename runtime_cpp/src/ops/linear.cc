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

void RecordLinearPart(const Site& site, const PassRows& pass, const RowPart& part, std::vector<DispatchSpec>& out) {
  const Tensor& weight = site.in(1);
  const uint32_t rows = RowsIn(MatrixRows(site.in(0)), pass);
  const uint32_t k = weight.dims[1];
  const uint32_t stride = weight.dims[0];
  const uint64_t elements = uint64_t{rows} * part.count;
  const BindingRef values = ValuesOf(part, site.In(1));
  if (weight.dtype == schema::Dtype_Q4) {
    kernels::LinearQ4Params params{.rows = rows, .k = k, .n = part.count, .first = part.first, .stride = stride};
    TellScales(weight, &params);
    out.push_back(MakeDispatch(kernels::kLinearQ4, {site.In(0), values, ScalesOf(part, site.InScales(1)), site.Out(0)},
                               params, ElementGroups(kernels::kLinearQ4, elements)));
    return;
  }
  const kernels::LinearF32Params params{
      .rows = rows, .k = k, .n = part.count, .first = part.first, .stride = stride};
  out.push_back(MakeDispatch(kernels::kLinearF32, {site.In(0), values, site.Out(0)}, params,
                             ElementGroups(kernels::kLinearF32, elements)));
}

void RecordLinear(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  RecordLinearPart(site, pass, AllRows(site.in(1)), out);
}

}  // namespace gemma4::ops
