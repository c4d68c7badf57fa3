/**
 * The page's side of the worker. Starts it, matches answers to requests, and rejects every open request when the worker
 * dies, so that a page never waits for an answer that cannot come.
 */

import { Gemma4Error, withDeadline } from './errors.js';
import { unknownMessage } from './protocol.js';

const START_LIMIT_MS = 8_000;
const RELOAD = 'reload the page; if that does not help, stage the bundle again and publish every file of it';

/**
 * @typedef {import('./protocol.js').Results} Results
 * @typedef {import('./protocol.js').Reply} Reply
 * @typedef {import('./protocol.js').PrefillReply} PrefillReply
 * @typedef {import('./protocol.js').TokensReply} TokensReply
 * @typedef {{resolve: (value: any) => void, reject: (error: Gemma4Error) => void,
 *   onProgress?: (progress: import('./session.js').LoadProgress) => void,
 *   onPrefill?: (prefill: PrefillReply) => void, onTokens?: (tokens: TokensReply) => void}} Open
 */

export class Gemma4Client {
  /** @type {Worker} */ #worker;
  /** @type {Map<number, Open>} */ #open = new Map();
  /** @type {number} */ #nextId = 1;
  /** @type {Gemma4Error | null} */ #ended = null;
  /** @type {Promise<void>} */ #ready;
  /** @type {(error: Gemma4Error) => void} */ #onEnded;
  /** @type {(error: Gemma4Error) => void} */ #onFault;

