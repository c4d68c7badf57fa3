/**
 * The demo page. It keeps one state, asks the worker, and shows what comes back; nothing of the model lives here.
 */

import { Gemma4Client } from './client.js';
import { Gemma4Error } from './errors.js';
import { probeGpu } from './gpu.js';
import { Manifest } from './manifest.js';

/** @typedef {import('./protocol.js').Generated} Generated */
/** @typedef {import('./protocol.js').PrefillReply} PrefillReply */
/** @typedef {import('./protocol.js').TokensReply} TokensReply */

const BASE_URL = new URL('./', import.meta.url).href;
const METHODS = /** @type {const} */ ({ plain: 'text_decoder', mtp: 'k2_round' });
/** Requests to click, by the name on their button: the more predictable the answer, the more drafts are accepted. */
const EXAMPLES = Object.freeze({
  'A brave little fox': 'Tell me a story about a brave little fox.',
  'A seed': 'Tell me a bedtime story about a girl who plants a seed.',
  'Three sons': 'Go on with this story: Once upon a time there lived a king who had three sons, and the youngest was so '
    + 'quiet that nobody in the palace ever asked him what he thought.',
  'The old witch': 'What happens next? The old witch shut the door behind her, and the Princess heard the great key turn '
    + 'slowly in the lock.',
});

/** @template {HTMLElement} T @param {string} id @returns {T} */
function element(id) {
  return /** @type {T} */ (document.getElementById(id));
}

const view = {
  adapter: element('adapter'),
  form: /** @type {HTMLFormElement} */ (element('form')),
  promptLabel: element('prompt-label'),
  prompt: /** @type {HTMLTextAreaElement} */ (element('prompt')),
  hint: element('prompt-hint'),
  examples: element('examples'),
  maxNew: /** @type {HTMLInputElement} */ (element('max-new')),
  run: /** @type {HTMLButtonElement} */ (element('run')),
  stop: /** @type {HTMLButtonElement} */ (element('stop')),
  loading: element('loading'),
  loadingWhat: element('loading-what'),
  loadingBytes: element('loading-bytes'),
  loadingBar: /** @type {HTMLProgressElement} */ (element('loading-bar')),
  error: element('error'),
  errorMessage: element('error-message'),
  errorAdvice: element('error-advice'),
  status: element('status'),
  output: element('output'),
  legend: element('legend'),
  tokens: element('figure-tokens'),
  rate: element('figure-rate'),
  prefill: element('figure-prefill'),
  accepted: element('figure-accepted'),
  rounds: element('figure-rounds'),
  model: element('model'),
  bundle: element('bundle'),
};

/** @type {Manifest | null} */
let manifest = null;
/** @type {{decoding: string, client: Gemma4Client} | null} */
let loaded = null;
let busy = false;
let stopping = false;

/** @param {unknown} thrown */
function showError(thrown) {
  const error = Gemma4Error.from(thrown, 'worker');
  view.errorMessage.textContent = error.message;
  view.errorAdvice.textContent = error.advice ? `What to do: ${error.advice}.` : '';
  view.error.hidden = false;
}

/** @param {boolean} value */
function setBusy(value) {
  busy = value;
  stopping = false;
  view.run.disabled = value || manifest === null;
  view.stop.disabled = !value;
  for (const input of decodingInputs()) input.disabled = value || manifest?.hasMethod(methodOf(input.value)) === false;
}

/** @returns {HTMLInputElement[]} */
function decodingInputs() {
  return [...view.form.querySelectorAll('input')].filter((input) => input.name === 'decoding');
}

function chosenDecoding() {
  return decodingInputs().find((input) => input.checked)?.value ?? 'plain';
}

/** @param {string} decoding */
function methodOf(decoding) {
  return decoding === 'mtp' ? METHODS.mtp : METHODS.plain;
}

/** @param {number} bytes */
function megabytes(bytes) {
  const value = bytes / 1e6;
  return `${value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString('en')} MB`;
}

/**
 * The adapter in words, with a plain warning where times mean nothing.
 * @param {{vendor: string, architecture: string, description: string, device: string, software: boolean}} adapter
 */
function showAdapter({ vendor, architecture, description, device, software }) {
  const name = description || [vendor, architecture, device].filter(Boolean).join(' ') || 'a GPU that does not tell its name';
  view.adapter.textContent = software ? `${name} (software adapter: times are no GPU results)` : `Runs on ${name}`;
}

