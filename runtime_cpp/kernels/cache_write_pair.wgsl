//! formula: both caches at [positions[r] % capacity, c] = keys[r, c], values[r, c]; a row with a negative position writes nothing
//! dispatch: one thread an element: ceil(rows * width / 64) groups
//! reference: cache_write
//! tolerance: exact
//! include: include/grid.wgsl

struct Params {
  rows: u32,
  width: u32,
  capacity: u32,
}

@group(0) @binding(0) var<storage, read> keys: array<f32>;
@group(0) @binding(1) var<storage, read> values: array<f32>;
@group(0) @binding(2) var<storage, read> positions: array<i32>;
@group(0) @binding(3) var<storage, read_write> key_cache: array<f32>;
@group(0) @binding(4) var<storage, read_write> value_cache: array<f32>;
@group(0) @binding(5) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let i = linear_element(group, groups, lane);
  if i >= params.rows * params.width {
    return;
  }
  let position = positions[i / params.width];
  if position < 0 {
    return;
  }
  let place = (u32(position) % params.capacity) * params.width + i % params.width;
  key_cache[place] = keys[i];
  value_cache[place] = values[i];
}
