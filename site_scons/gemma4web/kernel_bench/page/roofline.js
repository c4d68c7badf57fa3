// What simple shaders reach on this device: an empty dependent dispatch, reading, copying, multiply-adds.

import { Clock } from './clock.js';
import { state } from './device.js';
import { guarded, makeBuffer, makePipeline } from './pipelines.js';
import { say } from './server.js';

const REPEATS = 3;
const EMPTY = `
@group(0) @binding(0) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(1) fn main() { out[0] += 1u; }`;
// Every thread strides through the buffer by the size of the grid; the sum is stored where nobody can know it beforehand.
const READ = `
@group(0) @binding(0) var<storage, read> source: array<vec4u>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let stride = groups.x * 256u;
  var sum = vec4u();
  for (var i = id.x; i < arrayLength(&source); i += stride) { sum ^= source[i]; }
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x9e3779b9u) { out[0] = id.x; }
}`;
const COPY = `
@group(0) @binding(0) var<storage, read> source: array<vec4u>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4u>;
@compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let stride = groups.x * 256u;
  for (var i = id.x; i < arrayLength(&source); i += stride) { out[i] = source[i]; }
}`;
const CHAINS = 8;
/** Eight independent chains of vec4 multiply-adds a thread. @param {'f32' | 'f16'} type @param {number} rounds */
const fma = (type, rounds) => `
${type === 'f16' ? 'enable f16;' : ''}
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3u) {
  let a = vec4<${type}>(${type}(out[0]));
  let b = vec4<${type}>(${type}(f32(id.x & 7u) * 1e-3));
  ${Array.from({ length: CHAINS }, (_, i) => `var c${i} = b + ${type}(${i});`).join(' ')}
  for (var i = 0u; i < ${rounds}u; i++) {
    ${Array.from({ length: CHAINS }, (_, i) => `c${i} = fma(c${i}, a, b);`).join(' ')}
  }
  let sum = ${Array.from({ length: CHAINS }, (_, i) => `c${i}`).join(' + ')};
  if (f32(sum.x + sum.y + sum.z + sum.w) == 12345.678) { out[1] = 1.0; }
}`;

/**
 * The shortest of a few timed passes of `count` equal dispatches, in µs a dispatch.
 * @param {Clock | null} clock
 * @param {{ wgsl: string, kinds: string[], buffers: GPUBuffer[], groups: number, count: number, label: string }} what
 */
async function shortest(clock, { wgsl, kinds, buffers, groups, count, label }) {
  const { device } = state;
  say(`roofline: ${label}`);
  const { pipeline, group } = await makePipeline(wgsl, kinds, label);
  const bound = device.createBindGroup({ layout: group, entries: buffers.map((buffer, binding) => ({ binding, resource: { buffer } })) });
  let best = Infinity;
  for (let repeat = 0; repeat <= REPEATS; repeat++) {
    const start = performance.now();
    const encoder = device.createCommandEncoder({ label });
    const timestampWrites = clock ? { querySet: clock.querySet, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 } : undefined;
    const pass = encoder.beginComputePass({ label, timestampWrites });
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, bound);
    for (let i = 0; i < count; i++) pass.dispatchWorkgroups(groups);
    pass.end();
    device.queue.submit([encoder.finish()]);
    await device.queue.onSubmittedWorkDone();
    const wallUs = 1000 * (performance.now() - start);
    const us = clock ? await clock.spansUs(2) : wallUs;
    if (repeat > 0) best = Math.min(best, us / count); // the first warms up
  }
  return best;
}

export async function roofline() {
  const { device, software } = state;
  const clock = state.hasTimestamps ? new Clock(device) : null;
  const { maxBufferSize, maxStorageBufferBindingSize } = device.limits;
  const bytes = Math.min(software ? 64 * 2 ** 20 : 2 ** 30, maxBufferSize, maxStorageBufferBindingSize) & ~0xff;
  const source = makeBuffer(bytes, 'roofline source');
  const target = makeBuffer(bytes, 'roofline target');
  const small = makeBuffer(16, 'roofline small');
  try {
    return await guarded(async () => {
      device.queue.writeBuffer(small, 0, new Float32Array([0.5, 0, 0, 0]));
      const dispatchUs = await shortest(clock, { wgsl: EMPTY, kinds: ['read_write'], buffers: [makeScratch()], groups: 1, count: 256, label: 'empty dispatch' });
      let [readUs, readGroups, copyUs] = [Infinity, 0, Infinity];
      for (const groups of software ? [16, 64] : [264, 528, 1056, 2112, 4224, 8448]) {
        const us = await shortest(clock, { wgsl: READ, kinds: ['read', 'read_write'], buffers: [source, small], groups, count: 1, label: `read, ${groups} groups` });
        if (us < readUs) [readUs, readGroups] = [us, groups];
        copyUs = Math.min(copyUs, await shortest(clock, { wgsl: COPY, kinds: ['read', 'read_write'], buffers: [source, target], groups, count: 1, label: `copy, ${groups} groups` }));
      }
      const [rounds, groups] = software ? [64, 64] : [4096, 4224];
      const flops = rounds * CHAINS * 4 * 2 * 256 * groups;
      /** @param {'f32' | 'f16'} type */
      const rate = async (type) => flops / await shortest(clock, { wgsl: fma(type, rounds), kinds: ['read_write'], buffers: [small], groups, count: 1, label: `fma ${type}` });
      return {
        dispatchUs, readBytesPerS: 1e6 * bytes / readUs, readGroups, copyBytesPerS: 2e6 * bytes / copyUs,
        f32Flops: 1e6 * await rate('f32'), f16Flops: device.features.has('shader-f16') ? 1e6 * await rate('f16') : 0,
      };
    });
  } finally {
    for (const buffer of [source, target, small, ...scratch.splice(0)]) buffer.destroy();
    clock?.destroy();
  }
}

/** @type {GPUBuffer[]} */
const scratch = [];

function makeScratch() {
  const buffer = makeBuffer(16, 'roofline counter');
  scratch.push(buffer);
  return buffer;
}
