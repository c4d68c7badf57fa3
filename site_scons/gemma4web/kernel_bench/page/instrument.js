// Counts what anybody encodes on this page and, while asked to, puts timestamps around every compute pass and every copy of
// a buffer. The peer encodes through the same prototypes as we do, so nothing of it has to be patched.

/** Since the page was opened. */
export const counters = { dispatches: 0, passes: 0, copies: 0 };

/** @type {{ querySet: GPUQuerySet, next: number, capacity: number } | null} */
let recording = null;

/** @param {GPUQuerySet} querySet Spans beyond its capacity make `endRecording` throw. */
export function beginRecording(querySet) {
  recording = { querySet, next: 0, capacity: querySet.count };
}

/** @returns {number} queries used: a begin and an end a pass or a copy */
export function endRecording() {
  if (!recording) throw new Error('no recording was begun');
  const { next, capacity } = recording;
  recording = null;
  if (next > capacity) throw new Error(`${next / 2} passes and copies, more than ${capacity / 2} pairs of timestamps`);
  return next;
}

/** The two queries of one more span, or null when nothing is recorded or no room is left. */
function nextSpan() {
  if (!recording) return null;
  const { querySet, next, capacity } = recording;
  recording.next += 2;
  return next + 2 > capacity ? null : { querySet, begin: next, end: next + 1 };
}

/** Wraps the prototypes, once. */
export function instrument() {
  const encoder = GPUCommandEncoder.prototype;
  const pass = GPUComputePassEncoder.prototype;
  const { beginComputePass, copyBufferToBuffer } = encoder;
  const { dispatchWorkgroups, dispatchWorkgroupsIndirect } = pass;
  encoder.beginComputePass = function (descriptor) {
    counters.passes += 1;
    const span = descriptor?.timestampWrites ? null : nextSpan();
    if (!span) return beginComputePass.call(this, descriptor);
    const timestampWrites = { querySet: span.querySet, beginningOfPassWriteIndex: span.begin, endOfPassWriteIndex: span.end };
    return beginComputePass.call(this, { ...descriptor, timestampWrites });
  };
  encoder.copyBufferToBuffer = /** @type {any} */ (function (/** @type {any[]} */ ...words) {
    // @ts-ignore: called as a method of an encoder
    const self = /** @type {GPUCommandEncoder} */ (this);
    counters.copies += 1;
    const span = nextSpan();
    // A copy takes no timestamps itself, so empty passes before and behind it do.
    if (span) beginComputePass.call(self, { timestampWrites: { querySet: span.querySet, endOfPassWriteIndex: span.begin } }).end();
    // @ts-ignore: the two forms of the call are passed on as they came
    copyBufferToBuffer.apply(self, words);
    if (span) beginComputePass.call(self, { timestampWrites: { querySet: span.querySet, beginningOfPassWriteIndex: span.end } }).end();
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
