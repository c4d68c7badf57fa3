"""Damaged and crafted checkpoints by the thousand: each is exported, or refused with one clear error and nothing left.

    python tests/export/fuzz_checkpoints.py --count 20000 --seed 1 --record fixtures/records/fuzz-checkpoints.json

A refusal is a CheckpointError that names a file of the input, what is wrong and a remedy in short printable lines, in at most
a second and 100 MB. Anything else is a finding and ends the command with status 1. Inputs depend on the seed and their
number alone: ``--only N`` makes one of them again. Ctrl-C ends the run early, with a record of what was done.

Half of the inputs each are safetensors folders and GGUF files, targets and assistants beside a sound target; of each kind
some have damaged bytes, some other values in the JSON or behind the names of the header, and some are sound containers of
other fields and tensors.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import loose_files
import micro_checkpoint
import tiny_story
import unified_gguf
from fixtures.story.training import pack

from gemma4web.errors import CheckpointError, Gemma4WebError
from gemma4web.export.exporter import ExportOptions, export

MAX_SECONDS: Final = 1.0
"""Of processor time: the machine may be busy."""
MAX_BYTES: Final = 100_000_000
SCHEMA: Final = 2
_WORDS: Final = (0, 1, 2, 7, 31, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 53, (1 << 63) - 1, 1 << 63,
                 (1 << 64) - 1)
_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 3, 1 << 31, 1 << 64, 10**300, 0.5, 1.0, 1e308, -1e-300, "", "x", "../x", "/etc/passwd", "..",
    "a\\..\\x", "model.safetensors", "\ud800", "\0", "x" * 300, [], [[]], {}, {"a": 1}, [0, 0], [1 << 63, 1 << 64], ["F32"],
    "F32", "F64", "I64", "Q4_0", "full_attention", "__proto__")
_TEXTS: Final = ("NaN", "Infinity", "-Infinity", "1e999", "-0", "1.", "01", "[" * 5000, '{"a":' * 3000, "9" * 5000, '"\\ud800"',
                 '"\x01"', "null,null", "}", "\ufeff", "")


class Chance(random.Random):
    """The choices of one input, and the names of the changes that were chosen."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.changes: set[str] = set()

    def change(self, *names: str) -> str:
        picked = self.choice(names)
        self.changes.add(picked)
        return picked


@dataclass(frozen=True)
class Folder:
    """The files of a checkpoint by name; ``target``: what it is an assistant of."""

    files: dict[str, bytes]
    target: Path | None = None

    def write(self, path: Path) -> Path:
        path.mkdir()
        for name, data in self.files.items():
            (path / name).write_bytes(data)
        return path


@dataclass(frozen=True)
class File:
    """One GGUF file: its bytes, and what they were made of."""

    data: bytes
    keys: dict[str, Any]
    parts: dict[str, loose_files.Part]
    target: Path | None = None

    def write(self, path: Path) -> Path:
        path.with_suffix(".gguf").write_bytes(self.data)
        return path.with_suffix(".gguf")


