#include "ops/attention.h"

#include "ops/check.h"

namespace gemma4::ops {

namespace {

enum Input : size_t { kQuery, kKeys, kValues, kPositions };

struct Shape {
  uint32_t capacity = 0;
  uint32_t kv_heads = 0;
};

// Causal reads a cache [1,S,heads,d], a donor view is [1,heads,S,d] over one.
Shape ShapeOf(const Tensor& keys, bool donor) {
  return donor ? Shape{keys.dims[2], keys.dims[1]} : Shape{keys.dims[1], keys.dims[2]};
}

void CheckDonor(Check& check, const Site& site) {
  const uint32_t window = site.attributes<schema::Attention>().window();
  for (const size_t input : {kKeys, kValues}) {
    const Tensor& view = site.in(input);
    check.Stored(view, schema::Storage_View);
    check.Equal(Text("window of donor view ", view.name), view.view_window, window);
    check.That(view.view_length == site.op().inputs[kPositions],
               Text("donor view ", view.name, " and its attention read different donor lengths"));
  }
  check.I32(site.in(kPositions)).Elements(site.in(kPositions), 1);
}

}  // namespace

Status CheckAttention(const Site& site) {
  const schema::Attention& attributes = site.attributes<schema::Attention>();
  const bool donor = attributes.visibility() == schema::Visibility_Donor;
  const uint32_t head_dim = attributes.head_dim();
  const Tensor& query = site.in(kQuery);
  const Tensor& keys = site.in(kKeys);
  const Tensor& values = site.in(kValues);
  Check check(site);
  check.AtMost("attention visibility", static_cast<uint64_t>(attributes.visibility()), schema::Visibility_MAX);
  check.F32(query).F32(site.out(0)).SameShape(site.out(0), query).SameShape(values, keys);
  check.That(keys.dtype == schema::Dtype_F32 && values.dtype == schema::Dtype_F32, "keys and values are not f32");
  check.That(site.op().inputs[kKeys] != site.op().inputs[kValues], "keys and values are one tensor");
  check.That(head_dim > 0, "attention head_dim is 0").AtMost("attention head_dim", head_dim, kMaxHeadDim);
  check.Divides("attention head_dim", head_dim, query.dims.back());
  check.That(
      keys.dims.size() == 4 && keys.dims[0] == 1 && keys.dims[3] == head_dim,
      Text("keys ", keys.name, " have dims ", DimsText(keys), ", wanted 4 with batch 1 and head_dim ", head_dim));
  if (keys.dims.size() == 4 && head_dim > 0) {
    check.Divides("number of KV heads", ShapeOf(keys, donor).kv_heads, query.dims.back() / head_dim);
  }
  if (donor) {
    CheckDonor(check, site);
  } else {
    check.Stored(keys, schema::Storage_Cache).Stored(values, schema::Storage_Cache);
    check.Indexes(site.in(kPositions), MatrixRows(query));
  }
  return check.Take();
}

kernels::AttentionParams AttentionParamsOf(const Site& site, const PassRows& pass) {
  const schema::Attention& attributes = site.attributes<schema::Attention>();
  const bool donor = attributes.visibility() == schema::Visibility_Donor;
  const Shape shape = ShapeOf(site.in(kKeys), donor);
  kernels::AttentionParams params;
  params.rows = RowsIn(MatrixRows(site.in(kQuery)), pass);
  params.q_heads = site.in(kQuery).dims.back() / attributes.head_dim();
  params.kv_heads = shape.kv_heads;
  params.head_dim = attributes.head_dim();
  params.capacity = shape.capacity;
  params.window = attributes.window();
  params.donor = donor ? 1 : 0;
  return params;
}

void RecordAttention(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out) {
  const kernels::AttentionParams params = AttentionParamsOf(site, pass);
  out.push_back(MakeDispatch(kernels::kAttention,
                             {site.In(kQuery), site.In(kKeys), site.In(kValues), site.In(kPositions), site.Out(0)},
                             params, uint64_t{params.rows} * params.q_heads));
}

}  // namespace gemma4::ops
