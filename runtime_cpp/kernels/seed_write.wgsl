//! formula: seed = h[match] when flag is 1, the last row of h when it is 0; probe = seed[0]
//! dispatch: one thread an element: ceil(width / 64) groups
//! reference: seed_write
//! tolerance: exact
//! include: include/grid.wgsl

struct Params {
  rows: u32,
  width: u32,
}

@group(0) @binding(0) var<storage, read> flag: array<i32>;
@group(0) @binding(1) var<storage, read> h: array<f32>;
@group(0) @binding(2) var<storage, read> match_count: array<i32>;
@group(0) @binding(3) var<storage, read_write> seed: array<f32>;
@group(0) @binding(4) var<storage, read_write> probe: array<f32>;
@group(0) @binding(5) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let i = linear_element(group, groups, lane);
  if i >= params.width {
    return;
  }
  var row = params.rows - 1u;
  if flag[0] != 0 {
    row = min(u32(match_count[0]), row);
  }
  let value = h[row * params.width + i];
  seed[i] = value;
  if i == 0u {
    probe[0] = value;
  }
}
