//! formula: out[r, h] = sum over visible t of weights[r, h, t % capacity] * v[t % capacity, kv]; no visible t: zeros
//! dispatch: a tile of 32 queries of a KV head and 64 columns: kv_heads * ceil(rows * q_heads / kv_heads / TILE) * ceil(head_dim / 4 / COLUMNS) groups
//! reference: attention_of_weights
//! tolerance: 2e-5
//! include: include/grid.wgsl
//! include: include/group_queries.wgsl
//! include: include/visible.wgsl

const LANES = 64u;
const TILE = 32u;
// vec4s of a head.
const COLUMNS = 16u;
const KEYS = 16u;
const PITCH = KEYS + 1u;
// Bits of no weight: the query does not see the key.
const HIDDEN = 0xffffffffu;

struct Params {
  rows: u32,
  q_heads: u32,
  kv_heads: u32,
  head_dim: u32,
  capacity: u32,
  window: u32,
  donor: u32,
}

@group(0) @binding(0) var<storage, read> weights: array<u32>;
@group(0) @binding(1) var<storage, read> v: array<vec4f>;
@group(0) @binding(2) var<storage, read> positions: array<i32>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4f>;
@group(0) @binding(4) var<uniform> params: Params;

var<workgroup> some_weights: array<u32, TILE * PITCH>;
var<workgroup> some_v: array<vec4f, KEYS * COLUMNS>;

fn range_of(row: u32) -> vec2i {
  return visible_range(positions[select(row, 0u, params.donor != 0u)], params.window, params.donor);
}

// First and last + 1 of the positions that any of these rows sees.
fn bounds_of(first_row: u32, last_row: u32) -> vec2i {
  var bounds = vec2i(0x7fffffff, 0);
  for (var row = first_row; row <= last_row; row++) {
    let range = range_of(row);
    if range.x < range.y {
      bounds = vec2i(min(bounds.x, range.x), max(bounds.y, range.y));
    }
  }
  return bounds;
}

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let index = linear_group(group, groups);
  let columns = params.head_dim / 4u;
  let column_tiles = (columns + COLUMNS - 1u) / COLUMNS;
  let column_0 = index % column_tiles * COLUMNS;
  let kv_head = index / column_tiles % params.kv_heads;
  let query_0 = index / column_tiles / params.kv_heads * TILE;
  let sharing = params.q_heads / params.kv_heads;
  let queries = params.rows * sharing;
  if query_0 >= queries {
    return;
  }
  let bounds = bounds_of(query_0 / sharing, min(query_0 + TILE - 1u, queries - 1u) / sharing);
  let across = lane % 8u;
  let down = lane / 8u;
  // low[i] and high[i]: query down + 8 i, columns across and across + 8 of the tile.
  var low = array<vec4f, 4>();
  var high = array<vec4f, 4>();
  for (var tile = bounds.x; tile < bounds.y; tile += i32(KEYS)) {
    workgroupBarrier();
    for (var i = lane; i < TILE * KEYS; i += LANES) {
      let n = query_0 + i / KEYS;
      let t = tile + i32(i % KEYS);
      let range = range_of(min(n / sharing, params.rows - 1u));
      var weight = HIDDEN;
      if n < queries && t >= range.x && t < range.y {
        weight = weights[query_at(n, kv_head, params.q_heads, sharing) * params.capacity + u32(t) % params.capacity];
      }
      some_weights[i / KEYS * PITCH + i % KEYS] = weight;
    }
    for (var i = lane; i < KEYS * COLUMNS; i += LANES) {
      let t = tile + i32(i / COLUMNS);
      let column = column_0 + i % COLUMNS;
      var found = vec4f();
      if t < bounds.y && column < columns {
        found = v[(u32(t) % params.capacity * params.kv_heads + kv_head) * columns + column];
      }
      some_v[i] = found;
    }
    workgroupBarrier();
    for (var j = 0u; j < KEYS; j++) {
      let low_v = some_v[j * COLUMNS + across];
      let high_v = some_v[j * COLUMNS + across + 8u];
      for (var i = 0u; i < 4u; i++) {
        let bits = some_weights[(down + 8u * i) * PITCH + j];
        // A value that a query does not see must not touch its sum, not even as 0 * NaN.
        if bits != HIDDEN {
          let weight = vec4f(bitcast<f32>(bits));
          low[i] = fma(weight, low_v, low[i]);
          high[i] = fma(weight, high_v, high[i]);
        }
      }
    }
  }
  for (var i = 0u; i < 4u; i++) {
    let n = query_0 + down + 8u * i;
    let start = query_at(n, kv_head, params.q_heads, sharing) * columns + column_0;
    if n < queries && column_0 + across < columns {
      out[start + across] = low[i];
    }
    if n < queries && column_0 + across + 8u < columns {
      out[start + across + 8u] = high[i];
    }
  }
}
