//! include: include/matrix_unit.wgsl

// What the tiles of a product on the matrix unit are filled with, halves of x and weights with their scales, and how a piece
// of the product gets out of a subgroup.

// By the kernel's PARTS, TILE_K, PIECES, DOWN and THREADS.
const TILE_M = DOWN * 32u;
const TILE_N = PIECES * 32u;
const EIGHTS = TILE_K / 8u;
// Vectors of eight halves. One more than a row has: no two rows of a piece begin in the same bank.
const STRIDE = EIGHTS + 1u;
const W_PLACE = PARTS * TILE_M * STRIDE;
const MEMORY_BYTES = 16u * PARTS * (TILE_M + TILE_N) * STRIDE;
// In every step a thread brings one vector of four rows of x, whose parts lie by turns, and of two or four columns.
const ROW_VECTORS = EIGHTS * PARTS;
const X_ROWS = THREADS / ROW_VECTORS;
const W_COLUMNS = THREADS / EIGHTS;

// Rows behind the last are zero.
fn x_at(row: u32, vector: u32) -> vec4u {
  if row >= params.rows {
    return vec4u();
  }
  return halves[row * (params.k / 8u * PARTS) + vector];
}

// Eight weights of one column, and their scale.
fn w_at(column: u32, k: u32) -> vec2u {
  let inside = min(column, params.n - 1u);
  let i = inside * ((params.k / 16u) >> params.group_shift) + ((k / 16u) >> params.group_shift);
  return vec2u(values[(inside * params.k + k) / 8u], (scales[i / 2u] >> (i % 2u * 16u)) & 0xffffu);
}

fn codes_of(word: u32) -> vec4u {
  return ((vec4u(word) >> vec4u(0u, 4u, 8u, 12u)) & vec4u(0x000f000fu)) | vec4u(0x64006400u);
}

// A scale of 11 bits is one of 7 and one of 4, whose products with numbers of 4 bits are exact.
fn w_first(w: vec2u) -> vec4u {
  return scaled(codes_of(w.x), select(w.y & 0xfff0u, w.y, PARTS == 1u));
}

fn w_rest(w: vec2u) -> vec4u {
  return scaled(codes_of(w.x), difference(w.y, w.y & 0xfff0u));
}

// Numbers have no place in a piece that a shader knows, so each piece goes through the workgroup's memory.
fn write(thread: u32, part: u32, row: u32, column: u32, sums: Sums) {
  let floats = bufferView<array<f32, MEMORY_BYTES / 4u>>(&memory, 0u);
  let piece = thread / 32u * 256u;
  subgroupMatrixStore<row_major>(floats, piece, sums, 16u);
  workgroupBarrier();
  for (var i = thread % 32u; i < 256u; i += 32u) {
    let r = row + i / 16u;
    let c = column + i % 16u;
    if r < params.rows && c < params.n {
      var value = floats[piece + i] * powers[r];
      if (params.flags & HAS_BIAS) != 0u {
        value += bias[c];
      }
      out[(part * params.rows + r) * params.n + c] = value;
    }
  }
  workgroupBarrier();
}
