//! formula: out[r, c] = table[ids[r], c] * scale; 0 for an id outside the vocabulary, nothing for one of another part
//! dispatch: one thread an element: ceil(rows * width / 64) groups
//! reference: embedding
//! tolerance: 1e-6
//! include: include/grid.wgsl

struct Params {
  rows: u32,
  width: u32,
  vocab: u32,
  scale: f32,
  first: u32,  // the table that is bound holds rows first .. first + count - 1 of the vocabulary
  count: u32,
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
  // A negative id becomes a large unsigned one, and so does the row of an id before the part.
  let id = u32(ids[i / params.width]);
  let row = id - params.first;
  if row < params.count {
    out[i] = table[row * params.width + i % params.width] * params.scale;
  } else if id >= params.vocab && params.first == 0u {
    out[i] = 0.0;
  }
}