/** @param {Manifest} found */
function showModel(found) {
  const { context, tokenizer, vocab } = found.model;
  view.bundle.textContent = `bundle ${found.sha256.slice(0, 16)}`;
  view.maxNew.max = String(context);
  view.maxNew.value = String(Math.min(view.maxNew.valueAsNumber, Math.floor(context / 2)));
  if (tokenizer === null) {
    view.promptLabel.textContent = 'Prompt, as token ids';
    view.hint.textContent = `This model has no tokenizer, so it reads and writes token ids: whole numbers from 0 to ${vocab - 1}.`;
    view.prompt.classList.add('ids');
    view.prompt.spellcheck = false;
    view.prompt.inputMode = 'numeric';
    view.prompt.value ||= [found.model.bosId ?? 2, 17, 4, 99].filter((id) => id < vocab).join(' ');
  } else {
    view.hint.textContent = 'One question or task. To try:';
    view.prompt.placeholder = 'Ask for a story, or begin one';
    view.prompt.value ||= EXAMPLES['A brave little fox'];
    showExamples();
  }
}

function showExamples() {
  for (const [name, text] of Object.entries(EXAMPLES)) {
    const button = document.createElement('button');
    button.type = 'button';
    button.textContent = name;
    button.title = text;
    button.addEventListener('click', () => { view.prompt.value = text; });
    view.examples.append(button);
  }
  view.examples.hidden = false;
}

/** What the page is about to load: with MTP the assistant too. */
function showDownload() {
  if (!manifest) return;
  const { name, weights, context } = manifest.model;
  view.model.textContent = `${name}, ${weights} weights, context ${context.toLocaleString('en')} tokens, `
    + `${megabytes(manifest.downloadBytes(methodOf(chosenDecoding())))} to load`;
}

/**
 * The prompt as the box has it. Ids may be separated by spaces, commas or lines.
 * @param {Manifest} found
 * @returns {import('./protocol.js').Prompt}
 */
function readPrompt(found) {
  const text = view.prompt.value;
  if (found.model.tokenizer !== null) return { kind: 'text', text, format: 'chat' };
  const words = text.split(/[\s,;]+/).filter((word) => word !== '');
  const wrong = words.find((word) => !/^\d{1,9}$/.test(word));
  if (wrong !== undefined) {
    throw new Gemma4Error('input', `"${wrong}" is no token id`,
      'this model has no tokenizer: write whole numbers separated by spaces');
  }
  return { kind: 'ids', ids: words.map(Number) };
}

/** @param {import('./session.js').LoadProgress} progress */
function showProgress({ stage, file, loadedBytes, totalBytes }) {
  const what = { module: 'Loading the runtime', device: 'Opening the GPU', plan: 'Reading the program',
    compile: 'Compiling kernels', weights: `Loading ${file}`, ready: 'Ready' }[stage];
  view.loadingWhat.textContent = what;
  view.loadingBytes.textContent = `${megabytes(loadedBytes)} of ${megabytes(totalBytes)}`;
  view.loadingBar.value = totalBytes > 0 ? loadedBytes / totalBytes : 0;
}

/**
 * The client with the wanted decoding loaded; another one is closed first, since both would hold the weights.
 * @param {Manifest} found
 * @param {string} decoding
 */
async function client(found, decoding) {
  if (loaded?.decoding === decoding) return loaded.client;
  await discard();
  const fresh = new Gemma4Client({
    onEnded: (error) => {
      if (loaded?.client === fresh) loaded = null;
      showError(error);
    },
    onFault: showError,
  });
  loaded = { decoding, client: fresh };
  view.status.textContent = 'Loading the model';
  view.loading.hidden = false;
  try {
    const opened = await fresh.open({
      baseUrl: BASE_URL, variant: `${decoding}-wall`, manifestSha256: found.sha256, onProgress: showProgress,
    });
    showAdapter(opened.adapter);
    return fresh;
  } catch (thrown) {
    await discard();
    throw thrown;
  } finally {
    view.loading.hidden = true;
  }
}

async function discard() {
  const old = loaded?.client;
  loaded = null;
  if (!old) return;
  try {
    await old.close();
  } catch (thrown) {
    console.warn('closing the model', thrown);
  }
}

/**
 * The answer of one run. Shows tokens as they come; in a batch of a round, all but the last were proposed by the
 * assistant, unless the round was cut: that is known at the end.
 */
class Stream {
  #count = 0;
  /** @type {HTMLSpanElement[]} of the tokens of the last batch */ #batch = [];
  #rounds = 0;
  #accepted = 0;
  #firstMs = 0;
  #lastMs = 0;
  /** @type {string} */ #decoding;

  /** @param {string} decoding */
  constructor(decoding) {
    this.#decoding = decoding;
    view.output.replaceChildren();
    view.output.classList.toggle('ids', manifest?.model.tokenizer === null);
    view.legend.hidden = decoding !== 'mtp';
    for (const figure of [view.tokens, view.rate, view.prefill, view.accepted, view.rounds]) figure.textContent = '–';
  }

