// Our side of a row: a list of dispatches, run as the runtime does it (many in one pass) and as the peer does (a pass a call).

import { keepBusy } from './busy.js';
import { state } from './device.js';
import { makeBuffer, makePipeline } from './pipelines.js';
import { targetUs } from './target.js';

const MOST_BATCH = 4096;
const MOST_PASSES = 512;

/** @typedef {{ kernel: string, wgsl: string, kinds: string[], buffers: (string | null)[], grid: number[], params: string }} StepJob */

export class OurContender {
  /**
   * @param {{ name: string, steps: StepJob[] }} job
   * @param {(name: string) => GPUBuffer[]} copiesOf
   * @param {number} copies
   */
  constructor(job, copiesOf, copies) {
    this.name = job.name;
    this.job = job;
    this.copiesOf = copiesOf;
    this.copies = copies;
    this.turn = 0;
    this.batch = 1;
    this.passes = 1;
    /** @type {{ pipeline: GPUComputePipeline, groups: GPUBindGroup[], grid: number[] }[]} */
    this.steps = [];
    /** @type {GPUBuffer[]} */
    this.owned = [];
  }

  async prepare() {
    const { device } = state;
    for (const step of this.job.steps) {
      const { pipeline, group } = await makePipeline(step.wgsl, step.kinds, step.kernel);
      const bytes = Uint8Array.from(atob(step.params), (letter) => letter.charCodeAt(0));
      const params = makeBuffer(bytes.length, `${step.kernel} params`, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST);
      this.owned.push(params);
      device.queue.writeBuffer(params, 0, bytes);
      const places = step.buffers.map((name) => (name === null ? [params] : this.copiesOf(name)));
      const count = Math.max(...places.map((place) => place.length));
      const groups = Array.from({ length: count }, (_, copy) => device.createBindGroup({
        layout: group, label: `${step.kernel} ${copy}`,
        entries: places.map((place, binding) => ({ binding, resource: { buffer: place[copy % place.length] } })),
      }));
      this.steps.push({ pipeline, groups, grid: step.grid });
    }
  }

  /** @param {GPUComputePassEncoder} pass @param {number} copy */
  encodeCall(pass, copy) {
    for (const { pipeline, groups, grid } of this.steps) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, groups[copy % groups.length]);
      pass.dispatchWorkgroups(grid[0], grid[1], grid[2]);
    }
  }

  /** @param {number} copy */
  async runOnce(copy) {
    const encoder = state.device.createCommandEncoder({ label: this.name });
    const pass = encoder.beginComputePass({ label: this.name });
    this.encodeCall(pass, copy);
    pass.end();
    state.device.queue.submit([encoder.finish()]);
  }

  /**
   * `passes` passes of `batch` calls each, every pass submitted by itself, as the peer submits its calls. Every call writes the
   * same output, so one waits for the one before.
   * @param {import('./clock.js').Clock | null} clock
   * @param {number} passes
   * @param {number} batch
   * @returns {Promise<{ gpuUs: number, wallUs: number }>} of all of them together
   */
  async run(clock, passes, batch) {
    const { device } = state;
    await keepBusy();
    const start = performance.now();
    for (let i = 0; i < passes; i++) {
      const encoder = device.createCommandEncoder({ label: this.name });
      const timestampWrites = clock
        ? { querySet: clock.querySet, beginningOfPassWriteIndex: 2 * i, endOfPassWriteIndex: 2 * i + 1 } : undefined;
      const pass = encoder.beginComputePass({ label: this.name, timestampWrites });
      for (let call = 0; call < batch; call++) this.encodeCall(pass, this.turn++ % this.copies);
      pass.end();
      device.queue.submit([encoder.finish()]);
    }
    await device.queue.onSubmittedWorkDone();
    const wallUs = 1000 * (performance.now() - start);
    return { gpuUs: clock ? await clock.spansUs(2 * passes) : wallUs, wallUs };
  }

  /** Grows the batch until it is long enough for the clock. @param {import('./clock.js').Clock | null} clock */
  async calibrate(clock) {
    const target = targetUs(clock !== null);
    for (;;) {
      const { gpuUs } = await this.run(clock, 1, this.batch);
      if (gpuUs >= target || this.batch >= MOST_BATCH) break;
      const wanted = gpuUs > 0 ? Math.ceil(1.3 * this.batch * target / gpuUs) : 16 * this.batch;
      this.batch = Math.min(MOST_BATCH, Math.max(2 * this.batch, Math.min(wanted, 16 * this.batch)));
    }
    this.passes = Math.min(MOST_PASSES, this.batch);
    return this.batch;
  }

  /** Microseconds a call. @param {import('./clock.js').Clock | null} clock */
  async sample(clock) {
    const together = await this.run(clock, 1, this.batch);
    const wallUs = together.wallUs / this.batch;
    if (!clock) return { passUs: wallUs, batchUs: wallUs, wallUs };
    const apart = await this.run(clock, this.passes, 1);
    return { passUs: apart.gpuUs / this.passes, batchUs: together.gpuUs / this.batch, wallUs };
  }

  async release() {
    for (const buffer of this.owned) buffer.destroy();
    this.owned = [];
  }
}
