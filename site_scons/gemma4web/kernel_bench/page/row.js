// One row: its buffers with their copies, both sides' contenders, the checked run of each, and the interleaved timing.

import { referenceUs } from './busy.js';
import { state } from './device.js';
import { counters } from './instrument.js';
import { OurContender } from './ours.js';
import { PeerContender } from './peer.js';
import { guarded, makeBuffer, readBack } from './pipelines.js';
import { Clock } from './clock.js';
import { post, receive, say } from './server.js';

const SENTINEL = 0x7fc0dead; // a NaN as f32, and a NaN in the upper half of each pair of f16
const SENTINEL_F16 = 0x7ead7ead; // NaN in both halves

/** @typedef {{ name: string, size: number, role: string, rotated: boolean }} BufferJob */
/** @typedef {OurContender | PeerContender} Contender */

/** @type {{ buffers: Map<string, { job: BufferJob, copies: GPUBuffer[], content: Uint8Array | null }>, contenders: Contender[], clock: Clock | null }} */
const row = { buffers: new Map(), contenders: [], clock: null };

export async function release() {
  for (const contender of row.contenders) await contender.release();
  for (const { copies } of row.buffers.values()) for (const buffer of copies) buffer.destroy();
  row.clock?.destroy();
  row.contenders = [];
  row.buffers.clear();
  row.clock = null;
  return {};
}

/** @param {{ buffers: BufferJob[], copies: number, ours: any[], peers: any[] }} job */
export async function prepare(job) {
  await release();
  await guarded(async () => {
    for (const one of job.buffers) await makeCopies(one, one.rotated ? job.copies : 1);
    row.clock = state.hasTimestamps ? new Clock(state.device) : null;
  });
  /** @param {string} name */
  const copiesOf = (name) => {
    const found = row.buffers.get(name);
    if (!found) throw new Error(`no buffer ${name} was announced`);
    return found.copies;
  };
  const found = [];
  for (const [make, jobs] of /** @type {[any, any[]][]} */ ([[OurContender, job.ours], [PeerContender, job.peers]])) {
    for (const one of jobs) {
      say(`preparing ${one.name}`);
      /** @type {Contender} */
      const contender = new make(one, copiesOf, job.copies);
      try {
        found.push({ name: one.name, ...await guarded(() => check(contender, one.results)) });
        row.contenders.push(contender);
      } catch (error) {
        found.push({ name: one.name, error: error instanceof Error ? error.message : String(error) });
        await contender.release();
      }
    }
  }
  return { contenders: found };
}

/** @param {BufferJob} job @param {number} count */
async function makeCopies(job, count) {
  const { device } = state;
  say(`filling ${job.name}`);
  const content = job.role === 'output' ? null : await receive(job.name);
  const copies = Array.from({ length: count }, (_, i) => makeBuffer(job.size, `${job.name} ${i}`));
  row.buffers.set(job.name, { job, copies, content: job.role === 'in_out' ? content : null });
  if (!content) return;
  device.queue.writeBuffer(copies[0], 0, content);
  const encoder = device.createCommandEncoder({ label: `copies of ${job.name}` });
  for (const copy of copies.slice(1)) encoder.copyBufferToBuffer(copies[0], 0, copy, 0, job.size);
  device.queue.submit([encoder.finish()]);
}

/** Outputs become NaN and caches what they were, so that nobody is credited with what another wrote. */
function reset() {
  for (const [name, { job, copies, content }] of row.buffers) {
    if (job.role === 'output') {
      state.device.queue.writeBuffer(copies[0], 0, new Uint32Array(job.size / 4).fill(name.endsWith('_f16') ? SENTINEL_F16 : SENTINEL));
    } else if (content) {
      state.device.queue.writeBuffer(copies[0], 0, content);
    }
  }
}

/**
 * Runs a contender once on the first copy and posts what it wrote.
 * @param {Contender} contender
 * @param {Record<string, string>} results result -> buffer
 */
async function check(contender, results) {
  await contender.prepare();
  reset();
  const before = { ...counters };
  await contender.runOnce(0);
  await state.device.queue.onSubmittedWorkDone();
  const dispatches = counters.dispatches - before.dispatches;
  const copies = counters.copies - before.copies;
  if (dispatches === 0) throw new Error('it made no dispatch: it does not run on WebGPU');
  for (const [result, buffer] of Object.entries(results)) {
    const found = /** @type {any} */ (row.buffers.get(buffer));
    await post(`/output/${encodeURIComponent(contender.name)}/${result}`, await readBack(found.copies[0], found.job.size));
  }
  return { dispatches, copies };
}

/**
 * Repeats of all named contenders, the order turned by one each time. What grows the batches and the first `warmups`
 * rounds are not counted.
 * @param {{ names: string[], repeats: number, warmups: number }} job
 */
export async function measure({ names, repeats, warmups }) {
  const chosen = row.contenders.filter(({ name }) => names.includes(name));
  /** @type {Map<string, { name: string, calls: number, passUs: number[], batchUs: number[], wallUs: number[], error?: string }>} */
  const found = new Map();
  /** @param {Contender} contender @param {(samples: any) => Promise<void>} work */
  const attempt = async (contender, work) => {
    const samples = found.get(contender.name);
    if (!samples || samples.error) return;
    try {
      await guarded(() => work(samples));
    } catch (error) {
      samples.error = error instanceof Error ? error.message : String(error);
    }
  };
  for (const contender of chosen) {
    found.set(contender.name, { name: contender.name, calls: 0, passUs: [], batchUs: [], wallUs: [] });
    say(`warming up ${contender.name}`);
    await attempt(contender, async (samples) => void (samples.calls = await contender.calibrate(row.clock)));
  }
  for (let repeat = -warmups; repeat < repeats; repeat++) {
    for (let i = 0; i < chosen.length; i++) {
      const contender = chosen[(i + repeat + warmups) % chosen.length];
      say(`timing ${contender.name}, repeat ${repeat + 1} of ${repeats}`);
      await attempt(contender, async (samples) => {
        const { passUs, batchUs, wallUs } = await contender.sample(row.clock);
        if (repeat < 0) return;
        if (passUs !== null) samples.passUs.push(passUs);
        if (batchUs !== null) samples.batchUs.push(batchUs);
        samples.wallUs.push(wallUs);
      });
    }
  }
  return { contenders: [...found.values()], referenceUs: await referenceUs(row.clock) };
}
