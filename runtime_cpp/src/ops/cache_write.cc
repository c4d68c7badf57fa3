#include "ops/cache_write.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckCacheWrite(const Site& site) {
  const Tensor& x = site.in(0);
  const Tensor& cache = site.out(0);
  Check check(site);
  check.F32(x).F32(cache).Stored(cache, schema::Storage_Cache).Indexes(site.in(1), MatrixRows(x));
  check.That(cache.dims.size() == 4 && cache.dims[0] == 1,
             Text("cache ", cache.name, " has dims ", DimsText(cache), ", wanted [1,S,heads,head_dim]"));
  if (cache.dims.size() == 4) check.Width(x, uint64_t{cache.dims[2]} * cache.dims[3]);
  return check.Take();
}

namespace {

// Of cache_write and cache_write_pair.
template <typename Params>
Params ParamsOf(const Site& site, const PassRows& pass) {
  Params params;
  params.rows = RowsIn(MatrixRows(site.in(0)), pass);
  params.width = site.in(0).dims.back();
  params.capacity = site.out(0).dims[1];
  return params;
}

void RecordPair(const Site& site, const PassRows& pass, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  const Site values = site.OpOfChain(1);
  const auto params = ParamsOf<kernels::CacheWritePairParams>(site, pass);
  out.push_back(MakeDispatch(kernels::kCacheWritePair,
                             {site.In(0), values.In(0), site.In(1), site.Out(0), values.Out(0)}, params,
                             ElementGroups(kernels::kCacheWritePair, uint64_t{params.rows} * params.width)));
}

constexpr const kernels::Kernel* kPairKernels[] = {&kernels::kCacheWritePair};

}  // namespace

constexpr Route kCachePairRoutes[] = {
    {"cache_write_pair", kRouteFuseCachePair, kPairKernels, &AcceptsAll, &RecordPair}};

void RecordCacheWrite(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const auto params = ParamsOf<kernels::CacheWriteParams>(site, pass);
  out.push_back(MakeDispatch(kernels::kCacheWrite, {site.In(0), site.In(1), site.Out(0)}, params,
                             ElementGroups(kernels::kCacheWrite, uint64_t{params.rows} * params.width)));
}

}  // namespace gemma4::ops
