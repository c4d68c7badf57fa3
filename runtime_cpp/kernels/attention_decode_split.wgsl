//! formula: values[r, h, s] = sum e_t v[t] with e_t = exp(q[r, h] . k[t] - max), stats[r, h, s] = (max, sum e_t, broken)
//! dispatch: a workgroup a split: rows * kv_heads * ceil(q_heads / kv_heads / HEADS) * splits groups
//! reference: attention_partials
//! tolerance: 2e-5
//! include: include/grid.wgsl
//! include: include/visible.wgsl
//! include: include/chunk_softmax.wgsl

// Columns are vec4s of a head. HEADS query heads share one reading of K and V.
const LANES = 64u;
const MAX_BLOCKS = 2u;
const STEPS = LANES / PARTS;

struct Params {
  rows: u32,
  q_heads: u32,
  kv_heads: u32,
  head_dim: u32,
  capacity: u32,
  window: u32,
  donor: u32,
  splits: u32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;
@group(0) @binding(3) var<storage, read> positions: array<i32>;
@group(0) @binding(4) var<storage, read_write> values: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> stats: array<vec4f>;
@group(0) @binding(6) var<uniform> params: Params;

fn row_start(slot: u32, columns: u32, kv_head: u32) -> u32 {
  return (ring_slot(slot, params.capacity) * params.kv_heads + kv_head) * columns;
}

// This thread's part of its key's products with all heads: every PARTS-th column.
fn multiply(start: u32, query: u32, heads: u32, columns: u32, lane: u32) {
  var sums = array<vec4f, HEADS>();
  for (var first = lane % PARTS; first < columns; first += LANES) {
    // All asked for before the first is needed.
    var row_k = array<vec4f, STEPS>();
    for (var i = 0u; i < STEPS; i++) {
      if first + i * PARTS < columns {
        row_k[i] = k[start + first + i * PARTS];
      }
    }
    // Without a branch, so that no load waits for another; columns behind the head meet zeros, heads behind the last are not kept.
    for (var h = 0u; h < HEADS; h++) {
      for (var i = 0u; i < STEPS; i++) {
        sums[h] = fma(q[query + h * columns + min(first + i * PARTS, columns - 1u)], row_k[i], sums[h]);
      }
    }
  }
  for (var h = 0u; h < heads; h++) {
    products[(h * CHUNK + lane / PARTS) * PITCH + lane % PARTS] = (sums[h].x + sums[h].y) + (sums[h].z + sums[h].w);
  }
}

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let index = linear_group(group, groups);
  let sharing = params.q_heads / params.kv_heads;
  let blocks = (sharing + HEADS - 1u) / HEADS;
  let split = index % params.splits;
  let block = index / params.splits % (params.kv_heads * blocks);
  let row = index / (params.splits * params.kv_heads * blocks);
  if row >= params.rows {
    return;
  }
  let range = visible_range(positions[select(row, 0u, params.donor != 0u)], params.window, params.donor);
  let chunks = chunk_range(range);
  if chunks.x + i32(split) >= chunks.y {
    return;
  }
  let kv_head = block / blocks;
  let skipped = block % blocks * HEADS;
  let heads = min(sharing - skipped, HEADS);
  let first_head = row * params.q_heads + kv_head * sharing + skipped;
  let columns = params.head_dim / 4u;
  var running = Running();
  var acc = array<vec4f, MAX_BLOCKS * HEADS>();
  for (var chunk = chunks.x + i32(split); chunk < chunks.y; chunk += i32(params.splits)) {
    let begin = u32(max(range.x - chunk * i32(CHUNK), 0));
    let end = u32(min(range.y - chunk * i32(CHUNK), i32(CHUNK)));
    let slot = (u32(chunk) * CHUNK) % params.capacity;
    let key = lane / PARTS;
    if key >= begin && key < end {
      multiply(row_start(slot + key, columns, kv_head), first_head * columns, heads, columns, lane);
    }
    running = score_chunk(lane, begin, end, running);
    for (var b = 0u; b < MAX_BLOCKS; b++) {
      let column = lane + b * LANES;
      if column < columns {
        var column_v = array<vec4f, CHUNK>();
        for (var j = 0u; j < CHUNK; j++) {
          if j >= begin && j < end {
            column_v[j] = v[row_start(slot + j, columns, kv_head) + column];
          }
        }
        for (var h = 0u; h < HEADS; h++) {
          if h < heads {
            var sum = acc[b * HEADS + h] * shrinks[h];
            for (var j = 0u; j < CHUNK; j++) {
              sum = fma(vec4f(weights[j * HEADS + h]), column_v[j], sum);
            }
            acc[b * HEADS + h] = sum;
          }
        }
      }
    }
  }
  let found = head_stats(lane, running);
  if lane % HALF == 0u && lane / HALF < heads {
    stats[(first_head + lane / HALF) * params.splits + split] = found;
  }
  for (var b = 0u; b < MAX_BLOCKS; b++) {
    for (var h = 0u; h < HEADS; h++) {
      if lane + b * LANES < columns && h < heads {
        values[((first_head + h) * params.splits + split) * columns + lane + b * LANES] = acc[b * HEADS + h];
      }
    }
  }
}
