#include "ops/gather_rows.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckGatherRows(const Site& site) {
  const Tensor& table = site.in(0);
  const Tensor& index = site.in(1);
  return Check(site)
      .I32(table)
      .Width(table, MatrixWidth(table))
      .Dims(table, {table.dims.front(), table.dims.back()})
      .I32(index)
      .Dims(index, {1, index.dims.back()})
      .I32(site.out(0))
      .Dims(site.out(0), {1, uint64_t{index.dims.back()} * table.dims.back()})
      .Take();
}

void RecordGatherRows(const Site& site, const PassRows&, std::vector<DispatchSpec>& out) {
  kernels::GatherRowsParams params;
  params.count = site.in(1).dims.back();
  params.width = site.in(0).dims.back();
  params.table_rows = site.in(0).dims.front();
  out.push_back(MakeDispatch(kernels::kGatherRows, {site.In(0), site.In(1), site.Out(0)}, params,
                             ElementGroups(kernels::kGatherRows, uint64_t{params.count} * params.width)));
}

}  // namespace gemma4::ops
