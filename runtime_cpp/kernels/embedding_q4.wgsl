//! formula: out[r, c] = (nibble[ids[r], c] - 8) * d[ids[r], c / 32] * scale; 0 where ids[r] is outside the vocabulary
//! dispatch: one thread an element: ceil(rows * width / 64) groups
//! reference: embedding
//! tolerance: 1e-6
//! include: include/grid.wgsl
//! include: include/q4.wgsl

struct Params {
  rows: u32,
  width: u32,
  vocab: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<storage, read> values: array<u32>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

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
  // A negative id becomes a large unsigned one.
  let id = u32(ids[i / params.width]);
  var value = 0.0;
  if id < params.vocab {
    let column = i % params.width;
    let word = values[id * (params.width / 8u) + column / 8u];
    let nibble = (word >> (4u * (column % 8u))) & 15u;
    let d = id * (params.width / 32u) + column / 32u;
    value = (f32(nibble) - 8.0) * q4_scale(scales[d / 2u], d) * params.scale;
  }
  out[i] = value;
}