def _damaged(data: bytes, chance: Chance, header: int) -> bytes:
    """Bytes changed, moved, dropped or added; more often in the first ``header`` of them than behind."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        end = max(1, min(header, len(made)) if chance.random() < 0.9 else len(made))
        place, length = chance.randrange(end), chance.choice((1, 2, 4, 8, 40))
        way = chance.change("bit", "random bytes", "number", "bytes dropped", "bytes repeated", "bytes filled", "cut")
        if way == "bit":
            made[place : place + 1] = bytes([(made[place] if made else 0) ^ 1 << chance.randrange(8)])
        elif way == "random bytes":
            made[place : place + length] = chance.randbytes(length)
        elif way == "number":
            made[place : place + 8] = chance.choice(_WORDS).to_bytes(8, "little")
        elif way == "bytes dropped":
            del made[place : place + length]
        elif way == "bytes repeated":
            made[place:place] = made[(other := chance.randrange(end)) : other + length]
        elif way == "bytes filled":
            made[place : place + length] = bytes([chance.choice((0, 0xFF, 0x7F, 0x5B))]) * length
        else:
            del made[place:]
        if not made:
            break
    return bytes(made)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    found: list[tuple[Any, Any]] = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        found += [(value, key), *_places(part)]
    return found


def _altered(data: bytes, chance: Chance) -> bytes:
    """A JSON document with other values, names, or a raw text in place of a value."""
    document = json.loads(data)
    raw = None
    for _ in range(chance.choice((1, 1, 2, 4))):
        container, key = chance.choice(_places(document) or [({}, "")])
        named = isinstance(container, dict)
        ways = ("field renamed", "field dropped", "raw text", "value of another field", "odd value") if named else (
            "list emptied", "value of another field", "odd value")
        way = chance.change(*ways)
        if way == "field renamed":
            container[chance.choice(("x", "../x", "\0", "\ud800", key + " "))] = container.pop(key, None)
        elif way == "field dropped":
            container.pop(key, None)
        elif way == "list emptied":
            container.clear()
        elif way == "raw text":
            container[key] = raw = "raw-text-goes-here"
        elif way == "value of another field":
            others = [part for part in (c[k] for c, k in _places(document) if k in c or isinstance(c, list))
                      if not isinstance(part, dict | list)]
            container[key] = chance.choice(others or [None]) if named else container[0] if container else 0
        elif named or container:
            container[key if named else 0] = copy.deepcopy(chance.choice(_VALUES))
    text = json.dumps(document)
    if raw is not None:
        text = text.replace(f'"{raw}"', chance.choice(_TEXTS))
    if chance.random() < 0.1:
        chance.change("field twice")
        text = text[:1] + text[1 : text.find(",") + 1] * 2 + text[text.find(",") + 1 :]
    if chance.random() < 0.05:
        return text.encode(chance.change("utf-16", "utf-8-sig"), "replace")
    return text.encode("utf-8", "replace")


def _header_of(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


def _folder_bytes(base: Folder, chance: Chance) -> Folder:
    made = dict(base.files)
    name = chance.choice(sorted(made))
    header = _header_of(made[name]) if name.endswith(".safetensors") else len(made[name])
    made[name] = _damaged(made[name], chance, header)
    if chance.random() < 0.05:
        chance.change("file missing")
        del made[chance.choice(sorted(made))]
    return replace(base, files=made)


def _folder_values(base: Folder, chance: Chance) -> Folder:
    made = dict(base.files)
    name = chance.choice(sorted(made))
    if not name.endswith(".safetensors"):
        made[name] = _altered(made[name], chance)
        return replace(base, files=made)
    end = _header_of(made[name])
    text = _altered(made[name][8:end], chance)
    length = len(text)
    if chance.random() < 0.1:
        chance.change("length of the header")
        length = chance.choice(_WORDS)
    made[name] = length.to_bytes(8, "little") + text + made[name][end:]
    return replace(base, files=made)


def _other_tensors(parts: dict[str, loose_files.Part], chance: Chance, dtypes: Sequence[str],
                   size: Callable[[str, tuple[int, ...]], int]) -> dict[str, loose_files.Part]:
    """Tensors of which some are missing, called otherwise, or have another shape, dtype or other values."""
    made = dict(parts)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        name = chance.choice(sorted(made))
        part, shape = made[name], list(made[name].shape)
        way = chance.change("tensor dropped", "tensor renamed", "tensor's shape", "tensor's dtype", "tensor's values", "NaN", "tensor added")
        if way == "tensor dropped" and len(made) > 1:
            del made[name]
        elif way == "tensor renamed":
            made[chance.choice((name + "x", "x", chance.choice(sorted(made)), "../x", "\x1b[2J", "a" * 300))] = made.pop(name)
        elif way == "tensor's shape":
            place = chance.randrange(len(shape))
            shape[place] = chance.choice((1, shape[place] + 1, shape[place] * 2, max(1, shape[place] // 2), 256))
            shape = chance.choice((shape, shape[::-1], [1, *shape], [math.prod(shape)]))
            made[name] = replace(part, shape=tuple(shape), data=loose_files.fitting(part.data, size(part.dtype, tuple(shape))))
        elif way == "tensor's dtype":
            dtype = chance.choice(dtypes)
            made[name] = replace(part, dtype=dtype, data=loose_files.fitting(part.data, size(dtype, part.shape)))
        elif way == "tensor's values":
            made[name] = replace(part, data=chance.choice((bytes(len(part.data)), chance.randbytes(len(part.data)))))
        elif way == "NaN":
            made[name] = replace(part, data=b"\xff" * len(part.data))
        else:
            made[chance.choice(("lm_head.weight", "output.weight", "model.layers.99.x", "rope_freqs.weight", "x"))] = part
    return made


def _folder_tensors(base: Folder, chance: Chance) -> Folder:
    made = dict(base.files)
    name = chance.choice(sorted(file for file in made if file.endswith(".safetensors")))
    made[name] = loose_files.write_safetensors(_other_tensors(
        loose_files.read_safetensors(made[name]), chance, tuple(loose_files.SAFETENSORS_BYTES), loose_files.safetensors_size))
    return replace(base, files=made)


def _file_bytes(base: File, chance: Chance) -> File:
    return replace(base, data=_damaged(base.data, chance, _gguf_header(base.data)))


def _gguf_header(data: bytes) -> int:
    return max(data.rfind(b".weight"), data.rfind(b"_ordering")) + 64 if len(data) < 1 << 20 else 1 << 16


def _file_values(base: File, chance: Chance) -> File:
    """Another number, type or length right behind a name of the header, where the reader takes it for one."""
    header, made = _gguf_header(base.data), bytearray(base.data)
    names = [place for word in (b"gemma4", b"tokenizer.ggml.", b"general.", b"weight") for place in _all(base.data[:header], word)]
    place = chance.choice(names)
    end = place
    while end < header and 0x20 <= made[end] < 0x7F:
        end += 1
    start = chance.choice((end, end + 4, end + 8, end + 12, end + 16, end + 20, max(0, place - 8), 8, 16))
    width = chance.choice((4, 8))
    chance.change("number of 4 bytes" if width == 4 else "number of 8 bytes")
    made[start : start + width] = (chance.choice((*_WORDS, *range(13))) & (1 << 8 * width) - 1).to_bytes(width, "little")
    return replace(base, data=bytes(made))


def _all(data: bytes, word: bytes) -> list[int]:
    found, place = [], data.find(word)
    while place >= 0:
        found.append(place)
        place = data.find(word, place + 1)
    return found


def _file_keys(base: File, chance: Chance) -> File:
    keys = dict(base.keys)
    for _ in range(chance.choice((1, 1, 2, 4))):
        key = chance.choice(sorted(keys))
        way = chance.change("key dropped", "key renamed", "key's value", "value of another key", "key added", "list's elements")
        if way == "key dropped" and len(keys) > 1:
            del keys[key]
        elif way == "key renamed":
            keys[chance.choice((key + "x", "\x1b[2J", chance.choice(sorted(keys))))] = keys.pop(key)
        elif way == "key's value":
            keys[key] = chance.choice([value for value in _VALUES if isinstance(value, bool | int | float | str | list) and value != [[]]
                                       and not (isinstance(value, int) and abs(value) >= 1 << 64)])
        elif way == "value of another key":
            keys[key] = keys[chance.choice(sorted(keys))]
        elif way == "key added":
            keys[chance.choice(("gemma4.expert_count", "split.count", "general.alignment", "tokenizer.ggml.eom_token_id",
                                "gemma4.rope.scaling.factor", "gemma4-assistant.n_centroids"))] = chance.choice((0, 1, 2, 7, 1 << 40, "x", 0.5))
        else:
            lists = sorted(name for name, value in keys.items() if isinstance(value, list) and value)
            keys[name] = _other_elements(keys[name], chance) if lists and (name := chance.choice(lists)) else 0
    return replace(base, data=loose_files.write_gguf(keys, base.parts))


def _other_elements(values: list[Any], chance: Chance) -> list[Any]:
    place, made = chance.randrange(len(values)), list(values)
    if chance.random() < 0.5:
        return made[:place] + made[place + 1 :] if chance.random() < 0.5 else made[: place + 1] + made[place:]
    made[place] = chance.choice((made[-1], type(made[place])(), "\ud800x" if isinstance(made[place], str) else type(made[place])(255)))
    return made


def _file_tensors(base: File, chance: Chance) -> File:
    return replace(base, data=loose_files.write_gguf(base.keys, _other_tensors(
        base.parts, chance, loose_files.GGUF_TYPES, loose_files.gguf_size)))


def _folder(path: Path, target: Path | None = None) -> Folder:
    (path / "generation_config.json").write_text('{"bos_token_id": 2, "eos_token_id": [1, 3]}')
    (path / "tokenizer_config.json").write_text('{"chat_template": "{{ bos_token }}", "model_max_length": 1e30}')
    tokenizer = tiny_story.first_pieces(micro_checkpoint.VOCAB)
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] < micro_checkpoint.VOCAB]
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return Folder({file.name: file.read_bytes() for file in path.iterdir()}, target)


def _file(made: pack.File, target: Path | None = None) -> File:
    keys, parts = loose_files.gguf_parts(made)
    return File(loose_files.write_gguf(keys, parts), keys, parts, target)


def bases(folder: Path) -> tuple[list[Folder], list[File]]:
    """Sound inputs: checkpoints in one file and in three, and of the larger models' form; GGUF files of a target, two with
    Q4_0, and one of that form; each with the assistant that belongs to it."""
    small, unified = micro_checkpoint.write_pair(folder / "small"), micro_checkpoint.write_unified_pair(folder / "unified")
    three = micro_checkpoint.write_pair(folder / "three", shards=3)[0]
    folders = [_folder(small[0]), _folder(three), _folder(unified[0]), _folder(small[1], small[0]), _folder(unified[1], unified[0])]
    story, drafts = tiny_story.story_files(512)
    capped = pack.File(architecture=story.architecture, metadata=dict(story.metadata), tensors=story.tensors)
    capped.metadata["gemma4.final_logit_softcapping"] = 15.0
    large, large_drafts = unified_gguf.unified_files()
    files = [_file(story), _file(capped), _file(large)]
    targets = [file.write(folder / name) for file, name in ((files[0], "story"), (files[2], "large"))]
    return folders, [*files, _file(drafts, targets[0]), _file(large_drafts, targets[1])]


KINDS: Final[tuple[tuple[str, Callable[[Any, Chance], Any]], ...]] = (
    ("safetensors bytes", _folder_bytes), ("gguf bytes", _file_bytes), ("safetensors values", _folder_values),
    ("gguf values", _file_values), ("safetensors tensors", _folder_tensors), ("gguf keys", _file_keys),
    ("safetensors values", _folder_values), ("gguf tensors", _file_tensors))
"""What the inputs are in turn: an even number has a folder, an odd one a file."""


def _counts() -> defaultdict[str, Counter[str]]:
    return defaultdict(Counter)


@dataclass(kw_only=True)
class Report:
    """What became of the inputs. ``findings``: input number, kind, what is wrong."""

    outcomes: defaultdict[str, Counter[str]] = field(default_factory=_counts)
    changes: defaultdict[str, Counter[str]] = field(default_factory=_counts)
    roles: defaultdict[str, Counter[str]] = field(default_factory=_counts)
    findings: list[dict[str, Any]] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, 0)
    largest: tuple[int, int] = (0, 0)
    messages: set[str] = field(default_factory=set)

    def add(self, number: int, kind: str, role: str, changes: set[str], found: Verdict) -> None:
        for table, keys in ((self.outcomes, {kind}), (self.roles, {role}), (self.changes, changes)):
            for key in keys:
                table[key][found.outcome] += 1
        self.slowest = max(self.slowest, (found.seconds, number))
        self.largest = max(self.largest, (found.grown_bytes, number))
        if found.finding:
            self.findings.append({"number": number, "kind": kind, "what": found.finding, "message": found.message[:300]})


def _memory(field_: str) -> int:
    """VmRSS, or VmHWM, the most since it was reset; in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{field_}:\s+(\d+) kB", text, re.MULTILINE)[1]) * 1024  # type: ignore[index]


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _unclear(error: CheckpointError, path: Path) -> str | None:
    text = str(error)
    if str(path) not in text:
        return "names no file of the input"
    if "\n  remedy: " not in text:
        return "names no remedy"
    if not text.replace("\n", "").isprintable() or len(text) > 1500:
        return "is no short printable text"
    return None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Of one input. ``finding``: what is wrong about the outcome."""

    outcome: str
    finding: str | None
    message: str
    seconds: float
    grown_bytes: int


def judge(path: Path, work: Path, target: Path | None = None) -> Verdict:
    """Exports one input: a target, or the assistant of a sound ``target``."""
    out = work / "out" / "model"
    out.parent.mkdir()
    outcome, finding, message = "exported", None, ""
    _reset_peak()
    held, began = _memory("VmRSS"), time.process_time()
    try:
        export(ExportOptions(target=target or path, assistant=path if target else None, out=out, prefill_rows=2))
    except CheckpointError as error:
        outcome, finding, message = "refused", _unclear(error, path), str(error)
    except Gemma4WebError as error:
        outcome, finding, message = "other error", f"{type(error).__name__}: {error}", str(error)
    except BaseException as error:  # whatever it is, it is a finding; a panic of pyo3 is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome, finding, message = "crash", f"{type(error).__name__}: {error}", str(error)
    seconds, grown = time.process_time() - began, max(0, _memory("VmHWM") - held)
    left = sorted(str(entry.relative_to(out.parent)) for entry in out.parent.rglob("*"))
    if outcome != "exported" and left:
        finding = f"left {left[:5]}"
    if seconds > MAX_SECONDS or grown > MAX_BYTES:
        finding = f"took {seconds:.2f} s and {grown / 1e6:.0f} MB"
    shutil.rmtree(out.parent)
    return Verdict(outcome=outcome, finding=finding, message=message.replace(str(path), "INPUT"), seconds=seconds, grown_bytes=grown)


def run(seed: int, numbers: Sequence[int]) -> Report:
    """Judges the inputs with these numbers, up to an interrupt."""
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "bases").mkdir()
        folders, files = bases(work / "bases")
        for base in (*folders, *files):  # a sound input is exported, and warms up what is made once
            sound = judge(base.write(work / "sound"), work, base.target)
            if (sound.outcome, sound.finding) != ("exported", None):
                raise SystemExit(f"a sound input was not exported: {sound}")
            _remove(work / "sound")
        with suppress(KeyboardInterrupt):
            for number in numbers:
                chance = Chance(f"{seed}/{number}")
                kind, change = KINDS[number % len(KINDS)]
                base = chance.choice(folders if number % 2 == 0 else files)
                path = change(base, chance).write(work / "input")
                found = judge(path, work, base.target)
                report.add(number, kind, "assistant" if base.target else "target", chance.changes, found)
                report.messages.add(re.sub(r"\d+", "0", found.message.replace("INPUT", ""))[:60])
                _remove(work / "input")
    return report


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.with_suffix(".gguf").unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="N", help="the input with this number alone")
    parser.add_argument("--record", type=Path, metavar="FILE", help="where to write what was found, as JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("error")  # what a user would see, and what nobody meant
    numbers = range(arguments.count) if arguments.only is None else range(arguments.only, arguments.only + 1)
    report = run(arguments.seed, numbers)
    record = {
        "schema": SCHEMA, "seed": arguments.seed, "inputs": sum(counts.total() for counts in report.outcomes.values()), "first": numbers.start,
        **{name: {key: dict(sorted(counts.items())) for key, counts in table.items()}
           for name, table in (("kinds", report.outcomes), ("roles", report.roles), ("changes", report.changes))},
        "readers": {reader: dict(sum((counts for kind, counts in report.outcomes.items() if kind.startswith(reader)), Counter()))
                    for reader in ("safetensors", "gguf")},
        "limits": {"seconds": MAX_SECONDS, "bytes": MAX_BYTES},
        "slowest": {"seconds": round(report.slowest[0], 3), "number": report.slowest[1]},
        "largest": {"bytes": report.largest[0], "number": report.largest[1]},
        "different_messages": len(report.messages), "findings": report.findings,
    }
    text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=True) + "\n"
    if arguments.record is not None:
        arguments.record.write_text(text)
    print(text)
    return 1 if report.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
