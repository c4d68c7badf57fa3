//! formula: out = (rms(context * context_scale) * weight + token) * scale over each group of width elements
//! dispatch: one workgroup a (row, layer): groups groups
//! reference: ple_combine
//! tolerance: 4e-6
//! include: include/grid.wgsl
//! include: include/sum.wgsl

const LANES = 64u;
const SIDE = 8u;

struct Params {
  groups: u32,
  width: u32,
  eps: f32,
  context_scale: f32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> context: array<f32>;
@group(0) @binding(1) var<storage, read> token: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let slice = linear_group(group, groups);
  if slice >= params.groups {
    return;
  }
  let start = slice * params.width;
  var squares = 0.0;
  for (var c = lane; c < params.width; c += 64u) {
    let value = context[start + c] * params.context_scale;
    squares += value * value;
  }
  let mean = workgroup_reduced(lane, squares) / f32(params.width);
  let factor = params.context_scale / sqrt(mean + params.eps);
  for (var c = lane; c < params.width; c += 64u) {
    out[start + c] = (context[start + c] * factor * weight[c] + token[start + c]) * params.scale;
  }
}
