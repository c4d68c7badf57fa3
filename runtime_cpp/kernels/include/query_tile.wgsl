//! include: include/finite.wgsl

// Running softmax of a tile of 16 queries over tiles of 64 keys, for a workgroup of 128. Thread 32 * s + i has the scores
// of queries 4 s..4 s + 3, side by side in a vec4, with keys i and i + 32. Every thread takes part in the barriers.

const QUERIES = 16u;
const SLICE = 8u;
const PITCH = SLICE + 1u;
const LOWEST = -0x1.fffffep+127f;

const NONE = 0xffffffffu;

// Over several queries: first and last + 1 of the keys that any sees, and of those that all see.
const NO_BOUNDS = vec4i(0x7fffffff, 0, 0, 0x7fffffff);

fn widen(bounds: vec4i, range: vec2i) -> vec4i {
  let any = vec2i(min(bounds.x, range.x), max(bounds.y, range.y));
  return vec4i(select(bounds.xy, any, range.x < range.y), max(bounds.z, range.x), min(bounds.w, range.y));
}

// Slices of 64 keys, PITCH apart; then weights[key * 4 + s] of the same keys, -1 where a query does not see the key.
var<workgroup> shared_tile: array<vec4f, 64u * PITCH>;
var<workgroup> lanes: array<vec4f, 128>;
var<workgroup> shrinks: array<vec4f, 4>;

// Four queries: which keys they see, the maximum, this thread's share of the sum, whether a score was NaN or infinite.
struct Queries {
  first: vec4i,
  end: vec4i,
  top: vec4f,
  sum: vec4f,
  broken: vec4f,
}

// The vec4 of the values that a thread sums up, and for which groups of four queries.
struct Share {
  column: u32,
  first: u32,
  count: u32,
}

fn share_of(lane: u32, columns: u32) -> Share {
  let wide = min(columns, 128u);
  let each = (4u + 128u / wide - 1u) / (128u / wide);
  let first = lane / wide * each;
  return Share(lane % wide, first, select(0u, min(each, 4u - first), first < 4u));
}

fn dot_add(a: vec4f, b: vec4f, sum: f32) -> f32 {
  return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

fn infinite(scores: vec4f) -> vec4<bool> {
  return (bitcast<vec4u>(scores) & vec4u(0x7f800000u)) == vec4u(0x7f800000u);
}

// Writes weights and shrinks; what was summed up before is to be multiplied by shrinks.
fn weigh_tile(lane: u32, tile: i32, scores: array<vec4f, 2>, before: Queries) -> Queries {
  let s = lane / 32u;
  let i = lane % 32u;
  let low = vec4i(tile + i32(i));
  let high = low + 32;
  let low_seen = (low >= before.first) & (low < before.end);
  let high_seen = (high >= before.first) & (high < before.end);
  lanes[lane] = max(select(vec4f(LOWEST), scores[0], low_seen), select(vec4f(LOWEST), scores[1], high_seen));
  workgroupBarrier();
  var now = before;
  for (var j = 0u; j < 32u; j++) {
    now.top = max(now.top, lanes[s * 32u + j]);
  }
  let shrink = exp(before.top - now.top);
  let low_weight = exp(scores[0] - now.top);
  let high_weight = exp(scores[1] - now.top);
  now.sum = fma(before.sum, shrink, select(vec4f(), low_weight, low_seen) + select(vec4f(), high_weight, high_seen));
  now.broken = select(now.broken, vec4f(1.0), (low_seen & infinite(scores[0])) | (high_seen & infinite(scores[1])));
  shared_tile[i * 4u + s] = select(vec4f(-1.0), low_weight, low_seen);
  shared_tile[(i + 32u) * 4u + s] = select(vec4f(-1.0), high_weight, high_seen);
  if i == 0u {
    shrinks[s] = shrink;
  }
  workgroupBarrier();
  return now;
}

// Four keys from `key` on. Where not every query sees all of them, a value that one does not see must not touch its sum,
// not even as 0 * NaN.
fn add_values(acc: ptr<function, array<vec4f, QUERIES>>, share: Share, key: u32, some_v: array<vec4f, 4>, all_seen: bool) {
  for (var i = 0u; i < 4u; i++) {
    for (var r = 0u; r < 4u; r++) {
      if r < share.count {
        let weight = shared_tile[(key + i) * 4u + share.first + r];
        for (var n = 0u; n < 4u; n++) {
          let before = (*acc)[r * 4u + n];
          let after = fma(vec4f(weight[n]), some_v[i], before);
          if all_seen {
            (*acc)[r * 4u + n] = after;
          } else {
            (*acc)[r * 4u + n] = select(before, after, weight[n] >= 0.0);
          }
        }
      }
    }
  }
}

fn shrink_values(acc: ptr<function, array<vec4f, QUERIES>>, share: Share) {
  for (var n = 0u; n < QUERIES; n++) {
    if n < 4u * share.count {
      (*acc)[n] *= shrinks[share.first + n / 4u][n % 4u];
    }
  }
}

fn share_sums(lane: u32, queries: Queries) {
  workgroupBarrier();
  lanes[lane] = queries.sum;
  shared_tile[lane] = queries.broken;
  workgroupBarrier();
}

// What `query` sums up to, after share_sums: zeros where it sees nothing.
fn divided(values: vec4f, query: u32) -> vec4f {
  var sum = 0.0;
  var broken = 0.0;
  for (var j = 0u; j < 32u; j++) {
    sum += lanes[query / 4u * 32u + j][query % 4u];
    broken = max(broken, shared_tile[query / 4u * 32u + j][query % 4u]);
  }
  if broken != 0.0 {
    // An infinite or NaN score must not become a plausible row.
    return vec4f(bitcast<f32>(0x7fc00000u | u32(broken)));
  }
  return values / select(sum, 1.0, sum == 0.0);
}