  /**
   * @param {object} [options]
   * @param {(error: Gemma4Error) => void} [options.onEnded] told once when worker, module or GPU device is lost
   * @param {(error: Gemma4Error) => void} [options.onFault] told of every error of the GPU that no request reports
   */
  constructor({ onEnded = () => {}, onFault = () => {} } = {}) {
    this.#onEnded = onEnded;
    this.#onFault = onFault;
    this.#worker = new Worker(new URL('./worker.js', import.meta.url), { type: 'module', name: 'gemma4' });
    const started = new Promise((resolve, reject) => {
      this.#open.set(0, { resolve, reject });
    });
    this.#ready = withDeadline(started, START_LIMIT_MS, 'starting worker.js').then(() => {}, (thrown) => {
      this.#end(Gemma4Error.from(thrown, 'worker'));
      throw thrown;
    });
    this.#ready.catch(() => {}); // reported by the first request
    this.#worker.addEventListener('message', ({ data }) => this.#receive(data));
    this.#worker.addEventListener('messageerror', () => this.#end(new Gemma4Error('worker',
      'a message of the worker could not be read', RELOAD)));
    this.#worker.addEventListener('error', (event) => {
      event.preventDefault();
      const cause = event.message || 'worker.js or a module that it imports could not be loaded';
      this.#end(new Gemma4Error('worker', `the worker failed: ${cause}`, RELOAD));
    });
  }

  /**
   * @param {object} options
   * @param {string} options.baseUrl folder of the bundle
   * @param {string} options.variant
   * @param {string | null} [options.manifestSha256]
   * @param {number} [options.routeMask] as in Gemma4Session.open
   * @param {(progress: import('./session.js').LoadProgress) => void} [options.onProgress]
   * @returns {Promise<Results['open']>}
   */
  open({ baseUrl, variant, manifestSha256 = null, routeMask = 0, onProgress }) {
    return this.#request((id) => ({ type: 'open', id, baseUrl, variant, manifestSha256, routeMask }),
      onProgress ? { onProgress } : {});
  }

  /**
   * Ids of a prompt, checked as `generate` checks them; nothing runs.
   * @param {import('./protocol.js').Prompt} prompt
   * @returns {Promise<Results['encode']>}
   */
  encode(prompt) {
    return this.#request((id) => ({ type: 'encode', id, prompt }));
  }

  /**
   * @param {import('./protocol.js').Prompt} prompt
   * @param {object} options
   * @param {number} options.maxNewTokens
   * @param {(prefill: PrefillReply) => void} [options.onPrefill] told once at the start, then as a long prompt is read
   * @param {(tokens: TokensReply) => void} [options.onTokens]
   * @returns {Promise<Results['generate']>}
   */
  generate(prompt, { maxNewTokens, ...listeners }) {
    return this.#request((id) => ({ type: 'generate', id, prompt, maxNewTokens }), listeners);
  }

  /** Ends a running generation; its own promise resolves with finish `cancelled`. */
  cancel() {
    if (!this.#ended) this.#worker.postMessage({ type: 'cancel' });
  }

  /**
   * @param {number[]} ids
   * @param {number} position
   * @returns {Promise<Results['prefill']>}
   */
  prefill(ids, position) {
    return this.#request((id) => ({ type: 'prefill', id, ids, position }));
  }

  /**
   * @param {number} token
   * @param {number} position
   * @returns {Promise<Results['step']>}
   */
  step(token, position) {
    return this.#request((id) => ({ type: 'step', id, token, position }));
  }

  /**
   * @param {string} name
   * @returns {Promise<Results['read']>}
   */
  read(name) {
    return this.#request((id) => ({ type: 'read', id, name }));
  }

  /** @returns {Promise<Results['inspect']>} */
  inspect() {
    return this.#request((id) => ({ type: 'inspect', id }));
  }

  /** @returns {Promise<null>} */
  reset() {
    return this.#request((id) => ({ type: 'reset', id }));
  }

  /** @returns {Promise<number>} */
  unload() {
    return this.#request((id) => ({ type: 'unload', id }));
  }

  /** Gives the GPU memory back and ends the worker. */
  async close() {
    try {
      if (!this.#ended) await withDeadline(this.#request((id) => ({ type: 'close', id })), START_LIMIT_MS, 'close');
    } finally {
      this.#end(new Gemma4Error('closed', 'the model was closed'), false);
    }
  }

  /**
   * @param {(id: number) => import('./protocol.js').Request} make
   * @param {Omit<Open, 'resolve' | 'reject'>} [listeners]
   * @returns {Promise<any>}
   */
  async #request(make, listeners = {}) {
    await this.#ready;
    if (this.#ended) throw this.#ended;
    return new Promise((resolve, reject) => {
      const id = this.#nextId;
      this.#nextId += 1;
      this.#open.set(id, { resolve, reject, ...listeners });
      this.#worker.postMessage(make(id));
    });
  }

  /** @param {Reply} reply */
  #receive(reply) {
    switch (reply.type) {
      case 'ready': this.#take(0)?.resolve(undefined); return;
      case 'done': this.#take(reply.id)?.resolve(reply.result); return;
      case 'failed': this.#take(reply.id)?.reject(Gemma4Error.fromPayload(reply.error)); return;
      case 'progress': this.#open.get(reply.id)?.onProgress?.(reply.progress); return;
      case 'prefill': this.#open.get(reply.id)?.onPrefill?.(reply); return;
      case 'tokens': this.#open.get(reply.id)?.onTokens?.(reply); return;
      case 'fault':
        this.#onFault(new Gemma4Error('runtime', `uncaught GPU error: ${reply.message}`));
        return;
      case 'ended': this.#end(Gemma4Error.fromPayload(reply.error)); return;
      default: unknownMessage(reply);
    }
  }

  /**
   * @param {Gemma4Error} error
   * @param {boolean} [tell]
   */
  #end(error, tell = true) {
    if (this.#ended) return;
    this.#ended = error;
    this.#worker.terminate();
    for (const id of [...this.#open.keys()]) this.#take(id)?.reject(error);
    if (tell) this.#onEnded(error);
  }

  /**
   * @param {number} id
   * @returns {Open | undefined}
   */
  #take(id) {
    const open = this.#open.get(id);
    this.#open.delete(id);
    return open;
  }
}
