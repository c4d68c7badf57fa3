// What the page uses of the modules that the build copies to vendor/ (see vendor.json).

declare module '*/vendor/noble-hashes/sha2.js' {
  interface Sha256 {
    update(data: Uint8Array): Sha256;
    digest(): Uint8Array;
  }
  export const sha256: { (data: Uint8Array): Uint8Array; create(): Sha256 };
}

declare module '*/vendor/hf-tokenizers/tokenizers.js' {
  export class Tokenizer {
    constructor(tokenizer: object, config: object);
    encode(text: string, options?: { add_special_tokens?: boolean }): { ids: number[] };
    id_to_token(id: number): string | undefined;
  }
}
