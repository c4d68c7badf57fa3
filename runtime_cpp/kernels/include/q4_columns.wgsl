//! include: include/q4_grouped.wgsl
//! include: include/q4_pairs.wgsl
//! include: include/lane_tree.wgsl

// Products of one or three rows of x with blocks of 4 columns of a 4-bit weight; the lanes of a block share its k. The kernel
// names x and params, which weight's words and scales (words_at, scale_word), and MORE_ROWS.

// 16 columns of x of each of a block's columns.
struct Unit {
  low: vec4u,
  high: vec4u,
  scale: vec4f,
}

// Of every row, for a block's columns.
struct Parts {
  row_0: vec4f,
  row_1: vec4f,
  row_2: vec4f,
}

// Columns behind the last are those of the last, and are not written.
fn columns_of(block: u32, n: u32) -> vec4u {
  return min(vec4u(COLUMNS * block) + vec4u(0u, 1u, 2u, 3u), vec4u(n - 1u));
}

fn unit_at(matrix: u32, columns: vec4u, unit: u32) -> Unit {
  let at = columns * (params.k / 16u) + unit;
  let a = words_at(matrix, at.x);
  let b = words_at(matrix, at.y);
  let c = words_at(matrix, at.z);
  let d = words_at(matrix, at.w);
  return Unit(vec4u(a.x, b.x, c.x, d.x), vec4u(a.y, b.y, c.y, d.y),
              vec4f(scale_of(matrix, columns.x, unit), scale_of(matrix, columns.y, unit), scale_of(matrix, columns.z, unit),
                    scale_of(matrix, columns.w, unit)));
}

// sum + a unit's products with x from vector i on; what 16 + 8 adds to every code goes in first, with the other sign. Every row
// goes through the same additions, in explicit fma, so that one row and three give the same bits.
fn with_unit(unit: Unit, i: u32, sum: vec4f) -> vec4f {
  let a = x[i];
  let b = x[i + 1u];
  let c = x[i + 2u];
  let d = x[i + 3u];
  let s = (a + b) + (c + d);
  let part = eight(unit.high, c, d, eight(unit.low, a, b, vec4f(-24.0 * ((s.x + s.y) + (s.z + s.w)))));
  return fma(part, unit.scale, sum);
}

// What this thread has of a block of one weight.
fn parts_of(matrix: u32, n: u32, lanes: u32, block: u32, thread: u32) -> Parts {
  let columns = columns_of(block, n);
  var parts = Parts();
  for (var unit = thread % lanes; unit < params.k / 16u; unit += lanes) {
    let words = unit_at(matrix, columns, unit);
    parts.row_0 = with_unit(words, 4u * unit, parts.row_0);
    if MORE_ROWS != 0u {
      parts.row_1 = with_unit(words, 4u * unit + params.k / 4u, parts.row_1);
      parts.row_2 = with_unit(words, 4u * unit + params.k / 2u, parts.row_2);
    }
  }
  return parts;
}

// All threads of the workgroup call it.
fn rows_sum(parts: Parts, lanes: u32, thread: u32) -> Rows {
  let a = parts.row_0;
  let b = parts.row_1;
  let c = parts.row_2;
  return tree_sum(rows_of(a.x, b.x, c.x), rows_of(a.y, b.y, c.y), rows_of(a.z, b.z, c.z), rows_of(a.w, b.w, c.w), lanes, thread);
}
