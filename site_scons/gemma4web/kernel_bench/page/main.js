// Takes one job after another from the page's own server and posts what it found. Nothing is measured before it is asked for.

import { openDevice, state, takeGpuErrors } from './device.js';
import { prepare, measure, release } from './row.js';
import { roofline } from './roofline.js';
import { doing, post } from './server.js';

const PULSE_MS = 1000;

/** @type {Record<string, (job: any) => Promise<object>>} */
const HANDLERS = { open: openDevice, roofline, prepare, measure, release };

addEventListener('error', (event) => void post('/fault', `uncaught error on the page: ${event.message}`));
addEventListener('unhandledrejection', (event) => void post('/fault', `unhandled rejection on the page: ${event.reason}`));

/** @param {any} job */
async function answer(job) {
  /** @type {object} */
  let found;
  try {
    const handler = HANDLERS[job.kind];
    if (!handler) throw new Error(`the page knows no job ${job.kind}`);
    found = await handler(job);
  } catch (error) {
    found = { error: error instanceof Error ? error.message : String(error) };
  }
  const gpu = takeGpuErrors();
  if (gpu.length) found = { error: [...('error' in found ? [found.error] : []), ...gpu].join('\n') };
  await post(`/result/${job.id}`, JSON.stringify(found));
}

async function serve() {
  for (;;) {
    const job = await (await fetch('/job')).json();
    if (job.kind !== 'wait') await answer(job);
  }
}

setInterval(() => void post('/alive', doing()), PULSE_MS);
serve().catch((error) => post('/fault', `the page's loop ended: ${error.message}${state.lost ? `; ${state.lost}` : ''}`));
