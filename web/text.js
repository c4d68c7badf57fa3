/**
 * Text in and text out: Gemma's tokenizer (SentencePiece-style BPE with byte fallback), its turn format, and a streaming
 * decoder. Special tokens are inserted by id here and never read out of a user's text, so a typed "<turn|>" stays text.
 */

import { Gemma4Error, describe } from './errors.js';
import { Tokenizer } from './vendor/hf-tokenizers/tokenizers.js';

const META_SPACE = '\u2581';
const BYTE_TOKEN = /^<0x([0-9A-Fa-f]{2})>$/;

/** @typedef {{id: number, content: string, special: boolean}} AddedToken */

export class TextCodec {
  /** @type {Tokenizer} */ #tokenizer;
  /** @type {Map<string, number>} */ #specials = new Map();
  /** @type {Set<number>} */ #specialIds = new Set();
  /** @type {RegExp | null} */ #specialPattern;

  /** @param {Uint8Array} bytes of tokenizer.json */
  constructor(bytes) {
    const document = parse(bytes);
    checkFamily(document);
    const added = /** @type {AddedToken[]} */ (document.added_tokens ?? []);
    for (const { id, content, special } of added) {
      if (!special) continue;
      this.#specials.set(content, id);
      this.#specialIds.add(id);
    }
    const contents = [...this.#specials.keys()].sort((a, b) => b.length - a.length);
    this.#specialPattern = contents.length === 0 ? null : new RegExp(`(${contents.map(escape).join('|')})`);
    try {
      // Without its special tokens, the library reads them as the plain text that they are in a user's words.
      this.#tokenizer = new Tokenizer({ ...document, added_tokens: added.filter(({ special }) => !special) }, {});
    } catch (thrown) {
      throw malformed(describe(thrown));
    }
  }

  /**
   * Ids of plain text; nothing in it is read as a special token.
   * @param {string} text
   * @returns {number[]}
   */
  encodeText(text) {
    return text === '' ? [] : this.#tokenizer.encode(wellFormed(text), { add_special_tokens: false }).ids;
  }

  /**
   * Ids as the reference tokenizer gives them for a whole document: <bos> first, special tokens recognised.
   * @param {string} text
   * @returns {number[]}
   */
  encodeRaw(text) {
    const parts = this.#specialPattern ? wellFormed(text).split(this.#specialPattern) : [text];
    return [this.#special('<bos>'), ...parts.flatMap((part) => this.#specials.get(part) ?? this.encodeText(part))];
  }

  /**
   * One user turn and the opening of the model's answer: `<bos><|turn>user\n…<turn|>\n<|turn>model\n`.
   * @param {string} text
   * @returns {number[]}
   */
  encodeChat(text) {
    const open = this.#special('<|turn>');
    return [
      this.#special('<bos>'), open, ...this.encodeText(`user\n${text.trim()}`), this.#special('<turn|>'),
      ...this.encodeText('\n'), open, ...this.encodeText('model\n'),
    ];
  }

  decoder() {
    return new StreamingDecoder((id) => this.#tokenizer.id_to_token(id), this.#specialIds);
  }

  /**
   * Text of a complete answer.
   * @param {number[]} ids
   */
  decode(ids) {
    const decoder = this.decoder();
    return ids.map((id) => decoder.push(id)).join('');
  }

  /** @param {string} content */
  #special(content) {
    const id = this.#specials.get(content);
    if (id === undefined) {
      throw new Gemma4Error('tokenizer', `the tokenizer has no special token ${content}, which Gemma 4's turn format needs`,
        'export the model with the tokenizer.json of its own checkpoint');
    }
    return id;
  }
}

/**
 * Turns ids into text one at a time. A character whose bytes arrive in several tokens appears when it is complete; the
 * unfinished rest of one is never shown, not even when the answer ends there.
 */
export class StreamingDecoder {
  /** @type {(id: number) => string | undefined} */ #token;
  /** @type {Set<number>} */ #specialIds;
  /** @type {number[]} */ #bytes = [];

  /**
   * @param {(id: number) => string | undefined} token
   * @param {Set<number>} specialIds tokens without text of their own
   */
  constructor(token, specialIds) {
    this.#token = token;
    this.#specialIds = specialIds;
  }

  /**
   * @param {number} id
   * @returns {string} what can be shown now, which may be nothing
   */
  push(id) {
    if (this.#specialIds.has(id)) return this.#broken();
    const token = this.#token(id);
    if (token === undefined) {
      throw new Gemma4Error('tokenizer', `the model produced the id ${id}, which its tokenizer does not have`,
        'export the model with the tokenizer.json of its own checkpoint');
    }
    const byte = BYTE_TOKEN.exec(token);
    if (!byte) return this.#broken() + token.replaceAll(META_SPACE, ' ');
    this.#bytes.push(Number.parseInt(/** @type {string} */ (byte[1]), 16));
    return this.#complete();
  }

  /** Takes whole characters off the front of the collected bytes; a byte that can start none is U+FFFD. */
  #complete() {
    let text = '';
    while (this.#bytes.length > 0) {
      const wanted = expectedBytes(this.#bytes);
      if (wanted > this.#bytes.length) break;
      const taken = this.#bytes.splice(0, Math.max(1, wanted));
      text += wanted === 0 ? '\ufffd' : new TextDecoder('utf-8', { ignoreBOM: true }).decode(Uint8Array.from(taken));
    }
    return text;
  }

  /** Other text follows, so the collected bytes can never become a character. */
  #broken() {
    const text = '\ufffd'.repeat(this.#bytes.length);
    this.#bytes = [];
    return text;
  }
}

/**
 * Length of the UTF-8 sequence that these bytes start, 0 when they can start none (RFC 3629, table of well-formed
 * sequences: the second byte's range depends on the first).
 * @param {number[]} bytes
 */
function expectedBytes(bytes) {
  const first = bytes[0];
  if (first === undefined) return 0;
  if (first < 0x80) return 1;
  const length = first >= 0xc2 && first <= 0xdf ? 2 : first >= 0xe0 && first <= 0xef ? 3
    : first >= 0xf0 && first <= 0xf4 ? 4 : 0;
  for (let index = 1; index < Math.min(length, bytes.length); index += 1) {
    const low = index > 1 ? 0x80 : first === 0xe0 ? 0xa0 : first === 0xf0 ? 0x90 : 0x80;
    const high = index > 1 ? 0xbf : first === 0xed ? 0x9f : first === 0xf4 ? 0x8f : 0xbf;
    const byte = /** @type {number} */ (bytes[index]);
    if (byte < low || byte > high) return 0;
  }
  return length;
}

/**
 * @param {Uint8Array} bytes
 * @returns {any}
 */
function parse(bytes) {
  let document;
  try {
    document = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch (thrown) {
    throw malformed(describe(thrown));
  }
  if (typeof document !== 'object' || document === null) throw malformed('it is no JSON object');
  return document;
}

/**
 * The streaming decoder relies on Gemma's way of writing tokens; text of another family would come out subtly wrong.
 * @param {any} document
 */
function checkFamily(document) {
  const steps = (document.decoder?.decoders ?? []).map((/** @type {any} */ step) => step?.type).join(' ');
  const space = document.decoder?.decoders?.[0]?.pattern?.String;
  if (document.model?.type !== 'BPE' || document.model?.byte_fallback !== true
      || steps !== 'Replace ByteFallback Fuse' || space !== META_SPACE) {
    throw malformed(`it is no Gemma tokenizer (model ${document.model?.type}, decoder "${steps}")`);
  }
}

/** @param {string} cause */
function malformed(cause) {
  return new Gemma4Error('tokenizer', `tokenizer.json cannot be used: ${cause}`,
    'export the model with the tokenizer.json of its own checkpoint');
}

/**
 * A lone surrogate has no UTF-8 form; it becomes U+FFFD, as in every encoder of the web platform.
 * @param {string} text
 */
function wellFormed(text) {
  return new TextDecoder('utf-8', { ignoreBOM: true }).decode(new TextEncoder().encode(text));
}

/** @param {string} text */
function escape(text) {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}
