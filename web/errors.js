/**
 * Errors of the page, the worker and the runner: a code for programs, a message for people, and advice that says what
 * to do. They cross the worker boundary as plain objects.
 *
 * @typedef {'gpu-insecure' | 'gpu-unsupported' | 'gpu-no-adapter' | 'gpu-no-device' | 'gpu-lost' | 'fetch' | 'verify'
 *   | 'manifest' | 'instantiate' | 'abort' | 'input' | 'no-tokenizer' | 'tokenizer' | 'runtime' | 'deadline' | 'worker'
 *   | 'closed'} ErrorCode
 * @typedef {{code: ErrorCode, message: string, advice: string}} ErrorPayload
 */

export class Gemma4Error extends Error {
  /**
   * @param {ErrorCode} code
   * @param {string} message
   * @param {string} [advice] what the reader can do about it
   */
  constructor(code, message, advice = '') {
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
