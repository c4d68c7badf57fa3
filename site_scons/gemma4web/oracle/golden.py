"""Goldens of a reference checkpoint: ``python -m gemma4web.oracle.golden FOLDER [--write]``.

FOLDER holds golden.json beside target/ and assistant/, as ``fixtures/make_reference.py`` leaves them, or beside one
*-target.gguf and one *-assistant.gguf. Without ``--write`` the reference model must reproduce all of it: plain tokens,
tokens with the assistant, every draft and acceptance of the recorded rounds, and, where present, what ``--write`` adds.
``--write`` adds to each entry ``rounds_clean`` and ``counters`` (the product's rule for visible rows, always two drafts)
and, for float checkpoints, writes golden_q4.json, the reference model's own results with packed weights.

An entry may give ``max_new_tokens`` and ``stop_ids``; without them, its text has just as many tokens as were asked for.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import numpy as np

from gemma4web.errors import CheckpointError, Gemma4WebError
from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.folder import open_folder
from gemma4web.files import write_atomic
from gemma4web.oracle.decode import Generation, Round, plain, speculative
from gemma4web.oracle.faults import Fault
from gemma4web.oracle.model import PlainModel, RoundModel, Visible
from gemma4web.oracle.weights import Model, from_checkpoint, from_folder

GOLDEN_FILE: Final = "golden.json"
GOLDEN_Q4_FILE: Final = "golden_q4.json"
LOGIT_TOLERANCE: Final = 1e-4
"""Between the float64 reference and logits recorded in float32."""


def gguf_pair(folder: Path) -> tuple[Path, Path]:
    """The one target and the one assistant in a folder of GGUF files. Raises CheckpointError."""
    found = [sorted(folder.glob(f"*-{role}.gguf")) for role in ("target", "assistant")]
    if any(len(files) != 1 for files in found):
        raise CheckpointError(f"{folder} holds neither target/ nor one *-target.gguf and one *-assistant.gguf")
    return found[0][0], found[1][0]


def load_model(folder: Path, *, form: str = "f32", faults: Collection[Fault] = ()) -> Model:
    """The model of a golden's folder. GGUF files come in the one form that they have, whatever ``form`` says."""
    if (folder / "target").is_dir():
        return from_checkpoint(folder / "target", folder / "assistant", form=form, faults=faults)
    target, assistant = gguf_pair(folder)
    with tempfile.TemporaryDirectory() as scratch:
        exported = export(ExportOptions(target=target, assistant=assistant, out=Path(scratch) / "model"))
        return from_folder(open_folder(exported), faults=faults)


def rounds_json(rounds: tuple[Round, ...]) -> list[dict[str, Any]]:
    return [{"pos": round_.pos, "drafts": list(round_.drafts), "accepted": round_.accepted,
             "emitted": list(round_.emitted)} for round_ in rounds]


def counters_json(generation: Generation) -> dict[str, int]:
    return dataclasses.asdict(generation.counters)


def official_rounds(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The recorded rounds without the prefill."""
    return [round_ for round_ in entry["rounds"] if round_["pos"] >= len(entry["prompt"])]


def budget(entry: dict[str, Any]) -> tuple[int, frozenset[int]]:
    """(most new tokens, stop ids) of an entry."""
    return entry.get("max_new_tokens", len(entry["plain"])), frozenset(entry.get("stop_ids", ()))


def comparable(rounds: list[dict[str, Any]], stop_ids: Collection[int]) -> list[dict[str, Any]]:
    """Rounds for comparison. Of one that a stop token ended only place and drafts: what was accepted is counted before
    the cut here, after it in the official implementation."""
    return [round_ if not set(round_["emitted"]) & set(stop_ids) else {key: round_[key] for key in ("pos", "drafts")}
            for round_ in rounds]


def check_entry(model: Model, entry: dict[str, Any], *, faults: Collection[Fault] = (), context: int = 256,
                ) -> dict[str, bool]:
    """Runs the reference model (with faults, for tests) on one entry of golden.json: what it reproduces, by name."""
    prompt, (count, stop_ids) = entry["prompt"], budget(entry)
    engine = PlainModel(model, faults=faults, context=context)
    text = plain(engine, prompt, count, stop_ids)
    distance = np.abs(engine.logits[0][-1, : len(entry["first_logits"])] - entry["first_logits"]).max()
    as_official = RoundModel(model, faults=faults, visible=Visible.HF, context=context)
    official = speculative(as_official, prompt, count, stop_ids, shrink=True)
    clean = speculative(RoundModel(model, faults=faults, context=context), prompt, count, stop_ids)
    result = {
        "plain": list(text.tokens) == entry["plain"], "first_logits": bool(distance < LOGIT_TOLERANCE),
        "mtp": list(official.tokens) == entry["mtp"],
        "rounds": comparable(rounds_json(official.rounds), stop_ids) == comparable(official_rounds(entry), stop_ids),
        "clean": list(clean.tokens) == entry["plain"],
    }
    if "rounds_clean" in entry:
        result["rounds_clean"] = rounds_json(clean.rounds) == entry["rounds_clean"]
        result["counters"] = counters_json(clean) == entry["counters"]
    return result


def clean_results(model: Model, entry: dict[str, Any], *, context: int = 256) -> dict[str, Any]:
    """What the product must give for a prompt: tokens, rounds, counters, and the first logits of the first token."""
    prompt, (count, stop_ids) = entry["prompt"], budget(entry)
    engine = RoundModel(model, context=context)
    clean = speculative(engine, prompt, count, stop_ids)
    text = plain(PlainModel(model, context=context), prompt, count, stop_ids)
    if text.tokens != clean.tokens:
        raise CheckpointError(f"speculative decoding changes the text of the prompt {prompt}")
    row = len(prompt) - 1
    return {"prompt": prompt, "plain": list(text.tokens), "rounds_clean": rounds_json(clean.rounds),
            "counters": counters_json(clean), "first_logits": engine.logits[0][row, :8].tolist()}


def _write(folder: Path, entries: list[dict[str, Any]], model: Model) -> None:
    for entry in entries:
        clean = clean_results(model, entry)
        entry |= {"rounds_clean": clean["rounds_clean"], "counters": clean["counters"]}
    write_atomic(folder / GOLDEN_FILE, json.dumps(entries) + "\n")
    if (folder / "target").is_dir():
        packed = load_model(folder, form="q4")
        q4 = [clean_results(packed, entry) for entry in entries]
        write_atomic(folder / GOLDEN_Q4_FILE, json.dumps(q4) + "\n")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="gemma4web.oracle.golden", description="Checks or completes golden.json.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="add rounds_clean, counters and golden_q4.json")
    arguments = parser.parse_args(argv)
    entries = json.loads((arguments.folder / GOLDEN_FILE).read_bytes())
    model, failed = load_model(arguments.folder), False
    for entry in entries:
        result = check_entry(model, entry)
        wrong = [name for name, same in result.items() if not same]
        failed = failed or bool(wrong)
        verdict = f"differs in {', '.join(wrong)}" if wrong else "reproduced"
        print(f"prompt of {len(entry['prompt'])} tokens: {verdict}")
    if failed:
        return CheckpointError.exit_code
    if arguments.write:
        _write(arguments.folder, entries, model)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Gemma4WebError as problem:
        print(problem, file=sys.stderr)
        sys.exit(problem.exit_code)
