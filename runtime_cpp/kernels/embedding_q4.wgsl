//! formula: out[r, c] = (nibble[ids[r], c] - 8) * d[ids[r], c / group] * scale; 0 for an id outside the vocabulary, nothing for one of another part
//! dispatch: one thread an element: ceil(rows * k / 64) groups
//! reference: embedding
//! tolerance: 1e-6
//! include: include/grid.wgsl
//! include: include/q4_grouped.wgsl

struct Params {
  rows: u32,
  k: u32,  // columns
  vocab: u32,
  scale: f32,
  first: u32,  // the table that is bound holds rows first .. first + count - 1 of the vocabulary
  count: u32,
  // log2(group / 16)
  group_shift: u32,
  flags: u32,
}

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<storage, read> values: array<u32>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

fn scale_word(matrix: u32, i: u32) -> u32 { return scales[i]; }

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let i = linear_element(group, groups, lane);
  if i >= params.rows * params.k {
    return;
  }
  // A negative id becomes a large unsigned one, and so does the row of an id before the part.
  let id = u32(ids[i / params.k]);
  let row = id - params.first;
  if row < params.count {
    let column = i % params.k;
    let word = values[row * (params.k / 8u) + column / 8u];
    let nibble = (word >> (4u * (column % 8u))) & 15u;
    out[i] = (f32(nibble) - 8.0) * scale_of(0u, row, column / 16u) * params.scale;
  } else if id >= params.vocab && params.first == 0u {
    out[i] = 0.0;
  }
}
