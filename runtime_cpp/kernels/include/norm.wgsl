//! include: include/sum.wgsl

// The norm of one row by a workgroup of LANES, four columns a thread at a time: of the kernel's own x, weight, residual,
// scalar and params.
const STEP = 4u * LANES;
const HAS_WEIGHT = 1u;
const HAS_RESIDUAL = 2u;
const HAS_SCALAR = 4u;

// Four columns that lie LANES apart, asked for together; behind the row's end they are zero.
fn columns(start: u32, c: u32) -> vec4f {
  let place = vec4u(c) + LANES * vec4u(0u, 1u, 2u, 3u);
  let found = vec4f(x[start + place.x], x[start + place.y], x[start + place.z], x[start + place.w]);
  return select(vec4f(), found, place < vec4u(params.width));
}

fn squares_of(lane: u32, start: u32) -> vec4f {
  var squares = vec4f();
  for (var c = lane; c < params.width; c += STEP) {
    let value = columns(start, c);
    squares = fma(value, value, squares);
  }
  return squares;
}

// 1 / sqrt(mean + eps) of the row whose squares the threads hold.
fn inverse_of(lane: u32, squares: vec4f) -> f32 {
  let mean = workgroup_reduced(lane, (squares.x + squares.y) + (squares.z + squares.w)) / f32(params.width);
  return 1.0 / sqrt(mean + params.eps);
}

fn factor_of_row() -> f32 {
  if (params.flags & HAS_SCALAR) != 0u {
    return scalar[0];
  }
  return 1.0;
}

// (residual + value * weight) * factor, in explicit fma, so that every kernel of it gives the same bits.
fn joined(value: f32, factor: f32, start: u32, c: u32) -> f32 {
  var scale = 1.0;
  if (params.flags & HAS_WEIGHT) != 0u {
    scale = weight[c];
  }
  if (params.flags & HAS_RESIDUAL) != 0u {
    return fma(value, scale, residual[start + c]) * factor;
  }
  return value * scale * factor;
}
