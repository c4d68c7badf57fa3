#include "ops/fill.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckFill(const Site& site) {
  const Tensor& out = site.out(0);
  return Check(site)
      .F32(site.in(0))
      .Elements(site.in(0), 1)
      .F32(out)
      .Dims(out, {1, out.dims.back()})
      .Finite("fill offset", site.attributes<schema::Fill>().offset())
      .Take();
}

void RecordFill(const Site& site, const PassRows&, std::vector<DispatchSpec>& out) {
  kernels::FillParams params;
  params.count = site.out(0).dims.back();
  params.offset = site.attributes<schema::Fill>().offset();
  constexpr uint32_t kElementsOfThread = 64;
  const uint64_t threads = (uint64_t{params.count} + kElementsOfThread - 1) / kElementsOfThread;
  out.push_back(MakeDispatch(kernels::kFill, {site.In(0), site.Out(0)}, params, ElementGroups(kernels::kFill, threads)));
}

}  // namespace gemma4::ops
