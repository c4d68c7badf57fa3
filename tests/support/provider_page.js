/**
 * Runs the cases of the WebGPU provider probe, in a window (`providerPage.run`) or in a module worker (a message with
 * the same job). A job: {module: URL of the probe's factory module, cases: names, limitMs of each, fake: see below}.
 * Answer: {case: {passed, detail}}; a worker answers {error} when the job cannot be run.
 */

/** Ways in which a browser can lack WebGPU; each changes this page for good. */
const FAKES = {
  'no gpu': () => replaceGpu(undefined),
  'no adapter': () => replaceGpu({requestAdapter: async () => null}),
  'adapter error': () => replaceGpu({requestAdapter: async () => { throw new TypeError('the adapter request is broken'); }}),
  'device error': () => replaceGpu({requestAdapter: async () => ({requestDevice: () => { throw new Error('out of devices'); }})}),
  // What the browser itself made; only counted.
  'counted': () => countObjects(),
};

function replaceGpu(value) {
  Object.defineProperty(navigator, 'gpu', {value, configurable: true});
}

/** Devices that this page was given; a runner waits for the first. */
function watchDevices(counts) {
  const request = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (...words) {
    const device = await request.apply(this, words);
    counts.devices++;
    return device;
  };
}

let destroyedDevices = 0;
function countObjects() {
  const destroy = GPUDevice.prototype.destroy;
  GPUDevice.prototype.destroy = function () {
    destroyedDevices++;
    return destroy.call(this);
  };
}

async function run(job) {
  if (job.fake) FAKES[job.fake]();
  let report = () => {};
  const {default: create} = await import(job.module);
  const module = await create({onReport: (name, passed, detail) => report({passed, detail})});
  const answers = {};
  for (const name of job.cases) {
    answers[name] = await new Promise((resolve) => {
      report = resolve;
      const limit = `no end after ${job.limitMs} ms`;
      setTimeout(() => resolve({passed: false, detail: limit}), job.limitMs);
      if (!module.ccall('probe_run', 'number', ['string'], [name])) resolve({passed: false, detail: 'no such case'});
    });
    if (name === job.cases.at(-1)) await new Promise((resolve) => setTimeout(resolve, job.settleMs));
  }
  if (job.fake === 'counted') {
    answers['destroyed devices'] = destroyedDevices;
    answers['entries'] = module.webgpuPort.entries.size;
  }
  return answers;
}

/** What the browser says of its adapter and of a device, to compare with the case `describe`. */
async function describe() {
  const adapter = await navigator.gpu.requestAdapter({powerPreference: 'high-performance'});
  const device = await adapter.requestDevice({requiredLimits: {maxStorageBuffersPerShaderStage: 10, maxBufferSize: 300 * 2 ** 20}});
  const limits = {};
  for (const name in adapter.limits) limits[name] = [adapter.limits[name], device.limits[name]];
  device.destroy();
  const {vendor, architecture, subgroupMinSize} = adapter.info;
  return {
    vendor, architecture, subgroupMinSize, cpu: +(adapter.info.isFallbackAdapter ?? false), features: [...adapter.features],
    packedDot: +navigator.gpu.wgslLanguageFeatures.has('packed_4x8_integer_dot_product'), limits,
  };
}

function runInWorker(job) {
  return new Promise((resolve, reject) => {
    const worker = new Worker('provider_page.js', {type: 'module'});
    worker.onmessage = ({data}) => (data.error ? reject(new Error(data.error)) : resolve(data));
    worker.onerror = (event) => reject(new Error(`worker: ${event.message}`));
    worker.postMessage(job);
  });
}

if (globalThis.window === undefined) {
  globalThis.onmessage = async ({data}) => {
    try {
      globalThis.postMessage(await run(data));
    } catch (error) {
      globalThis.postMessage({error: String(error?.stack ?? error)});
    }
  };
} else {
  window.providerPage = {run, runInWorker, describe, devices: 0};
  if (globalThis.GPUAdapter) watchDevices(window.providerPage);
}
