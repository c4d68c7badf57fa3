//! formula: out[r] = lowest index of the largest key of best[r, 0..parts]; -1 where it is the key of a NaN
//! dispatch: one workgroup a row: rows groups
//! reference: argmax_final
//! tolerance: exact
//! include: include/best.wgsl
//! include: include/grid.wgsl

const NAN_KEY = 0xffffffffu;

struct Params {
  rows: u32,
  parts: u32,
}

@group(0) @binding(0) var<storage, read> best: array<vec2u>;  // (order key, index)
@group(0) @binding(1) var<storage, read_write> out: array<i32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let row = linear_group(group, groups);
  if row >= params.rows {
    return;
  }
  var mine = NO_KEY;
  for (var p = lane; p < params.parts; p += 64u) {
    mine = better(mine, best[row * params.parts + p]);
  }
  mine = workgroup_best(lane, mine);
  if lane == 0u {
    out[row] = select(i32(mine.y), -1, mine.x == NAN_KEY);
  }
}
