//! formula: out[r, c] = table[ids[r], c] * scale; 0 where ids[r] is outside the vocabulary
//! dispatch: one thread an element: ceil(rows * width / 64) groups
//! reference: embedding
//! tolerance: 1e-6
//! include: include/grid.wgsl

struct Params {
  rows: u32,
  width: u32,
  vocab: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<storage, read> table: array<f32>;
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
  // A negative id becomes a large unsigned one.
  let id = u32(ids[i / params.width]);
  var value = 0.0;
  if id < params.vocab {
    value = table[id * params.width + i % params.width] * params.scale;
  }
  out[i] = value;
}
