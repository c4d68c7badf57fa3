#include "ops/tail_rows.h"

#include "ops/check.h"

namespace gemma4::ops {

namespace {

// A program input i32[1,M] is a vector of M rows; every other tensor is [rows, width].
RowCount SourceRows(const Tensor& x) { return x.storage == schema::Storage_Input ? VectorRows(x) : MatrixRows(x); }
uint64_t SourceWidth(const Tensor& x) { return x.storage == schema::Storage_Input ? 1 : MatrixWidth(x); }

}  // namespace

Status CheckTailRows(const Site& site) {
  const Tensor& x = site.in(0);
  const Tensor& out = site.out(0);
  Check check(site);
  check.NoView(x).NoView(out);
  check.That(x.dtype == out.dtype && x.dtype != schema::Dtype_Q4,
             Text("tensor ", x.name, " is ", DtypeName(x.dtype), " and ", out.name, " is ", DtypeName(out.dtype)));
  check.That(SourceRows(x).kind == schema::Rows_Pass, Text("tensor ", x.name, " does not have the rows of the pass"));
  check.That(out.rows == schema::Rows_Tail, Text("tensor ", out.name, " does not have the tail rows"));
  check.Equal(Text("width of ", out.name), MatrixWidth(out), SourceWidth(x));
  check.AtMost("tail rows", out.dims.front(), SourceRows(x).max);
  return check.Take();
}

void RecordTailRows(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const uint64_t width = SourceWidth(site.in(0));
  kernels::CopyWordsParams params;
  params.count = static_cast<uint32_t>(pass.tail * width);
  params.source_offset = static_cast<uint32_t>((pass.pass - pass.tail) * width);
  out.push_back(MakeDispatch(kernels::kCopyWords, {site.In(0), site.Out(0)}, params,
                             ElementGroups(kernels::kCopyWords, params.count)));
}

}  // namespace gemma4::ops
