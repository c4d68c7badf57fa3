//! formula: the k <= 32 largest of x[0..2048], descending, with indices; NaN first, -0 = +0, ties: lower index first
//! dispatch: one group
//! reference: top_k
//! tolerance: exact
//! include: include/order.wgsl

const LANES = 64u;
const QUADS = 8u;  // of four elements, a lane
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

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
  var keys = array<vec4u, QUADS>();
  var first = vec2u(0u, 0xffffffffu);
  for (var q = 0u; q < QUADS; q++) {
    let place = lane + LANES * q;
    let bits = x[place];
    keys[q] = vec4u(order_key(bits.x), order_key(bits.y), order_key(bits.z), order_key(bits.w));
    for (var c = 0u; c < 4u; c++) {
      let element = vec2u(keys[q][c], 4u * place + c);
      if before(element, first) {
        first = element;
      }
    }
  }
  best[lane] = first;
  workgroupBarrier();
  // The 32nd of the lanes' first elements has 31 of them before it, so no element behind it is among the 32 wanted.
  var place = 0u;
  for (var j = 0u; j < LANES; j++) {
    place += u32(before(best[j], first));
  }
  if place == WANTED - 1u {
    bar = first;
  }
  workgroupBarrier();
  // Only 31 lanes can hold more than one element that is not behind the bar: at most 31 * 32 + 1 candidates.
  let least = bar;
  for (var q = 0u; q < QUADS && !before(least, first); q++) {
    for (var c = 0u; c < 4u; c++) {
      let element = vec2u(keys[q][c], 4u * (lane + LANES * q) + c);
      if !before(least, element) {
        candidates[atomicAdd(&count, 1u)] = element;
      }
    }
  }
  workgroupBarrier();
  let found = atomicLoad(&count);
  for (var i = lane; i < found; i += LANES) {
    let mine = candidates[i];
    var rank = 0u;
    for (var j = 0u; j < found && rank < params.k; j++) {
      rank += u32(before(candidates[j], mine));
    }
    if rank < params.k {
      values[rank] = x[mine.y / 4u][mine.y % 4u];
      indices[rank] = i32(mine.y);
    }
  }
}
