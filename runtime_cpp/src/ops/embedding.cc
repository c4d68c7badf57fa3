#include "ops/embedding.h"

#include "ops/check.h"

namespace gemma4::ops {

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
  const Tensor& table = site.in(1);
  const uint32_t rows = RowsIn(MatrixRows(site.out(0)), pass);
  const uint32_t width = table.dims[1];
  const float scale = site.attributes<schema::Embedding>().scale();
  const uint64_t elements = uint64_t{rows} * width;
  if (table.dtype == schema::Dtype_Q4) {
    const kernels::EmbeddingQ4Params params{.rows = rows, .width = width, .vocab = table.dims[0], .scale = scale};
    out.push_back(MakeDispatch(kernels::kEmbeddingQ4, {site.In(0), site.In(1), site.InScales(1), site.Out(0)}, params,
                               ElementGroups(kernels::kEmbeddingQ4, elements)));
    return;
  }
  const kernels::EmbeddingF32Params params{.rows = rows, .width = width, .vocab = table.dims[0], .scale = scale};
  out.push_back(MakeDispatch(kernels::kEmbeddingF32, {site.In(0), site.In(1), site.Out(0)}, params,
                             ElementGroups(kernels::kEmbeddingF32, elements)));
}

}  // namespace gemma4::ops
