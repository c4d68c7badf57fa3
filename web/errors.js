/**
 * Errors of the page, the worker and the runner: a code for programs, a message for people, and advice that says what
 * to do. They cross the worker boundary as plain objects.
 *
 * @typedef {'gpu-insecure' | 'gpu-unsupported' | 'gpu-no-adapter' | 'gpu-no-device' | 'gpu-lost' | 'fetch' | 'verify'
 *   | 'manifest' | 'instantiate' | 'abort' | 'input' | 'no-tokenizer' | 'tokenizer' | 'runtime' | 'deadline' | 'worker'
 *   | 'closed'} ErrorCode
 * @typedef {{code: ErrorCode, message: string, advice: string}} ErrorPayload
 */

/** What helps when the place that raised an error knows nothing better. @type {{[code in ErrorCode]: string}} */
const DEFAULT_ADVICE = {
  'gpu-insecure': 'open this page over https://, or from http://localhost',
  'gpu-unsupported': 'use a current browser with WebGPU turned on',
  'gpu-no-adapter': 'turn on hardware acceleration and update the graphics driver',
  'gpu-no-device': 'close other pages that use the GPU, then reload this page',
  'gpu-lost': 'load the model again',
  fetch: 'check the connection, then load again',
  verify: 'reload the page; if that does not help, stage the bundle again and publish every file of it',
  manifest: 'stage the bundle again and publish every file of it',
  instantiate: 'reload the page; if that does not help, update the browser or stage the bundle again',
  abort: 'reload the page',
  input: 'correct the input',
  'no-tokenizer': 'give the prompt as token ids',
  tokenizer: 'export the model with the tokenizer.json of its own checkpoint',
  runtime: 'load the model again; if that does not help, export and stage it again',
  deadline: 'reload the page; if that does not help, look at the browser\'s console',
  worker: 'reload the page',
  closed: 'load the model again',
};

export class Gemma4Error extends Error {
  /**
   * @param {ErrorCode} code
   * @param {string} message
   * @param {string} [advice] what the reader can do about it
   */
  constructor(code, message, advice = DEFAULT_ADVICE[code]) {
    super(message);
    this.name = 'Gemma4Error';
    /** @type {ErrorCode} */
    this.code = code;
    this.advice = advice;
  }

  /** @returns {ErrorPayload} */
  payload() {
    return { code: this.code, message: this.message, advice: this.advice };
  }

  /** @param {ErrorPayload} payload */
  static fromPayload(payload) {
    return new Gemma4Error(payload.code, payload.message, payload.advice);
  }

  /**
   * Any thrown value as a Gemma4Error; one that already is keeps its code.
   * @param {unknown} thrown
   * @param {ErrorCode} code
   * @param {string} [context] what was being done, put before the message
   */
  static from(thrown, code, context = '') {
    if (thrown instanceof Gemma4Error) return thrown;
    return new Gemma4Error(code, context ? `${context}: ${describe(thrown)}` : describe(thrown));
  }
}

/**
 * The text of any thrown value; a bare DOMException or TypeError keeps its name, which often is all it says.
 * @param {unknown} thrown
 * @returns {string}
 */
export function describe(thrown) {
  if (thrown instanceof Gemma4Error) return thrown.message;
  if (thrown instanceof Error) return thrown.message ? `${thrown.name}: ${thrown.message}` : thrown.name;
  return String(thrown);
}

/**
 * Settles as `promise` does, or rejects with a `deadline` error after `limitMs`. The loser is ignored, not cancelled.
 * @template T
 * @param {Promise<T>} promise
 * @param {number} limitMs
 * @param {string} what
 * @returns {Promise<T>}
 */
export function withDeadline(promise, limitMs, what) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      reject(new Gemma4Error('deadline', `${what}: no answer within ${limitMs / 1000} s`));
    }, limitMs);
    promise.then(
      (value) => { clearTimeout(timer); resolve(value); },
      (thrown) => { clearTimeout(timer); reject(thrown); },
    );
  });
}
