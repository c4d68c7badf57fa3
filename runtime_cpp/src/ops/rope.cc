#include "ops/rope.h"

#include <cmath>
#include <numbers>

#include "ops/check.h"

namespace gemma4::ops {

RopeKey RopeKeyOf(const Op& op) {
  const schema::Rope& attributes = *op.table->kind_as_Rope();
  return {attributes.head_dim(), attributes.rotated_pairs(), attributes.denominator(), attributes.theta()};
}

std::vector<uint32_t> RopeFrequencies(const RopeKey& key) {
  constexpr double kTurn = 4294967296.0;  // 2^32 fixed-point steps are one turn
  std::vector<uint32_t> frequencies(key.head_dim / 2, 0);
  for (uint32_t i = 0; i < key.rotated_pairs; ++i) {
    const double radians = std::pow(static_cast<double>(key.theta), -2.0 * i / key.denominator);
    frequencies[i] = static_cast<uint32_t>(std::llround(radians / (2.0 * std::numbers::pi) * kTurn));
  }
  return frequencies;
}

Status CheckRope(const Site& site) {
  const RopeKey key = RopeKeyOf(site.op());
  const Tensor& x = site.in(0);
  const Tensor& out = site.out(0);
  Check check(site);
  check.F32(x).F32(out).SameShape(out, x).Indexes(site.in(1), MatrixRows(x));
  check.That(key.head_dim > 0 && key.head_dim % 2 == 0,
             Text("rope head_dim is ", key.head_dim, ", wanted even and above 0"));
  check.Divides("rope head_dim", key.head_dim, x.dims.back());
  check.AtMost("rope rotated_pairs", key.rotated_pairs, key.head_dim / 2);
  check.That(key.denominator > 0, "rope denominator is 0");
  // Below 1 the first frequencies would exceed one radian a position, which no table entry can hold.
  check.That(std::isfinite(key.theta) && key.theta >= 1,
             Text("rope theta is ", FloatText(key.theta), ", wanted finite and at least 1"));
  return check.Take();
}

void RecordRope(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const RopeKey key = RopeKeyOf(site.op());
  const Tensor& x = site.in(0);
  kernels::RopeParams params;
  params.rows = RowsIn(MatrixRows(x), pass);
  params.heads = x.dims.back() / key.head_dim;
  params.head_dim = key.head_dim;
  const uint64_t pairs = uint64_t{params.rows} * params.heads * (key.head_dim / 2);
  out.push_back(MakeDispatch(kernels::kRope, {site.In(0), site.In(1), site.RopeTable(), site.Out(0)}, params,
                             ElementGroups(kernels::kRope, pairs)));
}

}  // namespace gemma4::ops
