#include "ops/embedding.h"

#include "ops/check.h"
#include "ops/q4_scales.h"
#include "ops/row_parts.h"

namespace gemma4::ops {

namespace {

void RecordPart(const Site& site, const PassRows& pass, const RowPart& part, std::vector<DispatchSpec>& out) {
  const Tensor& table = site.in(1);
  const uint32_t rows = RowsIn(MatrixRows(site.out(0)), pass);
  const uint32_t width = table.dims[1];
  const float scale = site.attributes<schema::Embedding>().scale();
  const uint64_t elements = uint64_t{rows} * width;
  const BindingRef values = ValuesOf(part, site.In(1));
  if (table.dtype == schema::Dtype_Q4) {
    kernels::EmbeddingQ4Params params{
        .rows = rows, .k = width, .vocab = table.dims[0], .scale = scale, .first = part.first, .count = part.count};
    TellScales(table, &params);
    const BindingRef scales = ScalesOf(part, site.InScales(1));
    out.push_back(MakeDispatch(kernels::kEmbeddingQ4, {site.In(0), values, scales, site.Out(0)}, params,
                               ElementGroups(kernels::kEmbeddingQ4, elements)));
    return;
  }
  const kernels::EmbeddingF32Params params{
      .rows = rows, .width = width, .vocab = table.dims[0], .scale = scale, .first = part.first, .count = part.count};
  out.push_back(MakeDispatch(kernels::kEmbeddingF32, {site.In(0), values, site.Out(0)}, params,
                             ElementGroups(kernels::kEmbeddingF32, elements)));
}

bool AcceptsParts(const Site& site, const PassRows&, const gpu::Limits& limits) {
  return ExceedsBinding(site.in(1), limits) && CanBind(site.in(1), limits);
}

void RecordParts(const Site& site, const PassRows& pass, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  for (const RowPart& part : RowPartsOf(site.in(1), limits)) RecordPart(site, pass, part, out);
}

constexpr const kernels::Kernel* kPartsKernels[] = {&kernels::kEmbeddingF32, &kernels::kEmbeddingQ4};

}  // namespace

Status CheckEmbedding(const Site& site) {
  const Tensor& table = site.in(1);
  const Tensor& out = site.out(0);
  return Check(site)
      .Weight(table)
      .F32(out)
      .Width(out, table.dims.back())
      .Indexes(site.in(0), MatrixRows(out))
      .Positive("embedding scale", site.attributes<schema::Embedding>().scale())
      .Take();
}

void RecordEmbedding(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  RecordPart(site, pass, AllRows(site.in(1)), out);
}

const Route kEmbeddingRoutes[1] = {
    {"embedding_parts", kRouteEmbeddingParts, kPartsKernels, &AcceptsParts, &RecordParts}};

}  // namespace gemma4::ops
