// The best of a workgroup of 64: pairs (order key, index), the larger key first, of equal keys the lower index.

// No float has key 0, so any element beats it.
const NO_KEY = vec2u(0u, 0u);

var<workgroup> best_lanes: array<vec2u, 64>;

fn better(a: vec2u, b: vec2u) -> vec2u {
  return select(b, a, a.x > b.x || (a.x == b.x && a.y < b.y));
}

// The result is lane 0's alone, with two barriers. Call it once a kernel and from all threads.
fn workgroup_best(lane: u32, mine: vec2u) -> vec2u {
  best_lanes[lane] = mine;
  var found = mine;
  for (var stride = 8u; stride > 0u; stride /= 8u) {
    workgroupBarrier();
    if lane < stride {
      for (var i = 1u; i < 8u; i++) {
        found = better(found, best_lanes[lane + stride * i]);
      }
      best_lanes[lane] = found;
    }
  }
  return found;
}
