"""Damaged and crafted checkpoints by the thousand: each is exported, or refused with one clear error and nothing left.

    python tests/export/fuzz_checkpoints.py --count 20000 --seed 1 --record RECORD.json

A refusal is a CheckpointError that names a file of the input and a remedy or the trouble in one short printable line, in at
most a second and 100 MB. Anything else is a finding and ends the command with status 1. Inputs depend on the seed and
their number alone: ``--only N`` makes one of them again. A quarter of the inputs each are damaged bytes and altered values
of a safetensors folder, and of a GGUF file.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import micro_checkpoint
import tiny_story
import unified_gguf
from fixtures.story.training import pack

from gemma4web.errors import CheckpointError, Gemma4WebError
from gemma4web.export.exporter import ExportOptions, export

MAX_SECONDS: Final = 1.0
"""Of processor time: the machine may be busy."""
MAX_BYTES: Final = 100_000_000
SCHEMA: Final = 1
_WORDS: Final = (0, 1, 2, 7, 31, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 53, (1 << 63) - 1, 1 << 63,
                 (1 << 64) - 1)
_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 3, 1 << 31, 1 << 64, 10**300, 0.5, 1.0, 1e308, -1e-300, "", "x", "../x", "/etc/passwd", "..",
    "a\\..\\x", "model.safetensors", "\ud800", "\0", "x" * 300, [], [[]], {}, {"a": 1}, [0, 0], [1 << 63, 1 << 64], ["F32"],
    "F32", "F64", "I64", "Q4_0", "full_attention", "__proto__")
_TEXTS: Final = ("NaN", "Infinity", "-Infinity", "1e999", "-0", "1.", "01", "[" * 5000, '{"a":' * 3000, "9" * 5000, '"\\ud800"',
                 '"\x01"', "null,null", "}", "\ufeff", "")


class Folder(dict[str, bytes]):
    """The files of a checkpoint by name."""

    def write(self, path: Path) -> Path:
        path.mkdir()
        for name, data in self.items():
            (path / name).write_bytes(data)
        return path


class File(bytes):
    """One GGUF file."""

    def write(self, path: Path) -> Path:
        path.with_suffix(".gguf").write_bytes(self)
        return path.with_suffix(".gguf")


def _damaged(data: bytes, chance: random.Random, header: int) -> bytes:
    """Bytes changed, moved, dropped or added; more often in the first ``header`` of them than behind."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        end = max(1, min(header, len(made)) if chance.random() < 0.9 else len(made))
        place, length = chance.randrange(end), chance.choice((1, 2, 4, 8, 40))
        way = chance.randrange(7)
        if way == 0:
            made[place : place + 1] = bytes([(made[place] if made else 0) ^ 1 << chance.randrange(8)])
        elif way == 1:
            made[place : place + length] = chance.randbytes(length)
        elif way == 2:
            made[place : place + 8] = chance.choice(_WORDS).to_bytes(8, "little")
        elif way == 3:
            del made[place : place + length]
        elif way == 4:
            made[place:place] = made[(other := chance.randrange(end)) : other + length]
        elif way == 5:
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


def _altered(data: bytes, chance: random.Random) -> bytes:
    """A JSON document with other values, names, or a raw text in place of a value."""
    document = json.loads(data)
    raw = None
    for _ in range(chance.choice((1, 1, 2, 4))):
        container, key = chance.choice(_places(document) or [({}, "")])
        way = chance.randrange(6)
        if way == 0 and isinstance(container, dict):
            container[chance.choice(("x", "../x", "\0", "\ud800", key + " "))] = container.pop(key, None)
        elif way == 1:
            container.pop(key, None) if isinstance(container, dict) else container.clear()
        elif way == 2 and isinstance(container, dict):
            container[key] = raw = "raw-text-goes-here"
        elif way == 3:
            others = [part for _, part in ((c, c[k]) for c, k in _places(document) if k in c or isinstance(c, list))
                      if not isinstance(part, dict | list)]
            container[key] = chance.choice(others or [None]) if isinstance(container, dict) else container[0] if container else 0
        elif isinstance(container, dict) or container:
            container[key if isinstance(container, dict) else 0] = copy.deepcopy(chance.choice(_VALUES))
    text = json.dumps(document)
    if raw is not None:
        text = text.replace(f'"{raw}"', chance.choice(_TEXTS))
    if chance.random() < 0.1:
        text = text[:1] + text[1 : text.find(",") + 1] * 2 + text[text.find(",") + 1 :]  # the first member twice
    if chance.random() < 0.05:
        return text.encode(chance.choice(("utf-16", "utf-8-sig")), "replace")
    return text.encode("utf-8", "replace")


