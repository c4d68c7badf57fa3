//! formula: out[r, p] = (order key, lowest index) of the largest x[r, c] of part p, columns 2048 p .. 2048 p + 2047
//! dispatch: one workgroup a part of a row: rows * ceil(width / PART) groups
//! reference: argmax_parts
//! tolerance: exact
//! include: include/best.wgsl
//! include: include/grid.wgsl
//! include: include/order.wgsl

const PART = 2048u;

struct Params {
  rows: u32,
  width: u32,
}

// The floats' bits, so that the comparison is one of integers.
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<vec2u>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let parts = (params.width + PART - 1u) / PART;
  let part = linear_group(group, groups);
  let row = part / parts;
  if row >= params.rows {
    return;
  }
  let first = (part % parts) * PART;
  let end = min(first + PART, params.width);
  var mine = NO_KEY;
  for (var c = first + lane; c < end; c += 64u) {
    mine = better(mine, vec2u(order_key(x[row * params.width + c]), c));
  }
  mine = workgroup_best(lane, mine);
  if lane == 0u {
    out[part] = mine;
  }
}
