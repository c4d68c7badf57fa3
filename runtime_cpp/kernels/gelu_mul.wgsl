//! formula: out[r, c] = gelu_tanh(a[r, c]) * b[r, offset + c]; b has stride columns
//! dispatch: one thread an element: ceil(rows * width / 64) groups
//! reference: gelu_mul
//! tolerance: 2e-6
//! include: include/grid.wgsl
//! include: include/tanh.wgsl

struct Params {
  rows: u32,
  width: u32,
  stride: u32,
  offset: u32,
}

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let i = linear_element(group, groups, lane);
  if i >= params.rows * params.width {
    return;
  }
  let row = i / params.width;
  out[i] = gelu_tanh(a[i]) * b[row * params.stride + params.offset + i % params.width];
}
