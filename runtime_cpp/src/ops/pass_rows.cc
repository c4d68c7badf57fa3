#include "ops/pass_rows.h"

#include "ops/check.h"

namespace gemma4::ops {

namespace {
enum Input : size_t { kIds, kPositions, kFlag, kDraft0, kDraft1 };
}  // namespace

Status CheckPassRowsOp(const Site& site) {
  Check check(site);
  for (const size_t input : {kIds, kPositions}) {
    check.I32(site.in(input)).Stored(site.in(input), schema::Storage_Input);
    check.SameShape(site.in(input), site.in(kIds));
  }
  for (const size_t input : {kFlag, kDraft0, kDraft1}) check.I32(site.in(input)).Elements(site.in(input), 1);
  for (const size_t output : {0, 1}) {
    const Tensor& out = site.out(output);
    check.I32(out).SameShape(out, site.out(0));
    check.That(out.rows == schema::Rows_Pass && out.dims.size() == 1,
               Text("tensor ", out.name, " has dims ", DimsText(out), ", wanted one entry a row of the pass"));
    check.AtMost("rows of the inputs", VectorRows(site.in(kIds)).max, out.dims.front());
  }
  return check.Take();
}

void RecordPassRowsOp(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  kernels::PassRowsParams params;
  params.rows = pass.pass;
  out.push_back(MakeDispatch(kernels::kPassRows,
                             {site.In(kIds), site.In(kPositions), site.In(kFlag), site.In(kDraft0), site.In(kDraft1),
                              site.Out(0), site.Out(1)},
                             params, ElementGroups(kernels::kPassRows, params.rows)));
}

}  // namespace gemma4::ops
