//! formula: out[r, o] = act(x[r] . gate[o]) * (x[r] . up[o]), or * other[r, offset + o] of stride columns; act: gelu_tanh or silu
//! dispatch: lanes threads a block of COLUMNS columns: ceil(ceil(n / COLUMNS) / (THREADS / lanes)) groups
//! reference: gated_linear
//! tolerance: 1e-5
//! include: include/grid.wgsl
//! include: include/q4_columns.wgsl
//! include: include/silu.wgsl
//! include: include/tanh.wgsl
//! variant: linear_q4_gated_m3 is m3
//! variant: linear_q4_gated_m1_subgroup is m1_subgroup
//! variant: linear_q4_gated_m3_subgroup is m3_subgroup

const HAS_OTHER = 4u;
const SILU = 8u;

struct Params {
  k: u32,
  n: u32,
  // log2(group / 16)
  group_shift: u32,
  flags: u32,
  // As in linear_q4_m1.
  lanes: u32,
  subgroup: u32,
  stride: u32,
  offset: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> values: array<vec2u>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;
@group(0) @binding(3) var<storage, read> up_values: array<vec2u>;
@group(0) @binding(4) var<storage, read> up_scales: array<u32>;
@group(0) @binding(5) var<storage, read> other: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
@group(0) @binding(7) var<uniform> params: Params;

//! forms: include/few_rows.wgsl

fn words_at(matrix: u32, i: u32) -> vec2u {
  if matrix == 0u {
    return values[i];
  }
  return up_values[i];
}

fn scale_word(matrix: u32, i: u32) -> u32 {
  if matrix == 0u {
    return scales[i];
  }
  return up_scales[i];
}

fn activated(gate: f32) -> f32 {
  if (params.flags & SILU) != 0u {
    return silu(gate);
  }
  return gelu_tanh(gate);
}

@compute @workgroup_size(128)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let block = linear_group(group, groups) * (THREADS / params.lanes) + thread / params.lanes;
  let lone = (params.flags & HAS_OTHER) != 0u;
  var gates = Parts();
  var ups = Parts();
  if lone {
    gates = parts_of(0u, params.n, params.lanes, block, thread);
  } else {
    // In one loop, so that x is read once for both weights.
    let columns = columns_of(block, params.n);
    for (var unit = thread % params.lanes; unit < params.k / 16u; unit += params.lanes) {
      let first = unit_at(0u, columns, unit);
      let second = unit_at(1u, columns, unit);
      gates.row_0 = with_unit(first, 4u * unit, gates.row_0);
      ups.row_0 = with_unit(second, 4u * unit, ups.row_0);
      if MORE_ROWS != 0u {
        gates.row_1 = with_unit(first, 4u * unit + params.k / 4u, gates.row_1);
        ups.row_1 = with_unit(second, 4u * unit + params.k / 4u, ups.row_1);
        gates.row_2 = with_unit(first, 4u * unit + params.k / 2u, gates.row_2);
        ups.row_2 = with_unit(second, 4u * unit + params.k / 2u, ups.row_2);
      }
    }
  }
  let gate = rows_sum(gates, params.lanes, thread);
  var up = Rows();
  if !lone {
    up = rows_sum(ups, params.lanes, thread);
  }
  let column = column_of(block, thread);
  if thread % params.lanes < COLUMNS && column < params.n {
    for (var row = 0u; row <= 2u * MORE_ROWS; row++) {
      var factor = row_of(up, row);
      if lone {
        factor = other[row * params.stride + params.offset + column];
      }
      out[row * params.n + column] = activated(row_of(gate, row)) * factor;
    }
  }
}
