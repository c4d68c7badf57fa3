/**
 * One runtime module and one model on one GPU context: the promises over the C ABI.
 *
 * It owns the wasm module. It never keeps a view of wasm memory across an await or an export call, because memory may
 * grow in between; bytes are copied in and out. Every request settles exactly once: by its own event, by the loss of the
 * device, or by the end of the module.
 */

import { Gemma4Error, describe, withDeadline } from './errors.js';
import { matchShards } from './manifest.js';
import { SLICE_BYTES, streamShard } from './weights.js';

const INSTANTIATE_LIMIT_MS = 8_000;
const DEVICE_LIMIT_MS = 20_000;

/** Kinds of `g4_event`, fixed by the C ABI. */
const EVENT = Object.freeze({ DONE: 1, FAILED: 2, TOKENS: 3, DEVICE_LOST: 4, DATA: 5, PROGRESS: 6 });

/**
 * What the page uses of an Emscripten module. A test compares this list with the built modules.
 * @typedef {object} RuntimeModule
 * @property {Uint8Array} HEAPU8 replaced by Emscripten whenever memory grows
 * @property {(bytes: number) => number} _malloc
 * @property {(pointer: number) => void} _free
 * @property {() => number} _g4_create
 * @property {() => number} _g4_error
 * @property {(handle: number, request: number) => number} _g4_open
 * @property {(handle: number, program: number, bytes: number, routeMask: number) => number} _g4_plan
 * @property {(handle: number, request: number) => number} _g4_load
 * @property {(handle: number, index: number) => number} _g4_shard_begin
 * @property {(handle: number, index: number, pointer: number, bytes: number) => number} _g4_shard_write
 * @property {(handle: number, index: number, sha256: number) => number} _g4_shard_end
 * @property {(handle: number, request: number) => number} _g4_finish_load
 * @property {(handle: number, request: number, ids: number, count: number, maxNew: number, stopIds: number, stopCount: number) => number} _g4_generate
 * @property {(handle: number, request: number, ids: number, count: number, position: number) => number} _g4_prefill
 * @property {(handle: number, request: number, token: number, position: number) => number} _g4_step
 * @property {(handle: number) => number} _g4_cancel
 * @property {(handle: number, request: number, name: number) => number} _g4_read
 * @property {(handle: number) => number} _g4_counters
 * @property {(handle: number) => number} _g4_profile
 * @property {(handle: number, request: number) => number} _g4_reset
 * @property {(handle: number, request: number) => number} _g4_unload
 * @property {(handle: number) => number} _g4_close
 * @property {(handle: number) => number} _g4_objects
 */

/**
 * @typedef {{vendor: string, architecture: string, device: string, description: string, software: boolean,
 *   features: string[], limits: {[name: string]: number}}} Adapter
 * @typedef {import('./protocol.js').Generation} Generation
 * @typedef {import('./protocol.js').Counters} Counters
 * @typedef {import('./protocol.js').Round} Round
 */

/** @typedef {'module' | 'device' | 'plan' | 'compile' | 'weights' | 'ready'} LoadStage */
/** @typedef {{stage: LoadStage, file: string, loadedBytes: number, totalBytes: number}} LoadProgress */

/**
 * @typedef {object} Pending
 * @property {string} what
 * @property {(value: any) => void} resolve
 * @property {(error: Gemma4Error) => void} reject
 * @property {((tokens: number[]) => void) | undefined} onTokens
 * @property {((rows: number, total: number) => void) | undefined} onPrefill
 */

export class Gemma4Session {
  /** @type {RuntimeModule | null} */ #module = null;
  /** @type {number} */ #handle = 0;
  /** @type {number} */ #nextRequest = 1;
  /** @type {Map<number, Pending>} */ #pending = new Map();
  /** @type {Gemma4Error | null} why nothing can be asked any more */ #ended = null;
  /** @type {string[]} last lines that the module printed */ #printed = [];
  /** @type {((error: Gemma4Error) => void) | null} told once when the device or the module is lost */ #onEnd = null;
  /** @type {((reason: Gemma4Error) => void) | null} ends a start-up that would never settle */ #onAbort = null;
  /** @type {Adapter | null} */ #adapter = null;
  #routeMask = 0;
  /** @type {any} */ #routes = null;

