"""The reports of `run` and `bench` on a phone: nothing cut off, nothing too small to read."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import pytest
from tests.support.sample_record import sample_record

from gemma4web.bench import Bench, render_bench
from gemma4web.record import parse_record
from gemma4web.report import render_report

pytestmark = pytest.mark.browser

MANIFEST: Final[dict[str, Any]] = {
    "model": {"name": "tiny", "weights": "f32", "vocab": 1024, "context": 256, "prefill_rows": 64},
    "provider": {"kind": "webgpu_port"},
}
# Every shown run of text: what it says, its box, and the height of its line in pixels of the screen.
TEXTS: Final = """() => {
    const found = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const range = document.createRange();
        range.selectNodeContents(walk.currentNode);
        for (const box of range.getClientRects()) {
            if (box.width > 0 && walk.currentNode.textContent.trim() !== '') {
                found.push([walk.currentNode.textContent.trim(), box.left, box.right, box.height]);
            }
        }
    }
    return found;
}"""


def run_report() -> str:
    record = parse_record(json.dumps(sample_record()).encode(), "run.json")
    return render_report(record, manifest=MANIFEST, settings={"Adapter asked for": "software"})


def bench_report(sessions: int) -> str:
    first = sample_record()
    samples = {"prefill_ms": [12.5] * sessions, "decode_tokens_per_s": [40.0] * sessions}
    bench = msgspec.convert({
        **{key: first[key] for key in ("bundle_sha256", "prompts_sha256", "browser", "adapter")},
        "schema": 1, "orders": [["plain-wall", "mtp-wall"]] * sessions,
        "results": [{"variant": variant, "prompt_id": "a prompt with a long name", "tokens": 16,
                     "drafted": 4 * (variant == "mtp-wall"), "accepted": 2 * (variant == "mtp-wall"), "cold": samples, "warm": samples}
                    for variant in ("plain-wall", "mtp-wall")],
    }, type=Bench)
    return render_bench(bench, manifest=MANIFEST, settings={}, record_name="bench.json")


@pytest.mark.parametrize("report", ["run", "bench"])
@pytest.mark.parametrize("width", [360, 390, 1280])
def test_everything_is_in_sight_and_large_enough(page: Any, report: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.set_content(run_report() if report == "run" else bench_report(3))
    page.evaluate("() => { for (const details of document.querySelectorAll('details')) details.open = true; }")
    texts = page.evaluate(TEXTS)
    assert len(texts) > 40
    assert [text for text, left, right, _ in texts if left < 0 or right > width] == []
    assert [text for text, _, _, height in texts if height < 12] == []


def test_a_row_names_its_values_where_the_headings_are_hidden(page: Any) -> None:
    for html in (run_report(), bench_report(2)):
        page.set_viewport_size({"width": 390, "height": 844})
        page.set_content(html)
        tables = page.evaluate("""() => [...document.querySelectorAll('table')].map((table) => [
            [...table.querySelectorAll('th')].slice(1).map((cell) => cell.textContent),
            ...[...table.querySelectorAll('tbody tr')].map((row) => [...row.cells].slice(1).map((cell) => cell.dataset.label))])""")
        assert all(row == headings for headings, *rows in tables for row in rows)
        assert len(tables) == 2


@pytest.mark.parametrize(("sessions", "says"), [(1, "1 session in a fresh browser;"), (2, "2 sessions, each in a fresh browser;")])
def test_one_session_is_no_plural(sessions: int, says: str) -> None:
    assert bench_report(sessions).count(says) == 2
