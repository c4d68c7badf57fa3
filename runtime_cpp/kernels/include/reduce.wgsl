// Sum over a workgroup of 64 in a fixed order, with two barriers. All threads call it, as often as they like.

var<workgroup> reduce_lanes: array<f32, 64>;
var<workgroup> reduce_groups: array<f32, 8>;

fn workgroup_sum(lane: u32, value: f32) -> f32 {
  reduce_lanes[lane] = value;
  workgroupBarrier();
  if lane < 8u {
    var sum = 0.0;
    for (var i = 0u; i < 8u; i++) {
      sum += reduce_lanes[8u * lane + i];
    }
    reduce_groups[lane] = sum;
  }
  workgroupBarrier();
  var total = 0.0;
  for (var i = 0u; i < 8u; i++) {
    total += reduce_groups[i];
  }
  return total;
}
