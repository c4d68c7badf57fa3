//! formula: scores[r, h] = exp(scores[r, h] - max) / sum of these, over the slots of visible t; a score that is infinite or NaN: NaN
//! dispatch: one workgroup a (row, query head): rows * q_heads groups
//! reference: attention_softmax
//! tolerance: 2e-5
//! include: include/finite.wgsl
//! include: include/grid.wgsl
//! include: include/sum.wgsl
//! include: include/visible.wgsl

const LANES = 64u;
const SIDE = 8u;

struct Params {
  rows: u32,
  q_heads: u32,
  capacity: u32,
  window: u32,
  donor: u32,
}

@group(0) @binding(0) var<storage, read> positions: array<i32>;
@group(0) @binding(1) var<storage, read_write> scores: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

var<workgroup> tops: array<f32, LANES>;
var<workgroup> broken_lanes: array<u32, LANES>;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let index = linear_group(group, groups);
  if index >= params.rows * params.q_heads {
    return;
  }
  let row = select(index / params.q_heads, 0u, params.donor != 0u);
  let range = visible_range(positions[row], params.window, params.donor);
  if range.x >= range.y {
    return;
  }
  // Lanes take positions, not slots, so that the order of additions depends on the position alone.
  let start = index * params.capacity;
  var top = scores[start + u32(range.x) % params.capacity];
  var broken = 0u;
  for (var t = range.x + i32(lane); t < range.y; t += i32(LANES)) {
    let score = scores[start + u32(t) % params.capacity];
    top = max(top, score);
    broken |= u32(is_not_finite(bitcast<u32>(score)));
  }
  tops[lane] = top;
  broken_lanes[lane] = broken;
  workgroupBarrier();
  for (var i = 0u; i < LANES; i++) {
    top = max(top, tops[i]);
    broken |= broken_lanes[i];
  }
  var sum = 0.0;
  for (var t = range.x + i32(lane); t < range.y; t += i32(LANES)) {
    sum += exp(scores[start + u32(t) % params.capacity] - top);
  }
  let total = workgroup_reduced(lane, sum);
  for (var t = range.x + i32(lane); t < range.y; t += i32(LANES)) {
    let at = start + u32(t) % params.capacity;
    var weight = exp(scores[at] - top) / total;
    if broken != 0u {
      // An infinite or NaN score must not become a plausible row.
      weight = bitcast<f32>(0x7fc00000u | broken);
    }
    scores[at] = weight;
  }
}
