#include "ops/seed_write.h"

#include "ops/check.h"

namespace gemma4::ops {

namespace {
enum Input : size_t { kFlag, kState, kMatch };
}  // namespace

Status CheckSeedWrite(const Site& site) {
  const Tensor& state = site.in(kState);
  const Tensor& seed = site.out(0);
  return Check(site)
      .I32(site.in(kFlag))
      .Elements(site.in(kFlag), 1)
      .F32(state)
      .That(state.rows != schema::Rows_Fixed, Text("state ", state.name, " has a fixed number of rows"))
      .I32(site.in(kMatch))
      .Dims(site.in(kMatch), {1, 1})
      .F32(seed)
      .Stored(seed, schema::Storage_Cache)
      .Dims(seed, {1, 1, 1, MatrixWidth(state)})
      .F32(site.out(1))
      .Dims(site.out(1), {1, 1})
      .Take();
}

void RecordSeedWrite(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  kernels::SeedWriteParams params;
  params.rows = RowsIn(MatrixRows(site.in(kState)), pass);
  params.width = static_cast<uint32_t>(MatrixWidth(site.in(kState)));
  out.push_back(MakeDispatch(kernels::kSeedWrite,
                             {site.In(kFlag), site.In(kState), site.In(kMatch), site.Out(0), site.Out(1)}, params,
                             ElementGroups(kernels::kSeedWrite, params.width)));
}

}  // namespace gemma4::ops
