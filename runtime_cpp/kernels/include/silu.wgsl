// x / (1 + exp(-x)); below -80, where the exponential would overflow, it is 0 in f32.
fn silu(x: f32) -> f32 {
  return select(x / (1.0 + exp(-max(x, -80.0))), 0.0, x < -80.0);
}
