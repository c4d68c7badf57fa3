//! formula: as attention, for tiles of 16 queries (some rows, all query heads of a KV head) over tiles of 64 keys
//! dispatch: a workgroup a tile of a KV head: kv_heads * ceil(rows / tile_rows) groups
//! reference: attention
//! tolerance: 2e-5
//! include: include/grid.wgsl
//! include: include/visible.wgsl
//! include: include/query_tile.wgsl

// Columns are vec4s of a head. Query n of a tile is head n % sharing of row n / sharing, with 16 / sharing rows.

struct Params {
  rows: u32,
  q_heads: u32,
  kv_heads: u32,
  head_dim: u32,
  capacity: u32,
  window: u32,
  donor: u32,
  tile_rows: u32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;
@group(0) @binding(3) var<storage, read> positions: array<i32>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4f>;
@group(0) @binding(5) var<uniform> params: Params;

var<workgroup> staged_q: array<vec4f, QUERIES * PITCH>;

fn range_of(row: u32) -> vec2i {
  return visible_range(positions[select(row, 0u, params.donor != 0u)], params.window, params.donor);
}

// Query n of a tile: its row, or params.rows where there is none.
fn row_of(n: u32, first_row: u32) -> u32 {
  let row = n / (params.q_heads / params.kv_heads);
  return select(params.rows, min(first_row + row, params.rows), row < params.tile_rows);
}

// Where a query lies in q and out.
fn head_start(n: u32, first_row: u32, kv_head: u32) -> u32 {
  let sharing = params.q_heads / params.kv_heads;
  return (row_of(n, first_row) * params.q_heads + kv_head * sharing + n % sharing) * (params.head_dim / 4u);
}

// A column of four keys, and of one query behind them; zeros for what there is not.
fn load(column: u32, key_starts: vec4u, query_start: u32) -> array<vec4f, 5> {
  var found = array<vec4f, 5>();
  if column < params.head_dim / 4u {
    for (var i = 0u; i < 4u; i++) {
      if key_starts[i] != NONE {
        found[i] = k[key_starts[i] + column];
      }
    }
    if query_start != NONE {
      found[4] = q[query_start + column];
    }
  }
  return found;
}

// Scores of keys i and i + 32 with four queries. Slices of 8 columns pass through workgroup memory; the next one travels
// while one is multiplied.
fn multiply(tile: u32, end: u32, first_row: u32, kv_head: u32, lane: u32) -> array<vec4f, 2> {
  let n = lane / SLICE;
  let query_start = select(NONE, head_start(n, first_row, kv_head), row_of(n, first_row) < params.rows);
  var key_starts = vec4u(NONE);
  for (var i = 0u; i < 4u; i++) {
    let t = tile + n + 16u * i;
    if t < end {
      key_starts[i] = (t % params.capacity * params.kv_heads + kv_head) * (params.head_dim / 4u);
    }
  }
  var scores = array<vec4f, 2>();
  var next = load(lane % SLICE, key_starts, query_start);
  for (var slice = 0u; slice < params.head_dim / 4u; slice += SLICE) {
    workgroupBarrier();
    staged_q[n * PITCH + lane % SLICE] = next[4];
    for (var i = 0u; i < 4u; i++) {
      shared_tile[(n + 16u * i) * PITCH + lane % SLICE] = next[i];
    }
    workgroupBarrier();
    next = load(slice + SLICE + lane % SLICE, key_starts, query_start);
    for (var s = 0u; s < SLICE; s++) {
      let low = shared_tile[lane % 32u * PITCH + s];
      let high = shared_tile[(lane % 32u + 32u) * PITCH + s];
      for (var j = 0u; j < 4u; j++) {
        let some_q = staged_q[(lane / 32u * 4u + j) * PITCH + s];
        scores[0][j] = dot_add(some_q, low, scores[0][j]);
        scores[1][j] = dot_add(some_q, high, scores[1][j]);
      }
    }
  }
  return scores;
}

@compute @workgroup_size(128)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let index = linear_group(group, groups);
  let first_row = index / params.kv_heads * params.tile_rows;
  let kv_head = index % params.kv_heads;
  if first_row >= params.rows {
    return;
  }
  var bounds = NO_BOUNDS;
  for (var row = first_row; row < min(first_row + params.tile_rows, params.rows); row++) {
    bounds = widen(bounds, range_of(row));
  }
  var mine = Queries();
  for (var n = 0u; n < 4u; n++) {
    // Queries that are not there see something too, and are not written.
    let range = range_of(min(row_of(lane / 32u * 4u + n, first_row), params.rows - 1u));
    mine.first[n] = range.x;
    mine.end[n] = range.y;
  }
  mine.top = vec4f(LOWEST);
  let columns = params.head_dim / 4u;
  let share = share_of(lane, columns);
  var acc = array<vec4f, QUERIES>();
  for (var tile = bounds.x & ~63; tile < bounds.y; tile += 64) {
    let scores = multiply(u32(tile), u32(bounds.y), first_row, kv_head, lane);
    mine = weigh_tile(lane, tile, scores, mine);
    let all_seen = tile >= bounds.z && tile + 64 <= bounds.w;
    let slot = u32(tile) % params.capacity;
    shrink_values(&acc, share);
    for (var j = 0u; j < 64u; j += 4u) {
      var some_v = array<vec4f, 4>();
      for (var i = 0u; i < 4u; i++) {
        if u32(tile) + j + i < u32(bounds.y) {
          let row = ring_slot(slot + j + i, params.capacity) * params.kv_heads + kv_head;
          some_v[i] = v[row * columns + share.column];
        }
      }
      add_values(&acc, share, j, some_v, all_seen);
    }
  }
  share_sums(lane, mine);
  for (var n = 0u; n < QUERIES; n++) {
    let query = share.first * 4u + n;
    if n < 4u * share.count && row_of(query, first_row) < params.rows {
      out[head_start(query, first_row, kv_head) + share.column] = divided(acc[n], query);
    }
  }
}
