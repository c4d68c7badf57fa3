//! formula: out[r] = lowest index of the largest x[r, c]; -1 where the row holds a NaN
//! dispatch: one workgroup a row: rows groups
//! reference: argmax
//! tolerance: exact
//! include: include/grid.wgsl
//! include: include/order.wgsl

const LANES = 256u;
const NAN_KEY = 0xffffffffu;

struct Params {
  rows: u32,
  width: u32,
}

// The floats' bits, so that the comparison is one of integers.
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<i32>;
@group(0) @binding(2) var<uniform> params: Params;

var<workgroup> keys: array<u32, LANES>;
var<workgroup> indices: array<u32, LANES>;

@compute @workgroup_size(256)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let row = linear_group(group, groups);
  if row >= params.rows {
    return;
  }
  // No float has key 0, so any element beats the start.
  var key = 0u;
  var index = 0u;
  for (var c = lane; c < params.width; c += LANES) {
    let other = order_key(x[row * params.width + c]);
    if other > key {
      key = other;
      index = c;
    }
  }
  keys[lane] = key;
  indices[lane] = index;
  for (var stride = LANES / 2u; stride > 0u; stride /= 2u) {
    workgroupBarrier();
    if lane < stride {
      let other = keys[lane + stride];
      let there = indices[lane + stride];
      if other > keys[lane] || (other == keys[lane] && there < indices[lane]) {
        keys[lane] = other;
        indices[lane] = there;
      }
    }
  }
  if lane == 0u {
    out[row] = select(i32(indices[0]), -1, keys[0] == NAN_KEY);
  }
}
