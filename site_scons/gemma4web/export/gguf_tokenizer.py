"""Tokenizer of a GGUF file -> tokenizer.json, chat template and special ids.

The format stores pieces, their types and merges; how text is cut and decoded follows from the model name "gemma4":
spaces become U+2581, merges run over whole characters, what is left becomes byte tokens, <bos> comes first.
"""

from __future__ import annotations

import json
from typing import Any, Final

from gemma4web.export.config import Fields, token_id

MODEL: Final = "gemma4"
_KEY: Final = "tokenizer.ggml."
_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Token types of pieces that are cut out of a text before it is split; the first two are special tokens."""
_STOPS: Final = ("<eos>", "<turn|>", "<|tool_response>")
"""Pieces that end an answer whatever the keys say: a file has one eos id, the checkpoint's config has a list."""

_SHOWN: Final = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
                 '<|"|>')
"""Special tokens that converters mark as user-defined, so that llama.cpp prints them."""


def _list(f: Fields, name: str, kind: type, count: int | None = None) -> list[Any]:
    value = f.values.get(_KEY + name)
    if not isinstance(value, list) or (count is not None and len(value) != count) or any(
            type(part) is not kind for part in value):
        size = "" if count is None else f"{count} "
        raise f.fail(_KEY + name, f"a list of {size}{'strings' if kind is str else 'integers'}")
    return value


def _pieces(f: Fields, vocab: int) -> list[str]:
    f.only(_KEY + "model", MODEL, why="only Gemma 4's own tokenizer is supported")
    f.only(_KEY + "add_space_prefix", None, False, why="Gemma 4's tokenizer adds no space before a text")
    pieces = _list(f, "tokens", str)
    if len(pieces) != vocab:
        raise f.fail(_KEY + "tokens", f"{vocab} pieces, a row of token_embd.weight each, found {len(pieces)}",
                     advice="tokenizer and weights belong to different models")
    return pieces


def special_ids(f: Fields, vocab: int) -> tuple[int | None, tuple[int, ...]]:
    """(bos id or None, stop ids in ascending order) from a file's metadata. Raises CheckpointError."""
    ids = {name: token_id(f, key, f.values[key], vocab) for name in ("bos", "eos", "eot", "eom")
           if (key := f"{_KEY}{name}_token_id") in f.values}
    stops = {number for name, number in ids.items() if name != "bos"}
    stops |= {number for number, piece in enumerate(_pieces(f, vocab)) if piece in _STOPS}
    return ids.get("bos"), tuple(sorted(stops))


def _merges(f: Fields) -> list[list[str]]:
    pairs = [text.split(" ") for text in _list(f, "merges", str)]
    if any(len(pair) != 2 for pair in pairs):
        bad = next(" ".join(pair) for pair in pairs if len(pair) != 2)
        raise f.fail(_KEY + "merges", f"two pieces with a space between them, found {bad!r}")
    return pairs


def tokenizer_json(f: Fields, vocab: int) -> bytes:
    """The same tokenizer as Hugging Face's library reads it. Raises CheckpointError."""
    pieces = _pieces(f, vocab)
    types = _list(f, "token_type", int, len(pieces))
    bos, unknown = (pieces[token_id(f, key, f.values.get(key), vocab)] for key in
                    (_KEY + "bos_token_id", _KEY + "unknown_token_id"))
    numbers = {piece: number for number, piece in enumerate(pieces)}  # of a piece that stands twice the later id counts
    added = [{"id": number, "content": piece, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": type_ != _USER_DEFINED or piece in _SHOWN}
             for number, (piece, type_) in enumerate(zip(pieces, types, strict=True))
             if type_ in (_UNKNOWN, _CONTROL, _USER_DEFINED)]
    first, second = ([{"SpecialToken": {"id": bos, "type_id": type_id}},
                      {"Sequence": {"id": name, "type_id": type_id}}] for type_id, name in enumerate("AB"))
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                          "invert": False},
        "post_processor": {"type": "TemplateProcessing", "single": first, "pair": first + second,
                           "special_tokens": {bos: {"id": bos, "ids": [numbers[bos]], "tokens": [bos]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": numbers, "merges": _merges(f)},
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def chat_template(f: Fields) -> bytes | None:
    """The file's template, when it has one. Raises CheckpointError."""
    template = f.values.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise f.fail("tokenizer.chat_template", "a text")
    return None if template is None else template.encode()