def _header_of(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


def _folder_bytes(base: Folder, chance: random.Random) -> Folder:
    made = Folder(base)
    name = chance.choice(sorted(made))
    header = _header_of(made[name]) if name.endswith(".safetensors") else len(made[name])
    made[name] = _damaged(made[name], chance, header)
    if chance.random() < 0.05:
        del made[chance.choice(sorted(made))]
    return made


def _folder_values(base: Folder, chance: random.Random) -> Folder:
    made = Folder(base)
    name = chance.choice(sorted(made))
    if not name.endswith(".safetensors"):
        made[name] = _altered(made[name], chance)
        return made
    end = _header_of(made[name])
    text = _altered(made[name][8:end], chance)
    length = len(text) if chance.random() < 0.9 else chance.choice(_WORDS)
    made[name] = length.to_bytes(8, "little") + text + made[name][end:]
    return made


def _file_bytes(base: File, chance: random.Random) -> File:
    return File(_damaged(base, chance, _gguf_header(base)))


def _gguf_header(data: bytes) -> int:
    return max(data.rfind(b".weight"), data.rfind(b"_ordering")) + 64 if len(data) < 1 << 20 else 1 << 16


def _file_values(base: File, chance: random.Random) -> File:
    """Another number, type or length right behind a name of the header, where the reader takes it for one."""
    header, made = _gguf_header(base), bytearray(base)
    names = [place for word in (b"gemma4", b"tokenizer.ggml.", b"general.", b"weight") for place in _all(base[:header], word)]
    place = chance.choice(names)
    end = place
    while end < header and 0x20 <= made[end] < 0x7F:
        end += 1
    start = chance.choice((end, end + 4, end + 8, end + 12, end + 16, end + 20, max(0, place - 8), 8, 16))
    width = chance.choice((4, 8))
    made[start : start + width] = (chance.choice((*_WORDS, *range(13))) & (1 << 8 * width) - 1).to_bytes(width, "little")
    return File(made)


def _all(data: bytes, word: bytes) -> list[int]:
    found, place = [], data.find(word)
    while place >= 0:
        found.append(place)
        place = data.find(word, place + 1)
    return found


def bases(folder: Path) -> tuple[list[Folder], list[File]]:
    """Sound inputs: a checkpoint in one file and in three, and one of the larger models' form; GGUF files of a target, two
    with Q4_0, and one of that form."""
    folders = []
    small_target = micro_checkpoint.target_config(), micro_checkpoint.target_tensors()
    unified = micro_checkpoint.unified_target_config(), micro_checkpoint.unified_target_tensors()
    for name, (config, tensors), shards in (("base1", small_target, 1), ("base3", small_target, 3), ("unified", unified, 1)):
        path = micro_checkpoint.write_checkpoint(folder / name, config, tensors, shards=shards)
        (path / "generation_config.json").write_text('{"bos_token_id": 2, "eos_token_id": [1, 3]}')
        (path / "tokenizer_config.json").write_text('{"chat_template": "{{ bos_token }}", "model_max_length": 1e30}')
        folders.append(Folder({file.name: file.read_bytes() for file in path.iterdir()}))
    story = tiny_story.story_files(512)[0]
    small = pack.File(architecture=story.architecture, metadata=dict(story.metadata), tensors=story.tensors)
    small.metadata["gemma4.final_logit_softcapping"] = 15.0
    files = []
    for number, file in enumerate((story, small, unified_gguf.unified_files()[0])):
        file.write(folder / f"{number}.gguf")
        files.append(File((folder / f"{number}.gguf").read_bytes()))
    return folders, files


KINDS: Final[tuple[tuple[str, Callable[[Any, random.Random], Any]], ...]] = (
    ("safetensors bytes", _folder_bytes), ("safetensors values", _folder_values), ("gguf bytes", _file_bytes),
    ("gguf values", _file_values))


@dataclass(kw_only=True)
class Report:
    """What became of the inputs. ``findings``: input number, kind, what is wrong."""

    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name, _ in KINDS})
    findings: list[dict[str, Any]] = field(default_factory=list)
    slowest_s: float = 0.0
    most_bytes: int = 0
    messages: set[str] = field(default_factory=set)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _unclear(error: CheckpointError, path: Path) -> str | None:
    text = str(error)
    if str(path) not in text:
        return "names no file of the input"
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


