"""One case through the exporter, the reference model and, when a browser is given, the staged bundle; against the official
implementation in float64.

Differences are of logits, absolute and relative to the range (largest less smallest) of the official row. Of f32 what is
wanted is what the official f32 itself attains on the same rows, times a factor. For q4 the official models hold the
exported values, unpacked, so that only arithmetic is compared.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from tests.official import as_gguf
from tests.official.cases import Case
from tests.official.implementation import (
    Array,
    Decoded,
    Models,
    align_drafts,
    build,
    load,
    replace_weights,
    save,
    save_refused,
    widened,
)
from tests.support.chrome import Chrome
from tests.support.models import ModelPage, bundle_with, opened

from gemma4web.__main__ import main as gemma4web
from gemma4web.errors import CheckpointError
from gemma4web.export.folder import open_folder
from gemma4web.oracle.decode import plain, speculative
from gemma4web.oracle.golden import rounds_json
from gemma4web.oracle.model import PlainModel, RoundModel, Visible
from gemma4web.oracle.weights import Model, from_folder
from gemma4web.program.decoder import ASSISTANT_PREFIX
from gemma4web.program.ir import DRAFTS

NEW_TOKENS: Final = 12
CONTEXT: Final = 256
REFERENCE_TOLERANCE: Final = 1e-9
"""Of the reference model, float64 as the official one is."""
F32_FACTOR: Final = 8.0
F32_FLOOR: Final = 1e-5
"""Of f32 in the browser: this many times what the official f32 differs by, or the floor if that is larger."""
NEAR_TIE: Final = 1e-4
"""Two scores nearer than this share of their row's range may come in either order in f32; or nearer than what f32 logits
of the case may differ by, if that is more."""


@dataclass(kw_only=True, slots=True)
class Difference:
    """Worst difference over all rows seen: ``absolute``, and ``relative`` to the range of its row."""

    absolute: float = 0.0
    relative: float = 0.0
    rows: int = 0

    def add(self, found: Array, wanted: Array) -> None:
        if found.shape != wanted.shape:
            raise ValueError(f"logits {found.shape}, wanted {wanted.shape}")
        if len(found):
            distance = np.abs(found - wanted).max(axis=1)
            distance[~np.isfinite(distance)] = np.inf
            self.absolute = max(self.absolute, float(distance.max()))
            self.relative = max(self.relative, float((distance / np.maximum(np.ptp(wanted, axis=1), 1e-30)).max()))
            self.rows += len(found)


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What became of a case: worst differences by form and by who differs, counts, and what is wrong, in words."""

    differences: dict[str, dict[str, Difference]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def of(self, form: str, who: str) -> Difference:
        return self.differences.setdefault(form, {}).setdefault(who, Difference())

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def limit(self, form: str) -> float:
        """Relative difference that f32 logits may have."""
        return max(F32_FLOOR, F32_FACTOR * self.of(form, "official_f32").relative)

    def tie(self, form: str, kind: str, distance: float, scores: Array, what: str) -> None:
        """Counts a choice that could be otherwise in f32, or notes a failure. ``distance`` of the two scores."""
        share = float(abs(distance) / max(np.ptp(scores), 1e-30))
        near = share <= max(NEAR_TIE, self.limit(form))
        self.count(kind, near)
        self.check(near, f"{form} browser {what}, {share:.1e} of the range below")

    def check(self, right: bool, what: str) -> None:
        if not right:
            self.failures.append(what)


def export(case: Case, checkpoint: Path, out: Path, form: str, suffix: str = "") -> str | None:
    """Runs the command `gemma4web export`; what it says when it refuses, with its exit code that of CheckpointError.
    ``suffix`` of what is in ``checkpoint``: none of folders, else .gguf."""
    words = ["export", "--target", str(checkpoint / f"target{suffix}"), "--out", str(out), "--weights", form, "--context",
             str(CONTEXT), "--prefill-rows", str(case.values["prefill_rows"]), "--logits", case.values["logits"]]
    if case.assistant is not None:
        words += ["--assistant", str(checkpoint / f"assistant{suffix}")]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = gemma4web(words)
    if code not in (0, CheckpointError.exit_code):
        raise RuntimeError(f"export ended with {code}: {said.getvalue()}")
    return said.getvalue() if code else None


def _same_tokens(outcome: Outcome, form: str, who: str, found: Sequence[int], wanted: Decoded) -> int:
    """How many tokens are the official ones, up to a near-tie."""
    for index, (token, official) in enumerate(zip(found, wanted.tokens, strict=True)):
        if token != official:
            row = wanted.logits[len(wanted.prompt) - 1 + index]
            outcome.tie(form, "near_ties", row[official] - row[token], row,
                        f"{who}: token {index} of the prompt of {len(wanted.prompt)} is {token}, not {official}")
            return index
    return len(wanted.tokens)


def _same_rounds(outcome: Outcome, form: str, found: list[dict[str, Any]], wanted: list[dict[str, Any]],
                 engine: RoundModel, same: int) -> None:
    """Draft for draft. After a near-tie, of a draft or of the text, nothing more is comparable: ``same`` is the position
    of the first token of prompt and text that differs."""
    for index, (one, other) in enumerate(zip(found, wanted, strict=False)):
        if one["pos"] >= same:
            return
        for number, (draft, official) in enumerate(zip(one["drafts"], other["drafts"], strict=True)):
            if draft == official:
                continue
            scores, what = engine.draft_logits[index][number], f"draft {number} of round {index} is {draft}, not {official}"
            if scores[draft] > scores.min() or not engine.assistant.sizes.centroids:
                outcome.tie(form, "near_ties_of_drafts", scores[official] - scores[draft], scores, what)
            else:  # no candidate: another centroid was taken
                centroids = engine.assistant.centroid_scores[DRAFTS * index + number]
                best, top_k = np.sort(centroids)[::-1], engine.assistant.sizes.top_k
                outcome.tie(form, "near_ties_of_centroids", best[top_k - 1] - best[top_k], centroids, what)
            return
        outcome.count("drafts", len(one["drafts"]))
        if one["emitted"] != other["emitted"]:
            return


def _reference(case: Case, outcome: Outcome, form: str, model: Model, official: Decoded,
               ) -> tuple[list[dict[str, Any]], RoundModel] | None:
    """The float64 reference model against the official one, plain and round for round; returns its rounds by the
    product's rule for visible rows, and what played them."""
    who, prompt = f"{form} reference", official.prompt
    alone = PlainModel(model, context=CONTEXT)
    outcome.check(list(plain(alone, prompt, NEW_TOKENS).tokens) == official.tokens, f"{who}: other tokens")
    outcome.of(form, "reference").add(np.concatenate(alone.logits), official.logits)
    if case.assistant is None:
        return None
    as_official = RoundModel(model, visible=Visible.HF, context=CONTEXT)
    found = rounds_json(speculative(as_official, prompt, NEW_TOKENS, shrink=True).rounds)
    outcome.check([(one["pos"], one["drafts"], one["accepted"]) for one in found]
                  == [(one.pos, one.drafts, one.accepted) for one in official.rounds], f"{who}: other rounds")
    for scores, played in zip(as_official.draft_logits, official.rounds, strict=False):
        if len(played.drafts):
            outcome.of(form, "reference_drafts").add(scores, played.logits)
    engine = RoundModel(model, context=CONTEXT)
    clean = speculative(engine, prompt, NEW_TOKENS)
    outcome.check(list(clean.tokens) == official.tokens, f"{who}: rounds change the text")
    outcome.count("rounds", len(clean.rounds))
    outcome.count("accepted", sum(one.accepted for one in clean.rounds))
    return rounds_json(clean.rounds), engine


def _rows(outcome: Outcome, form: str, who: str, page: ModelPage, official: Decoded, steps: int, same: int) -> None:
    """Logits of every row that the runtime gives: of prefill passes, and of the rows of ``same`` right tokens."""
    chunk, prompt = page.opened["model"]["prefillRows"], official.prompt
    position, last = 0, len(prompt) - 1 + same
    for item in page.passes(prompt, steps):
        if position < len(prompt):
            position = min(position + chunk, len(prompt))
            first, found = position - len(item.logits), item.logits
        else:
            first, found = position, item.logits[: len(item.tokens)]
            position += len(item.tokens)
        found = found[: max(0, last - first + 1)]
        wanted = official.logits[first : first + len(found)]
        outcome.of(form, who).add(found[: len(wanted)], wanted)


def _browser(outcome: Outcome, form: str, staged: tuple[Chrome, Path],
             decoded: list[tuple[Decoded, tuple[list[dict[str, Any]], RoundModel] | None]]) -> None:
    """The staged runtime, plain and speculative, against the official text, the rounds of the reference, and the official
    logits of the last prompt."""
    chrome, bundle = staged
    texts: dict[int, list[int]] = {}
    for who in ("plain", "mtp") if decoded[0][1] is not None else ("plain",):
        with opened(chrome, bundle, f"{who}-wall") as page:
            for number, (official, rounds) in enumerate(decoded):
                found = page.generate(official.prompt, NEW_TOKENS)
                same, steps = _same_tokens(outcome, form, who, found["tokens"], official), NEW_TOKENS - 1
                if who == "mtp" and rounds is not None:
                    _same_rounds(outcome, form, found["rounds"], *rounds, same=len(official.prompt) + same)
                    steps = len(rounds[0])
                outcome.check(found["tokens"] == texts.setdefault(number, found["tokens"]),
                              f"{form} browser: the assistant changes the text")
                outcome.count("browser_tokens", len(found["tokens"]))
            _rows(outcome, form, f"browser_{who}", page, official, steps, same)


def _official(outcome: Outcome, form: str, wide: Models, narrow: Models, prompts: list[list[int]]) -> Iterator[Decoded]:
    """Greedy text of every prompt in float64; checks that the library agrees with itself, and what its f32 differs by."""
    for prompt in prompts:
        found = wide.decode(prompt, NEW_TOKENS)
        rows = found.logits[len(prompt) - 1 :]
        outcome.check(rows.argmax(axis=1).tolist() == found.tokens, f"{form}: the official caches change the text")
        outcome.check(found.speculative in (None, found.tokens), f"{form}: the official assistant changes the text")
        outcome.of(form, "official_f32").add(narrow.logits([*prompt, *found.tokens[:-1]]), found.logits)
        outcome.count("tokens", len(found.tokens))
        yield found


def _refused(case: Case, outcome: Outcome, work: Path) -> None:
    shutil.copytree(work / "checkpoint", work / "refused")
    wanted = save_refused(case, work / "refused")
    said = export(case, work / "refused", work / "refused-export", "f32")
    outcome.check(said is not None and wanted in said and "remedy" in said, f"{case.refused} is not refused: {said}")
    outcome.check(not (work / "refused-export").exists(), f"{case.refused}: something was published")
    if case.forms == ("f32",):
        said = export(case, work / "checkpoint", work / "q4-export", "q4")
        outcome.check(said is not None and "--weights f32" in said, f"odd columns are not refused for q4: {said}")


def _as_gguf(case: Case, outcome: Outcome, work: Path) -> None:
    """The q4 model from GGUF is the one from the checkpoint, or is refused where the format can say only released models."""
    wanted = open_folder(work / "q4")
    as_gguf.write(case, work / "checkpoint", wanted, work / "gguf")
    said = export(case, work / "gguf", work / "gguf-export", "q4", ".gguf")
    if not as_gguf.writable(case):
        outcome.check(said is not None and "rope_freqs.weight" in said, f"another rotary share is not refused: {said}")
        return
    outcome.check(said is None, f"the export from GGUF is refused: {said}")
    if said is None:
        found = as_gguf.differences(open_folder(work / "gguf-export"), wanted)
        outcome.check(not found, f"the export from GGUF has {', '.join(found)}")
        outcome.count("as_gguf")


def _tolerances(outcome: Outcome) -> None:
    for form, found in outcome.differences.items():
        for who, difference in found.items():
            limit = REFERENCE_TOLERANCE if who.startswith("reference") else outcome.limit(form)
            outcome.check(who == "official_f32" or difference.relative <= limit,
                          f"{form} {who}: logits differ by {difference.relative:.2e} of their range, wanted {limit:.1e}")


def _compare(case: Case, work: Path, staged: tuple[Chrome, Path] | None, outcome: Outcome) -> None:
    checkpoint, prompts = work / "checkpoint", case.prompts()
    models = build(case)
    align_drafts(models, prompts[-1], 2 * NEW_TOKENS)
    save(models, case, checkpoint)
    _refused(case, outcome, work)
    for form in case.forms:
        said = export(case, checkpoint, work / form, form)
        if said is not None:
            outcome.failures.append(f"{form}: the export is refused: {said}")
            continue
        if form == "q4":
            _as_gguf(case, outcome, work)
        model, narrow = from_folder(open_folder(work / form)), load(case, checkpoint)
        if form == "q4":
            replace_weights(narrow, model.weights, ASSISTANT_PREFIX)
            prompts = prompts[-1:]  # the same arithmetic on other values
        decoded = list(_official(outcome, form, widened(narrow), narrow, prompts))
        rounds = [_reference(case, outcome, form, model, official) for official in decoded]
        if staged is not None:
            chrome, bundle = staged
            bundle = bundle_with(bundle, work / form, work / f"{form}-bundle")
            _browser(outcome, form, (chrome, bundle), list(zip(decoded, rounds, strict=True)))


def compare(case: Case, work: Path, staged: tuple[Chrome, Path] | None) -> Outcome:
    """Runs a case in the empty folder ``work``. ``staged``: a browser and a staged bundle, to run it there too.

    An exception is one of the failures, so that what was compared before it is not lost.
    """
    outcome = Outcome()
    try:
        _compare(case, work, staged, outcome)
    except Exception:  # noqa: BLE001  a run goes on with the next case
        outcome.failures.append(traceback.format_exc())
    _tolerances(outcome)
    return outcome
