//! formula: out = (residual + rms(x) * weight) * scalar, next = rms(out) * next_weight, rms(x) = x / sqrt(mean(x^2) + eps) over each row; absent inputs by flags
//! dispatch: one workgroup a row: rows groups
//! reference: rms_norm_pair
//! tolerance: 4e-6
//! include: include/grid.wgsl
//! include: include/norm.wgsl
//! variant: rms_norm_pair_wide
//! swap: const LANES = 256u;
//! swap: const SIDE = 16u;

//! prelude
const LANES = 64u;
const SIDE = 8u;
//! end

struct Params {
  rows: u32,
  width: u32,
  eps: f32,
  flags: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> residual: array<f32>;
@group(0) @binding(3) var<storage, read> scalar: array<f32>;
@group(0) @binding(4) var<storage, read> next_weight: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read_write> next: array<f32>;
@group(0) @binding(7) var<uniform> params: Params;

// What of a row's columns is inside it.
fn inside(c: u32, values: vec4f) -> vec4f {
  return select(vec4f(), values, places(c) < vec4u(params.width));
}

fn next_scale(c: u32) -> vec4f {
  let at = places(c);
  return vec4f(next_weight[at.x], next_weight[at.y], next_weight[at.z], next_weight[at.w]);
}

fn write_next(start: u32, c: u32, values: vec4f) {
  for (var i = 0u; i < 4u; i++) {
    if c + LANES * i < params.width {
      next[start + c + LANES * i] = values[i];
    }
  }
}

@compute @workgroup_size(LANES)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let row = linear_group(group, groups);
  if row >= params.rows {
    return;
  }
  let start = row * params.width;
  // Asked for before the threads wait for each other; rows of the usual models have no more.
  let first = four_at(start, lane);
  let second = four_at(start, lane + STEP);
  let first_scale = next_scale(lane);
  let second_scale = next_scale(lane + STEP);
  let factor = factor_of_row();
  let inverse = inverse_of(lane, squares_of(lane, start, first.value, second.value));
  let one = inside(lane, joined(first, inverse, factor));
  let two = inside(lane + STEP, joined(second, inverse, factor));
  write(start, lane, one);
  write(start, lane + STEP, two);
  var squares = fma(two, two, one * one);
  for (var c = lane + 2u * STEP; c < params.width; c += STEP) {
    let sums = inside(c, joined(four_at(start, c), inverse, factor));
    write(start, c, sums);
    squares = fma(sums, sums, squares);
  }
  let next_inverse = inverse_of(lane, squares);
  write_next(start, lane, one * next_inverse * first_scale);
  write_next(start, lane + STEP, two * next_inverse * second_scale);
  // Each thread reads back only what it wrote itself.
  for (var c = lane + 2u * STEP; c < params.width; c += LANES) {
    next[start + c] = out[start + c] * next_inverse * next_weight[c];
  }
}
