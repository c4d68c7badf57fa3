// The peer's side of a row: an onnxruntime-web session on our device, fed from our buffers, its passes timed from outside.

import { keepBusy } from './busy.js';
import { state } from './device.js';
import { beginRecording, endRecording } from './instrument.js';
import { receive } from './server.js';
import { targetUs } from './target.js';

const MOST_CALLS = 256;

/** @typedef {{ name: string, buffer: string, dtype: string, dims: number[] }} Port */

export class PeerContender {
  /**
   * @param {{ name: string, model: string, feeds: Port[], fetches: Port[] }} job
   * @param {(name: string) => GPUBuffer[]} copiesOf
   * @param {number} copies
   */
  constructor(job, copiesOf, copies) {
    this.name = job.name;
    this.job = job;
    this.copiesOf = copiesOf;
    this.copies = copies;
    this.turn = 0;
    this.calls = 1;
    /** @type {any} */
    this.session = null;
    /** @type {{ feeds: any, fetches: any }[]} */
    this.bound = [];
  }

  async prepare() {
    const { ort, device } = state;
    this.session = await ort.InferenceSession.create(await receive(this.job.model), {
      executionProviders: [{ name: 'webgpu', device }],
      extra: { session: { disable_cpu_ep_fallback: '1' } },
      graphOptimizationLevel: 'all',
      logSeverityLevel: 3,
    });
    /** @param {Port[]} ports @param {number} copy */
    const tensors = (ports, copy) => Object.fromEntries(ports.map(({ name, buffer, dtype, dims }) => {
      const places = this.copiesOf(buffer);
      return [name, ort.Tensor.fromGpuBuffer(places[copy % places.length], { dataType: dtype, dims })];
    }));
    this.bound = Array.from({ length: this.copies }, (_, copy) => (
      { feeds: tensors(this.job.feeds, copy), fetches: tensors(this.job.fetches, copy) }));
  }

  /** @param {number} copy */
  async runOnce(copy) {
    const { feeds, fetches } = this.bound[copy % this.copies];
    await this.session.run(feeds, fetches);
  }

  /**
   * @param {import('./clock.js').Clock | null} clock
   * @returns {Promise<{ gpuUs: number, wallUs: number }>} of all calls together
   */
  async run(clock, calls = this.calls) {
    await keepBusy();
    const start = performance.now();
    if (clock) beginRecording(clock.querySet);
    let queries = 0;
    try {
      for (let call = 0; call < calls; call++) await this.runOnce(this.turn++);
    } finally {
      if (clock) queries = endRecording();
    }
    await state.device.queue.onSubmittedWorkDone();
    const wallUs = 1000 * (performance.now() - start);
    return { gpuUs: clock ? await clock.spansUs(queries) : wallUs, wallUs };
  }

  /** Grows the number of calls until they are long enough for the clock. @param {import('./clock.js').Clock | null} clock */
  async calibrate(clock) {
    const target = targetUs(clock !== null);
    for (;;) {
      const { gpuUs } = await this.run(clock);
      if (gpuUs >= target || this.calls >= MOST_CALLS) return this.calls;
      this.calls = Math.min(MOST_CALLS, Math.max(2 * this.calls, Math.ceil(gpuUs > 0 ? 1.3 * this.calls * target / gpuUs : 0)));
    }
  }

  /** Microseconds a call. @param {import('./clock.js').Clock | null} clock */
  async sample(clock) {
    const { gpuUs, wallUs } = await this.run(clock);
    return { passUs: gpuUs / this.calls, batchUs: null, wallUs: wallUs / this.calls };
  }

  async release() {
    await this.session?.release();
    this.session = null;
    this.bound = [];
  }
}
