/**
 * The one place that asks for WebGPU before anything is downloaded. The runtime requests its own adapter and device
 * later; this only answers "would that work here, and if not, what can the reader do?".
 *
 * | found                          | code            | without it                                            |
 * |--------------------------------|-----------------|-------------------------------------------------------|
 * | a secure context               | gpu-insecure    | browsers hide WebGPU; nothing can run                 |
 * | `navigator.gpu`                | gpu-unsupported | nothing can run                                       |
 * | an adapter                     | gpu-no-adapter  | nothing can run                                       |
 * | a device with default limits   | gpu-no-device   | nothing can run                                       |
 * | `timestamp-query` (optional)   |                 | profile variants report timing as unavailable         |
 * | `shader-f16` (optional)        |                 | f32 kernels, which are the only ones of this version  |
 */

import { Gemma4Error, describe, withDeadline } from './errors.js';

const ANSWER_LIMIT_MS = 15_000;

/**
 * @typedef {{vendor: string, architecture: string, device: string, description: string, software: boolean,
 *   features: string[]}} GpuProbe
 */

/**
 * @param {{device: boolean}} options `device`: also create a device and destroy it again
 * @returns {Promise<GpuProbe>}
 */
export async function probeGpu({ device }) {
  const gpu = /** @type {GPU | undefined} */ (/** @type {any} */ (globalThis.navigator)?.gpu);
  if (!gpu) throw missing();

  let adapter;
  try {
    adapter = await withDeadline(gpu.requestAdapter({ powerPreference: 'high-performance' }), ANSWER_LIMIT_MS,
      'asking for a GPU adapter');
  } catch (thrown) {
    throw new Gemma4Error('gpu-no-adapter', `this browser failed to look for a GPU adapter: ${describe(thrown)}`,
      'restart the browser; if that does not help, update it and the graphics driver');
  }
  if (!adapter) {
    throw new Gemma4Error('gpu-no-adapter', 'this browser supports WebGPU but offers no GPU adapter on this machine',
      'turn on hardware acceleration in the browser\'s settings and update the graphics driver; the browser\'s GPU '
      + 'status page (chrome://gpu, edge://gpu or about:support) says why an adapter was refused');
  }
  if (device) await tryDevice(adapter);
  const { vendor, architecture, device: model, description } = adapter.info;
  return {
    vendor, architecture, device: model, description,
    software: isSoftware(adapter),
    features: [...adapter.features].map(String).sort(),
  };
}

/** @returns {Gemma4Error} */
function missing() {
  if (globalThis.isSecureContext === false) {
    return new Gemma4Error('gpu-insecure', `WebGPU is hidden because ${location.origin} is not a secure context`,
      'open this page over https://, or from http://localhost or http://127.0.0.1 on the same machine');
  }
  const where = typeof document === 'undefined' ? 'in web workers' : 'in this browser';
  return new Gemma4Error('gpu-unsupported', `WebGPU is not available ${where}`,
    'use a current Chrome, Edge, Firefox or Safari with WebGPU turned on');
}

/** @param {GPUAdapter} adapter */
async function tryDevice(adapter) {
  try {
    const device = await withDeadline(adapter.requestDevice(), ANSWER_LIMIT_MS, 'asking for a GPU device');
    device.destroy();
  } catch (thrown) {
    throw new Gemma4Error('gpu-no-device', `the GPU adapter refused to open a device: ${describe(thrown)}`,
      'close other pages that use the GPU, restart the browser, and update the graphics driver');
  }
}

/**
 * Software adapters are correct but slow; what they measure says nothing about a GPU.
 * @param {GPUAdapter} adapter
 */
function isSoftware(adapter) {
  const info = /** @type {GPUAdapterInfo & {isFallbackAdapter?: boolean}} */ (adapter.info);
  return info.isFallbackAdapter === true || /swiftshader|llvmpipe|lavapipe|basic render/i.test(
    `${info.architecture} ${info.device} ${info.description}`);
}

/**
 * Reports every error that a device of this scope raises outside of its error scopes. The runtime fails its own request
 * with such an error; this is for those that come when no request runs, which would else be lost on a worker's console.
 * @param {(message: string) => void} report
 */
export function watchDevices(report) {
  const adapters = /** @type {GPUAdapter | undefined} */ (/** @type {any} */ (globalThis).GPUAdapter?.prototype);
  if (!adapters) return;
  const requestDevice = adapters.requestDevice;
  adapters.requestDevice = async function watched(...options) {
    const device = await requestDevice.apply(this, options);
    device.addEventListener('uncapturederror', (event) => report(event.error.message));
    return device;
  };
}
