//! formula: positions[0] = positions[rows - 1] + 1, ids[0] = next_token
//! dispatch: one group
//! reference: commit_step
//! tolerance: exact

struct Params {
  rows: u32,
}

@group(0) @binding(0) var<storage, read> next_token: array<i32>;
@group(0) @binding(1) var<storage, read_write> ids: array<i32>;
@group(0) @binding(2) var<storage, read_write> positions: array<i32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
  if lane != 0u {
    return;
  }
  let position = positions[params.rows - 1u] + 1;
  positions[0] = position;
  ids[0] = next_token[0];
}
