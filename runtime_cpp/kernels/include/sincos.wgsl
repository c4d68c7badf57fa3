// Sine and cosine of an angle given as a signed part of a turn in 2^-32 units. WGSL's own sin and cos may be off by
// 2^-11; these are within 2e-7.

// (cos, sin)
fn cos_sin_of_phase(phase: u32) -> vec2f {
  // The nearest quarter turn, and what is left: at most an eighth of a turn to either side.
  let quarter = (phase + 0x20000000u) >> 30u;
  let rest = bitcast<i32>(phase - (quarter << 30u));
  let a = f32(rest) * 1.4629180792671596e-9;
  let s = a * a;
  let sine = a * (1.0 + s * (-1.0 / 6.0 + s * (1.0 / 120.0 + s * (-1.0 / 5040.0 + s * (1.0 / 362880.0)))));
  let cosine = 1.0 + s * (-0.5 + s * (1.0 / 24.0 + s * (-1.0 / 720.0 + s * (1.0 / 40320.0 + s * (-1.0 / 3628800.0)))));
  switch quarter {
    case 0u: {
      return vec2f(cosine, sine);
    }
    case 1u: {
      return vec2f(-sine, cosine);
    }
    case 2u: {
      return vec2f(-cosine, -sine);
    }
    default: {
      return vec2f(sine, -cosine);
    }
  }
}
