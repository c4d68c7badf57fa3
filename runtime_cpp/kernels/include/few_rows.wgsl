// How the few-row 4-bit kernels hold their rows: one or three, with subgroups or without.

//! form: m1
alias Rows = f32;
const MORE_ROWS = 0u;
fn rows_of(a: f32, b: f32, c: f32) -> Rows { return a; }
fn row_of(value: Rows, row: u32) -> f32 { return value; }
fn shuffled(value: Rows, stride: u32) -> Rows { return value; }

//! form: m3
alias Rows = vec3f;
const MORE_ROWS = 1u;
fn rows_of(a: f32, b: f32, c: f32) -> Rows { return vec3f(a, b, c); }
fn row_of(value: Rows, row: u32) -> f32 { return value[row]; }
fn shuffled(value: Rows, stride: u32) -> Rows { return value; }

//! form: m1_subgroup requires subgroups
alias Rows = f32;
const MORE_ROWS = 0u;
fn rows_of(a: f32, b: f32, c: f32) -> Rows { return a; }
fn row_of(value: Rows, row: u32) -> f32 { return value; }
fn shuffled(value: Rows, stride: u32) -> Rows { return subgroupShuffleXor(value, stride); }

//! form: m3_subgroup requires subgroups
alias Rows = vec3f;
const MORE_ROWS = 1u;
fn rows_of(a: f32, b: f32, c: f32) -> Rows { return vec3f(a, b, c); }
fn row_of(value: Rows, row: u32) -> f32 { return value[row]; }
fn shuffled(value: Rows, stride: u32) -> Rows { return subgroupShuffleXor(value, stride); }
