//! include: include/q4_grouped.wgsl

// The two tiles of a blocked product in workgroup memory, and how 4 by 4 pieces of x and words of weights get there. The
// kernel names the sizes TILE_M, TILE_N, TILE_K, ACROSS, and how four numbers lie there: Cell, stored.

fn scale_word(matrix: u32, i: u32) -> u32 { return scales[i]; }

// Of every k of the block, the rows and the columns in fours.
var<workgroup> x_tile: array<Cell, TILE_K * TILE_M / 4u>;
var<workgroup> w_tile: array<Cell, TILE_K * TILE_N / 4u>;

// Rows behind the last are zero.
fn x_at(row: u32, k: u32) -> vec4f {
  if row >= params.rows {
    return vec4f();
  }
  return x[(row * params.k + k) / 4u];
}

// Fetches of one job: rows 4j..4j+3 of x at 4 columns of k.
fn x_block(job: u32, row_0: u32, k: u32) -> mat4x4f {
  let row = row_0 + 4u * (job % (TILE_M / 4u));
  let column = k + 4u * (job / (TILE_M / 4u));
  return mat4x4f(x_at(row, column), x_at(row + 1u, column), x_at(row + 2u, column), x_at(row + 3u, column));
}

fn store_x(job: u32, rows: mat4x4f) {
  // Neighbours in rows are neighbours in memory: no two threads meet in a bank.
  let place = 4u * (job / (TILE_M / 4u)) * (TILE_M / 4u) + job % (TILE_M / 4u);
  let by_k = transpose(rows);
  x_tile[place] = stored(by_k[0]);
  x_tile[place + TILE_M / 4u] = stored(by_k[1]);
  x_tile[place + 2u * (TILE_M / 4u)] = stored(by_k[2]);
  x_tile[place + 3u * (TILE_M / 4u)] = stored(by_k[3]);
}

fn store_w(job: u32, words: vec4u, scale: vec4f) {
  let place = 8u * (job / ACROSS) * ACROSS + job % ACROSS;
  w_tile[place] = stored(q4_floats(words) * scale);
  w_tile[place + ACROSS] = stored(q4_floats(words >> vec4u(4u)) * scale);
  w_tile[place + 2u * ACROSS] = stored(q4_floats(words >> vec4u(8u)) * scale);
  w_tile[place + 3u * ACROSS] = stored(q4_floats(words >> vec4u(12u)) * scale);
  w_tile[place + 4u * ACROSS] = stored(q4_floats(words >> vec4u(16u)) * scale);
  w_tile[place + 5u * ACROSS] = stored(q4_floats(words >> vec4u(20u)) * scale);
  w_tile[place + 6u * ACROSS] = stored(q4_floats(words >> vec4u(24u)) * scale);
  w_tile[place + 7u * ACROSS] = stored(q4_floats(words >> vec4u(28u)) * scale);
}

fn write(part: u32, row: u32, column: u32, sums: vec4f) {
  for (var c = 0u; c < 4u && column + c < params.n && row < params.rows; c++) {
    var value = sums[c];
    if (params.flags & HAS_BIAS) != 0u {
      value += bias[column + c];
    }
    out[(part * params.rows + row) * params.n + column + c] = value;
  }
}
