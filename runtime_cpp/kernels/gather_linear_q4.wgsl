//! formula: out[j] = sum over k of (nibble[ids[j], k] - 8) * d[ids[j], k / group] * y[k]; -infinity for a bad id, nothing for one of another part
//! dispatch: one thread an output: ceil(count / 64) groups
//! reference: gather_linear
//! tolerance: 1e-5
//! include: include/grid.wgsl
//! include: include/q4_grouped.wgsl

const MINUS_INFINITY = 0xff800000u;

struct Params {
  count: u32,
  k: u32,
  rows: u32,
  // Of these rows the ones that are bound: first .. first + held - 1.
  first: u32,
  held: u32,
  // log2(group / 16)
  group_shift: u32,
  flags: u32,
}

@group(0) @binding(0) var<storage, read> y: array<f32>;
@group(0) @binding(1) var<storage, read> values: array<u32>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;
@group(0) @binding(3) var<storage, read> ids: array<i32>;
// Bits of floats: WGSL has no literal for infinity.
@group(0) @binding(4) var<storage, read_write> out: array<u32>;
@group(0) @binding(5) var<uniform> params: Params;

fn scale_word(matrix: u32, i: u32) -> u32 { return scales[i]; }

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
  // A negative id becomes a large unsigned one, and so does the row of an id before the part.
  let id = u32(ids[i]);
  let row = id - params.first;
  if row >= params.held {
    if id >= params.rows && params.first == 0u {
      out[i] = MINUS_INFINITY;
    }
    return;
  }
  var total = 0.0;
  for (var g = 0u; g < params.k / 32u; g++) {
    var sums = vec4f();
    for (var w = 4u * g; w < 4u * g + 4u; w++) {
      let word = values[row * (params.k / 8u) + w];
      let a = 8u * w;
      sums += vec4f(y[a], y[a + 1u], y[a + 2u], y[a + 3u]) * q4_low(word);
      sums += vec4f(y[a + 4u], y[a + 5u], y[a + 6u], y[a + 7u]) * q4_high(word);
    }
    total += ((sums.x + sums.y) + (sums.z + sums.w)) * scale_of(0u, row, 2u * g);
  }
  out[i] = bitcast<u32>(total);
}
