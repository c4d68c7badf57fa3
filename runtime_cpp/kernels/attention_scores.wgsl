//! formula: scores[r, h, t % capacity] = q[r, h] . k[t % capacity, kv] for every visible t; other slots are left alone
//! dispatch: a tile of 32 queries of a KV head and 32 slots: kv_heads * ceil(rows * q_heads / kv_heads / TILE) * ceil(capacity / TILE) groups
//! reference: attention_scores
//! tolerance: 2e-5
//! include: include/grid.wgsl
//! include: include/group_queries.wgsl
//! include: include/visible.wgsl

const LANES = 64u;
const TILE = 32u;
// vec4s of a head that pass through workgroup memory at a time.
const SLICE = 4u;
const PITCH = SLICE + 1u;

struct Params {
  rows: u32,
  q_heads: u32,
  kv_heads: u32,
  head_dim: u32,
  capacity: u32,
  window: u32,
  donor: u32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> positions: array<i32>;
@group(0) @binding(3) var<storage, read_write> scores: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

var<workgroup> some_q: array<vec4f, TILE * PITCH>;
var<workgroup> some_k: array<vec4f, TILE * PITCH>;

fn range_of(row: u32) -> vec2i {
  return visible_range(positions[select(row, 0u, params.donor != 0u)], params.window, params.donor);
}

// Whether any of these rows sees a slot of the tile. Positions rise with the slot, but for where `first` itself lies.
fn any_seen(first_row: u32, last_row: u32, slot_0: u32) -> bool {
  for (var row = first_row; row <= last_row; row++) {
    let range = range_of(row);
    let starts_here = u32(range.x) % params.capacity - slot_0 < TILE;
    if range.x < range.y && (starts_here || position_in(slot_0, range.x, params.capacity) < range.y) {
      return true;
    }
  }
  return false;
}

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let index = linear_group(group, groups);
  let slot_tiles = (params.capacity + TILE - 1u) / TILE;
  let slot_0 = index % slot_tiles * TILE;
  let kv_head = index / slot_tiles % params.kv_heads;
  let query_0 = index / slot_tiles / params.kv_heads * TILE;
  let sharing = params.q_heads / params.kv_heads;
  let queries = params.rows * sharing;
  if query_0 >= queries {
    return;
  }
  if !any_seen(query_0 / sharing, min(query_0 + TILE - 1u, queries - 1u) / sharing, slot_0) {
    return;
  }
  let columns = params.head_dim / 4u;
  let across = lane % 8u;
  let down = lane / 8u;
  // sums[i][j]: query down + 8 i with slot across + 8 j of the tile.
  var sums = array<vec4f, 4>();
  for (var slice = 0u; slice < columns; slice += SLICE) {
    workgroupBarrier();
    for (var i = lane; i < TILE * SLICE; i += LANES) {
      let place = i / SLICE;
      let column = slice + i % SLICE;
      var found = array<vec4f, 2>();
      if column < columns && query_0 + place < queries {
        found[0] = q[query_at(query_0 + place, kv_head, params.q_heads, sharing) * columns + column];
      }
      if column < columns && slot_0 + place < params.capacity {
        found[1] = k[((slot_0 + place) * params.kv_heads + kv_head) * columns + column];
      }
      some_q[place * PITCH + i % SLICE] = found[0];
      some_k[place * PITCH + i % SLICE] = found[1];
    }
    workgroupBarrier();
    for (var s = 0u; s < SLICE; s++) {
      let k_0 = some_k[across * PITCH + s];
      let k_1 = some_k[(across + 8u) * PITCH + s];
      let k_2 = some_k[(across + 16u) * PITCH + s];
      let k_3 = some_k[(across + 24u) * PITCH + s];
      for (var i = 0u; i < 4u; i++) {
        let one_q = some_q[(down + 8u * i) * PITCH + s];
        sums[i] += vec4f(dot(one_q, k_0), dot(one_q, k_1), dot(one_q, k_2), dot(one_q, k_3));
      }
    }
  }
  for (var i = 0u; i < 4u; i++) {
    let n = query_0 + down + 8u * i;
    let range = range_of(min(n / sharing, params.rows - 1u));
    for (var j = 0u; j < 4u; j++) {
      let slot = slot_0 + across + 8u * j;
      if n < queries && slot < params.capacity && position_in(slot, range.x, params.capacity) < range.y {
        scores[query_at(n, kv_head, params.q_heads, sharing) * params.capacity + slot] = sums[i][j];
      }
    }
  }
}
