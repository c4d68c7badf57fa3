//! formula: out_i[r, o] = sum over k of x[r, k] * (nibble_i[o, k] - 8) * d_i[o, k / group], of three weights with one x
//! dispatch: the groups that linear_q4_m1 gives each weight: ceil(ceil(n_0 / COLUMNS) / (THREADS / lanes_0)) + ceil(ceil(n_1 / COLUMNS) / (THREADS / lanes_1)) + ceil(ceil(n_2 / COLUMNS) / (THREADS / lanes_2)) groups
//! reference: linear
//! tolerance: 1e-5
//! storage-buffers: 10
//! include: include/grid.wgsl
//! include: include/q4_columns.wgsl
//! variant: linear_q4_three_m3 is m3
//! variant: linear_q4_three_m1_subgroup is m1_subgroup
//! variant: linear_q4_three_m3_subgroup is m3_subgroup

struct Params {
  k: u32,
  // log2(group / 16)
  group_shift: u32,
  flags: u32,
  subgroup: u32,
  n_0: u32,
  lanes_0: u32,
  n_1: u32,
  lanes_1: u32,
  n_2: u32,
  lanes_2: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> values_0: array<vec2u>;
@group(0) @binding(2) var<storage, read> scales_0: array<u32>;
@group(0) @binding(3) var<storage, read> values_1: array<vec2u>;
@group(0) @binding(4) var<storage, read> scales_1: array<u32>;
@group(0) @binding(5) var<storage, read> values_2: array<vec2u>;
@group(0) @binding(6) var<storage, read> scales_2: array<u32>;
@group(0) @binding(7) var<storage, read_write> out_0: array<f32>;
@group(0) @binding(8) var<storage, read_write> out_1: array<f32>;
@group(0) @binding(9) var<storage, read_write> out_2: array<f32>;
@group(0) @binding(10) var<uniform> params: Params;

//! forms: include/few_rows.wgsl

fn words_at(matrix: u32, i: u32) -> vec2u {
  switch matrix {
    case 0u: {
      return values_0[i];
    }
    case 1u: {
      return values_1[i];
    }
    default: {
      return values_2[i];
    }
  }
}

fn scale_word(matrix: u32, i: u32) -> u32 {
  switch matrix {
    case 0u: {
      return scales_0[i];
    }
    case 1u: {
      return scales_1[i];
    }
    default: {
      return scales_2[i];
    }
  }
}

fn write(matrix: u32, at: u32, value: f32) {
  switch matrix {
    case 0u: {
      out_0[at] = value;
    }
    case 1u: {
      out_1[at] = value;
    }
    default: {
      out_2[at] = value;
    }
  }
}

fn groups_of(n: u32, lanes: u32) -> u32 {
  return ((n + COLUMNS - 1u) / COLUMNS + THREADS / lanes - 1u) / (THREADS / lanes);
}

@compute @workgroup_size(128)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  // A workgroup has blocks of one weight.
  var index = linear_group(group, groups);
  var matrix = 0u;
  var n = params.n_0;
  var lanes = params.lanes_0;
  if matrix == 0u && index >= groups_of(n, lanes) {
    index -= groups_of(n, lanes);
    matrix = 1u;
    n = params.n_1;
    lanes = params.lanes_1;
  }
  if matrix == 1u && index >= groups_of(n, lanes) {
    index -= groups_of(n, lanes);
    matrix = 2u;
    n = params.n_2;
    lanes = params.lanes_2;
  }
  let block = index * (THREADS / lanes) + thread / lanes;
  // Named one by one, so that the choice of the weight is outside the loop.
  var parts = Parts();
  switch matrix {
    case 0u: {
      parts = parts_of(0u, n, lanes, block, thread);
    }
    case 1u: {
      parts = parts_of(1u, n, lanes, block, thread);
    }
    default: {
      parts = parts_of(2u, n, lanes, block, thread);
    }
  }
  let sum = rows_sum(parts, lanes, thread);
  let column = column_of(block, thread);
  if thread % lanes < COLUMNS && column < n {
    for (var row = 0u; row <= 2u * MORE_ROWS; row++) {
      write(matrix, row * n + column, row_of(sum, row));
    }
  }
}
