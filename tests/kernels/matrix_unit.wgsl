// What include/matrix_unit.wgsl says, and the builtin functions on pieces, for adapters without the matrix feature: a piece is
// a place in the workgroup's memory, in halves, and of sums every lane keeps eight. The tests put it in that file's place.
struct Left { place: u32 }
struct Right { place: u32 }
struct Sums { own: array<f32, 8> }

var<workgroup> memory: array<vec4u, MEMORY_BYTES / 16u>;
// Which of the subgroup's 32; the tests let main set it.
var<private> own_lane: u32 = 0u;

// Two neighbours of a row, or of a column.
fn pair_at(place: u32, line: u32, pair: u32) -> vec2f {
  let at = place / 2u + line * 4u * STRIDE + pair;
  return unpack2x16float(memory[at / 4u][at % 4u]);
}

fn add_product(left: Left, right: Right, sums: Sums) -> Sums {
  var total = sums;
  // A lane's eight numbers lie in one row.
  let row = own_lane / 2u;
  for (var pair = 0u; pair < 8u; pair++) {
    let x = pair_at(left.place, row, pair);
    for (var i = 0u; i < 8u; i++) {
      total.own[i] += dot(x, pair_at(right.place, own_lane % 2u * 8u + i, pair));
    }
  }
  return total;
}

fn put_sums(place: u32, sums: Sums) {
  for (var i = 0u; i < 2u; i++) {
    memory[(place + 8u * own_lane) / 4u + i] =
      bitcast<vec4u>(vec4f(sums.own[4u * i], sums.own[4u * i + 1u], sums.own[4u * i + 2u], sums.own[4u * i + 3u]));
  }
}

fn sum_at(place: u32) -> f32 {
  return bitcast<f32>(memory[place / 4u][place % 4u]);
}

fn scaled(codes: vec4u, scale: u32) -> vec4u {
  let d = unpack2x16float(scale).x;
  return vec4u(
    pack2x16float((unpack2x16float(codes.x) - 1032.0) * d), pack2x16float((unpack2x16float(codes.y) - 1032.0) * d),
    pack2x16float((unpack2x16float(codes.z) - 1032.0) * d), pack2x16float((unpack2x16float(codes.w) - 1032.0) * d),
  );
}

fn difference(scale: u32, upper: u32) -> u32 {
  return pack2x16float(vec2f(unpack2x16float(scale).x - unpack2x16float(upper).x, 0.0));
}
