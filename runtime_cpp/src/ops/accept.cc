#include "ops/accept.h"

#include "ops/check.h"

namespace gemma4::ops {

namespace {
enum Input : size_t { kFlag, kDraft0, kDraft1, kGreedy };
}  // namespace

Status CheckAccept(const Site& site) {
  const Tensor& greedy = site.in(kGreedy);
  Check check(site);
  for (const size_t input : {kFlag, kDraft0, kDraft1}) check.I32(site.in(input)).Elements(site.in(input), 1);
  check.I32(greedy).That(
      greedy.rows != schema::Rows_Fixed && greedy.dims.size() == 1,
      Text("greedy tokens ", greedy.name, " have dims ", DimsText(greedy), ", wanted one entry a row"));
  for (const size_t output : {0, 1, 2, 3}) check.I32(site.out(output));
  return check.Dims(site.out(0), {1, 2})
      .Dims(site.out(1), {1, 3})
      .Dims(site.out(2), {1, 1})
      .Dims(site.out(3), {1, 1})
      .Take();
}

void RecordAccept(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  kernels::AcceptParams params;
  params.rows = RowsIn(VectorRows(site.in(kGreedy)), pass);
  out.push_back(MakeDispatch(kernels::kAccept,
                             {site.In(kFlag), site.In(kDraft0), site.In(kDraft1), site.In(kGreedy), site.Out(0),
                              site.Out(1), site.Out(2), site.Out(3)},
                             params, 1));
}

}  // namespace gemma4::ops
