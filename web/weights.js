/**
 * Streams weight shards from the network into the runtime. A shard is hashed while it is read and handed over in slices
 * of at most 4 MiB, so neither the JS heap nor the wasm heap ever holds a whole one.
 */

import { hex, readChunks, wrongHash, wrongLength } from './fetching.js';
import { sha256 } from './vendor/noble-hashes/sha2.js';

/** A multiple of four, because GPU buffer writes are. */
export const SLICE_BYTES = 4 * 1024 * 1024;

/**
 * @typedef {object} ShardSink where the bytes go; each call takes effect before it returns
 * @property {() => void} begin
 * @property {(slice: Uint8Array) => void} write the slice is only valid during the call
 * @property {(sha256: string) => void} end
 */

/**
 * Raises a `verify` error that names the file when its length or hash is wrong; the sink has then seen no `end`.
 * @param {object} shard
 * @param {URL} shard.url
 * @param {string} shard.name
 * @param {import('./fetching.js').FileIdentity} shard.wanted
 * @param {ShardSink} shard.sink
 * @param {(receivedBytes: number) => void} shard.onProgress called after every slice with the bytes of this shard so far
 * @param {AbortSignal} [shard.signal]
 */
export async function streamShard({ url, name, wanted, sink, onProgress, signal }) {
  const digest = sha256.create();
  const slice = new Uint8Array(Math.min(SLICE_BYTES, wanted.bytes));
  let filled = 0;
  let received = 0;
  const flush = () => {
    if (filled === 0) return;
    const part = slice.subarray(0, filled);
    digest.update(part);
    sink.write(part);
    filled = 0;
    onProgress(received);
  };

  sink.begin();
  for await (const chunk of readChunks(url, name, signal)) {
    if (received + chunk.byteLength > wanted.bytes) throw wrongLength(name, received + chunk.byteLength, wanted, true);
    for (let taken = 0; taken < chunk.byteLength;) {
      const count = Math.min(chunk.byteLength - taken, slice.byteLength - filled);
      slice.set(chunk.subarray(taken, taken + count), filled);
      filled += count;
      taken += count;
      received += count;
      if (filled === slice.byteLength) flush();
    }
  }
  if (received !== wanted.bytes) throw wrongLength(name, received, wanted, false);
  flush();
  const found = hex(digest.digest());
  if (found !== wanted.sha256) throw wrongHash(name, found, wanted);
  sink.end(found);
}
