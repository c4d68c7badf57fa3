#include "ops/gather_linear.h"

#include "ops/check.h"
#include "ops/q4_scales.h"
#include "ops/row_parts.h"

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

namespace {

void RecordPart(const Site& site, const RowPart& part, std::vector<DispatchSpec>& out) {
  const Tensor& weight = site.in(kWeight);
  const uint32_t count = site.in(kIds).dims.back();
  const uint32_t k = weight.dims[1];
  const BindingRef values = ValuesOf(part, site.In(kWeight));
  if (weight.dtype == schema::Dtype_Q4) {
    kernels::GatherLinearQ4Params params{
        .count = count, .k = k, .rows = weight.dims[0], .first = part.first, .held = part.count};
    TellScales(weight, &params);
    const BindingRef scales = ScalesOf(part, site.InScales(kWeight));
    out.push_back(MakeDispatch(kernels::kGatherLinearQ4, {site.In(kY), values, scales, site.In(kIds), site.Out(0)}, params,
                               ElementGroups(kernels::kGatherLinearQ4, count)));
    return;
  }
  const kernels::GatherLinearF32Params params{
      .count = count, .k = k, .rows = weight.dims[0], .first = part.first, .held = part.count};
  out.push_back(MakeDispatch(kernels::kGatherLinearF32, {site.In(kY), values, site.In(kIds), site.Out(0)}, params,
                             ElementGroups(kernels::kGatherLinearF32, count)));
}

bool AcceptsParts(const Site& site, const PassRows&, const gpu::Limits& limits) {
  return ExceedsBinding(site.in(kWeight), limits) && CanBind(site.in(kWeight), limits);
}

void RecordParts(const Site& site, const PassRows&, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  for (const RowPart& part : RowPartsOf(site.in(kWeight), limits)) RecordPart(site, part, out);
}

constexpr const kernels::Kernel* kPartsKernels[] = {&kernels::kGatherLinearF32, &kernels::kGatherLinearQ4};

}  // namespace

void RecordGatherLinear(const Site& site, const PassRows&, std::vector<DispatchSpec>& out) {
  RecordPart(site, AllRows(site.in(kWeight)), out);
}

const Route kGatherLinearRoutes[1] = {
    {"gather_linear_parts", kRouteGatherLinearParts, kPartsKernels, &AcceptsParts, &RecordParts}};

}  // namespace gemma4::ops
