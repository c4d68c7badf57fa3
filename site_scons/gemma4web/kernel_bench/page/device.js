// One device for both sides, with the highest limits and every feature of the adapter that either side can use: the peer must
// not be slower here than on a device of its own making.

import { instrument } from './instrument.js';
import { measureQuantum } from './clock.js';
import { say } from './server.js';

const FEATURES = ['timestamp-query', 'shader-f16', 'subgroups', 'subgroup-size-control', 'chromium-experimental-subgroup-matrix'];
const ORT_MODULE = '/ort/dist/ort.webgpu.bundle.min.mjs';

/**
 * `quantumNs`: step of GPU timestamps, 0 without timestamp-query. `ort`: the onnxruntime-web module, null without the peer.
 * @type {{ device: GPUDevice, hasTimestamps: boolean, quantumNs: number, software: boolean, ort: any, lost: string }}
 */
export const state = { device: /** @type {any} */ (null), hasTimestamps: false, quantumNs: 0, software: false, ort: null, lost: '' };

/** @type {string[]} */
const gpuErrors = [];

/** Errors that the GPU reported outside any scope since the last call. */
export const takeGpuErrors = () => gpuErrors.splice(0);

/** @param {{ peer: boolean }} job */
export async function openDevice({ peer }) {
  say('opening the device');
  if (!navigator.gpu) throw new Error('navigator.gpu is missing: this browser has WebGPU turned off');
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: 'high-performance' });
  if (!adapter) throw new Error('requestAdapter() found no adapter');
  /** @type {Record<string, number>} */
  const limits = {};
  for (const name in adapter.limits) {
    const value = /** @type {any} */ (adapter.limits)[name];
    if (typeof value === 'number') limits[name] = value;
  }
  const requiredFeatures = /** @type {GPUFeatureName[]} */ (FEATURES.filter((name) => adapter.features.has(/** @type {any} */ (name))));
  const device = await adapter.requestDevice({ requiredFeatures, requiredLimits: limits });
  device.addEventListener('uncapturederror', (event) => gpuErrors.push(event.error.message));
  device.lost.then((info) => {
    state.lost = `device lost: ${info.reason} ${info.message}`;
    gpuErrors.push(state.lost);
  });
  instrument();
  const info = adapter.info;
  state.device = device;
  state.hasTimestamps = device.features.has('timestamp-query');
  state.software = /** @type {any} */ (info).isFallbackAdapter === true
    || /swiftshader|llvmpipe|lavapipe/i.test(`${info.architecture} ${info.description}`);
  state.quantumNs = state.hasTimestamps ? await measureQuantum(device) : 0;
  if (peer) await loadPeer();
  return {
    vendor: info.vendor, architecture: info.architecture, description: info.description, software: state.software, limits,
    features: [...device.features, ...navigator.gpu.wgslLanguageFeatures].map(String).sort(), hasTimestamps: state.hasTimestamps, quantumNs: state.quantumNs,
    subgroupMin: /** @type {any} */ (info).subgroupMinSize ?? 0, subgroupMax: /** @type {any} */ (info).subgroupMaxSize ?? 0,
    browserVersion: await browserVersion(), ort: state.ort ? state.ort.env.versions.web ?? state.ort.env.versions.common : '',
  };
}

/** The whole version where the browser tells it, else the one with zeros that stands in its user agent. */
async function browserVersion() {
  const { fullVersionList } = await /** @type {any} */ (navigator).userAgentData?.getHighEntropyValues(['fullVersionList']) ?? {};
  const known = fullVersionList?.find((/** @type {any} */ { brand }) => brand === 'Chromium');
  return known?.version ?? /Chrome\/(\S+)/.exec(navigator.userAgent)?.[1] ?? 'unknown';
}

async function loadPeer() {
  say('loading onnxruntime-web');
  const ort = await import(ORT_MODULE);
  ort.env.wasm.wasmPaths = '/ort/dist/';
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = 'error';
  state.ort = ort;
}
