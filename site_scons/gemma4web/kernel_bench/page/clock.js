// GPU timestamps: a query set that is resolved and read back, and the step that its clock makes.

const QUERIES = 4096;
const QUANTUM_PASSES = 64;

/** Timestamps of one device. Queries are written by passes, read with `read`. */
export class Clock {
  /** @param {GPUDevice} device with timestamp-query */
  constructor(device) {
    this.device = device;
    this.querySet = device.createQuerySet({ type: 'timestamp', count: QUERIES, label: 'bench timestamps' });
    const size = QUERIES * 8;
    this.resolved = device.createBuffer({ size, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC, label: 'timestamps' });
    this.mapped = device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST, label: 'timestamps read' });
  }

  /** The first `count` timestamps in ns, after everything that was submitted. @param {number} count */
  async read(count) {
    if (count === 0) return new BigUint64Array(0);
    const encoder = this.device.createCommandEncoder({ label: 'read timestamps' });
    encoder.resolveQuerySet(this.querySet, 0, count, this.resolved, 0);
    encoder.copyBufferToBuffer(this.resolved, 0, this.mapped, 0, count * 8);
    this.device.queue.submit([encoder.finish()]);
    await this.mapped.mapAsync(GPUMapMode.READ, 0, count * 8);
    const found = new BigUint64Array(this.mapped.getMappedRange(0, count * 8).slice(0));
    this.mapped.unmap();
    return found;
  }

  /** Sum of the spans of `count / 2` passes in µs; a span that ran backwards counts as 0. @param {number} count */
  async spansUs(count) {
    const times = await this.read(count);
    let total = 0n;
    for (let i = 0; i < times.length; i += 2) if (times[i + 1] > times[i]) total += times[i + 1] - times[i];
    return Number(total) / 1000;
  }

  destroy() {
    this.querySet.destroy();
    this.resolved.destroy();
    this.mapped.destroy();
  }
}

/** The largest step in ns that all differences of many timestamps are multiples of. @param {GPUDevice} device */
export async function measureQuantum(device) {
  const clock = new Clock(device);
  const encoder = device.createCommandEncoder({ label: 'timestamp quantum' });
  for (let i = 0; i < QUANTUM_PASSES; i++) {
    const timestampWrites = { querySet: clock.querySet, beginningOfPassWriteIndex: 2 * i, endOfPassWriteIndex: 2 * i + 1 };
    encoder.beginComputePass({ timestampWrites, label: 'timestamp quantum' }).end();
  }
  device.queue.submit([encoder.finish()]);
  const times = await clock.read(2 * QUANTUM_PASSES);
  clock.destroy();
  let step = 0n;
  for (const time of times) {
    let [a, b] = [time > times[0] ? time - times[0] : times[0] - time, step];
    while (b > 0n) [a, b] = [b, a % b];
    step = a;
  }
  return Number(step);
}
