/**
 * The messages between a page and its worker: two discriminated unions, and nothing else crosses.
 *
 * @typedef {{kind: 'ids', ids: number[]}} IdsPrompt
 * @typedef {{kind: 'text', text: string, format: 'chat' | 'raw'}} TextPrompt
 * @typedef {IdsPrompt | TextPrompt} Prompt
 *
 * @typedef {import('./session.js').Adapter} Adapter
 *
 * @typedef {{rounds: number, drafted: number, accepted: number, emitted: number, cut: number, buffered: number}} Counters
 * @typedef {{pos: number, drafts: number[], accepted: number, emitted: number[]}} Round
 * @typedef {'stop' | 'length' | 'context' | 'cancelled'} Finish
 * @typedef {object} Generation
 * @property {number[]} tokens without a stop id
 * @property {Finish} finish
 * @property {Counters} counters
 * @property {Round[]} rounds empty in plain decoding
 * @property {{single: boolean, reason: string}} passes whether each pass was one compute pass, and why not
 * @property {number} prefillMs from the call to the first token
 * @property {number} decodeMs from the first to the last token
 * @property {number} tokensPerS tokens after the first by `decodeMs`; 0 when there are none
 *
 * @typedef {{type: 'open', id: number, baseUrl: string, variant: string, manifestSha256: string | null, routeMask: number}} OpenRequest
 * @typedef {{type: 'encode', id: number, prompt: Prompt}} EncodeRequest
 * @typedef {{type: 'generate', id: number, prompt: Prompt, maxNewTokens: number}} GenerateRequest
 * @typedef {{type: 'prefill', id: number, ids: number[], position: number}} PrefillRequest
 * @typedef {{type: 'step', id: number, token: number, position: number}} StepRequest
 * @typedef {{type: 'read', id: number, name: string}} ReadRequest
 * @typedef {{type: 'inspect', id: number}} InspectRequest
 * @typedef {{type: 'reset', id: number}} ResetRequest
 * @typedef {{type: 'unload', id: number}} UnloadRequest
 * @typedef {{type: 'close', id: number}} CloseRequest
 * @typedef {{type: 'cancel'}} CancelRequest has no answer of its own: the generation ends with finish `cancelled`
 * @typedef {OpenRequest | EncodeRequest | GenerateRequest | PrefillRequest | StepRequest | ReadRequest | InspectRequest | ResetRequest
 *   | UnloadRequest | CloseRequest | CancelRequest} Request
 *
 * @typedef {object} Opened
 * @property {Adapter} adapter
 * @property {import('./manifest.js').ModelInfo} model
 * @property {string} manifestSha256
 * @property {boolean} text whether prompts may be text
 * @property {any} routes which kernels every op runs by
 * @property {number} loadMs
 * @property {number} heapBytes
 *
 * @typedef {object} Generated
 * @property {Generation} generation
 * @property {number[]} promptIds
 * @property {string | null} text null without a tokenizer
 * @property {number} heapBytes
 * @property {any} profile the profile document; its `supported` is false in wall variants
 *
 * @typedef {{counters: Counters, profile: any, objects: number, heapBytes: number}} Inspected
 *
 * What each request resolves to.
 * @typedef {object} Results
 * @property {Opened} open
 * @property {number[]} encode the prompt's ids, which the model can take
 * @property {Generated} generate
 * @property {{tokens: number[]}} prefill
 * @property {{tokens: number[], drafts: number[], accepted: number}} step
 * @property {Uint8Array} read
 * @property {Inspected} inspect
 * @property {null} reset
 * @property {number} unload GPU objects that are still owned
 * @property {null} close
 *
 * @typedef {{type: 'ready'}} ReadyReply the worker's modules are loaded
 * @typedef {{type: 'done', id: number, result: any}} DoneReply
 * @typedef {{type: 'failed', id: number, error: import('./errors.js').ErrorPayload}} FailedReply
 * @typedef {{type: 'progress', id: number, progress: import('./session.js').LoadProgress}} ProgressReply
 * @typedef {{type: 'tokens', id: number, tokens: number[], pieces: string[] | null, atMs: number}} TokensReply
 *   `pieces`: the text that each token completes; `atMs`: since the call
 * @typedef {{type: 'prefill', id: number, rows: number, total: number}} PrefillReply tokens of the prompt that have run
 * @typedef {{type: 'ended', error: import('./errors.js').ErrorPayload}} EndedReply device or module lost
 * @typedef {{type: 'fault', message: string}} FaultReply an error of the GPU that nobody waits for: results may be wrong
 * @typedef {ReadyReply | DoneReply | FailedReply | ProgressReply | PrefillReply | TokensReply | EndedReply | FaultReply} Reply
 */

/**
 * Reached only by a message that the other side should not have sent.
 * @param {never} message
 * @returns {never}
 */
export function unknownMessage(message) {
  throw new TypeError(`unknown message ${JSON.stringify(message)}`);
}
