/**
 * Reads the bundle's manifest and answers for every file: where it is, how long it must be, what it must hash to.
 * Nothing of the bundle is used before it was verified against this list.
 */

import { Gemma4Error } from './errors.js';
import { fetchUpTo, fetchVerified, sha256Hex } from './fetching.js';
import { Fraction, parseStrictJson } from './strict_json.js';

export const MANIFEST = 'manifest.json';
const MANIFEST_LIMIT_BYTES = 16 * 1024 * 1024;
const STAGE_AGAIN = 'stage the bundle again and publish every file of it';

/**
 * @typedef {import('./fetching.js').FileIdentity} FileIdentity
 * @typedef {{name: string, factory: string, stem: string, js: string, wasm: string}} VariantFiles
 * @typedef {{program: string, shards: string[]}} MethodFiles paths inside the bundle
 * @typedef {object} ModelInfo
 * @property {string} name
 * @property {string} weights `f32` or `q4`
 * @property {number} context capacity in positions
 * @property {number | null} mostPositions what --context may be at most; null where the receipt does not tell
 * @property {number} prefillRows
 * @property {number} vocab
 * @property {number | null} bosId
 * @property {number[]} stopIds
 * @property {string | null} tokenizer path inside the bundle
 */

/** @typedef {{[key: string]: import('./strict_json.js').JsonValue}} JsonObject */

export class Manifest {
  /** @type {Map<string, FileIdentity>} */ #files = new Map();
  /** @type {URL} */ #base;
  /** @type {Map<string, VariantFiles>} */ #variants = new Map();
  /** @type {Map<string, MethodFiles>} */ #methods = new Map();

  /**
   * @param {Uint8Array} bytes of manifest.json
   * @param {URL} base folder of the bundle, with its final slash
   */
  constructor(bytes, base) {
    const root = object(parseStrictJson(bytes, MANIFEST), 'the document');
    if (root.schema !== 1) throw fault(`has schema ${JSON.stringify(root.schema)}, wanted 1`);
    if (root.provenance !== 'verified') throw fault(`has provenance ${JSON.stringify(root.provenance)}, wanted "verified"`);
    this.#base = base;
    /** sha256 of the manifest's own bytes: names this very bundle. */
    this.sha256 = sha256Hex(bytes);
    for (const [path, entry] of Object.entries(object(root.files, 'files'))) {
      checkPath(path);
      this.#files.set(path, identity(entry, `files["${path}"]`));
    }
    for (const [name, entry] of Object.entries(object(root.variants, 'variants'))) {
      this.#variants.set(name, this.#readVariant(name, object(entry, `variants.${name}`)));
    }
    const model = object(root.model, 'model');
    this.modelFolder = string(model.path, 'model.path');
    for (const [name, entry] of Object.entries(object(model.methods, 'model.methods'))) {
      this.#methods.set(name, this.#readMethod(name, object(entry, `model.methods.${name}`)));
    }
    /** @type {ModelInfo} */
    this.model = {
      name: string(model.name, 'model.name'),
      weights: string(model.weights, 'model.weights'),
      context: integer(model.context, 'model.context'),
      mostPositions: mostPositions(model.architecture),
      prefillRows: integer(model.prefill_rows, 'model.prefill_rows'),
      vocab: integer(model.vocab, 'model.vocab'),
      bosId: model.bos_id === null || model.bos_id === undefined ? null : integer(model.bos_id, 'model.bos_id'),
      stopIds: list(model.stop_ids, 'model.stop_ids').map((id) => integer(id, 'model.stop_ids')),
      tokenizer: model.tokenizer === null || model.tokenizer === undefined
        ? null : this.#modelFile(model.tokenizer, 'model.tokenizer'),
    };
  }

