//! formula: out[r, h] = softmax over visible t of (q[r, h] . k[t % capacity, kv]) times v; no visible t: zeros
//! dispatch: one workgroup a (row, query head): rows * q_heads groups
//! reference: attention
//! tolerance: 2e-5
//! include: include/grid.wgsl
//! include: include/finite.wgsl
//! include: include/visible.wgsl

const LANES = 64u;
const MAX_HEAD_DIM = 512u;
const MAX_SLICES = MAX_HEAD_DIM / LANES;

struct Params {
  rows: u32,
  q_heads: u32,
  kv_heads: u32,
  head_dim: u32,
  capacity: u32,
  window: u32,
  donor: u32,
}

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read> positions: array<i32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<uniform> params: Params;

var<workgroup> query: array<f32, MAX_HEAD_DIM>;
var<workgroup> scores: array<f32, LANES>;

fn score_of(t: u32, kv_head: u32) -> f32 {
  let start = ((t % params.capacity) * params.kv_heads + kv_head) * params.head_dim;
  var sums = vec4f();
  let whole = params.head_dim & ~3u;
  for (var c = 0u; c < whole; c += 4u) {
    sums += vec4f(query[c], query[c + 1u], query[c + 2u], query[c + 3u]) *
      vec4f(k[start + c], k[start + c + 1u], k[start + c + 2u], k[start + c + 3u]);
  }
  var total = (sums.x + sums.y) + (sums.z + sums.w);
  for (var c = whole; c < params.head_dim; c++) {
    total += query[c] * k[start + c];
  }
  return total;
}

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
  let kv_head = (index % params.q_heads) / (params.q_heads / params.kv_heads);
  for (var c = lane; c < params.head_dim; c += LANES) {
    query[c] = q[index * params.head_dim + c];
  }
  let range = visible_range(positions[select(index / params.q_heads, 0u, params.donor != 0u)], params.window, params.donor);
  var largest = 0.0;
  var sum = 0.0;
  var seen = false;
  var broken = 0u;
  var acc = array<f32, MAX_SLICES>();
  // Tiles lie at multiples of 64 of the absolute position, so the order of additions depends on the position alone.
  for (var tile = select(range.y, range.x & ~63, range.x < range.y); tile < range.y; tile += 64) {
    workgroupBarrier();
    let t = tile + i32(lane);
    var score = 0.0;
    if t >= range.x && t < range.y {
      score = score_of(u32(t), kv_head);
    }
    scores[lane] = score;
    workgroupBarrier();
    let begin = u32(max(range.x - tile, 0));
    let end = u32(min(range.y - tile, 64));
    var top = select(scores[begin], largest, seen);
    for (var j = begin; j < end; j++) {
      top = max(top, scores[j]);
      broken |= u32(is_not_finite(bitcast<u32>(scores[j])));
    }
    let shrink = select(0.0, exp(largest - top), seen);
    seen = true;
    largest = top;
    sum *= shrink;
    for (var s = 0u; s < MAX_SLICES; s++) {
      acc[s] *= shrink;
    }
    for (var j = begin; j < end; j++) {
      let weight = exp(scores[j] - top);
      sum += weight;
      let start = (((u32(tile) + j) % params.capacity) * params.kv_heads + kv_head) * params.head_dim;
      for (var s = 0u; s < MAX_SLICES; s++) {
        let c = lane + s * LANES;
        if c < params.head_dim {
          acc[s] += weight * v[start + c];
        }
      }
    }
  }
  for (var s = 0u; s < MAX_SLICES; s++) {
    let c = lane + s * LANES;
    if c < params.head_dim {
      var value = select(0.0, acc[s] / sum, seen);
      if broken != 0u {
        // An infinite or NaN score must not become a plausible row.
        value = bitcast<f32>(0x7fc00000u | broken);
      }
      out[index * params.head_dim + c] = value;
    }
  }
}
