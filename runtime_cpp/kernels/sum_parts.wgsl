//! formula: out[i] = bias[i % n] + sum over p in ascending order of parts[p * count + i]
//! dispatch: one thread an output: ceil(count / 64) groups
//! reference: sum_parts
//! tolerance: 1e-6
//! include: include/grid.wgsl

const HAS_BIAS = 2u;

struct Params {
  count: u32,
  n: u32,
  splits: u32,
  flags: u32,
}

@group(0) @binding(0) var<storage, read> parts: array<f32>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
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
  var total = 0.0;
  for (var part = 0u; part < params.splits; part++) {
    total += parts[part * params.count + i];
  }
  if (params.flags & HAS_BIAS) != 0u {
    total += bias[i % params.n];
  }
  out[i] = total;
}
