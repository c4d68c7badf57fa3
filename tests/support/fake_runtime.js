// A stand-in for an Emscripten module with the runtime's C ABI, for tests of the page alone: same exports, same events,
// real growable wasm memory, but no GPU work. Tokens follow next = (31 * newest + 7 * position) % vocab. Some first ids
// of a prompt make it fail in a way that a real one might:
//   901 device lost   902 trap inside the export   903 abort   904 waits for cancel   905 refuses   906 trap in a callback
//   907 an invalid GPU call   908 keeps an object after unload   909 one wrong token in MTP decoding   910 console error
//   911 waits for cancel after the first 64 tokens of its prompt   912 no draft is ever right
/* global WebAssembly */

const MTP = '@DECODING@' === 'mtp';
const PROFILE = '@TIMING@' === 'profile';
const VOCAB = 1024;
const CONTEXT = 200;

async function createFake(options = {}) {
  const memory = new WebAssembly.Memory({ initial: 2 });
  const module = { HEAPU8: new Uint8Array(memory.buffer) };
  const url = options.locateFile ? options.locateFile('@STEM@.wasm', '') : new URL('@STEM@.wasm', import.meta.url).href;
  const binary = options.wasmBinary ?? await (await fetch(url)).arrayBuffer();
  await WebAssembly.instantiate(binary, { env: {} });

  let top = 1024;
  let lastError = '';
  let state = { length: 0, newest: 0, counters: zero(), loaded: false };
  let running = null;
  let shards = new Map();
  let objects = 0;
  let leaked = 0;
  let alive = false;

  function zero() {
    return { rounds: 0, drafted: 0, accepted: 0, emitted: 0, cut: 0, buffered: 0 };
  }
  // Memory moves at every allocation, so that a view kept across one is always stale.
  function grow() {
    memory.grow(1);
    module.HEAPU8 = new Uint8Array(memory.buffer);
  }
  function alloc(bytes) {
    grow();
    const at = top;
    top += (bytes + 7) & ~7;
    while (top > memory.buffer.byteLength) grow();
    return at;
  }
  function put(bytes) {
    const at = alloc(bytes.length);
    module.HEAPU8.set(bytes, at);
    return at;
  }
  const text = (value) => put(new TextEncoder().encode(`${value}\0`));
  const ints = (at, count) => Array.from(new Int32Array(module.HEAPU8.slice(at, at + 4 * count).buffer));
  const cString = (at) => new TextDecoder().decode(module.HEAPU8.slice(at, module.HEAPU8.indexOf(0, at)));
  function event(request, kind, bytes) {
    const at = put(bytes);
    options.onGemma4Event(1, request, kind, at, bytes.length);
  }
  const json = (request, kind, value) => event(request, kind, new TextEncoder().encode(JSON.stringify(value)));
  const done = (request, value) => setTimeout(() => json(request, 1, value), 1);
  const tokensEvent = (request, tokens) => event(request, 3, new Uint8Array(Int32Array.from(tokens).buffer));
  function refuse(message) {
    lastError = message;
    return -1;
  }
  async function invalidCall() {
    const device = await (await navigator.gpu.requestAdapter()).requestDevice();
    device.createBuffer({ size: 4, usage: 0xffff });
    await device.queue.onSubmittedWorkDone();
  }
  const next = (token, position) => (31 * token + 7 * position) % VOCAB;

  function step() {
    const round = { pos: state.length, drafts: [], accepted: 0, emitted: [] };
    const count = MTP && !state.blind ? 1 + (state.length % 3) : 1;
    for (let index = 0; index < count; index += 1) {
      state.newest = next(state.newest, state.length);
      state.length += 1;
      round.emitted.push(state.newest);
    }
    if (MTP) {
      round.accepted = count - 1;
      round.drafts = [...round.emitted, -1, -1].slice(0, 2);
      state.counters.rounds += 1;
      state.counters.drafted += 2;
      state.counters.accepted += count - 1;
    }
    return round;
  }

  const exports = {
    _malloc: alloc,
    _free: () => {},
    _g4_create: () => {
      if (alive) { lastError = 'a context is owned already'; return 0; }
      alive = true;
      return 1;
    },
    _g4_error: () => text(lastError),
    _g4_open: (_h, request) => {
      objects = 2;
      done(request, { vendor: 'test', architecture: 'fake', device: 'stand-in', description: '', software: true,
        features: ['timestamp-query'], limits: { maxBufferSize: 1 << 30 } });
      return 0;
    },
    _g4_plan: (_h, at, bytes) => {
      const program = new TextDecoder().decode(module.HEAPU8.slice(at, at + bytes));
      let plan;
      try { plan = JSON.parse(program); } catch { lastError = 'the program fails verification'; return 0; }
      if (plan.method !== (MTP ? 'k2_round' : 'text_decoder')) { lastError = `the program's method is ${plan.method}`; return 0; }
      return text(JSON.stringify({ routes: { mask: 0, refused: [], sites: [] }, ...plan }));
    },
    _g4_load: (_h, request) => { objects = 9; done(request, {}); return 0; },
    _g4_shard_begin: (_h, index) => { shards.set(index, 0); return 0; },
    _g4_shard_write: (_h, index, at, bytes) => {
      if (bytes > 4 << 20) return refuse(`a slice of ${bytes} bytes`);
      shards.set(index, shards.get(index) + bytes);
      return 0;
    },
    _g4_shard_end: (_h, index, at) => (cString(at).length === 64 ? 0 : refuse('no digest')),
    _g4_finish_load: (_h, request) => { state.loaded = true; done(request, {}); return 0; },
    _g4_generate: (_h, request, at, count, maxNew, stopAt, stopCount) => {
      const ids = ints(at, count);
      const stops = new Set(ints(stopAt, stopCount));
      if (ids[0] === 902) throw new WebAssembly.RuntimeError('unreachable');
      if (ids[0] === 905) return refuse('refused by the stand-in');
      state = { ...state, length: ids.length, newest: ids[ids.length - 1], blind: ids[0] === 912,
        counters: zero() };
      running = { request, cancelled: false };
      const job = running;
      const rounds = [];
      let emitted = 0;
      let read = 0;
      let complained = false;
      const finish = (reason) => {
        running = null;
        state.counters.emitted = emitted;
        json(request, 1, { finish: reason, counters: state.counters, rounds: MTP ? rounds : [],
          passes: { single: !PROFILE, reason: PROFILE ? 'timestamps need a compute pass for each dispatch' : '' } });
      };
      const turn = () => {
        if (ids[0] === 901 && emitted > 1) {
          json(request, 4, { reason: 'unknown', message: 'the stand-in lost its device' });
          return;
        }
        if (ids[0] === 903) { options.onAbort?.('out of memory'); throw new WebAssembly.RuntimeError('Aborted(out of memory)'); }
        if (ids[0] === 907 && emitted === 1 && !complained) { complained = true; invalidCall().then(turn); return; }
        if (ids[0] === 908) leaked = 1;
        if (ids[0] === 910 && emitted === 1) console.error('the stand-in complains');
        if (ids[0] === 906 && emitted > 1) throw new WebAssembly.RuntimeError('unreachable in a callback');
        if (job.cancelled) { finish('cancelled'); return; }
        if (ids[0] === 904 && emitted > 0) { setTimeout(turn, 5); return; }
        if (ids[0] === 911 && read > 0) { setTimeout(turn, 5); return; }
        if (read + 64 < ids.length) {
          read += 64;
          event(request, 6, new Uint8Array(Uint32Array.from([read, ids.length]).buffer));
          setTimeout(turn, 2);
          return;
        }
        if (emitted > 0) rounds.push(step());
        let batch = emitted === 0 ? [state.newest = next(state.newest, state.length - 1)] : rounds.at(-1).emitted;
        if (ids[0] === 909 && MTP && emitted > 0) batch = batch.map((token) => (token + 1) % VOCAB);
        const stop = batch.findIndex((token) => stops.has(token));
        const room = maxNew - emitted;
        const kept = batch.slice(0, Math.min(stop < 0 ? batch.length : stop, room));
        state.counters.cut += batch.length - kept.length;
        emitted += kept.length;
        if (kept.length > 0) tokensEvent(request, kept);
        if (stop >= 0) { finish('stop'); return; }
        if (emitted >= maxNew) { finish('length'); return; }
        if (state.length >= CONTEXT) { finish('context'); return; }
        setTimeout(turn, 2);
      };
      setTimeout(turn, 2);
      return 0;
    },
    _g4_prefill: (_h, request, at, count, position) => {
      if (position !== state.length) return refuse(`position ${position} does not continue ${state.length}`);
      const ids = ints(at, count);
      state.length += count;
      state.newest = next(ids[count - 1], state.length - 1);
      done(request, { tokens: [state.newest] });
      return 0;
    },
    _g4_step: (_h, request, token, position) => {
      if (position !== state.length || token !== state.newest) return refuse(`a step at ${position} does not continue ${state.length}`);
      const round = step();
      done(request, { tokens: round.emitted, drafts: round.drafts, accepted: round.accepted });
      return 0;
    },
    _g4_cancel: () => { if (running) running.cancelled = true; return 0; },
    _g4_read: (_h, request, at) => {
      const name = cString(at);
      if (name !== 'logits') return refuse(`no readable tensor ${name}`);
      setTimeout(() => event(request, 5, new Uint8Array(Float32Array.from([1, -2, 0.5]).buffer)), 1);
      return 0;
    },
    _g4_counters: () => text(JSON.stringify(state.counters)),
    _g4_profile: () => text(JSON.stringify(PROFILE
      ? { schema: 1, supported: true, fresh: true, valid: true, timestamp_quantum_ns: 100, total_ns: 3000,
        kernels: [{ name: 'linear_f32', calls: 4, total_ns: 2000 }, { name: 'rms_norm', calls: 2, total_ns: 1000 }] }
      : { schema: 1, supported: false })),
    _g4_reset: (_h, request) => { state = { ...state, length: 0, newest: 0, counters: zero() }; done(request, {}); return 0; },
    _g4_unload: (_h, request) => { objects = leaked; done(request, {}); return 0; },
    _g4_close: () => { alive = false; return 0; },
    _g4_objects: () => objects,
  };
  return Object.assign(module, exports);
}

const @FACTORY@ = { @FACTORY@: (options) => createFake(options) }.@FACTORY@;
export default @FACTORY@;
