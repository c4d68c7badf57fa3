// Keeps a GPU at its clock. Between short samples it idles, and its clock falls to a fifth within seconds; then every time
// that follows is too long. So each sample begins with work that nobody measures, and each row ends with a fixed piece of
// work whose time shows whether the clock has stayed.

import { state } from './device.js';
import { makePipeline } from './pipelines.js';

const GROUPS = 2112;
const DISPATCHES = 4; // two milliseconds together on a large GPU
const ROUNDS = 6; // of them before a sample
const WGSL = `
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3u) {
  let factor = vec4f(0.999 + out[0]);
  var a = vec4f(f32(id.x));
  var b = vec4f(1.0);
  for (var i = 0u; i < 4096u; i++) {
    a = fma(a, factor, factor);
    b = fma(b, factor, factor);
  }
  let sum = a + b;
  if (sum.x + sum.y + sum.z + sum.w == 12345.678) { out[1] = 1.0; }
}`;

/** @type {{ device: GPUDevice, pipeline: GPUComputePipeline, group: GPUBindGroup } | null} */
let made = null;

async function spin() {
  const { device } = state;
  if (made?.device === device) return made;
  const { pipeline, group: layout } = await makePipeline(WGSL, ['read_write'], 'keep busy');
  const buffer = device.createBuffer({ size: 16, usage: GPUBufferUsage.STORAGE, label: 'keep busy' });
  made = { device, pipeline, group: device.createBindGroup({ layout, entries: [{ binding: 0, resource: { buffer } }] }) };
  return made;
}

/** @param {GPUComputePassTimestampWrites} [timestampWrites] */
async function submit(timestampWrites) {
  const { device, pipeline, group } = await spin();
  const encoder = device.createCommandEncoder({ label: 'keep busy' });
  const pass = encoder.beginComputePass({ label: 'keep busy', timestampWrites });
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, group);
  for (let i = 0; i < DISPATCHES; i++) pass.dispatchWorkgroups(GROUPS);
  pass.end();
  device.queue.submit([encoder.finish()]);
}

/** Submits the work, unless the adapter is software, which has no clock of its own. */
export async function keepBusy() {
  for (let i = 0; i < ROUNDS && !state.software; i++) await submit();
}

/**
 * What the fixed piece of work takes now, in µs; 0 where it cannot be told.
 * @param {import('./clock.js').Clock | null} clock
 */
export async function referenceUs(clock) {
  if (state.software || !clock) return 0;
  await keepBusy();
  await submit({ querySet: clock.querySet, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 });
  return clock.spansUs(2);
}
