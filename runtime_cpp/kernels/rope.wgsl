//! formula: pair (j, j + head_dim / 2) of every head turns by positions[r] * frequencies[j] * 2^-32 of a full turn
//! dispatch: one thread a pair: ceil(rows * heads * head_dim / 2 / 64) groups
//! reference: rope
//! tolerance: 1e-6
//! include: include/grid.wgsl
//! include: include/sincos.wgsl

struct Params {
  rows: u32,
  heads: u32,
  head_dim: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> positions: array<i32>;
@group(0) @binding(2) var<storage, read> frequencies: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let i = linear_element(group, groups, lane);
  let half = params.head_dim / 2u;
  if i >= params.rows * params.heads * half {
    return;
  }
  let pair = i % half;
  let low = (i / half) * params.head_dim + pair;
  let high = low + half;
  // The product wraps at a full turn, so the angle is exact at every position.
  let phase = u32(positions[i / (params.heads * half)]) * frequencies[pair];
  let a = x[low];
  let b = x[high];
  if phase == 0u {
    out[low] = a;
    out[high] = b;
    return;
  }
  let turn = cos_sin_of_phase(phase);
  out[low] = a * turn.x - b * turn.y;
  out[high] = b * turn.x + a * turn.y;
}
