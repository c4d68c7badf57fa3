//! formula: flag 0: the first rows ids and positions; flag 1: (ids[0], draft_0, draft_1) at positions[0] + 0, 1, 2
//! dispatch: one thread a row: ceil(rows / 64) groups
//! reference: pass_rows
//! tolerance: exact
//! include: include/grid.wgsl

struct Params {
  rows: u32,
}

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<storage, read> positions: array<i32>;
@group(0) @binding(2) var<storage, read> flag: array<i32>;
@group(0) @binding(3) var<storage, read> draft_0: array<i32>;
@group(0) @binding(4) var<storage, read> draft_1: array<i32>;
@group(0) @binding(5) var<storage, read_write> pass_ids: array<i32>;
@group(0) @binding(6) var<storage, read_write> pass_positions: array<i32>;
@group(0) @binding(7) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let i = linear_element(group, groups, lane);
  if i >= params.rows {
    return;
  }
  if flag[0] == 0 {
    pass_ids[i] = ids[i];
    pass_positions[i] = positions[i];
    return;
  }
  // A round has three rows; whatever is recorded beyond them embeds to zeros and writes no cache row.
  var id = -1;
  var position = -1;
  if i < 3u {
    position = positions[0] + i32(i);
  }
  if i == 0u {
    id = ids[0];
  } else if i == 1u {
    id = draft_0[0];
  } else if i == 2u {
    id = draft_1[0];
  }
  pass_ids[i] = id;
  pass_positions[i] = position;
}
