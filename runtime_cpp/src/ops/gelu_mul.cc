#include "ops/gelu_mul.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckGeluMul(const Site& site) {
  const Tensor& a = site.in(0);
  const Tensor& b = site.in(1);
  const uint64_t end = uint64_t{site.attributes<schema::GeluMul>().offset()} + a.dims.back();
  return Check(site)
      .F32(a)
      .F32(b)
      .F32(site.out(0))
      .SameShape(site.out(0), a)
      .Rows(b, MatrixRows(a))
      .AtMost("end of the slice of b", end, MatrixWidth(b))
      .Take();
}

void RecordGeluMul(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  kernels::GeluMulParams params;
  params.rows = RowsIn(MatrixRows(site.in(0)), pass);
  params.width = static_cast<uint32_t>(MatrixWidth(site.in(0)));
  params.stride = static_cast<uint32_t>(MatrixWidth(site.in(1)));
  params.offset = site.attributes<schema::GeluMul>().offset();
  out.push_back(MakeDispatch(kernels::kGeluMul, {site.In(0), site.In(1), site.Out(0)}, params,
                             ElementGroups(kernels::kGeluMul, uint64_t{params.rows} * params.width)));
}

}  // namespace gemma4::ops
