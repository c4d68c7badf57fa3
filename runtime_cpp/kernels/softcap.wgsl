//! formula: out = cap * tanh(x / cap)
//! dispatch: one thread an element: ceil(count / 64) groups
//! reference: softcap
//! tolerance: 2e-6
//! include: include/grid.wgsl
//! include: include/tanh.wgsl

struct Params {
  count: u32,
  cap: f32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
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
  out[i] = params.cap * stable_tanh(x[i] / params.cap);
}
