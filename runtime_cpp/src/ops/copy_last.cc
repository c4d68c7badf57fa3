#include "ops/copy_last.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckCopyLast(const Site& site) {
  const Tensor& greedy = site.in(0);
  return Check(site)
      .I32(greedy)
      .That(greedy.rows != schema::Rows_Fixed && greedy.dims.size() == 1,
            Text("greedy tokens ", greedy.name, " have dims ", DimsText(greedy), ", wanted one entry a row"))
      .I32(site.out(0))
      .Dims(site.out(0), {1, 1})
      .Take();
}

void RecordCopyLast(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  kernels::CopyWordsParams params;
  params.count = 1;
  params.source_offset = RowsIn(VectorRows(site.in(0)), pass) - 1;
  out.push_back(MakeDispatch(kernels::kCopyWords, {site.In(0), site.Out(0)}, params, 1));
}

}  // namespace gemma4::ops
