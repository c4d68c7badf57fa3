//! formula: out[r] = a[r] followed by b[r]
//! dispatch: one thread an element: ceil(rows * (a_width + b_width) / 64) groups
//! reference: concat
//! tolerance: exact
//! include: include/grid.wgsl

struct Params {
  rows: u32,
  a_width: u32,
  b_width: u32,
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
  let width = params.a_width + params.b_width;
  if i >= params.rows * width {
    return;
  }
  let row = i / width;
  let column = i % width;
  if column < params.a_width {
    out[i] = a[row * params.a_width + column];
  } else {
    out[i] = b[row * params.b_width + column - params.a_width];
  }
}