  /**
   * Loads a variant and its model; ready to generate when it resolves. Whatever fails, everything that was made is
   * given back first.
   * @param {object} options
   * @param {import('./manifest.js').Manifest} options.manifest
   * @param {string} options.variant
   * @param {(progress: LoadProgress) => void} [options.onProgress]
   * @param {((error: Gemma4Error) => void) | null} [options.onEnd] told once when device or module is lost after loading
   * @param {AbortSignal} [options.signal]
   * @param {number} [options.routeMask] bits of the kernel routes that may be taken; 0: those that suit the adapter
   */
  static async open({ manifest, variant, onProgress = () => {}, onEnd = null, signal, routeMask = 0 }) {
    const session = new Gemma4Session();
    session.#routeMask = routeMask;
    try {
      await session.#load(manifest, variant, onProgress, signal);
    } catch (thrown) {
      const error = Gemma4Error.from(thrown, 'runtime', `loading ${variant}`);
      await session.close();
      throw error;
    }
    session.#onEnd = onEnd;
    return session;
  }

  /** @returns {Adapter} */
  get adapter() {
    if (!this.#adapter) throw new Gemma4Error('closed', 'no GPU device was opened');
    return this.#adapter;
  }

  /** Which kernels every op runs by, for every row count: the plan's `routes`. @returns {any} */
  get routes() { return this.#routes; }

  /** Size of the wasm memory. */
  get heapBytes() {
    return this.#live().HEAPU8.byteLength;
  }

  /** GPU objects that the runtime owns now. */
  get objects() {
    return this.#live()._g4_objects(this.#handle);
  }

  /**
   * Greedy generation from position 0; forgets what was generated before.
   * @param {number[]} ids
   * @param {object} options
   * @param {number} options.maxNewTokens
   * @param {number[]} options.stopIds
   * @param {(tokens: number[]) => void} [options.onTokens] each batch as it arrives
   * @param {(rows: number, total: number) => void} [options.onPrefill] rows of a long prompt that have run, and all of them
   * @param {AbortSignal} [options.signal] ends the generation with finish `cancelled`
   * @returns {Promise<Generation>}
   */
  async generate(ids, { maxNewTokens, stopIds, onTokens = () => {}, onPrefill, signal }) {
    /** @type {number[]} */
    const tokens = [];
    let firstMs = 0;
    let lastMs = 0;
    const startMs = performance.now();
    /** @param {number[]} batch */
    const receive = (batch) => {
      if (batch.length === 0) return;
      lastMs = performance.now();
      if (tokens.length === 0) firstMs = lastMs;
      tokens.push(...batch);
      onTokens(batch);
    };
    const cancel = () => {
      if (!this.#ended) this.#guard('cancel', (module) => module._g4_cancel(this.#handle));
    };
    const done = this.#request('generate', (module, request) => this.#withInts([ids, stopIds], ([prompt, stops]) =>
      module._g4_generate(this.#handle, request, prompt, ids.length, maxNewTokens, stops, stopIds.length)),
    { onTokens: receive, onPrefill });
    if (signal?.aborted) cancel();
    signal?.addEventListener('abort', cancel, { once: true });
    let result;
    try {
      result = await done;
    } finally {
      signal?.removeEventListener('abort', cancel);
    }
    const endMs = performance.now();
    const decodeMs = tokens.length > 0 ? lastMs - firstMs : 0;
    return {
      tokens,
      finish: result.finish,
      counters: result.counters,
      rounds: result.rounds ?? [], passes: result.passes,
      prefillMs: (tokens.length > 0 ? firstMs : endMs) - startMs,
      decodeMs,
      tokensPerS: decodeMs > 0 ? ((tokens.length - 1) * 1000) / decodeMs : 0,
    };
  }

  /**
   * Runs prompt rows; `position` must be the number of rows already run.
   * @param {number[]} ids
   * @param {number} position
   * @returns {Promise<{tokens: number[]}>}
   */
  prefill(ids, position) {
    return this.#request('prefill', (module, request) => this.#withInts([ids], ([prompt]) =>
      module._g4_prefill(this.#handle, request, prompt, ids.length, position)));
  }

  /**
   * One decode step or one speculative round.
   * @param {number} token the newest token, not run yet
   * @param {number} position its position
   * @returns {Promise<{tokens: number[], drafts: number[], accepted: number}>}
   */
  step(token, position) {
    return this.#request('step', (module, request) => module._g4_step(this.#handle, request, token, position));
  }

  /**
   * Raw bytes of a retained tensor after the last pass.
   * @param {string} name
   * @returns {Promise<Uint8Array>}
   */
  read(name) {
    return this.#request(`read ${name}`, (module, request) => this.#withText(name, (pointer) =>
      module._g4_read(this.#handle, request, pointer)));
  }

  /** @returns {Counters} */
  counters() {
    return this.#json('counters', (module) => module._g4_counters(this.#handle));
  }

  /** @returns {any} the profile document of the C ABI */
  profile() {
    return this.#json('profile', (module) => module._g4_profile(this.#handle));
  }

  /** Forgets all decoded state, counters and profile; weights stay. */
  reset() {
    return this.#request('reset', (module, request) => module._g4_reset(this.#handle, request));
  }

  /**
   * Frees the model, then the GPU context; nothing is owned afterwards. May be called again.
   * @returns {Promise<number>} GPU objects that are still owned, which is 0
   */
  async unload() {
    if (this.#handle !== 0) {
      await this.#request('unload', (module, request) => module._g4_unload(this.#handle, request));
      if (this.#guard('close', (module) => module._g4_close(this.#handle)) < 0) {
        throw new Gemma4Error('runtime', this.#lastError());
      }
      this.#handle = 0;
    }
    return this.objects;
  }

  /** Gives everything back. Never rejects: at the end there is nobody left to do something about it. */
  async close() {
    if (this.#module && !this.#ended) {
      try {
        await withDeadline(this.unload(), DEVICE_LIMIT_MS, 'unload');
      } catch (thrown) {
        console.warn(`closing the runtime: ${describe(thrown)}`);
      }
    }
    this.#end(new Gemma4Error('closed', 'this session was closed'), false);
  }

  /**
   * Ends the session from outside, for errors that reach only the global scope of the worker.
   * @param {Gemma4Error} error
   */
  fail(error) {
    this.#end(error, true);
  }

  /**
   * @param {import('./manifest.js').Manifest} manifest
   * @param {string} variantName
   * @param {(progress: LoadProgress) => void} onProgress
   * @param {AbortSignal} [signal]
   */
  async #load(manifest, variantName, onProgress, signal) {
    const variant = manifest.variant(variantName);
    const method = manifest.method(variantName.startsWith('mtp-') ? 'k2_round' : 'text_decoder');
    const totalBytes = manifest.downloadBytes(variantName.startsWith('mtp-') ? 'k2_round' : 'text_decoder');
    /**
     * @param {LoadStage} stage
     * @param {string} file
     * @param {number} loadedBytes
     */
    const report = (stage, file, loadedBytes) => onProgress({ stage, file, loadedBytes, totalBytes });

    report('module', variant.js, 0);
    const [js, wasm] = await Promise.all([manifest.fetchFile(variant.js, signal), manifest.fetchFile(variant.wasm, signal)]);
    this.#module = await this.#instantiate(variant, js, wasm);
    this.#handle = this.#guard('create', (module) => module._g4_create());
    if (this.#handle === 0) throw new Gemma4Error('runtime', this.#lastError());

    report('device', '', 0);
    this.#adapter = await withDeadline(this.#request('open', (module, request) => module._g4_open(this.#handle, request)),
      DEVICE_LIMIT_MS, 'opening the GPU device');

    report('plan', method.program, 0);
    const program = await manifest.fetchFile(method.program, signal);
    const plan = this.#plan(program, method.program);
    this.#routes = plan.routes;
    const shards = matchShards(manifest, method.shards, plan);

    report('compile', method.program, program.byteLength);
    await this.#request('load', (module, request) => module._g4_load(this.#handle, request));
    let loaded = program.byteLength;
    for (const [index, path] of shards.entries()) {
      report('weights', path, loaded);
      await this.#streamShard(manifest, index, path, (bytes) => report('weights', path, loaded + bytes), signal);
      loaded += manifest.file(path).bytes;
    }
    await this.#request('finish_load', (module, request) => module._g4_finish_load(this.#handle, request));
    report('ready', '', totalBytes);
  }

  /**
   * The JS is imported from its verified bytes, so JS and wasm are always of one version.
   * @param {import('./manifest.js').VariantFiles} variant
   * @param {Uint8Array<ArrayBuffer>} js
   * @param {Uint8Array<ArrayBuffer>} wasm
   * @returns {Promise<RuntimeModule>}
   */
  async #instantiate(variant, js, wasm) {
    const source = URL.createObjectURL(new Blob([js], { type: 'text/javascript' }));
    let factory;
    try {
      factory = (await withDeadline(import(source), INSTANTIATE_LIMIT_MS, variant.js)).default;
    } catch (thrown) {
      throw Gemma4Error.from(thrown, 'instantiate', `${variant.js} could not be imported`);
    } finally {
      URL.revokeObjectURL(source);
    }
    if (typeof factory !== 'function') {
      throw new Gemma4Error('instantiate', `${variant.js} has no default export, wanted ${variant.factory}`);
    }
    try {
      // The factory never settles when its own start-up aborts; `aborted` does.
      const aborted = new Promise((_, reject) => { this.#onAbort = reject; });
      const made = factory({
        wasmBinary: wasm,
        locateFile: (/** @type {string} */ file) => file,
        onGemma4Event: this.#onEvent.bind(this),
        onAbort: (/** @type {unknown} */ reason) => this.#aborted(reason),
        print: (/** @type {string} */ line) => this.#remember(line),
        printErr: (/** @type {string} */ line) => this.#remember(line),
      });
      return await withDeadline(Promise.race([made, aborted]), INSTANTIATE_LIMIT_MS, variant.wasm);
    } catch (thrown) {
      throw new Gemma4Error('instantiate', `${variant.wasm} could not be started: ${describe(thrown)}`);
    } finally {
      this.#onAbort = null;
    }
  }

  /**
   * @param {Uint8Array} program
   * @param {string} path
   * @returns {{shards: {file: string, bytes: number, sha256: string}[], routes: any}}
   */
  #plan(program, path) {
    const pointer = this.#guard('plan', (module) => this.#withBytes(program, (address) =>
      module._g4_plan(this.#handle, address, program.byteLength, this.#routeMask)));
    if (pointer === 0) throw new Gemma4Error('runtime', `${path}: ${this.#lastError()}`);
    return JSON.parse(this.#text(pointer));
  }

  /**
   * @param {import('./manifest.js').Manifest} manifest
   * @param {number} index
   * @param {string} path
   * @param {(bytes: number) => void} onProgress
   * @param {AbortSignal} [signal]
   */
  async #streamShard(manifest, index, path, onProgress, signal) {
    const wanted = manifest.file(path);
    const buffer = this.#allocate(Math.min(SLICE_BYTES, wanted.bytes));
    try {
      await streamShard({
        url: manifest.url(path), name: path, wanted, onProgress, ...(signal ? { signal } : {}),
        sink: {
          begin: () => this.#check('shard_begin', path, (module) => module._g4_shard_begin(this.#handle, index)),
          write: (slice) => {
            this.#live().HEAPU8.set(slice, buffer);
            this.#check('shard_write', path, (module) =>
              module._g4_shard_write(this.#handle, index, buffer, slice.byteLength));
          },
          end: (sha256) => this.#withText(sha256, (pointer) =>
            this.#check('shard_end', path, (module) => module._g4_shard_end(this.#handle, index, pointer))),
        },
      });
    } finally {
      if (!this.#ended) this.#live()._free(buffer);
    }
  }

  /**
   * Starts an asynchronous call. `call` gets the module and the request's number and returns the C status.
   * @param {string} what
   * @param {(module: RuntimeModule, request: number) => number} call
   * @param {{onTokens?: Pending['onTokens'], onPrefill?: Pending['onPrefill']}} [listeners]
   * @returns {Promise<any>}
   */
  #request(what, call, { onTokens, onPrefill } = {}) {
    return new Promise((resolve, reject) => {
      const request = this.#nextRequest;
      this.#nextRequest += 1;
      this.#live();
      this.#pending.set(request, { what, resolve, reject, onTokens, onPrefill });
      try {
        const status = this.#guard(what, (module) => call(module, request));
        if (status < 0) throw new Gemma4Error('runtime', this.#lastError());
      } catch (thrown) {
        this.#take(request)?.reject(Gemma4Error.from(thrown, 'runtime', what));
      }
    });
  }

  /**
   * @param {string} what
   * @param {string} path
   * @param {(module: RuntimeModule) => number} call
   */
  #check(what, path, call) {
    if (this.#guard(what, call) < 0) throw new Gemma4Error('runtime', `${path}: ${this.#lastError()}`);
  }

  /**
   * @param {string} what
   * @param {(module: RuntimeModule) => number} call
   */
  #json(what, call) {
    const pointer = this.#guard(what, call);
    if (pointer === 0) throw new Gemma4Error('runtime', this.#lastError());
    return JSON.parse(this.#text(pointer));
  }

  /**
   * Calls into wasm. A trap leaves the module in no state to be used again, so it ends the session.
   * @template T
   * @param {string} what
   * @param {(module: RuntimeModule) => T} call
   * @returns {T}
   */
  #guard(what, call) {
    const module = this.#live();
    try {
      return call(module);
    } catch (thrown) {
      if (thrown instanceof Gemma4Error) throw thrown;
      const error = new Gemma4Error('abort', `the runtime stopped in ${what}: ${describe(thrown)}${this.#printedTail()}`);
      this.#end(error, true);
      throw error;
    }
  }

  /** @returns {RuntimeModule} */
  #live() {
    if (this.#ended) throw this.#ended;
    if (!this.#module) throw new Gemma4Error('closed', 'no module is loaded');
    return this.#module;
  }

  #lastError() {
    return this.#text(this.#guard('error', (module) => module._g4_error())) || 'the runtime gave no reason';
  }

  /**
   * The one receiver of everything that happens asynchronously. Copies what it needs before it returns.
   * @param {number} _handle
   * @param {number} request
   * @param {number} kind
   * @param {number} data
   * @param {number} bytes
   */
  #onEvent(_handle, request, kind, data, bytes) {
    const payload = this.#copy(data, bytes);
    switch (kind) {
      case EVENT.DONE:
        this.#take(request)?.resolve(payload.byteLength === 0 ? null : parseJson(payload));
        return;
      case EVENT.DATA:
        this.#take(request)?.resolve(payload);
        return;
      case EVENT.FAILED: {
        const { message } = parseJson(payload);
        this.#take(request)?.reject(new Gemma4Error('runtime', message));
        return;
      }
      case EVENT.TOKENS:
        this.#pending.get(request)?.onTokens?.(Array.from(new Int32Array(payload.buffer)));
        return;
      case EVENT.DEVICE_LOST: {
        const { reason, message } = parseJson(payload);
        this.#end(new Gemma4Error('gpu-lost', `the GPU device was lost (${reason}): ${message}`,
          'load the model again; if it happens again, close other pages that use the GPU'), true);
        return;
      }
      case EVENT.PROGRESS: {
        const [rows = 0, total = 0] = new Uint32Array(payload.buffer);
        this.#pending.get(request)?.onPrefill?.(rows, total);
        return;
      }
      default:
        this.#end(new Gemma4Error('runtime', `the runtime sent an event of the unknown kind ${kind}`), true);
    }
  }

  /** @param {unknown} reason */
  #aborted(reason) {
    const error = new Gemma4Error('abort', `the runtime aborted: ${describe(reason)}${this.#printedTail()}`);
    this.#onAbort?.(error);
    this.#end(error, true);
  }

  /**
   * Settles everything that is still open, once.
   * @param {Gemma4Error} error
   * @param {boolean} tell whether this was unexpected
   */
  #end(error, tell) {
    if (this.#ended) return;
    this.#ended = error;
    for (const request of [...this.#pending.keys()]) this.#take(request)?.reject(error);
    this.#module = null;
    if (tell) this.#onEnd?.(error);
  }

  /**
   * @param {number} request
   * @returns {Pending | undefined}
   */
  #take(request) {
    const pending = this.#pending.get(request);
    this.#pending.delete(request);
    return pending;
  }

  /** @param {string} line */
  #remember(line) {
    this.#printed.push(line);
    if (this.#printed.length > 20) this.#printed.shift();
  }

  #printedTail() {
    return this.#printed.length === 0 ? '' : `\n${this.#printed.join('\n')}`;
  }

  /** @param {number} bytes */
  #allocate(bytes) {
    const pointer = this.#guard('malloc', (module) => module._malloc(Math.max(1, bytes)) >>> 0);
    if (pointer === 0) throw new Gemma4Error('runtime', `the wasm heap has no room for ${bytes} bytes`);
    return pointer;
  }

  /**
   * @template T
   * @param {Uint8Array} bytes
   * @param {(pointer: number) => T} use must not keep the pointer
   * @returns {T}
   */
  #withBytes(bytes, use) {
    const pointer = this.#allocate(bytes.byteLength);
    try {
      this.#live().HEAPU8.set(bytes, pointer);
      return use(pointer);
    } finally {
      if (!this.#ended) this.#live()._free(pointer);
    }
  }

  /**
   * @template T
   * @param {string} text
   * @param {(pointer: number) => T} use
   * @returns {T}
   */
  #withText(text, use) {
    return this.#withBytes(new TextEncoder().encode(`${text}\0`), use);
  }

  /**
   * @template T
   * @param {number[][]} lists
   * @param {(pointers: [number, number]) => T} use
   * @returns {T}
   */
  #withInts([first = [], second = []], use) {
    return this.#withBytes(new Uint8Array(Int32Array.from(first).buffer), (one) =>
      this.#withBytes(new Uint8Array(Int32Array.from(second).buffer), (two) => use([one, two])));
  }

  /**
   * @param {number} pointer
   * @param {number} bytes
   * @returns {Uint8Array<ArrayBuffer>}
   */
  #copy(pointer, bytes) {
    if (bytes === 0 || !this.#module) return new Uint8Array(0);
    return this.#module.HEAPU8.slice(pointer >>> 0, (pointer >>> 0) + bytes);
  }

  /** @param {number} pointer of NUL-terminated UTF-8 */
  #text(pointer) {
    if (pointer === 0) return '';
    const begin = pointer >>> 0;
    const end = this.#live().HEAPU8.indexOf(0, begin);
    return new TextDecoder().decode(this.#live().HEAPU8.slice(begin, end));
  }
}

/** @param {Uint8Array} bytes */
function parseJson(bytes) {
  return JSON.parse(new TextDecoder().decode(bytes));
}
