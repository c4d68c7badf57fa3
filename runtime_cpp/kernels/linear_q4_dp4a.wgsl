//! formula: out[r, first + o] = bias[first + o] + sum over k of x[r, k] * (nibble[o, k] - 8) * d[o, k / group], x from its digits
//! dispatch: lanes threads a block of COLUMNS columns: ceil(ceil(n / COLUMNS) / (THREADS / lanes)) groups
//! reference: linear
//! tolerance: 1e-5
//! include: include/grid.wgsl
//! include: include/q4_dp4a.wgsl
//! include: include/lane_tree.wgsl
//! requires: packed_4x8_integer_dot_product
//! variant: linear_q4_dp4a_m3 is m3
//! variant: linear_q4_dp4a_subgroup is m1_subgroup
//! variant: linear_q4_dp4a_m3_subgroup is m3_subgroup

struct Params {
  k: u32,
  n: u32,
  // log2(group / 16)
  group_shift: u32,
  flags: u32,
  // Threads that share a column: a power of two from 4 to THREADS.
  lanes: u32,
  // Neighbours that subgroup operations reach: a power of two, 1 where there are none.
  subgroup: u32,
  // The columns of out, of stride in a row, that these rows of the weight make.
  first: u32,
  stride: u32,
}

@group(0) @binding(0) var<storage, read> digits: array<vec4u>;
@group(0) @binding(1) var<storage, read> powers: array<f32>;
@group(0) @binding(2) var<storage, read> values: array<vec4u>;
@group(0) @binding(3) var<storage, read> scales: array<u32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<uniform> params: Params;

//! forms: include/few_rows.wgsl

fn scale_word(matrix: u32, i: u32) -> u32 { return scales[i]; }

@compute @workgroup_size(128)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let units = params.k / 32u;
  let block = linear_group(group, groups) * (THREADS / params.lanes) + thread / params.lanes;
  let lane = thread % params.lanes;
  let columns = min(vec4u(COLUMNS * block) + vec4u(0u, 1u, 2u, 3u), vec4u(params.n - 1u));
  let starts = columns * units;
  var sum_0 = vec4f();
  var sum_1 = vec4f();
  var sum_2 = vec4f();
  for (var unit = lane; unit < units; unit += params.lanes) {
    let a = values[starts.x + unit];
    let b = values[starts.y + unit];
    let c = values[starts.z + unit];
    let d = values[starts.w + unit];
    let scale = vec4f(scale_of(0u, columns.x, 2u * unit), scale_of(0u, columns.y, 2u * unit), scale_of(0u, columns.z, 2u * unit),
                      scale_of(0u, columns.w, 2u * unit));
    var parts = with_columns(codes_of(a.x, b.x, c.x, d.x), codes_of(a.y, b.y, c.y, d.y), unit, Parts());
    parts = with_columns(codes_of(a.z, b.z, c.z, d.z), codes_of(a.w, b.w, c.w, d.w), unit + 3u * units, parts);
    sum_0 = fma(value_of(parts.row_0, powers[unit]), scale, sum_0);
    if MORE_ROWS != 0u {
      sum_1 = fma(value_of(parts.row_1, powers[units + unit]), scale, sum_1);
      sum_2 = fma(value_of(parts.row_2, powers[2u * units + unit]), scale, sum_2);
    }
  }
  var sum = tree_sum(rows_of(sum_0.x, sum_1.x, sum_2.x), rows_of(sum_0.y, sum_1.y, sum_2.y), rows_of(sum_0.z, sum_1.z, sum_2.z),
                     rows_of(sum_0.w, sum_1.w, sum_2.w), params.lanes, thread);
  let column = column_of(block, thread);
  if lane < COLUMNS && column < params.n {
    if (params.flags & HAS_BIAS) != 0u {
      sum += Rows(bias[params.first + column]);
    }
    for (var row = 0u; row <= 2u * MORE_ROWS; row++) {
      out[row * params.stride + params.first + column] = row_of(sum, row);
    }
  }
}
