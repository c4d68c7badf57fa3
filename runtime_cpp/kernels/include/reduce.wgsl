// Sum over a workgroup of LANES = SIDE * SIDE threads in a fixed order, with two barriers. All threads call it, as often as
// they like; the kernel names both.

var<workgroup> reduce_lanes: array<f32, LANES>;
var<workgroup> reduce_groups: array<f32, SIDE>;

fn workgroup_sum(lane: u32, value: f32) -> f32 {
  reduce_lanes[lane] = value;
  workgroupBarrier();
  if lane < SIDE {
    var sum = 0.0;
    for (var i = 0u; i < SIDE; i++) {
      sum += reduce_lanes[SIDE * lane + i];
    }
    reduce_groups[lane] = sum;
  }
  workgroupBarrier();
  var total = 0.0;
  for (var i = 0u; i < SIDE; i++) {
    total += reduce_groups[i];
  }
  return total;
}
