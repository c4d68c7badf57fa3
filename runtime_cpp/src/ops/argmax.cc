#include "ops/argmax.h"

#include "ops/check.h"

namespace gemma4::ops {

Status CheckArgmax(const Site& site) {
  const Tensor& x = site.in(0);
  return Check(site).F32(x).Width(x, MatrixWidth(x)).Indexes(site.out(0), MatrixRows(x)).Take();
}

void RecordArgmax(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const Tensor& x = site.in(0);
  kernels::ArgmaxParams params;
  params.rows = RowsIn(MatrixRows(x), pass);
  params.width = static_cast<uint32_t>(MatrixWidth(x));
  out.push_back(MakeDispatch(kernels::kArgmax, {site.In(0), site.Out(0)}, params, params.rows));
}

namespace {

constexpr uint32_t kPartColumns = 2048;  // PART of argmax_parts
constexpr uint64_t kWideColumns = 4096;

bool AcceptsParts(const Site& site, const PassRows&, const gpu::Limits&) {
  return MatrixWidth(site.in(0)) > kWideColumns;
}

void RecordParts(const Site& site, const PassRows& pass, const gpu::Limits&, std::vector<DispatchSpec>& out) {
  const uint32_t rows = RowsIn(MatrixRows(site.in(0)), pass);
  const auto width = static_cast<uint32_t>(MatrixWidth(site.in(0)));
  const uint32_t parts = width / kPartColumns + (width % kPartColumns != 0);
  const BindingRef best{BindingRef::Kind::kScratch, 0};  // (key, index) [rows, parts] u32
  const ScratchBytes scratch{uint64_t{rows} * parts * 8, 0};
  const kernels::ArgmaxPartsParams first{.rows = rows, .width = width};
  out.push_back(MakeDispatch(kernels::kArgmaxParts, {site.In(0), best}, first, uint64_t{rows} * parts));
  out.back().scratch = scratch;
  const kernels::ArgmaxFinalParams last{.rows = rows, .parts = parts};
  out.push_back(MakeDispatch(kernels::kArgmaxFinal, {best, site.Out(0)}, last, rows));
  out.back().scratch = scratch;
}

constexpr const kernels::Kernel* kPartsKernels[] = {&kernels::kArgmaxParts, &kernels::kArgmaxFinal};

}  // namespace

const Route kArgmaxRoutes[1] = {{"argmax_parts", kRouteArgmaxParts, kPartsKernels, &AcceptsParts, &RecordParts}};

}  // namespace gemma4::ops
