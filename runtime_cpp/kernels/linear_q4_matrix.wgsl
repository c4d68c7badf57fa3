//! formula: out[r, o] = bias[o] + sum over k of x[r, k] * (nibble[o, k] - 8) * d[o, k / group], tile by tile on the matrix unit
//! dispatch: a tile of TILE_M rows and TILE_N columns, every split of k: ceil(rows / TILE_M) * ceil(n / TILE_N) * splits groups
//! reference: linear
//! tolerance: 1e-5
//! requires: chromium-experimental-subgroup-matrix, buffer_view, shader-f16, subgroups
//! workgroup-memory: 36864
//! include: include/grid.wgsl
//! include: include/matrix_tile.wgsl
//! variant: linear_q4_matrix_f16
//! swap: const PARTS = 1u; const TILE_K = 64u; const PIECES = 4u; const DOWN = 4u; const THREADS = 256u;

// Two parts of x and of a weight, three products: the error of f32. One part: that of f16.
// A subgroup owns 2 pieces of 16 by 16 down and PIECES across; subgroups stand DOWN by 2.
//! prelude
const PARTS = 2u; const TILE_K = 32u; const PIECES = 2u; const DOWN = 2u; const THREADS = 128u;
//! end

const HAS_BIAS = 2u;

struct Params {
  k: u32,
  n: u32,
  // log2(group / 16)
  group_shift: u32,
  flags: u32,
  rows: u32,
  // Parts of k, each with an output of its own: out[part, r, o]. One part: the whole sum, and the bias.
  splits: u32,
}