  /** @param {PrefillReply} reply */
  read({ rows, total }) {
    if (this.#count === 0 && !stopping) view.status.textContent = `Reading the prompt: ${rows} of ${total}`;
  }

  /** @param {TokensReply} reply */
  add({ tokens, pieces, atMs }) {
    const atEnd = view.output.scrollHeight - view.output.scrollTop - view.output.clientHeight < 40;
    const speculative = this.#decoding === 'mtp' && this.#count > 0;
    this.#batch = tokens.map((token, index) => {
      const text = pieces ? pieces[index] ?? '' : `${token} `;
      const word = text.trim();
      const span = document.createElement('span');
      span.textContent = word;
      span.classList.toggle('accepted', speculative && index < tokens.length - 1);
      // Space around a word is never tinted: at the end of a line it would hang there as a spot.
      const begin = text.indexOf(word);
      view.output.append(text.slice(0, begin), span, text.slice(begin + word.length));
      return span;
    });
    if (speculative) this.#showRounds(this.#rounds + 1, this.#accepted + tokens.length - 1);
    if (!stopping) view.status.textContent = 'Generating';
    if (this.#count === 0) {
      this.#firstMs = atMs;
      view.prefill.textContent = `${atMs.toFixed(0)} ms`;
    }
    this.#count += tokens.length;
    this.#lastMs = atMs;
    view.tokens.textContent = String(this.#count);
    const spanMs = this.#lastMs - this.#firstMs;
    if (spanMs > 0) view.rate.textContent = (((this.#count - 1) * 1000) / spanMs).toFixed(1);
    if (atEnd) view.output.scrollTop = view.output.scrollHeight;
  }

  /**
   * @param {number} rounds of two drafts each
   * @param {number} accepted
   */
  #showRounds(rounds, accepted) {
    this.#rounds = rounds;
    this.#accepted = accepted;
    view.rounds.textContent = String(rounds);
    view.accepted.textContent = rounds > 0 ? `${Math.round((100 * accepted) / (2 * rounds))} %` : '–';
  }

  /** @param {Generated} done */
  finish({ generation: { tokens, finish, tokensPerS, prefillMs, counters, rounds } }) {
    const last = rounds.at(-1);
    if (last) {
      const before = rounds.slice(0, -1).reduce((sum, { emitted }) => sum + emitted.length, 1);
      const kept = tokens.length - before; // 0: a stop id came first, and the last batch is of an earlier round
      if (kept > 0) this.#batch.forEach((span, index) => span.classList.toggle('accepted', index < last.accepted));
    }
    view.tokens.textContent = String(tokens.length);
    view.rate.textContent = tokensPerS > 0 ? tokensPerS.toFixed(1) : '–';
    view.prefill.textContent = tokens.length > 0 ? `${prefillMs.toFixed(0)} ms` : '–';
    if (this.#decoding === 'mtp') this.#showRounds(counters.rounds, counters.accepted);
    view.status.textContent = { stop: 'Done', length: 'Done: the wanted number of tokens', cancelled: 'Stopped',
      context: 'Ended: the context is full' }[finish];
  }
}

async function run() {
  if (busy || !manifest) return;
  view.error.hidden = true;
  setBusy(true);
  view.status.textContent = 'Starting';
  try {
    const decoding = chosenDecoding();
    const stream = new Stream(decoding);
    const prompt = readPrompt(manifest);
    const maxNewTokens = view.maxNew.valueAsNumber;
    const model = await client(manifest, decoding);
    stream.finish(await model.generate(prompt, {
      maxNewTokens, onPrefill: (reply) => stream.read(reply), onTokens: (reply) => stream.add(reply),
    }));
  } catch (thrown) {
    if (stopping && thrown instanceof Gemma4Error && thrown.code === 'closed') view.status.textContent = 'Stopped';
    else {
      view.status.textContent = 'Not finished';
      showError(thrown);
    }
  } finally {
    setBusy(false);
  }
}

async function stop() {
  if (!busy || stopping) return;
  stopping = true;
  view.stop.disabled = true;
  view.status.textContent = 'Stopping…';
  if (!view.loading.hidden) await discard();
  else loaded?.client.cancel();
}

async function start() {
  try {
    showAdapter(await probeGpu({ device: true }));
    const found = await Manifest.fetch(BASE_URL);
    manifest = found;
    showModel(found);
    const preferred = found.hasMethod(METHODS.mtp) ? 'mtp' : 'plain';
    for (const input of decodingInputs()) input.checked = input.value === preferred;
    showDownload();
    setBusy(false);
  } catch (thrown) {
    view.adapter.textContent = 'Cannot run here';
    showError(thrown);
  }
}

view.form.addEventListener('submit', (event) => {
  event.preventDefault();
  void run();
});
for (const input of decodingInputs()) input.addEventListener('change', showDownload);
view.stop.addEventListener('click', () => void stop());
document.addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    view.form.requestSubmit();
  } else if (event.key === 'Escape') void stop();
});
void start();
