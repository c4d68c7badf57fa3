//! formula: x = (sum of the parts) * power, each part a half; one power of two for every row, every eight columns as 0 4 1 5 2 6 3 7
//! dispatch: one workgroup a row: rows groups
//! reference: to_halves
//! tolerance: 3e-7
//! include: include/grid.wgsl
//! include: include/largest.wgsl
//! include: include/reduce.wgsl
//! variant: to_halves_f16
//! swap: const PARTS = 1u;

// Two parts carry the 24 bits of an f32. One is x as f16.
//! prelude
const PARTS = 2u;
//! end

const LANES = 256u;
const SIDE = 16u;
alias Reduced = u32;

struct Params {
  rows: u32,
  // Eights of columns.
  eights: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
// Of a row every eight columns: the first part of all of them, then the second.
@group(0) @binding(1) var<storage, read_write> halves: array<vec4u>;
@group(0) @binding(2) var<storage, read_write> powers: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;

fn combined(a: u32, b: u32) -> u32 {
  return max(a, b);
}

// Cut, not rounded through a half and back: a compiler may take that for nothing at all.
fn high(v: vec4f) -> vec4f {
  return bitcast<vec4f>(bitcast<vec4u>(v) & vec4u(0xffffe000u));
}

fn packed(a: vec4f, b: vec4f) -> vec4u {
  return vec4u(
    pack2x16float(vec2f(a.x, b.x)), pack2x16float(vec2f(a.y, b.y)),
    pack2x16float(vec2f(a.z, b.z)), pack2x16float(vec2f(a.w, b.w)),
  );
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
  let first = row * params.eights;
  var most = 0u;
  for (var i = lane; i < params.eights; i += LANES) {
    most = max(most, max(largest_of(x[2u * (first + i)]), largest_of(x[2u * (first + i) + 1u])));
  }
  let largest = workgroup_reduced(lane, most);
  let exponent = clamp(largest >> 23u, 64u, 254u);
  let finite = largest < 0x7f800000u;
  // 2^14 <= |x| * up < 2^15 of the largest. A row that is not finite has halves 0, and NaN as its power.
  let up = select(0.0, bitcast<f32>((127u + 14u + 127u - exponent) << 23u), finite);
  for (var i = lane; i < params.eights; i += LANES) {
    let a = select(vec4f(), x[2u * (first + i)] * up, vec4<bool>(finite));
    let b = select(vec4f(), x[2u * (first + i) + 1u] * up, vec4<bool>(finite));
    if PARTS == 1u {
      halves[first + i] = packed(a, b);
    } else {
      halves[2u * (first + i)] = packed(high(a), high(b));
      halves[2u * (first + i) + 1u] = packed(a - high(a), b - high(b));
    }
  }
  if lane == 0u {
    powers[row] = bitcast<f32>(select(0x7fc00000u, (exponent - 14u) << 23u, finite));
  }
}
