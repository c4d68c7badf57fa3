#include "ops/linear_fusions.h"

#include "ops/linear_routes.h"

namespace gemma4::ops {
namespace {

template <uint32_t kRows>
bool AcceptsRows(const Site& site, const PassRows& pass, const gpu::Limits& limits) {
  for (size_t i = 0; i < site.chain_ops(); ++i) {
    const Site each = site.OpOfChain(i);
    if (each.op().kind != schema::OpKind_Linear) continue;
    if (!SameScales(site.in(1), each.in(1)) || ExceedsBinding(each.in(1), limits)) return false;
  }
  return ShapeOf(site, pass).rows == kRows;
}

constexpr uint32_t kHasOther = 4;  // a flag of linear_q4_gated_m1

template <typename Params, const kernels::Kernel& kKernel>
void RecordGated(const Site& gate, const PassRows& pass, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  const Site last = gate.OpOfChain(gate.chain_ops() - 1);
  auto params = FewRowsParams<Params>(kKernel, gate.in(1), ShapeOf(gate, pass), limits);
  std::vector<BindingRef> bindings = {gate.In(0), gate.In(1), gate.InScales(1)};
  if (gate.chain_ops() == 3) {
    const Site up = gate.OpOfChain(1);
    bindings.insert(bindings.end(), {up.In(1), up.InScales(1), BindingRef{}});
  } else {
    bindings.insert(bindings.end(), {BindingRef{}, BindingRef{}, last.In(1)});
    params.flags |= kHasOther;
    params.stride = static_cast<uint32_t>(MatrixWidth(last.in(1)));
    params.offset = last.attributes<schema::GeluMul>().offset();
  }
  bindings.push_back(last.Out(0));
  out.push_back(MakeDispatch(kKernel, std::move(bindings), params, FewRowsGroups(kKernel, params.n, params.lanes)));
}

// The weights of linear_q4_two_m1 and linear_q4_three_m1, in execution order.
template <typename Params, const kernels::Kernel& kKernel>
void RecordSeveral(const Site& first, const PassRows& pass, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  Params params;
  params.k = ShapeOf(first, pass).k;
  TellScales(first.in(1), &params);
  params.subgroup = (kKernel.features & kernels::kNeedsSubgroups) != 0 ? limits.subgroup_lanes : 1;
  std::vector<BindingRef> bindings = {first.In(0)}, outputs;
  uint64_t groups = 0;
  for (size_t i = 0; i < first.chain_ops(); ++i) {
    const Site site = first.OpOfChain(i);
    const LinearShape shape = ShapeOf(site, pass);
    const uint32_t lanes = LanesOf(shape, limits);
    if (i == 0) params.n_0 = shape.n, params.lanes_0 = lanes;
    if (i == 1) params.n_1 = shape.n, params.lanes_1 = lanes;
    if constexpr (requires { params.n_2; }) {
      if (i == 2) params.n_2 = shape.n, params.lanes_2 = lanes;
    }
    groups += FewRowsGroups(kKernel, shape.n, lanes);
    bindings.insert(bindings.end(), {site.In(1), site.InScales(1)});
    outputs.push_back(site.Out(0));
  }
  bindings.insert(bindings.end(), outputs.begin(), outputs.end());
  out.push_back(MakeDispatch(kKernel, std::move(bindings), params, groups));
}

template <const kernels::Kernel& kKernel>
constexpr const kernels::Kernel* kOnly[] = {&kKernel};

template <uint32_t kRows, typename Params, const kernels::Kernel& kKernel>
constexpr Route Gated(uint32_t unfused) {
  return {kKernel.name, kRouteFuseGatedLinear | unfused, kOnly<kKernel>, &AcceptsRows<kRows>,
          &RecordGated<Params, kKernel>};
}

template <uint32_t kRows, typename Params, const kernels::Kernel& kKernel>
constexpr Route Several(uint32_t fusion, uint32_t unfused) {
  return {kKernel.name, fusion | unfused, kOnly<kKernel>, &AcceptsRows<kRows>, &RecordSeveral<Params, kKernel>};
}

}  // namespace

constexpr Route kGatedLinearRoutes[] = {
    Gated<1, kernels::LinearQ4GatedM1SubgroupParams, kernels::kLinearQ4GatedM1Subgroup>(kRouteLinearM1Subgroup),
    Gated<1, kernels::LinearQ4GatedM1Params, kernels::kLinearQ4GatedM1>(kRouteLinearM1),
    Gated<3, kernels::LinearQ4GatedM3SubgroupParams, kernels::kLinearQ4GatedM3Subgroup>(kRouteLinearM3Subgroup),
    Gated<3, kernels::LinearQ4GatedM3Params, kernels::kLinearQ4GatedM3>(kRouteLinearM3),
};

constexpr Route kThreeLinearsRoutes[] = {
    Several<1, kernels::LinearQ4ThreeM1SubgroupParams, kernels::kLinearQ4ThreeM1Subgroup>(kRouteFuseThreeLinears,
                                                                                         kRouteLinearM1Subgroup),
    Several<1, kernels::LinearQ4ThreeM1Params, kernels::kLinearQ4ThreeM1>(kRouteFuseThreeLinears, kRouteLinearM1),
    Several<3, kernels::LinearQ4ThreeM3SubgroupParams, kernels::kLinearQ4ThreeM3Subgroup>(kRouteFuseThreeLinears,
                                                                                         kRouteLinearM3Subgroup),
    Several<3, kernels::LinearQ4ThreeM3Params, kernels::kLinearQ4ThreeM3>(kRouteFuseThreeLinears, kRouteLinearM3),
};

constexpr Route kTwoLinearsRoutes[] = {
    Several<1, kernels::LinearQ4TwoM1SubgroupParams, kernels::kLinearQ4TwoM1Subgroup>(kRouteFuseTwoLinears,
                                                                                     kRouteLinearM1Subgroup),
    Several<1, kernels::LinearQ4TwoM1Params, kernels::kLinearQ4TwoM1>(kRouteFuseTwoLinears, kRouteLinearM1),
    Several<3, kernels::LinearQ4TwoM3SubgroupParams, kernels::kLinearQ4TwoM3Subgroup>(kRouteFuseTwoLinears,
                                                                                     kRouteLinearM3Subgroup),
    Several<3, kernels::LinearQ4TwoM3Params, kernels::kLinearQ4TwoM3>(kRouteFuseTwoLinears, kRouteLinearM3),
};

}  // namespace gemma4::ops
