#include "ops/donor_view.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckDonorView(const Site& site) {
  const Tensor& cache = site.in(0);
  const Tensor& view = site.out(0);
  Check check(site);
  check.F32(cache).Stored(cache, schema::Storage_Cache).Stored(view, schema::Storage_View);
  check.That(view.dtype == schema::Dtype_F32, Text("view ", view.name, " is ", DtypeName(view.dtype), ", wanted f32"));
  check.I32(site.in(1)).Elements(site.in(1), 1);
  check.That(cache.dims.size() == 4 && cache.dims[0] == 1,
             Text("cache ", cache.name, " has dims ", DimsText(cache), ", wanted [1,S,heads,head_dim]"));
  if (cache.dims.size() == 4) check.Dims(view, {1, cache.dims[2], cache.dims[1], cache.dims[3]});
  return check.Take();
}

void RecordDonorView(const Site&, const PassRows&, std::vector<DispatchSpec>&) {}

}  // namespace gemma4::ops