def judge(path: Path, work: Path) -> Verdict:
    """Exports one input."""
    out = work / "out" / "model"
    out.parent.mkdir()
    outcome, finding, message = "exported", None, ""
    peak, began = _peak(), time.process_time()
    try:
        export(ExportOptions(target=path, out=out, prefill_rows=2))
    except CheckpointError as error:
        outcome, finding, message = "refused", _unclear(error, path), str(error)
    except Gemma4WebError as error:
        outcome, finding, message = "other error", f"{type(error).__name__}: {error}", str(error)
    except BaseException as error:  # whatever it is, it is a finding; a panic of pyo3 is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome, finding, message = "crash", f"{type(error).__name__}: {error}", str(error)
    seconds, grown = time.process_time() - began, _peak() - peak
    left = sorted(str(entry.relative_to(out.parent)) for entry in out.parent.rglob("*"))
    if outcome != "exported" and left:
        finding = f"left {left[:5]}"
    if seconds > MAX_SECONDS or grown > MAX_BYTES:
        finding = f"took {seconds:.2f} s and {grown / 1e6:.0f} MB"
    shutil.rmtree(out.parent)
    return Verdict(outcome=outcome, finding=finding, message=message, seconds=seconds, grown_bytes=grown)


def run(seed: int, numbers: range) -> Report:
    """Judges the inputs with these numbers."""
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "bases").mkdir()
        folders, files = bases(work / "bases")
        for base in (*folders, *files):  # a sound input is exported, and warms up what is made once
            sound = judge(base.write(work / "sound"), work)
            if (sound.outcome, sound.finding) != ("exported", None):
                raise SystemExit(f"a sound input was not exported: {sound}")
            _remove(work / "sound")
        for number in numbers:
            chance = random.Random(f"{seed}/{number}")
            kind, change = KINDS[number % len(KINDS)]
            path = change(chance.choice(folders if "safetensors" in kind else files), chance).write(work / "input")
            found = judge(path, work)
            report.outcomes[kind][found.outcome] += 1
            report.slowest_s = max(report.slowest_s, found.seconds)
            report.most_bytes = max(report.most_bytes, found.grown_bytes)
            report.messages.add(re.sub(r"\d+", "0", found.message.replace(str(path), ""))[:60])
            if found.finding:
                report.findings.append({"number": number, "kind": kind, "what": found.finding, "message": found.message[:300]})
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
    numbers = range(arguments.count) if arguments.only is None else range(arguments.only, arguments.only + 1)
    report = run(arguments.seed, numbers)
    record = {
        "schema": SCHEMA, "seed": arguments.seed, "inputs": len(numbers),
        "outcomes": {kind: dict(sorted(counts.items())) for kind, counts in report.outcomes.items()},
        "slowest_s": round(report.slowest_s, 3), "most_bytes": report.most_bytes,
        "different_messages": len(report.messages), "findings": report.findings,
    }
    text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=True) + "\n"
    if arguments.record is not None:
        arguments.record.write_text(text)
    print(text)
    return 1 if report.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
