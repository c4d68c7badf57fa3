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

// Measured on an NVIDIA H200: rows of 1536 columns take half the time with 256 threads.
constexpr uint32_t kWideNorm = 512;

bool IsWide(const Site& site, const PassRows&, const gpu::Limits&) {
  return site.attributes<schema::RmsNorm>().width() >= kWideNorm;
}

template <typename Params>
void RecordNorm(const kernels::Kernel& kernel, const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const auto params = ParamsOf<Params>(site, pass);
  out.push_back(MakeDispatch(kernel, {site.In(kX), site.In(kWeight), site.In(kResidual), site.In(kScalar), site.Out(0)},
                             params, params.rows));
}

template <typename Params>
void RecordNormPair(const kernels::Kernel& kernel, const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const Site next = site.OpOfChain(1);
  const auto params = ParamsOf<Params>(site, pass);
  out.push_back(MakeDispatch(kernel,
                             {site.In(kX), site.In(kWeight), site.In(kResidual), site.In(kScalar), next.In(kWeight),
                              site.Out(0), next.Out(0)},
                             params, params.rows));
}

void RecordWide(const Site& site, const PassRows& pass, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  RecordNorm<kernels::RmsNormWideParams>(kernels::kRmsNormWide, site, pass, out);
}
void RecordPair(const Site& site, const PassRows& pass, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  RecordNormPair<kernels::RmsNormPairParams>(kernels::kRmsNormPair, site, pass, out);
}
void RecordWidePair(const Site& site, const PassRows& pass, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  RecordNormPair<kernels::RmsNormPairWideParams>(kernels::kRmsNormPairWide, site, pass, out);
}

constexpr const kernels::Kernel* kWideKernels[] = {&kernels::kRmsNormWide};
constexpr const kernels::Kernel* kPairKernels[] = {&kernels::kRmsNormPair};
constexpr const kernels::Kernel* kWidePairKernels[] = {&kernels::kRmsNormPairWide};

}  // namespace

constexpr Route kNormRoutes[] = {{"rms_norm_wide", kRouteNormWide, kWideKernels, &IsWide, &RecordWide}};

// A pair stands for the form that its two norms would have, with that one's bits.
constexpr Route kNormPairRoutes[] = {
    {"rms_norm_pair_wide", kRouteFuseNormPair | kRouteNormWide, kWidePairKernels, &IsWide, &RecordWidePair},
    {"rms_norm_pair", kRouteFuseNormPair, kPairKernels, &AcceptsAll, &RecordPair},
};

void RecordRmsNorm(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  RecordNorm<kernels::RmsNormParams>(kernels::kRmsNorm, site, pass, out);
}

}  // namespace gemma4::ops
