// Counts what anybody encodes on this page and, while asked to, puts timestamps around every compute pass. The peer encodes
// through the same prototypes as we do, so nothing of it has to be patched.

/** Since the page was opened. */
export const counters = { dispatches: 0, passes: 0, copies: 0 };

/** @type {{ querySet: GPUQuerySet, next: number, capacity: number } | null} */
let recording = null;

/** @param {GPUQuerySet} querySet Passes beyond its capacity make `endRecording` throw. */
export function beginRecording(querySet) {
  recording = { querySet, next: 0, capacity: querySet.count };
}

/** @returns {number} queries used: a begin and an end a pass */
export function endRecording() {
  if (!recording) throw new Error('no recording was begun');
  const { next, capacity } = recording;
  recording = null;
  if (next > capacity) throw new Error(`${next / 2} passes, more than ${capacity / 2} timestamp pairs`);
  return next;
}

/** Wraps the prototypes, once. */
export function instrument() {
  const encoder = GPUCommandEncoder.prototype;
  const pass = GPUComputePassEncoder.prototype;
  const { beginComputePass, copyBufferToBuffer } = encoder;
  const { dispatchWorkgroups, dispatchWorkgroupsIndirect } = pass;
  encoder.beginComputePass = function (descriptor) {
    counters.passes += 1;
    if (!recording || descriptor?.timestampWrites) return beginComputePass.call(this, descriptor);
    const { querySet, next, capacity } = recording;
    recording.next += 2;
    if (next + 2 > capacity) return beginComputePass.call(this, descriptor);
    const timestampWrites = { querySet, beginningOfPassWriteIndex: next, endOfPassWriteIndex: next + 1 };
    return beginComputePass.call(this, { ...descriptor, timestampWrites });
  };
  encoder.copyBufferToBuffer = /** @type {any} */ (function (/** @type {any} */ ...words) {
    counters.copies += 1;
    // @ts-ignore: the two forms of the call are passed on as they came
    return copyBufferToBuffer.apply(this, words);
  });
  pass.dispatchWorkgroups = function (...grid) {
    counters.dispatches += 1;
    return dispatchWorkgroups.apply(this, grid);
  };
  pass.dispatchWorkgroupsIndirect = function (...words) {
    counters.dispatches += 1;
    return dispatchWorkgroupsIndirect.apply(this, words);
  };
}
