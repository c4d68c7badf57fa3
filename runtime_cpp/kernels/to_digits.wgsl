//! formula: x = (a + 256 b + 65536 c) * 16 power, signed digits of 8 bits, one power of two for every 32 columns of a row
//! dispatch: one thread 8 columns: ceil(4 * rows * units / 64) groups
//! reference: to_digits
//! tolerance: 3e-7
//! include: include/grid.wgsl
//! include: include/largest.wgsl

// Threads of a unit, 8 columns each.
const SHARES = 4u;

struct Params {
  rows: u32,
  // Of 32 columns, in a row.
  units: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
// Of a row six vectors of four words for every unit, each kind behind the other; here as halves. Of every 8 columns there
// are words of the even and of the odd ones: vectors 0, 2, 3 and 5 have digits a and b, 1 and 4 have c of two times 8.
@group(0) @binding(1) var<storage, read_write> digits: array<vec2u>;
@group(0) @binding(2) var<storage, read_write> powers: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;

var<workgroup> largest: array<u32, 64>;

fn low_digit(v: vec4i) -> vec4i {
  return (v << vec4u(24u)) >> vec4u(24u);
}

fn packed(v: vec4i) -> u32 {
  let b = bitcast<vec4u>(v) & vec4u(255u);
  return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

// Three digits of four numbers, a word each.
fn digits_of(v: vec4i) -> vec3u {
  let a = low_digit(v);
  let rest = (v - a) >> vec4u(8u);
  let b = low_digit(rest);
  return vec3u(packed(a), packed(b), packed((rest - b) >> vec4u(8u)));
}

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let i = linear_element(group, groups, lane);
  let units = params.units;
  let inside = i < SHARES * params.rows * units;
  var low = vec4f();
  var high = vec4f();
  if inside {
    low = x[2u * i];
    high = x[2u * i + 1u];
  }
  largest[lane] = max(largest_of(low), largest_of(high));
  workgroupBarrier();
  if !inside {
    return;
  }
  let first = lane / SHARES * SHARES;
  let most = max(max(largest[first], largest[first + 1u]), max(largest[first + 2u], largest[first + 3u]));
  let exponent = clamp(most >> 23u, 64u, 254u);
  let finite = most < 0x7f800000u;
  // 2^21 <= |x| * up < 2^22 of the largest. A unit that is not finite has digits 0, and NaN as its power.
  let up = bitcast<f32>((127u + 21u + 127u - exponent) << 23u);
  let a = select(vec4i(), vec4i(round(low * up)), finite);
  let b = select(vec4i(), vec4i(round(high * up)), finite);
  let even = digits_of(vec4i(a.xz, b.xz));
  let odd = digits_of(vec4i(a.yw, b.yw));
  let row = i / (SHARES * units);
  let unit = i / SHARES % units;
  let share = i % SHARES;
  let place = 2u * ((row * 6u + 3u * (share / 2u) + 2u * (share % 2u)) * units + unit);
  digits[place] = vec2u(even.x, odd.x);
  digits[place + 1u] = vec2u(even.y, odd.y);
  digits[2u * ((row * 6u + 3u * (share / 2u) + 1u) * units + unit) + share % 2u] = vec2u(even.z, odd.z);
  if share == 0u {
    powers[row * units + unit] = bitcast<f32>(select(most | 0x7fc00000u, (exponent - 21u - 4u) << 23u, finite));
  }
}