  /**
   * @param {URL | string} base folder of the bundle
   * @param {string | null} [expectedSha256] refuse any other bundle
   */
  static async fetch(base, expectedSha256 = null) {
    const folder = new URL('./', base);
    const bytes = await fetchUpTo(new URL(MANIFEST, folder), MANIFEST, MANIFEST_LIMIT_BYTES);
    const manifest = new Manifest(bytes, folder);
    if (expectedSha256 !== null && manifest.sha256 !== expectedSha256) {
      throw new Gemma4Error('verify', `the served ${MANIFEST} has sha256 ${manifest.sha256}, wanted ${expectedSha256}`,
        'another server or another version answers under this address: reload the page');
    }
    return manifest;
  }

  /** @returns {string[]} */
  get variantNames() {
    return [...this.#variants.keys()];
  }

  /**
   * @param {string} path
   * @returns {FileIdentity}
   */
  file(path) {
    const found = this.#files.get(path);
    if (!found) throw fault(`does not list ${path}`);
    return found;
  }

  /** @param {string} path */
  url(path) {
    this.file(path);
    return new URL(path.split('/').map(encodeURIComponent).join('/'), this.#base);
  }

  /**
   * The verified bytes of one listed file.
   * @param {string} path
   * @param {AbortSignal} [signal]
   */
  fetchFile(path, signal) {
    return fetchVerified(this.url(path), path, this.file(path), signal);
  }

  /**
   * @param {string} name
   * @returns {VariantFiles}
   */
  variant(name) {
    const found = this.#variants.get(name);
    if (!found) {
      throw new Gemma4Error('input', `this bundle has no variant "${name}", only ${this.variantNames.join(', ')}`);
    }
    return found;
  }

  /** @param {string} method */
  hasMethod(method) {
    return this.#methods.has(method);
  }

  /**
   * @param {string} method `text_decoder` or `k2_round`
   * @returns {MethodFiles}
   */
  method(method) {
    const found = this.#methods.get(method);
    if (!found) {
      throw new Gemma4Error('input', `the model "${this.model.name}" has no ${method} program`,
        method === 'k2_round' ? 'export it with an assistant, or choose plain decoding' : STAGE_AGAIN);
    }
    return found;
  }

  /**
   * Bytes that a page has to load before this method can run.
   * @param {string} method
   */
  downloadBytes(method) {
    const { program, shards } = this.method(method);
    return [program, ...shards].reduce((sum, path) => sum + this.file(path).bytes, 0);
  }

  /**
   * @param {string} name
   * @param {JsonObject} entry
   * @returns {VariantFiles}
   */
  #readVariant(name, entry) {
    return {
      name,
      factory: string(entry.factory, `variants.${name}.factory`),
      stem: string(entry.stem, `variants.${name}.stem`),
      js: this.#module(entry.js, `variants.${name}.js`),
      wasm: this.#module(entry.wasm, `variants.${name}.wasm`),
    };
  }

  /**
   * @param {string} name
   * @param {JsonObject} entry
   * @returns {MethodFiles}
   */
  #readMethod(name, entry) {
    const where = `model.methods.${name}`;
    const shards = list(entry.shards, `${where}.shards`);
    return {
      program: this.#modelFile(entry.program, `${where}.program`),
      shards: shards.map((shard) => this.#modelFile(shard, `${where}.shards`)),
    };
  }

  /**
   * @param {import('./strict_json.js').JsonValue | undefined} value
   * @param {string} where
   */
  #modelFile(value, where) {
    const path = `${this.modelFolder}/${string(value, where)}`;
    this.file(path);
    return path;
  }

  /**
   * @param {import('./strict_json.js').JsonValue | undefined} value
   * @param {string} where
   */
  #module(value, where) {
    const entry = object(value, where);
    const path = string(entry.path, `${where}.path`);
    const listed = this.file(path);
    const own = identity({ bytes: entry.bytes ?? null, sha256: entry.sha256 ?? null }, where);
    if (own.bytes !== listed.bytes || own.sha256 !== listed.sha256) throw fault(`gives two identities for ${path}`);
    return path;
  }
}

