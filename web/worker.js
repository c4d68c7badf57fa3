/**
 * The worker owns the wasm module, the model and the tokenizer; the page only sends messages (see protocol.js). One
 * worker holds at most one open session; ending the worker gives everything back.
 */

import { Gemma4Error } from './errors.js';
import { probeGpu, watchDevices } from './gpu.js';
import { Manifest } from './manifest.js';
import { unknownMessage } from './protocol.js';
import { Gemma4Session } from './session.js';
import { TextCodec } from './text.js';

/** @typedef {import('./protocol.js').Request} Request */
/** @typedef {import('./protocol.js').Reply} Reply */

/** @typedef {{session: Gemma4Session, manifest: Manifest, codec: TextCodec | null}} Loaded */

const scope = /** @type {{postMessage(message: Reply, transfer?: Transferable[]): void}} */ (
  /** @type {unknown} */ (globalThis));

/** @type {Loaded | null} */
let loaded = null;
/** @type {AbortController | null} */
let running = null;
let opening = false;

/** Far beyond any context, far below where a number wraps in wasm. */
const MOST_NEW_TOKENS = 1_000_000;

/** @param {Reply} reply */
function post(reply) {
  scope.postMessage(reply);
}

/** @param {Gemma4Error} error */
function ended(error) {
  post({ type: 'ended', error: error.payload() });
}

/** @returns {Loaded} */
function current() {
  if (!loaded) throw new Gemma4Error('closed', 'no model is loaded', 'load the model first');
  return loaded;
}

/**
 * @param {import('./protocol.js').OpenRequest} request
 * @returns {Promise<import('./protocol.js').Opened>}
 */
async function open({ id, baseUrl, variant, manifestSha256, routeMask }) {
  if (loaded || opening) throw new Gemma4Error('input', 'this worker has a model already', 'close it first');
  opening = true;
  try {
    const startMs = performance.now();
    await probeGpu({ device: false });
    const manifest = await Manifest.fetch(baseUrl, manifestSha256);
    const path = manifest.model.tokenizer;
    const codec = path === null ? null : new TextCodec(await manifest.fetchFile(path));
    const session = await Gemma4Session.open({
      manifest, variant, routeMask, onEnd: ended,
      onProgress: (progress) => post({ type: 'progress', id, progress }),
    });
    loaded = { session, manifest, codec };
    return {
      adapter: session.adapter, model: manifest.model, manifestSha256: manifest.sha256, text: codec !== null, routes: session.routes,
      loadMs: performance.now() - startMs, heapBytes: session.heapBytes,
    };
  } finally {
    opening = false;
  }
}

/**
 * Turns a prompt into ids and refuses what the model cannot take, in the reader's own terms.
 * @param {import('./protocol.js').Prompt} prompt
 * @param {Loaded} model
 */
function promptIds(prompt, { codec, manifest: { model } }) {
  if (prompt.kind === 'text' && prompt.text.trim() === '') throw emptyPrompt();
  if (prompt.kind === 'text' && codec === null) {
    throw new Gemma4Error('no-tokenizer', `the model "${model.name}" was exported without a tokenizer, so it cannot read text`,
      'give the prompt as token ids, or export the model from a checkpoint that has a tokenizer.json');
  }
  const ids = prompt.kind === 'ids' ? prompt.ids
    : prompt.format === 'chat' ? /** @type {TextCodec} */ (codec).encodeChat(prompt.text)
      : /** @type {TextCodec} */ (codec).encodeRaw(prompt.text);
  if (ids.length === 0) throw emptyPrompt();
  const wrong = ids.find((id) => !Number.isInteger(id) || id < 0 || id >= model.vocab);
  if (wrong !== undefined) {
    throw new Gemma4Error('input', `the prompt holds the token id ${wrong}, this model knows 0 to ${model.vocab - 1}`,
      'correct the id');
  }
  if (ids.length > model.context) {
    throw new Gemma4Error('input', `the prompt has ${ids.length} tokens, this model takes at most ${model.context}`,
      model.mostPositions !== null && model.context >= model.mostPositions
        ? 'shorten the prompt: more positions are beyond the model itself'
        : 'shorten the prompt, or export the model with a larger --context'
          + (model.mostPositions === null ? '' : `, of at most ${model.mostPositions}`));
  }
  return ids;
}

