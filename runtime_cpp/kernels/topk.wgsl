//! formula: the k largest of x[0..n], descending, with indices; NaN first, -0 = +0, ties: lower index first
//! dispatch: one thread an element: ceil(n / 64) groups
//! reference: top_k
//! tolerance: exact
//! include: include/grid.wgsl
//! include: include/order.wgsl

struct Params {
  n: u32,
  k: u32,
}

// The floats' bits, so that order and copies are exact.
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> values: array<u32>;
@group(0) @binding(2) var<storage, read_write> indices: array<i32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let i = linear_element(group, groups, lane);
  if i >= params.n {
    return;
  }
  // The place of an element is the number of elements before it: a permutation, so no two threads write one place. Most
  // elements find k before them long before the end.
  let key = order_key(x[i]);
  var place = 0u;
  for (var j = 0u; j < params.n && place < params.k; j++) {
    let other = order_key(x[j]);
    place += u32(other > key || (other == key && j < i));
  }
  if place < params.k {
    values[place] = x[i];
    indices[place] = i32(i);
  }
}
