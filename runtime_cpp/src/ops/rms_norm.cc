#include "ops/rms_norm.h"

#include "ops/check.h"

namespace gemma4::ops {

namespace {
enum Input : size_t { kX, kWeight, kResidual, kScalar };
enum Flag : uint32_t { kHasWeight = 1, kHasResidual = 2, kHasScalar = 4 };
}  // namespace

Status CheckRmsNorm(const Site& site) {
  const schema::RmsNorm& attributes = site.attributes<schema::RmsNorm>();
  const Tensor& x = site.in(kX);
  const Tensor& out = site.out(0);
  Check check(site);
  check.F32(x)
      .F32(out)
      .SameShape(out, x)
      .Divides("norm width", attributes.width(), x.dims.back())
      .Positive("norm eps", attributes.eps());
  if (site.has(kWeight)) check.F32(site.in(kWeight)).Elements(site.in(kWeight), attributes.width());
  if (site.has(kResidual)) check.F32(site.in(kResidual)).SameShape(site.in(kResidual), x);
  if (site.has(kScalar)) check.F32(site.in(kScalar)).Elements(site.in(kScalar), 1);
  return check.Take();
}

namespace {

// Of rms_norm and rms_norm_pair.
template <typename Params>
Params ParamsOf(const Site& site, const PassRows& pass) {
  const schema::RmsNorm& attributes = site.attributes<schema::RmsNorm>();
  const Tensor& x = site.in(kX);
  Params params;
  params.rows = static_cast<uint32_t>(uint64_t{RowsIn(MatrixRows(x), pass)} * (x.dims.back() / attributes.width()));
  params.width = attributes.width();
  params.eps = attributes.eps();
  params.flags = (site.has(kWeight) ? kHasWeight : 0u) | (site.has(kResidual) ? kHasResidual : 0u) |
                 (site.has(kScalar) ? kHasScalar : 0u);
  return params;
}

bool AcceptsPair(const Site&, const PassRows&, const gpu::Limits&) { return true; }

void RecordPair(const Site& site, const PassRows& pass, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  const Site next = site.OpOfChain(1);
  const auto params = ParamsOf<kernels::RmsNormPairParams>(site, pass);
  out.push_back(MakeDispatch(kernels::kRmsNormPair,
                             {site.In(kX), site.In(kWeight), site.In(kResidual), site.In(kScalar), next.In(kWeight),
                              site.Out(0), next.Out(0)},
                             params, params.rows));
}

constexpr const kernels::Kernel* kPairKernels[] = {&kernels::kRmsNormPair};

}  // namespace

const Route kNormPairRoutes[1] = {{"rms_norm_pair", kRouteFuseNormPair, kPairKernels, &AcceptsPair, &RecordPair}};

void RecordRmsNorm(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const auto params = ParamsOf<kernels::RmsNormParams>(site, pass);
  out.push_back(MakeDispatch(kernels::kRmsNorm,
                             {site.In(kX), site.In(kWeight), site.In(kResidual), site.In(kScalar), site.Out(0)}, params,
                             params.rows));
}

}  // namespace gemma4::ops
