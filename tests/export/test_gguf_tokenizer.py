"""The tokenizer goes into GGUF metadata and comes back as the tokenizer that it was (P36, P40)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest
import tiny_story
from fixtures.story.training import pack
from tokenizers import Tokenizer

from gemma4web.errors import CheckpointError
from gemma4web.export import gguf_tokenizer
from gemma4web.export.config import Fields
from gemma4web.export.gguf_file import GgufTensors

PIECES = 4096
TEXTS = [  # P40
    "", " ", "a  b and    c", "\t", "a\r\nb", " Linus Schröder", "<code>", "▁", "👩‍👩‍👧 family", "<start_of_turn>", "a" * 5000, "\n",
    "\n\n\n", "\n" * 40, " \n \n", "<bos><|turn>user\nHi<turn|>\n<|turn>model\n", "<0x41>", "<unused3>", "</s>",
    "\x00\x7f\x80", "日本語 ελληνικά עברית", "e\u0301", "\U0010ffff", "Once upon a time, there was a 7-year-old girl.",
]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Fields:
    """Metadata of a file that holds the tokenizer and one small tensor."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.gguf"
    pack.File(architecture="gemma4", metadata=pack.tokenizer_metadata(tiny_story.TOKENIZER),
              tensors={"rope_freqs.weight": (pack.rope_freqs(64), pack.Type.F32)}).write(path)
    with GgufTensors(path) as tensors:
        return Fields(path=path, values=tensors.metadata)


def test_the_document_is_the_same(read: Fields) -> None:
    assert json.loads(gguf_tokenizer.tokenizer_json(read, PIECES)) == tiny_story.TOKENIZER


def test_equal_ids_on_a_fuzz(read: Fields) -> None:
    """Id for id, with and without <bos>, decoded as well: words, specials, runs, multibyte and single bytes mixed at random."""
    ours = Tokenizer.from_str(gguf_tokenizer.tokenizer_json(read, PIECES).decode())
    theirs = Tokenizer.from_file(str(tiny_story.FIXTURES / "tokenizer/tok4096.json"))
    choice = random.Random(5)
    pieces = list(tiny_story.TOKENIZER["model"]["vocab"])
    parts: list[Callable[[], str]] = [
        lambda: choice.choice(pieces), lambda: choice.choice(pieces).replace("▁", " "),
        lambda: "\n" * choice.randint(1, 40), lambda: " " * choice.randint(1, 40),
        lambda: chr(choice.randint(1, 0xD7FF)), lambda: chr(choice.randint(0xE000, 0x10FFFF)),
        lambda: choice.choice(pieces[:238]), lambda: chr(choice.randint(0, 255)), lambda: choice.choice(TEXTS[:-2])[:50],
    ]
    texts = TEXTS + ["".join(choice.choice(parts)() for _ in range(choice.randint(1, 12))) for _ in range(1500)]
    for text in texts:
        for special in (False, True):
            found, wanted = (one.encode(text, add_special_tokens=special).ids for one in (ours, theirs))
            assert found == wanted, text
            assert ours.decode(found, skip_special_tokens=special) == theirs.decode(wanted, skip_special_tokens=special)


def test_ids(read: Fields) -> None:
    assert gguf_tokenizer.special_ids(read, PIECES) == (2, (1, 106))


def _changed(f: Fields, **change: Any) -> Fields:
    values = {**f.values, **{f"tokenizer.ggml.{name}": value for name, value in change.items()}}
    return Fields(path=f.path, values={name: value for name, value in values.items() if value is not None})


def test_stop_ids_without_their_keys(read: Fields) -> None:
    """P36: files that name only the turn's end as eos, or an eos, still stop on both; a tool result's begin stops too."""
    assert gguf_tokenizer.special_ids(_changed(read, eos_token_id=106, eot_token_id=None), PIECES) == (2, (1, 106))
    assert gguf_tokenizer.special_ids(_changed(read, eos_token_id=None, eot_token_id=None, bos_token_id=None), PIECES) == (
        None, (1, 106))
    pieces = list(read.values["tokenizer.ggml.tokens"])
    pieces[50] = "<|tool_response>"
    assert gguf_tokenizer.special_ids(_changed(read, tokens=pieces), PIECES) == (2, (1, 50, 106))


def test_special_tokens_that_converters_show(read: Fields) -> None:
    """Marked user-defined for llama.cpp's sake, special in the checkpoint: what a user types must not become one."""
    pieces = list(read.values["tokenizer.ggml.tokens"])
    pieces[100], pieces[99] = "<|channel>", "<div>"
    added = json.loads(gguf_tokenizer.tokenizer_json(_changed(read, tokens=pieces), PIECES))["added_tokens"]
    assert added[100]["special"] and not added[99]["special"]


def test_a_piece_that_stands_twice_has_its_later_id(read: Fields) -> None:
    pieces = list(read.values["tokenizer.ggml.tokens"])
    pieces[10] = pieces[3000]
    types = [1 if number == 10 else type_ for number, type_ in enumerate(read.values["tokenizer.ggml.token_type"])]
    document = gguf_tokenizer.tokenizer_json(_changed(read, tokens=pieces, token_type=types), PIECES)
    assert json.loads(document)["model"]["vocab"][pieces[10]] == 3000


@pytest.mark.parametrize(("change", "message"), [
    ({"model": "llama"}, r"`tokenizer.ggml.model` is \"llama\", wanted \"gemma4\""),
    ({"add_space_prefix": True}, "add_space_prefix"),
    ({"tokens": None}, "`tokenizer.ggml.tokens` is nothing, wanted a list of strings"),
    ({"tokens": ["<pad>", "<eos>"]}, "wanted 4096 pieces, a row of token_embd.weight each, found 2"),
    ({"token_type": [1, 2]}, "wanted a list of 4096 integers"),
    ({"merges": ["a b", "ab"]}, "wanted two pieces with a space between them, found 'ab'"),
    ({"merges": None}, "`tokenizer.ggml.merges` is nothing"),
    ({"bos_token_id": None}, "`tokenizer.ggml.bos_token_id` is nothing"),
    ({"unknown_token_id": 4096}, "wanted token ids below 4096"),
])
def test_broken_metadata(read: Fields, change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        gguf_tokenizer.tokenizer_json(_changed(read, **change), PIECES)
    assert str(read.path) in str(caught.value)


def test_chat_template(read: Fields) -> None:
    """The turn format of the training corpus: <bos>, trimmed turns, an optional system turn, the opening of an answer."""
    template = gguf_tokenizer.chat_template(read)
    assert template is not None
    render = jinja2.Environment().from_string(template.decode()).render
    user, model = {"role": "user", "content": " Hi\n"}, {"role": "assistant", "content": "Hello!"}
    assert render(messages=[user], bos_token="<bos>", add_generation_prompt=True) == (
        "<bos><|turn>user\nHi<turn|>\n<|turn>model\n")
    assert render(messages=[{"role": "system", "content": "Be kind."}, user, model], bos_token="<bos>") == (
        "<bos><|turn>system\nBe kind.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\nHello!<turn|>\n")


def test_tokenizer_file_of_the_format(tmp_path: Path, read: Fields) -> None:
    """Both readings of the file give one vocabulary: no piece is lost on the way."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(gguf_tokenizer.tokenizer_json(read, PIECES))
    assert Tokenizer.from_file(str(path)).get_vocab() == tiny_story.TOKENIZER["model"]["vocab"]
