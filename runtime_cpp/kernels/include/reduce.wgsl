// Reduction over a workgroup of LANES = SIDE * SIDE threads in a fixed order, with two barriers. All threads call it, as often
// as they like. The kernel names both, the type that is Reduced, whose zero changes nothing, and how two are combined.

var<workgroup> reduce_lanes: array<Reduced, LANES>;
var<workgroup> reduce_groups: array<Reduced, SIDE>;

fn workgroup_reduced(lane: u32, value: Reduced) -> Reduced {
  reduce_lanes[lane] = value;
  workgroupBarrier();
  if lane < SIDE {
    var part = Reduced();
    for (var i = 0u; i < SIDE; i++) {
      part = combined(part, reduce_lanes[SIDE * lane + i]);
    }
    reduce_groups[lane] = part;
  }
  workgroupBarrier();
  var total = Reduced();
  for (var i = 0u; i < SIDE; i++) {
    total = combined(total, reduce_groups[i]);
  }
  return total;
}
