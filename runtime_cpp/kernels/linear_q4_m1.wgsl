//! formula: out[r, first + o] = bias[first + o] + sum over k of x[r, k] * (nibble[o, k] - 8) * d[o, k / group]
//! dispatch: lanes threads a block of COLUMNS columns: ceil(ceil(n / COLUMNS) / (THREADS / lanes)) groups
//! reference: linear
//! tolerance: 1e-5
//! include: include/grid.wgsl
//! include: include/q4_columns.wgsl
//! variant: linear_q4_m3 is m3
//! variant: linear_q4_m1_subgroup is m1_subgroup
//! variant: linear_q4_m3_subgroup is m3_subgroup

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

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> values: array<vec2u>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<uniform> params: Params;

//! forms: include/few_rows.wgsl

fn words_at(matrix: u32, i: u32) -> vec2u { return values[i]; }
fn scale_word(matrix: u32, i: u32) -> u32 { return scales[i]; }

@compute @workgroup_size(128)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let block = linear_group(group, groups) * (THREADS / params.lanes) + thread / params.lanes;
  var sum = rows_sum(parts_of(0u, params.n, params.lanes, block, thread), params.lanes, thread);
  let column = column_of(block, thread);
  if thread % params.lanes < COLUMNS && column < params.n {
    if (params.flags & HAS_BIAS) != 0u {
      sum += Rows(bias[params.first + column]);
    }
    for (var row = 0u; row <= 2u * MORE_ROWS; row++) {
      out[row * params.stride + params.first + column] = row_of(sum, row);
    }
  }
}
