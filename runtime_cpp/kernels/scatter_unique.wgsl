//! formula: out[index[j]] = source[j] for indices of which no two are equal; an index outside 0..size is dropped
//! dispatch: one thread an element: ceil(count / 64) groups
//! reference: scatter
//! tolerance: exact
//! include: include/grid.wgsl

struct Params {
  count: u32,
  size: u32,
}

@group(0) @binding(0) var<storage, read> index: array<i32>;
@group(0) @binding(1) var<storage, read> source: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
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
  // A negative index becomes a large unsigned one.
  let place = u32(index[i]);
  if place < params.size {
    out[place] = source[i];
  }
}
