// Buffers, pipelines and error scopes: whatever a GPU refuses becomes an exception with its words.

import { state } from './device.js';

const TYPES = { read: 'read-only-storage', read_write: 'storage', uniform: 'uniform' };

/**
 * @param {number} size bytes, a multiple of 4
 * @param {string} label
 * @param {number} [usage]
 */
export function makeBuffer(size, label, usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST) {
  return state.device.createBuffer({ size, usage, label });
}

/**
 * The layout lists every binding, used or not, as the runtime's does.
 * @param {string} wgsl
 * @param {string[]} kinds read, read_write or uniform
 * @param {string} label
 */
export async function makePipeline(wgsl, kinds, label) {
  const { device } = state;
  const module = device.createShaderModule({ code: wgsl, label });
  const { messages } = await module.getCompilationInfo();
  const errors = messages.filter((message) => message.type === 'error');
  if (errors.length) throw new Error(`${label}: ${errors.map((m) => `${m.lineNum}:${m.linePos} ${m.message}`).join('; ')}`);
  const entries = kinds.map((kind, binding) => (
    { binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: /** @type {any} */ (TYPES)[kind] } }));
  const group = device.createBindGroupLayout({ entries, label });
  const layout = device.createPipelineLayout({ bindGroupLayouts: [group], label });
  const pipeline = await device.createComputePipelineAsync({ layout, compute: { module, entryPoint: 'main' }, label });
  return { pipeline, group };
}

/**
 * @template T
 * @param {() => Promise<T>} work
 * @returns {Promise<T>} its result, or an exception with everything that the GPU said meanwhile
 */
export async function guarded(work) {
  const { device } = state;
  const kinds = /** @type {GPUErrorFilter[]} */ (['validation', 'out-of-memory', 'internal']);
  for (const kind of kinds) device.pushErrorScope(kind);
  /** @type {string[]} */
  const found = [];
  /** @type {any} */
  let result;
  try {
    result = await work();
  } catch (error) {
    found.push(error instanceof Error ? error.message : String(error));
  }
  for (const _ of kinds) {
    const error = await device.popErrorScope();
    if (error) found.push(error.message);
  }
  if (found.length) throw new Error(found.join('\n'));
  return result;
}

/** @param {GPUBuffer} buffer @param {number} size @returns {Promise<ArrayBuffer>} */
export async function readBack(buffer, size) {
  const { device } = state;
  const target = makeBuffer(size, 'read back', GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ);
  const encoder = device.createCommandEncoder({ label: 'read back' });
  encoder.copyBufferToBuffer(buffer, 0, target, 0, size);
  device.queue.submit([encoder.finish()]);
  await target.mapAsync(GPUMapMode.READ);
  const found = target.getMappedRange().slice(0);
  target.destroy();
  return found;
}
