//! formula: P = positions[rows - 1] + 1 (flag 0) or donor_length + match + 1 (flag 1); bonus is pending at P; flag = 1
//! dispatch: one group
//! reference: commit_round
//! tolerance: exact

struct Params {
  rows: u32,
}

@group(0) @binding(0) var<storage, read> match_count: array<i32>;
@group(0) @binding(1) var<storage, read> bonus: array<i32>;
@group(0) @binding(2) var<storage, read_write> ids: array<i32>;
@group(0) @binding(3) var<storage, read_write> positions: array<i32>;
@group(0) @binding(4) var<storage, read_write> flag: array<i32>;
@group(0) @binding(5) var<storage, read_write> donor_length: array<i32>;
@group(0) @binding(6) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
  if lane != 0u {
    return;
  }
  var position = positions[params.rows - 1u] + 1;
  if flag[0] != 0 {
    position = donor_length[0] + match_count[0] + 1;
  }
  ids[0] = bonus[0];
  positions[0] = position;
  donor_length[0] = position;
  flag[0] = 1;
}
