/**
 * Reads files of the bundle over HTTP. Every failure names the file and the cause, and none can last for ever: a
 * connection that delivers nothing for `STALL_LIMIT_MS` is given up.
 */

import { Gemma4Error, describe } from './errors.js';
import { sha256 } from './vendor/noble-hashes/sha2.js';

/** Below the ten seconds within which a failed load has to be reported. */
const STALL_LIMIT_MS = 8_000;

/** @typedef {{bytes: number, sha256: string}} FileIdentity */

/** @param {Uint8Array} bytes */
export function hex(bytes) {
  return Array.from(bytes, (value) => value.toString(16).padStart(2, '0')).join('');
}

/** @param {Uint8Array} bytes */
export function sha256Hex(bytes) {
  return hex(sha256(bytes));
}

/**
 * Yields the body of `url` in the network's own chunks. Cached copies are revalidated with the server (`no-cache`), so
 * that two versions of a bundle are never mixed by a stale cache.
 * @param {URL} url
 * @param {string} name path of the file inside the bundle, for messages
 * @param {AbortSignal} [signal]
 * @returns {AsyncGenerator<Uint8Array, void, void>}
 */
export async function* readChunks(url, name, signal) {
  const stop = new AbortController();
  const give = () => stop.abort(signal?.reason);
  if (signal?.aborted) give();
  signal?.addEventListener('abort', give, { once: true });
  let received = 0;
  let complete = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const watch = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(new Gemma4Error('fetch',
      `${name}: the server sent nothing for ${STALL_LIMIT_MS / 1000} s (after ${received} bytes)`,
      'check the connection, then load again')), STALL_LIMIT_MS);
  };
  try {
    watch();
    const response = await fetch(url, { cache: 'no-cache', credentials: 'same-origin', signal: stop.signal });
    if (!response.ok) throw refused(name, response.status);
    if (!response.body) throw new Gemma4Error('fetch', `${name}: the server answered without a body`);
    const reader = response.body.getReader();
    for (;;) {
      watch();
      const { done, value } = await reader.read();
      complete = done;
      if (done) return;
      received += value.byteLength;
      yield value;
    }
  } catch (thrown) {
    if (thrown instanceof Gemma4Error) throw thrown;
    if (signal?.aborted) throw new Gemma4Error('closed', `${name}: loading was stopped`);
    throw new Gemma4Error('fetch', `${name}: the connection broke after ${received} bytes (${describe(thrown)})`,
      'check the connection and that the server still runs, then load again');
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', give);
    if (!complete) stop.abort();
  }
}

/**
 * @param {string} name
 * @param {number} status
 */
function refused(name, status) {
  const cause = status === 404 || status === 410 ? 'is missing on the server' : 'was refused by the server';
  return new Gemma4Error('fetch', `${name} ${cause} (HTTP ${status})`,
    'the bundle is incomplete: stage it again and publish every file of it');
}

/**
 * Fetches one whole file and checks length and hash before anybody sees a byte of it.
 * @param {URL} url
 * @param {string} name
 * @param {FileIdentity} wanted
 * @param {AbortSignal} [signal]
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export async function fetchVerified(url, name, wanted, signal) {
  const data = new Uint8Array(wanted.bytes);
  let received = 0;
  for await (const chunk of readChunks(url, name, signal)) {
    if (received + chunk.byteLength > wanted.bytes) throw wrongLength(name, received + chunk.byteLength, wanted, true);
    data.set(chunk, received);
    received += chunk.byteLength;
  }
  if (received !== wanted.bytes) throw wrongLength(name, received, wanted, false);
  const found = sha256Hex(data);
  if (found !== wanted.sha256) throw wrongHash(name, found, wanted);
  return data;
}

/**
 * Fetches a file of unknown size (the manifest), at most `limitBytes` of it.
 * @param {URL} url
 * @param {string} name
 * @param {number} limitBytes
 */
export async function fetchUpTo(url, name, limitBytes) {
  /** @type {Uint8Array[]} */
  const chunks = [];
  let received = 0;
  for await (const chunk of readChunks(url, name)) {
    received += chunk.byteLength;
    if (received > limitBytes) throw new Gemma4Error('fetch', `${name} is larger than ${limitBytes} bytes`);
    chunks.push(chunk);
  }
  const data = new Uint8Array(received);
  let offset = 0;
  for (const chunk of chunks) {
    data.set(chunk, offset);
    offset += chunk.byteLength;
  }
  return data;
}

const STAGE_AGAIN = 'the served files do not belong to one version of the bundle: reload the page; if that does not '
  + 'help, stage the bundle again and publish every file of it';

/**
 * @param {string} name
 * @param {number} found
 * @param {FileIdentity} wanted
 * @param {boolean} more whether the file went on beyond `found`
 */
export function wrongLength(name, found, wanted, more) {
  return new Gemma4Error('verify',
    `${name}: found ${more ? 'at least ' : ''}${found} bytes, the manifest wants ${wanted.bytes}`, STAGE_AGAIN);
}

/**
 * @param {string} name
 * @param {string} found
 * @param {FileIdentity} wanted
 */
export function wrongHash(name, found, wanted) {
  return new Gemma4Error('verify',
    `${name}: all ${wanted.bytes} bytes came, but their sha256 is ${found}, the manifest wants ${wanted.sha256}`,
    STAGE_AGAIN);
}
