//! formula: the k <= 32 largest of x[0..2048], descending, with indices; NaN first, -0 = +0, ties: lower index first
//! dispatch: one group
//! reference: top_k
//! tolerance: exact
//! include: include/order.wgsl

const LANES = 64u;
const WANTED = 32u;
const MOST_CANDIDATES = 1024u;

struct Params {
  k: u32,
}

// The floats' bits, so that order and copies are exact.
@group(0) @binding(0) var<storage, read> x: array<vec4u>;
@group(0) @binding(1) var<storage, read_write> values: array<u32>;
@group(0) @binding(2) var<storage, read_write> indices: array<i32>;
@group(0) @binding(3) var<uniform> params: Params;

var<workgroup> best: array<vec2u, LANES>;  // (key, index) of the first element of every lane in the order
var<workgroup> bar: vec2u;
var<workgroup> candidates: array<vec2u, MOST_CANDIDATES>;
var<workgroup> count: atomic<u32>;

// A total order: no two elements have one index.
fn before(a: vec2u, b: vec2u) -> bool {
  return a.x > b.x || (a.x == b.x && a.y < b.y);
}

// How many of the lanes' first elements from j on, eight of them, have `element` behind them.
fn ahead_of_lane(j: u32, element: vec2u) -> u32 {
  return ((u32(before(best[j], element)) + u32(before(best[j + 1u], element))) +
          (u32(before(best[j + 2u], element)) + u32(before(best[j + 3u], element)))) +
         ((u32(before(best[j + 4u], element)) + u32(before(best[j + 5u], element))) +
          (u32(before(best[j + 6u], element)) + u32(before(best[j + 7u], element))));
}

// The same of the candidates; behind the last one there are zeros, which no element is behind.
fn ahead_of_candidate(j: u32, element: vec2u) -> u32 {
  return ((u32(before(candidates[j], element)) + u32(before(candidates[j + 1u], element))) +
          (u32(before(candidates[j + 2u], element)) + u32(before(candidates[j + 3u], element)))) +
         ((u32(before(candidates[j + 4u], element)) + u32(before(candidates[j + 5u], element))) +
          (u32(before(candidates[j + 6u], element)) + u32(before(candidates[j + 7u], element))));
}

fn keys_of(place: u32) -> vec4u {
  let bits = x[place];
  return vec4u(order_key(bits.x), order_key(bits.y), order_key(bits.z), order_key(bits.w));
}

fn keep(key: u32, index: u32) {
  if !before(bar, vec2u(key, index)) {
    candidates[atomicAdd(&count, 1u)] = vec2u(key, index);
  }
}

fn keep_quad(keys: vec4u, place: u32) {
  if any(keys >= vec4u(bar.x)) {
    keep(keys.x, 4u * place);
    keep(keys.y, 4u * place + 1u);
    keep(keys.z, 4u * place + 2u);
    keep(keys.w, 4u * place + 3u);
  }
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
  // Named, not an array: what is indexed by a loop may end up in memory.
  let k_0 = keys_of(lane);
  let k_1 = keys_of(lane + LANES);
  let k_2 = keys_of(lane + 2u * LANES);
  let k_3 = keys_of(lane + 3u * LANES);
  let k_4 = keys_of(lane + 4u * LANES);
  let k_5 = keys_of(lane + 5u * LANES);
  let k_6 = keys_of(lane + 6u * LANES);
  let k_7 = keys_of(lane + 7u * LANES);
  // Of every quarter of the columns the largest key, and the first that has it.
  let most = max(max(max(k_0, k_1), max(k_2, k_3)), max(max(k_4, k_5), max(k_6, k_7)));
  var quad = vec4u(7u);
  quad = select(quad, vec4u(6u), k_6 == most);
  quad = select(quad, vec4u(5u), k_5 == most);
  quad = select(quad, vec4u(4u), k_4 == most);
  quad = select(quad, vec4u(3u), k_3 == most);
  quad = select(quad, vec4u(2u), k_2 == most);
  quad = select(quad, vec4u(1u), k_1 == most);
  quad = select(quad, vec4u(0u), k_0 == most);
  let index = 4u * (vec4u(lane) + LANES * quad) + vec4u(0u, 1u, 2u, 3u);
  var first = vec2u(most.x, index.x);
  first = select(first, vec2u(most.y, index.y), before(vec2u(most.y, index.y), first));
  first = select(first, vec2u(most.z, index.z), before(vec2u(most.z, index.z), first));
  first = select(first, vec2u(most.w, index.w), before(vec2u(most.w, index.w), first));
  best[lane] = first;
  workgroupBarrier();
  // The 32nd of the lanes' first elements has 31 of them before it, so no element behind it is among the 32 wanted.
  var place = 0u;
  for (var j = 0u; j < LANES; j += 8u) {
    place += ahead_of_lane(j, first);
  }
  if place == WANTED - 1u {
    bar = first;
  }
  workgroupBarrier();
  // Only 31 lanes can hold more than one element that is not behind the bar: at most 31 * 32 + 1 candidates.
  keep_quad(k_0, lane);
  keep_quad(k_1, lane + LANES);
  keep_quad(k_2, lane + 2u * LANES);
  keep_quad(k_3, lane + 3u * LANES);
  keep_quad(k_4, lane + 4u * LANES);
  keep_quad(k_5, lane + 5u * LANES);
  keep_quad(k_6, lane + 6u * LANES);
  keep_quad(k_7, lane + 7u * LANES);
  workgroupBarrier();
  let found = atomicLoad(&count);
  for (var i = lane; i < found; i += LANES) {
    let mine = candidates[i];
    let bits = x[mine.y / 4u][mine.y % 4u];
    var rank = 0u;
    for (var j = 0u; j < found; j += 8u) {
      rank += ahead_of_candidate(j, mine);
    }
    if rank < params.k {
      values[rank] = bits;
      indices[rank] = i32(mine.y);
    }
  }
}
