//! formula: out[i] = x[i] + value - y[i], wrapping at 32 bits; without y where others is 0, y[0] where it is 1
//! dispatch: one thread an element: ceil(count / 64) groups
//! reference: offset_integers
//! tolerance: exact
//! include: include/grid.wgsl

struct Params {
  count: u32,
  value: i32,
  // Integers of y: 0, 1 or count.
  others: u32,
}

@group(0) @binding(0) var<storage, read> x: array<i32>;
@group(0) @binding(1) var<storage, read> y: array<i32>;
@group(0) @binding(2) var<storage, read_write> out: array<i32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let i = linear_element(group, groups, lane);
  if i >= params.count {
    return;
  }
  var offset = params.value;
  if params.others != 0u {
    offset -= y[min(i, params.others - 1u)];
  }
  out[i] = x[i] + offset;
}
