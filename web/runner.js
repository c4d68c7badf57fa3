/**
 * The automation page: `window.gemma4web` is what `scons run` and the browser tests drive. A run is started and then
 * polled, so that the driver keeps its own deadline whatever happens here.
 *
 * @typedef {{id: string, tokens: number[] | null, text: string | null, max_new_tokens: number}} RunPrompt
 * @typedef {{variant: string, manifest_sha256: string | null, route_mask: number,
 *   prompts: RunPrompt[]}} RunRequest
 * @typedef {{prompt_id: string, prompt_tokens: number, tokens: number[], text: string | null, finish: string,
 *   prefill_ms: number, decode_tokens_per_s: number, heap_bytes: number,
 *   counters: import('./protocol.js').Counters, passes: {single: boolean, reason: string}, profile: any}} PromptResult
 * @typedef {object} RunResult
 * @property {string} variant
 * @property {string} manifest_sha256
 * @property {import('./protocol.js').Adapter} adapter
 * @property {any} routes
 * @property {number} load_ms
 * @property {PromptResult[]} prompts
 * @property {number} objects_after_unload
 * @property {Conditions} conditions
 *
 * @typedef {{cross_origin_isolated: boolean, visibility: string, timer_step_ms: number}} Conditions
 * @typedef {{phase: 'idle'} | {phase: 'running', doing: string, percent: number | null} | {phase: 'done', result: RunResult}
 *   | {phase: 'failed', error: import('./errors.js').ErrorPayload}} RunState
 */

import { Gemma4Client } from './client.js';
import { Gemma4Error } from './errors.js';
import { probeGpu } from './gpu.js';

const BASE_URL = new URL('./', import.meta.url).href;

/** @type {RunState} */
let state = { phase: 'idle' };
/** @type {PromptResult[]} of the run that was started last, as far as it has come */
let answers = [];
/** @type {import('./protocol.js').Adapter | null} of the same run, once its device is open */
let adapter = null;
/** @type {boolean} */
let hidden = document.visibilityState === 'hidden';
document.addEventListener('visibilitychange', () => { hidden ||= document.visibilityState === 'hidden'; });

/** @param {RunState} next */
function show(next) {
  state = next;
  const line = next.phase === 'running' ? next.doing : next.phase === 'failed' ? next.error.message : next.phase;
  /** @type {HTMLElement} */ (document.getElementById('state')).textContent = line;
}

/**
 * @param {string} what
 * @param {number | null} [percent]
 */
function doing(what, percent = null) {
  show({ phase: 'running', doing: what, percent });
}

/**
 * Loads one variant, generates for every prompt, and gives everything back.
 * @param {RunRequest} request
 * @returns {Promise<RunResult>}
 */
async function run({ variant, manifest_sha256: manifestSha256, route_mask: routeMask, prompts }) {
  doing('looking for a GPU');
  await probeGpu({ device: true });
  /** @type {Gemma4Error | null} */
  let fault = null;
  const client = new Gemma4Client({ onFault: (error) => { fault ??= error; } });
  try {
    const opened = await client.open({
      baseUrl: BASE_URL, variant, manifestSha256, routeMask,
      onProgress: ({ stage, file, loadedBytes, totalBytes }) => doing(`${stage} ${file}`.trim(),
        stage === 'weights' ? Math.floor((100 * loadedBytes) / totalBytes) : null),
    });
    adapter = opened.adapter;
    await checkPrompts(client, prompts);
    for (const prompt of prompts) {
      doing(`generating "${prompt.id}"`);
      await client.reset();
      answers.push(await generate(client, opened.model.context, prompt));
    }
    doing('unloading');
    const objects = await client.unload();
    if (fault) throw fault;
    return {
      variant, manifest_sha256: opened.manifestSha256, adapter: opened.adapter, routes: opened.routes,
      load_ms: opened.loadMs, prompts: answers,
      objects_after_unload: objects, conditions: conditions(),
    };
  } finally {
    await client.close();
  }
}

/**
 * @param {RunPrompt} prompt
 * @returns {import('./protocol.js').Prompt}
 */
function asPrompt({ tokens, text }) {
  return tokens !== null ? { kind: 'ids', ids: tokens } : { kind: 'text', text: text ?? '', format: 'chat' };
}

/**
 * Refuses a list with a prompt that the model cannot take before any is run: no finished answer is lost to it.
 * @param {Gemma4Client} client
 * @param {RunPrompt[]} prompts
 */
async function checkPrompts(client, prompts) {
  for (const prompt of prompts) {
    try {
      await client.encode(asPrompt(prompt));
    } catch (thrown) {
      const error = Gemma4Error.from(thrown, 'input');
      throw new Gemma4Error(error.code, `prompt "${prompt.id}": ${error.message}`, error.advice);
    }
  }
}

/**
 * @param {Gemma4Client} client
 * @param {number} context
 * @param {RunPrompt} prompt
 * @returns {Promise<PromptResult>}
 */
async function generate(client, context, prompt) {
  const { id, max_new_tokens: maxNewTokens } = prompt;
  let count = 0;
  let wanted = maxNewTokens;
  const done = await client.generate(asPrompt(prompt), {
    maxNewTokens,
    onPrefill: ({ rows, total }) => {
      wanted = Math.min(maxNewTokens, context + 1 - total);
      if (rows > 0) doing(`reading the prompt of "${id}"`, Math.floor((100 * rows) / total));
    },
    onTokens: (batch) => {
      count += batch.tokens.length;
      doing(`generating "${id}"`, Math.floor((100 * count) / wanted));
    },
  });
  return {
    prompt_id: id, prompt_tokens: done.promptIds.length, tokens: done.generation.tokens, text: done.text,
    finish: done.generation.finish, prefill_ms: done.generation.prefillMs,
    decode_tokens_per_s: done.generation.tokensPerS, heap_bytes: done.heapBytes, counters: done.generation.counters,
    passes: done.generation.passes, profile: done.profile,
  };
}

/** What makes timings of this page comparable or not. */
function conditions() {
  let step = Number.POSITIVE_INFINITY;
  let last = performance.now();
  for (let ticks = 0; ticks < 50;) {
    const now = performance.now();
    if (now === last) continue;
    step = Math.min(step, now - last);
    last = now;
    ticks += 1;
  }
  return { cross_origin_isolated: globalThis.crossOriginIsolated === true, visibility: hidden ? 'hidden' : 'visible',
    timer_step_ms: step };
}

const api = {
  baseUrl: BASE_URL,
  /** @param {ConstructorParameters<typeof Gemma4Client>[0]} [options] */
  client: (options) => new Gemma4Client(options),
  /** @returns {RunState} */
  poll: () => state,
  /**
   * Answers of the present run from number `first` on: each as soon as it is there, whatever becomes of the run.
   * @param {number} first
   */
  answers: (first) => answers.slice(first),
  /** What those answers were computed on; null before the first. */
  adapter: () => adapter,
  /** @param {RunRequest} request */
  start(request) {
    if (state.phase === 'running') throw new Error('a run is in progress');
    doing('starting');
    answers = [];
    adapter = null;
    run(request).then(
      (result) => show({ phase: 'done', result }),
      (thrown) => show({ phase: 'failed', error: Gemma4Error.from(thrown, 'worker').payload() }),
    );
  },
};

/** @type {any} */ (window).gemma4web = api;
