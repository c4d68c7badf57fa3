#include "ops/scatter.h"

#include "ops/check.h"

namespace gemma4::ops {

namespace {
enum Input : size_t { kTemplate, kIndex, kSource };

void CopyTemplate(const Site& site, uint32_t size, std::vector<DispatchSpec>& out) {
  const kernels::CopyWordsParams copy{.count = size, .source_offset = 0};
  out.push_back(MakeDispatch(kernels::kCopyWords, {site.In(kTemplate), site.Out(0)}, copy,
                             ElementGroups(kernels::kCopyWords, size)));
}

}  // namespace

Status CheckScatter(const Site& site) {
  const Tensor& base = site.in(kTemplate);
  const Tensor& index = site.in(kIndex);
  return Check(site)
      .F32(base)
      .Dims(base, {1, base.dims.back()})
      .I32(index)
      .Dims(index, {1, index.dims.back()})
      .F32(site.in(kSource))
      .SameShape(site.in(kSource), index)
      .F32(site.out(0))
      .SameShape(site.out(0), base)
      .Take();
}

void RecordScatter(const Site& site, const PassRows&, std::vector<DispatchSpec>& out) {
  const uint32_t size = site.in(kTemplate).dims.back();
  CopyTemplate(site, size, out);
  const kernels::ScatterParams params{.count = site.in(kIndex).dims.back(), .size = size};
  out.push_back(MakeDispatch(kernels::kScatter, {site.In(kIndex), site.In(kSource), site.Out(0)}, params,
                             ElementGroups(kernels::kScatter, params.count)));
}

void RecordScatterUnique(const Site& site, const PassRows&, std::vector<DispatchSpec>& out) {
  const uint32_t size = site.in(kTemplate).dims.back();
  CopyTemplate(site, size, out);
  const kernels::ScatterUniqueParams params{.count = site.in(kIndex).dims.back(), .size = size};
  out.push_back(MakeDispatch(kernels::kScatterUnique, {site.In(kIndex), site.In(kSource), site.Out(0)}, params,
                             ElementGroups(kernels::kScatterUnique, params.count)));
}

}  // namespace gemma4::ops