function emptyPrompt() {
  return new Gemma4Error('input', 'the prompt is empty', 'write something to continue from');
}

/**
 * @param {import('./protocol.js').GenerateRequest} request
 * @returns {Promise<import('./protocol.js').Generated>}
 */
async function generate({ id, prompt, maxNewTokens }) {
  const model = current();
  const { session, codec, manifest } = model;
  if (running) throw new Gemma4Error('input', 'a generation is running already', 'wait for its end, or stop it');
  if (!Number.isInteger(maxNewTokens) || maxNewTokens < 1 || maxNewTokens > MOST_NEW_TOKENS) {
    throw new Gemma4Error('input', `the number of new tokens is ${maxNewTokens}, `
      + `wanted a whole number from 1 to ${MOST_NEW_TOKENS.toLocaleString('en')}`, 'ask for a number in that range');
  }
  const ids = promptIds(prompt, model);
  const decoder = codec?.decoder() ?? null;
  let text = '';
  running = new AbortController();
  post({ type: 'prefill', id, rows: 0, total: ids.length });
  const startMs = performance.now();
  try {
    const generation = await session.generate(ids, {
      maxNewTokens, stopIds: manifest.model.stopIds, signal: running.signal,
      onPrefill: (rows, total) => post({ type: 'prefill', id, rows, total }),
      onTokens: (tokens) => {
        const pieces = decoder ? tokens.map((token) => decoder.push(token)) : null;
        if (pieces) text += pieces.join('');
        post({ type: 'tokens', id, tokens, pieces, atMs: performance.now() - startMs });
      },
    });
    return {
      generation, promptIds: ids, text: decoder ? text : null, heapBytes: session.heapBytes, profile: session.profile(),
    };
  } finally {
    running = null;
  }
}

/** @returns {import('./protocol.js').Inspected} */
function inspect() {
  const { session } = current();
  return {
    counters: session.counters(), profile: session.profile(), objects: session.objects, heapBytes: session.heapBytes,
  };
}

async function close() {
  running?.abort();
  await loaded?.session.close();
  loaded = null;
  return null;
}

/**
 * @param {Exclude<Request, {type: 'cancel'}>} request
 * @returns {Promise<any>}
 */
async function answer(request) {
  switch (request.type) {
    case 'open': return open(request);
    case 'encode': return promptIds(request.prompt, current());
    case 'generate': return generate(request);
    case 'prefill': return current().session.prefill(request.ids, request.position);
    case 'step': return current().session.step(request.token, request.position);
    case 'read': return current().session.read(request.name);
    case 'inspect': return inspect();
    case 'reset': return current().session.reset();
    case 'unload': return current().session.unload();
    case 'close': return close();
    default: return unknownMessage(request);
  }
}

globalThis.addEventListener('message', (/** @type {MessageEvent<Request>} */ { data: request }) => {
  if (request.type === 'cancel') {
    running?.abort();
    return;
  }
  answer(request).then(
    (result) => post({ type: 'done', id: request.id, result }),
    (thrown) => post({ type: 'failed', id: request.id, error: Gemma4Error.from(thrown, 'worker').payload() }),
  );
});

// What no caller waits for ends the session, so that nobody waits for ever; it is reported on the console as well.
globalThis.addEventListener('error', (event) => stray(event.error ?? event.message));
globalThis.addEventListener('unhandledrejection', (event) => stray(event.reason));

/** @param {unknown} thrown */
function stray(thrown) {
  const error = Gemma4Error.from(thrown, 'worker', 'the worker failed');
  loaded?.session.fail(error);
  ended(error);
}

watchDevices((message) => post({ type: 'fault', message }));
post({ type: 'ready' });
