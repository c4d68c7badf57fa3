// Products of 16 by 16 halves on the GPU's matrix unit, each piece spread over the lanes of one subgroup of 32, and the
// workgroup's memory behind them, MEMORY_BYTES of the kernel. Loads and products stand in the kernel itself: behind a function
// they took half as long again on an NVIDIA H200.
alias Left = subgroup_matrix_left<f16, 16, 16>;
alias Right = subgroup_matrix_right<f16, 16, 16>;
alias Sums = subgroup_matrix_result<f32, 16, 16>;

var<workgroup> memory: buffer<MEMORY_BYTES>;

// Halves minus 1032 times a half: nibbles that stand in the fraction of 1024 become the numbers -8 to 7.
fn scaled(codes: vec4u, scale: u32) -> vec4u {
  let d = bitcast<vec2h>(scale * 0x10001u);
  return vec4u(
    bitcast<u32>((bitcast<vec2h>(codes.x) - 1032.0h) * d), bitcast<u32>((bitcast<vec2h>(codes.y) - 1032.0h) * d),
    bitcast<u32>((bitcast<vec2h>(codes.z) - 1032.0h) * d), bitcast<u32>((bitcast<vec2h>(codes.w) - 1032.0h) * d),
  );
}

// What a half has beyond another one, exactly where both begin with the same bits.
fn difference(scale: u32, upper: u32) -> u32 {
  return bitcast<u32>(bitcast<vec2h>(scale) - bitcast<vec2h>(upper));
}
