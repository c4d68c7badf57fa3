#include "ops/ple_combine.h"

#include "ops/check.h"

namespace gemma4::ops {

namespace {
enum Input : size_t { kContext, kToken, kWeight };
}  // namespace

Status CheckPleCombine(const Site& site) {
  const schema::PleCombine& attributes = site.attributes<schema::PleCombine>();
  const Tensor& context = site.in(kContext);
  const Tensor& weight = site.in(kWeight);
  Check check(site);
  check.F32(context).F32(site.in(kToken)).F32(weight).F32(site.out(0));
  check.SameShape(site.in(kToken), context).SameShape(site.out(0), context);
  check.That(weight.dims.size() == 1,
             Text("norm weight ", weight.name, " has dims ", DimsText(weight), ", wanted [P]"));
  check.Divides("width of the per-layer norm", weight.elements, context.dims.back());
  check.Positive("norm eps", attributes.eps());
  check.Finite("context scale", attributes.context_scale()).Finite("scale", attributes.scale());
  return check.Take();
}

void RecordPleCombine(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const schema::PleCombine& attributes = site.attributes<schema::PleCombine>();
  const Tensor& context = site.in(kContext);
  const uint32_t width = site.in(kWeight).dims[0];
  const uint64_t groups = uint64_t{RowsIn(MatrixRows(context), pass)} * (context.dims.back() / width);
  kernels::PleCombineParams params;
  params.groups = static_cast<uint32_t>(groups);
  params.width = width;
  params.eps = attributes.eps();
  params.context_scale = attributes.context_scale();
  params.scale = attributes.scale();
  out.push_back(MakeDispatch(kernels::kPleCombine, {site.In(kContext), site.In(kToken), site.In(kWeight), site.Out(0)},
                             params, groups));
}

}  // namespace gemma4::ops
