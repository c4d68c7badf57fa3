// Runs one compute shader at a time on the page's WebGPU device. Bytes come from and go to the page's own server, which is
// far faster than the DevTools connection. No rendering, no state but the device and its compiled pipelines.

/** @type {GPUDevice} */
let device;
/** @type {Map<string, { pipeline: GPUComputePipeline, group: GPUBindGroupLayout }>} */
const pipelines = new Map();
/** @type {string[]} */
const uncaptured = [];

async function receive(job) {
  const answer = await fetch(`/job/${job}`);
  if (!answer.ok) throw new Error(`job ${job}: HTTP ${answer.status}`);
  return answer.arrayBuffer();
}

async function send(job, results) {
  const answer = await fetch(`/job/${job}`, { method: 'POST', body: new Blob(results) });
  if (!answer.ok) throw new Error(`result of job ${job}: HTTP ${answer.status}`);
}

function withDeadline(promise, deadlineMs, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: no end after ${deadlineMs} ms`)), deadlineMs);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/**
 * Asks for a device with the default limits: what runs here runs on every WebGPU device. Storage buffers and workgroup memory
 * may be more, for kernels whose header says so; the build counts those of all others. `large`: with the adapter's own limits for
 * buffers, which the weights of a real model need.
 */
async function open(large) {
  if (!navigator.gpu) throw new Error('this browser has no navigator.gpu');
  const adapter = await navigator.gpu.requestAdapter();
  if (!adapter) throw new Error('no WebGPU adapter');
  const wanted = ["subgroups", "shader-f16"].filter((name) => adapter.features.has(name));
  const maxStorageBuffersPerShaderStage = Math.min(10, adapter.limits.maxStorageBuffersPerShaderStage);
  const maxComputeWorkgroupStorageSize = Math.min(36864, adapter.limits.maxComputeWorkgroupStorageSize);
  const { maxBufferSize, maxStorageBufferBindingSize } = adapter.limits;
  const requiredLimits = { maxStorageBuffersPerShaderStage, maxComputeWorkgroupStorageSize, ...(large ? { maxBufferSize, maxStorageBufferBindingSize } : {}) };
  device = await adapter.requestDevice({ requiredFeatures: wanted, requiredLimits });
  device.addEventListener('uncapturederror', (event) => uncaptured.push(event.error.message));
  device.lost.then((info) => uncaptured.push(`device lost: ${info.reason} ${info.message}`));
  const { vendor, architecture, description } = adapter.info;
  return { vendor, architecture, description, features: [...adapter.features].sort() };
}

/**
 * The layout lists every binding, used or not, as the runtime's does.
 * @param {string} wgsl
 * @param {string[]} kinds
 */
async function compile(wgsl, kinds) {
  const known = pipelines.get(wgsl);
  if (known) return known;
  const module = device.createShaderModule({ code: wgsl });
  const { messages } = await module.getCompilationInfo();
  const errors = messages.filter((message) => message.type === 'error');
  if (errors.length) throw new Error(errors.map((m) => `${m.lineNum}:${m.linePos} ${m.message}`).join('\n'));
  const types = { read: 'read-only-storage', read_write: 'storage', uniform: 'uniform' };
  const entries = kinds.map((kind, binding) => (
    { binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: types[kind] } }));
  const group = device.createBindGroupLayout({ entries });
  const layout = device.createPipelineLayout({ bindGroupLayouts: [group] });
  const pipeline = await device.createComputePipelineAsync({ layout, compute: { module, entryPoint: 'main' } });
  const made = { pipeline, group };
  pipelines.set(wgsl, made);
  return made;
}

/** The job's bytes are the contents of all bindings, one after the other. */
async function dispatch({ id, wgsl, bindings, grid }) {
  const owned = [];
  try {
    const { pipeline, group: layout } = await compile(wgsl, bindings.map(({ kind }) => kind));
    const content = await receive(id);
    let begin = 0;
    const entries = [];
    const readbacks = [];
    const encoder = device.createCommandEncoder();
    for (const [binding, { kind, size }] of bindings.entries()) {
      const usage = GPUBufferUsage.COPY_DST |
        (kind === 'uniform' ? GPUBufferUsage.UNIFORM : GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC);
      const buffer = device.createBuffer({ size, usage });
      owned.push(buffer);
      device.queue.writeBuffer(buffer, 0, content, begin, size);
      begin += size;
      entries.push({ binding, resource: { buffer } });
      if (kind === 'read_write') {
        const target = device.createBuffer({ size, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ });
        owned.push(target);
        readbacks.push({ buffer, target, size });
      }
    }
    const group = device.createBindGroup({ layout, entries });
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(...grid);
    pass.end();
    for (const { buffer, target, size } of readbacks) encoder.copyBufferToBuffer(buffer, 0, target, 0, size);
    device.queue.submit([encoder.finish()]);
    const results = [];
    for (const { target } of readbacks) {
      await target.mapAsync(GPUMapMode.READ);
      results.push(target.getMappedRange().slice(0));
    }
    await send(id, results);
  } finally {
    for (const buffer of owned) buffer.destroy();
  }
}

/** Every error that the work raises, at once or later, ends in one rejection. */
async function guarded(work) {
  const kinds = ['validation', 'out-of-memory', 'internal'];
  for (const kind of kinds) device.pushErrorScope(kind);
  let result;
  let failure = null;
  try {
    result = await work();
  } catch (error) {
    failure = error;
  }
  const found = [];
  for (const _ of kinds) {
    const error = await device.popErrorScope();
    if (error) found.push(error.message);
  }
  found.push(...uncaptured.splice(0));
  if (failure) found.unshift(failure.message);
  if (found.length) throw new Error(found.join('\n'));
  return result;
}

window.gpuPage = {
  open: (large, deadlineMs) => withDeadline(open(large), deadlineMs, 'opening a device'),
  compile: (wgsl, kinds, deadlineMs) =>
    withDeadline(guarded(async () => void (await compile(wgsl, kinds))), deadlineMs, 'compiling a shader'),
  run: (job, deadlineMs) => withDeadline(guarded(() => dispatch(job)), deadlineMs, 'running a shader'),
};
