#include "ops/gather_linear.h"

#include "ops/check.h"
#include "ops/q4_scales.h"

namespace gemma4::ops {

namespace {
enum Input : size_t { kY, kWeight, kIds };
}  // namespace

Status CheckGatherLinear(const Site& site) {
  const Tensor& y = site.in(kY);
  const Tensor& weight = site.in(kWeight);
  const Tensor& ids = site.in(kIds);
  return Check(site)
      .F32(y)
      .Weight(weight)
      .Dims(y, {1, weight.dims.back()})
      .I32(ids)
      .Dims(ids, {1, ids.dims.back()})
      .F32(site.out(0))
      .Dims(site.out(0), {1, ids.dims.back()})
      .Take();
}

void RecordGatherLinear(const Site& site, const PassRows&, std::vector<DispatchSpec>& out) {
  const Tensor& weight = site.in(kWeight);
  const uint32_t count = site.in(kIds).dims.back();
  const uint32_t k = weight.dims[1];
  if (weight.dtype == schema::Dtype_Q4) {
    kernels::GatherLinearQ4Params params{.count = count, .k = k, .rows = weight.dims[0]};
    TellScales(weight, &params);
    out.push_back(MakeDispatch(kernels::kGatherLinearQ4,
                               {site.In(kY), site.In(kWeight), site.InScales(kWeight), site.In(kIds), site.Out(0)},
                               params, ElementGroups(kernels::kGatherLinearQ4, count)));
    return;
  }
  const kernels::GatherLinearF32Params params{.count = count, .k = k, .rows = weight.dims[0]};
  out.push_back(MakeDispatch(kernels::kGatherLinearF32, {site.In(kY), site.In(kWeight), site.In(kIds), site.Out(0)},
                             params, ElementGroups(kernels::kGatherLinearF32, count)));
}

}  // namespace gemma4::ops