/** @param {string} what */
function fault(what) {
  return new Gemma4Error('manifest', `${MANIFEST} ${what}`, STAGE_AGAIN);
}

/**
 * A listed path stays inside the bundle and means the same to every host.
 * @param {string} path
 */
function checkPath(path) {
  const bad = path === '' || path.length > 240 || /[\x00-\x1f\x7f\\:*?"<>|#%]/.test(path)
    || path.split('/').some((part) => part === '' || part === '.' || part === '..' || /^ |[ .]$/.test(part));
  if (bad) throw fault(`lists the path ${JSON.stringify(path)}, which may leave the bundle or is not portable`);
}

/**
 * @param {import('./strict_json.js').JsonValue | undefined} value
 * @param {string} where
 * @returns {JsonObject}
 */
function object(value, where) {
  if (typeof value !== 'object' || value === null || Array.isArray(value) || value instanceof Fraction) {
    throw fault(`wants an object at ${where}`);
  }
  return value;
}

/**
 * @param {import('./strict_json.js').JsonValue | undefined} value
 * @param {string} where
 */
function list(value, where) {
  if (!Array.isArray(value)) throw fault(`wants a list at ${where}`);
  return value;
}

/**
 * @param {import('./strict_json.js').JsonValue | undefined} value
 * @param {string} where
 */
function string(value, where) {
  if (typeof value !== 'string' || value === '') throw fault(`wants a string at ${where}`);
  return value;
}

/**
 * @param {import('./strict_json.js').JsonValue | undefined} value
 * @param {string} where
 */
function integer(value, where) {
  if (typeof value !== 'number' || value < 0) throw fault(`wants a non-negative integer at ${where}`);
  return value;
}

/**
 * @param {import('./strict_json.js').JsonValue | undefined} value
 * @param {string} where
 * @returns {FileIdentity}
 */
function identity(value, where) {
  const entry = object(value, where);
  const unknown = Object.keys(entry).find((key) => key !== 'bytes' && key !== 'sha256');
  if (unknown !== undefined) throw fault(`has the unknown field ${JSON.stringify(unknown)} at ${where}`);
  const sha256 = string(entry.sha256, `${where}.sha256`);
  if (!/^[0-9a-f]{64}$/.test(sha256)) throw fault(`has ${JSON.stringify(sha256)} at ${where}.sha256, wanted 64 lower-case hex digits`);
  return { bytes: integer(entry.bytes, `${where}.bytes`), sha256 };
}

/**
 * The model's own limit of positions, where its receipt tells its architecture.
 * @param {import('./strict_json.js').JsonValue | undefined} architecture
 */
function mostPositions(architecture) {
  const target = architecture === undefined ? undefined : object(architecture, 'model.architecture').target;
  if (target === undefined) return null;
  return integer(object(target, 'model.architecture.target').max_positions, 'model.architecture.target.max_positions');
}

/**
 * The program and the manifest each name the shards and their hashes; both must mean the same files.
 * @param {Manifest} manifest
 * @param {string[]} paths
 * @param {{shards: {file: string, bytes: number, sha256: string}[]}} plan
 * @returns {string[]} paths in the program's order
 */
export function matchShards(manifest, paths, plan) {
  return plan.shards.map(({ file, bytes, sha256 }) => {
    const path = `${manifest.modelFolder}/${file}`;
    const listed = manifest.file(path);
    if (!paths.includes(path)) {
      throw new Gemma4Error('verify', `${path}: the program has weights in it, the manifest does not list it among the `
        + 'shards of this program', 'stage the bundle again from one exported model');
    }
    if (listed.bytes !== bytes || listed.sha256 !== sha256) {
      throw new Gemma4Error('verify', `${path}: the program wants ${bytes} bytes with sha256 ${sha256}, the manifest lists `
        + `${listed.bytes} bytes with ${listed.sha256}`, 'stage the bundle again from one exported model');
    }
    return path;
  });
}
