//! formula: out[i] = scalar[0] + offset
//! dispatch: one thread an element: ceil(count / 64) groups
//! reference: fill
//! tolerance: exact
//! include: include/grid.wgsl

struct Params {
  count: u32,
  offset: f32,
}

@group(0) @binding(0) var<storage, read> scalar: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
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
  out[i] = scalar[0] + params.offset;
}
