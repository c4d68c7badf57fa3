#include "ops/concat.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckConcat(const Site& site) {
  const Tensor& a = site.in(0);
  const Tensor& b = site.in(1);
  return Check(site)
      .F32(a)
      .F32(b)
      .F32(site.out(0))
      .Rows(b, MatrixRows(a))
      .Rows(site.out(0), MatrixRows(a))
      .Width(site.out(0), MatrixWidth(a) + MatrixWidth(b))
      .Take();
}

void RecordConcat(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  kernels::ConcatParams params;
  params.rows = RowsIn(MatrixRows(site.in(0)), pass);
  params.a_width = static_cast<uint32_t>(MatrixWidth(site.in(0)));
  params.b_width = static_cast<uint32_t>(MatrixWidth(site.in(1)));
  const uint64_t elements = uint64_t{params.rows} * (uint64_t{params.a_width} + params.b_width);
  out.push_back(MakeDispatch(kernels::kConcat, {site.In(0), site.In(1), site.Out(0)}, params,
                             ElementGroups(kernels::kConcat, elements)));
}

}  // namespace gemma4::ops