@group(0) @binding(0) var<storage, read> halves: array<vec4u>;
@group(0) @binding(1) var<storage, read> powers: array<f32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;
@group(0) @binding(3) var<storage, read> scales: array<u32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<uniform> params: Params;

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  // Neighbours share the weights.
  let tiles = (params.rows + TILE_M - 1u) / TILE_M;
  let index = linear_group(group, groups);
  let part = index % params.splits;
  let row_0 = index / params.splits % tiles * TILE_M;
  let column_0 = index / params.splits / tiles * TILE_N;
  if column_0 >= params.n {
    return;
  }
  let span = (params.k / TILE_K + params.splits - 1u) / params.splits * TILE_K;
  let end = min((part + 1u) * span, params.k);
  let vectors = bufferView<array<vec4u, MEMORY_BYTES / 16u>>(&memory, 0u);
  let elements = bufferView<array<f16, MEMORY_BYTES / 2u>>(&memory, 0u);
  let x_vector = thread % ROW_VECTORS;
  let x_row = row_0 + thread / ROW_VECTORS;
  let x_place = (x_vector % PARTS * TILE_M + thread / ROW_VECTORS) * STRIDE + x_vector / PARTS;
  let w_column = column_0 + thread / EIGHTS;
  let w_place = W_PLACE + thread / EIGHTS * STRIDE + thread % EIGHTS;
  let subgroup = thread / 32u;
  let down = subgroup / 2u * 32u;
  let across = subgroup % 2u * PIECES * 16u;
  var sum_00 = Sums(); var sum_01 = Sums(); var sum_02 = Sums(); var sum_03 = Sums();
  var sum_10 = Sums(); var sum_11 = Sums(); var sum_12 = Sums(); var sum_13 = Sums();
  for (var k = part * span; k < end; k += TILE_K) {
    let from_x = k / 8u * PARTS + x_vector;
    let from_w = k + thread % EIGHTS * 8u;
    let x_0 = x_at(x_row, from_x);
    let x_1 = x_at(x_row + X_ROWS, from_x);
    let x_2 = x_at(x_row + 2u * X_ROWS, from_x);
    let x_3 = x_at(x_row + 3u * X_ROWS, from_x);
    let w_0 = w_at(w_column, from_w);
    let w_1 = w_at(w_column + W_COLUMNS, from_w);
    var w_2 = vec2u(); var w_3 = vec2u();
    if TILE_N > 2u * W_COLUMNS {
      w_2 = w_at(w_column + 2u * W_COLUMNS, from_w);
      w_3 = w_at(w_column + 3u * W_COLUMNS, from_w);
    }
    workgroupBarrier();
    vectors[x_place] = x_0;
    vectors[x_place + X_ROWS * STRIDE] = x_1;
    vectors[x_place + 2u * X_ROWS * STRIDE] = x_2;
    vectors[x_place + 3u * X_ROWS * STRIDE] = x_3;
    vectors[w_place] = w_first(w_0);
    vectors[w_place + W_COLUMNS * STRIDE] = w_first(w_1);
    if PARTS == 2u {
      vectors[w_place + TILE_N * STRIDE] = w_rest(w_0);
      vectors[w_place + (TILE_N + W_COLUMNS) * STRIDE] = w_rest(w_1);
    }
    if TILE_N > 2u * W_COLUMNS {
      vectors[w_place + 2u * W_COLUMNS * STRIDE] = w_first(w_2);
      vectors[w_place + 3u * W_COLUMNS * STRIDE] = w_first(w_3);
    }
    workgroupBarrier();
    //! unroll
    for (var i = 0u; i < EIGHTS; i += 2u) {
      let x_at_i = 8u * (down * STRIDE + i);
      let w_at_i = 8u * (W_PLACE + across * STRIDE + i);
      let left_0 = subgroupMatrixLoad<Left, row_major>(elements, x_at_i, 8u * STRIDE);
      let left_1 = subgroupMatrixLoad<Left, row_major>(elements, x_at_i + 128u * STRIDE, 8u * STRIDE);
      let right_0 = subgroupMatrixLoad<Right, col_major>(elements, w_at_i, 8u * STRIDE);
      let right_1 = subgroupMatrixLoad<Right, col_major>(elements, w_at_i + 128u * STRIDE, 8u * STRIDE);
      sum_00 = subgroupMatrixMultiplyAccumulate(left_0, right_0, sum_00);
      sum_01 = subgroupMatrixMultiplyAccumulate(left_0, right_1, sum_01);
      sum_10 = subgroupMatrixMultiplyAccumulate(left_1, right_0, sum_10);
      sum_11 = subgroupMatrixMultiplyAccumulate(left_1, right_1, sum_11);
      if PARTS == 2u {
        let rest_0 = subgroupMatrixLoad<Left, row_major>(elements, x_at_i + 8u * TILE_M * STRIDE, 8u * STRIDE);
        let rest_1 = subgroupMatrixLoad<Left, row_major>(elements, x_at_i + 8u * (TILE_M + 16u) * STRIDE, 8u * STRIDE);
        sum_00 = subgroupMatrixMultiplyAccumulate(rest_0, right_0, sum_00);
        sum_01 = subgroupMatrixMultiplyAccumulate(rest_0, right_1, sum_01);
        sum_10 = subgroupMatrixMultiplyAccumulate(rest_1, right_0, sum_10);
        sum_11 = subgroupMatrixMultiplyAccumulate(rest_1, right_1, sum_11);
      }
      if PARTS == 2u || PIECES == 4u {
        // Of two parts the rest of the weights, else the columns of the other two pieces.
        let more = select(32u, TILE_N, PARTS == 2u);
        let right_2 = subgroupMatrixLoad<Right, col_major>(elements, w_at_i + 8u * more * STRIDE, 8u * STRIDE);
        let right_3 = subgroupMatrixLoad<Right, col_major>(elements, w_at_i + 8u * (more + 16u) * STRIDE, 8u * STRIDE);
        if PARTS == 2u {
          sum_00 = subgroupMatrixMultiplyAccumulate(left_0, right_2, sum_00);
          sum_01 = subgroupMatrixMultiplyAccumulate(left_0, right_3, sum_01);
          sum_10 = subgroupMatrixMultiplyAccumulate(left_1, right_2, sum_10);
          sum_11 = subgroupMatrixMultiplyAccumulate(left_1, right_3, sum_11);
        } else {
          sum_02 = subgroupMatrixMultiplyAccumulate(left_0, right_2, sum_02);
          sum_03 = subgroupMatrixMultiplyAccumulate(left_0, right_3, sum_03);
          sum_12 = subgroupMatrixMultiplyAccumulate(left_1, right_2, sum_12);
          sum_13 = subgroupMatrixMultiplyAccumulate(left_1, right_3, sum_13);
        }
      }
    }
  }
  workgroupBarrier();
  let row = row_0 + down;
  let column = column_0 + across;
  write(thread, part, row, column, sum_00);
  write(thread, part, row, column + 16u, sum_01);
  write(thread, part, row + 16u, column, sum_10);
  write(thread, part, row + 16u, column + 16u, sum_11);
  if PIECES == 4u {
    write(thread, part, row, column + 32u, sum_02);
    write(thread, part, row, column + 48u, sum_03);
    write(thread, part, row + 16u, column + 32u, sum_12);
    write(thread, part, row + 16u, column + 48u, sum_13);
  }
}
