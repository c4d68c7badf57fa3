//! include: include/sum.wgsl

// The norm of one row by a workgroup of LANES, four columns a thread at a time: of the kernel's own x, weight, residual,
// scalar, out and params.
const STEP = 4u * LANES;
const HAS_WEIGHT = 1u;
const HAS_RESIDUAL = 2u;
const HAS_SCALAR = 4u;

// Four columns that lie LANES apart, and what they are multiplied by and added to.
struct Four {
  value: vec4f,
  scale: vec4f,
  added: vec4f,
}

fn places(c: u32) -> vec4u {
  return vec4u(c) + LANES * vec4u(0u, 1u, 2u, 3u);
}

// Behind the row's end they are zero.
fn columns(start: u32, c: u32) -> vec4f {
  let at = vec4u(start) + places(c);
  return select(vec4f(), vec4f(x[at.x], x[at.y], x[at.z], x[at.w]), places(c) < vec4u(params.width));
}

// All of it is asked for together: a load waits for no other.
fn four_at(start: u32, c: u32) -> Four {
  var four = Four(columns(start, c), vec4f(1.0), vec4f());
  if (params.flags & HAS_WEIGHT) != 0u {
    let at = places(c);
    four.scale = vec4f(weight[at.x], weight[at.y], weight[at.z], weight[at.w]);
  }
  if (params.flags & HAS_RESIDUAL) != 0u {
    let at = vec4u(start) + places(c);
    four.added = vec4f(residual[at.x], residual[at.y], residual[at.z], residual[at.w]);
  }
  return four;
}

// The squares of the first two steps' columns, which the thread holds, and of all that follow.
fn squares_of(lane: u32, start: u32, first: vec4f, second: vec4f) -> vec4f {
  var squares = fma(second, second, first * first);
  for (var c = lane + 2u * STEP; c < params.width; c += STEP) {
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
fn joined(four: Four, inverse: f32, factor: f32) -> vec4f {
  return fma(four.value * inverse, four.scale, four.added) * factor;
}

fn write(start: u32, c: u32, values: vec4f) {
  for (var i = 0u; i < 4u; i++) {
    if c + LANES * i < params.width {
      out[start + c + LANES * i] = values[i];
    }
  }
}
