#include "ops/embedding.h"

#include <algorithm>
#include <numeric>

#include "ops/check.h"
#include "ops/q4_scales.h"

namespace gemma4::ops {

namespace {

// Rows [first, first + count) of a table, and the bytes that bind them. `bytes` 0: the whole table.
struct Part {
  uint32_t first = 0;
  uint32_t count = 0;
  uint64_t values_offset = 0, values_bytes = 0;
  uint64_t scales_offset = 0, scales_bytes = 0;
};

BindingRef Range(BindingRef ref, uint64_t offset, uint64_t bytes) {
  ref.offset = offset;
  ref.bytes = bytes;
  return ref;
}

void RecordPart(const Site& site, const PassRows& pass, const Part& part, std::vector<DispatchSpec>& out) {
  const Tensor& table = site.in(1);
  const uint32_t rows = RowsIn(MatrixRows(site.out(0)), pass);
  const uint32_t width = table.dims[1];
  const float scale = site.attributes<schema::Embedding>().scale();
  const uint64_t elements = uint64_t{rows} * width;
  const BindingRef values = Range(site.In(1), part.values_offset, part.values_bytes);
  if (table.dtype == schema::Dtype_Q4) {
    kernels::EmbeddingQ4Params params{
        .rows = rows, .k = width, .vocab = table.dims[0], .scale = scale, .first = part.first, .count = part.count};
    TellScales(table, &params);
    const BindingRef scales = Range(site.InScales(1), part.scales_offset, part.scales_bytes);
    out.push_back(MakeDispatch(kernels::kEmbeddingQ4, {site.In(0), values, scales, site.Out(0)}, params,
                               ElementGroups(kernels::kEmbeddingQ4, elements)));
    return;
  }
  const kernels::EmbeddingF32Params params{
      .rows = rows, .width = width, .vocab = table.dims[0], .scale = scale, .first = part.first, .count = part.count};
  out.push_back(MakeDispatch(kernels::kEmbeddingF32, {site.In(0), values, site.Out(0)}, params,
                             ElementGroups(kernels::kEmbeddingF32, elements)));
}

// Rows of a part: as many as one binding holds whose values and scales both begin at an aligned offset; 0: not even one
// such part fits.
uint32_t PartRows(const Tensor& table, const gpu::Limits& limits) {
  const uint64_t row_values = table.values_bytes / table.dims[0];
  const uint64_t row_scales = table.scales_bytes / table.dims[0];
  const uint64_t alignment = limits.storage_offset_alignment;
  const uint64_t step = std::lcm(alignment / std::gcd(alignment, row_values),
                                 row_scales == 0 ? 1 : alignment / std::gcd(alignment, row_scales));
  return static_cast<uint32_t>(std::min<uint64_t>(limits.max_storage_binding_bytes / row_values / step * step, UINT32_MAX));
}

bool AcceptsParts(const Site& site, const PassRows&, const gpu::Limits& limits) {
  const Tensor& table = site.in(1);
  return table.values_bytes > limits.max_storage_binding_bytes && PartRows(table, limits) > 0;
}

void RecordParts(const Site& site, const PassRows& pass, const gpu::Limits& limits, std::vector<DispatchSpec>& out) {
  const Tensor& table = site.in(1);
  const uint64_t row_values = table.values_bytes / table.dims[0];
  const uint64_t row_scales = table.scales_bytes / table.dims[0];
  const uint32_t step = PartRows(table, limits);
  for (uint32_t first = 0; first < table.dims[0];) {
    const uint32_t count = std::min(step, table.dims[0] - first);
    // An odd number of f16 scales at the end shares its word with padding.
    RecordPart(site, pass,
               {first, count, first * row_values, count * row_values, first * row_scales,
                (count * row_scales + 3) / 4 * 4},
               out);
    first += count;
  }
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
  RecordPart(site, pass, {.first = 0, .count = site.in(1).dims[0]}, out);
}

const Route kEmbeddingRoutes[1] = {
    {"embedding_parts", kRouteEmbeddingParts, kPartsKernels, &AcceptsParts, &RecordParts}};

}  // namespace gemma4::ops
