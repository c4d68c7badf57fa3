//! include: include/reduce.wgsl

alias Reduced = f32;

fn combined(a: f32, b: f32) -> f32 {
  return a + b;
}
