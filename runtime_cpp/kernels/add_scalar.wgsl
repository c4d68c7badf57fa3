//! formula: out[i] = x[i] + value, wrapping at 32 bits
//! dispatch: one thread an element: ceil(count / 64) groups
//! reference: add_scalar
//! tolerance: exact
//! include: include/grid.wgsl

struct Params {
  count: u32,
  value: i32,
}

@group(0) @binding(0) var<storage, read> x: array<i32>;
@group(0) @binding(1) var<storage, read_write> out: array<i32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let i = linear_element(group, groups, lane);
  if i >= params.count {
    return;
  }
  out[i] = x[i] + params.value;
}
