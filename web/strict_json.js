/**
 * JSON for documents that carry hashes. `JSON.parse` keeps the last of two equal keys, takes `1.0` for an integer and
 * accepts half surrogates, so two readers could see two different documents in the same bytes. This one refuses all of
 * that, as the Python readers do.
 */

import { Gemma4Error } from './errors.js';

const MAX_DEPTH = 64;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const SPACE = /[ \t\n\r]*/y;

/** A number written with a point or an exponent. Kept apart, because `1.0` is no byte count. */
export class Fraction {
  /** @param {number} value */
  constructor(value) {
    this.value = value;
  }

  valueOf() {
    return this.value;
  }
}

/** @typedef {null | boolean | string | number | Fraction | JsonValue[] | {[key: string]: JsonValue}} JsonValue */

/**
 * @param {Uint8Array} bytes UTF-8 without a byte order mark
 * @param {string} name of the document, for messages
 * @returns {JsonValue} objects have no prototype
 */
export function parseStrictJson(bytes, name) {
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new Gemma4Error('manifest', `${name} is not UTF-8`);
  }
  return new Parser(text, name).document();
}

class Parser {
  #at = 0;
  /** @type {string} */ #text;
  /** @type {string} */ #name;

  /**
   * @param {string} text
   * @param {string} name
   */
  constructor(text, name) {
    this.#text = text;
    this.#name = name;
  }

  document() {
    if (this.#text.startsWith('\ufeff')) throw this.#error('starts with a byte order mark');
    const value = this.#value(0);
    this.#match(SPACE);
    if (this.#at !== this.#text.length) throw this.#error('has data after its end');
    return value;
  }

  /**
   * @param {number} depth
   * @returns {JsonValue}
   */
  #value(depth) {
    if (depth > MAX_DEPTH) throw this.#error(`is nested more than ${MAX_DEPTH} levels deep`);
    this.#match(SPACE);
    switch (this.#text[this.#at]) {
      case '{': return this.#object(depth);
      case '[': return this.#array(depth);
      case '"': return this.#string();
      case 't': return this.#word('true', true);
      case 'f': return this.#word('false', false);
      case 'n': return this.#word('null', null);
      default: return this.#number();
    }
  }

  /** @param {number} depth */
  #object(depth) {
    /** @type {{[key: string]: JsonValue}} */
    const object = Object.create(null);
    this.#at += 1;
    if (this.#closes('}')) return object;
    do {
      this.#match(SPACE);
      const key = this.#string();
      if (key === '__proto__') throw this.#error('has the key "__proto__"');
      if (Object.hasOwn(object, key)) throw this.#error(`has the key ${JSON.stringify(key)} twice in one object`);
      this.#match(SPACE);
      if (this.#text[this.#at] !== ':') throw this.#error('lacks a colon');
      this.#at += 1;
      object[key] = this.#value(depth + 1);
    } while (this.#continues('}'));
    return object;
  }

  /** @param {number} depth */
  #array(depth) {
    /** @type {JsonValue[]} */
    const array = [];
    this.#at += 1;
    if (this.#closes(']')) return array;
    do array.push(this.#value(depth + 1)); while (this.#continues(']'));
    return array;
  }

  #string() {
    const literal = this.#match(STRING);
    if (literal === null) throw this.#error('has a malformed string');
    const value = /** @type {string} */ (JSON.parse(literal));
    if (/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(value)) {
      throw this.#error('has a lone surrogate in a string');
    }
    return value;
  }

  /** @returns {number | Fraction} */
  #number() {
    const literal = this.#match(NUMBER);
    if (literal === null) throw this.#error('has something that is no JSON value');
    const value = Number(literal);
    if (!Number.isFinite(value)) throw this.#error(`has the number ${literal}, which is out of range`);
    if (/[.eE]/.test(literal)) return new Fraction(value);
    if (!Number.isSafeInteger(value)) throw this.#error(`has the integer ${literal}, which is out of range`);
    return value;
  }

  /**
   * @template {boolean | null} T
   * @param {string} word
   * @param {T} value
   * @returns {T}
   */
  #word(word, value) {
    if (!this.#text.startsWith(word, this.#at)) throw this.#error('has something that is no JSON value');
    this.#at += word.length;
    return value;
  }

  /** @param {string} end */
  #closes(end) {
    this.#match(SPACE);
    if (this.#text[this.#at] !== end) return false;
    this.#at += 1;
    return true;
  }

  /** @param {string} end */
  #continues(end) {
    if (this.#closes(end)) return false;
    if (this.#text[this.#at] !== ',') throw this.#error(`lacks a comma or "${end}"`);
    this.#at += 1;
    return true;
  }

  /**
   * @param {RegExp} pattern sticky
   * @returns {string | null}
   */
  #match(pattern) {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#text);
    if (found === null) return null;
    this.#at = pattern.lastIndex;
    return found[0];
  }

  /** @param {string} what */
  #error(what) {
    return new Gemma4Error('manifest', `${this.#name} ${what} (at character ${this.#at})`,
      'stage the bundle again and publish every file of it');
  }
}
