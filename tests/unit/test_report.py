"""The report: what it must say, that nothing in it needs a network, and that foreign text cannot become markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.support.sample_record import sample_record

from gemma4web.errors import UsageError
from gemma4web.record import Profile, Record, parse_record
from gemma4web.report import chart_of, comparisons, render_report, variant_charts, write_report
from gemma4web.summary import SOFTWARE_LABEL, mtp_mismatches

MANIFEST: dict[str, Any] = {
    "model": {"name": "tiny", "weights": "f32", "vocab": 1024, "context": 256, "prefill_rows": 64},
    "provider": {"kind": "webgpu_port"},
}
VOID = frozenset({"meta", "link", "br", "rect"})


def record_of(document: dict[str, Any]) -> Record:
    return parse_record(json.dumps(document).encode(), "run.json")


def render(document: dict[str, Any]) -> str:
    return render_report(record_of(document), manifest=MANIFEST, settings={"Adapter asked for": "software"})


class Balance(HTMLParser):
    """Fails on an element that is closed without being open, and remembers texts and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(html: str) -> Balance:
    balance = Balance()
    balance.feed(html)
    balance.close()
    assert balance.open == []
    return balance


def test_it_is_one_file_without_a_network() -> None:
    html = render(sample_record())
    page = parsed(html)
    assert page.addresses == ["data:,"]
    assert not re.search(r"url\(|@import|<script|https?://", html)


def test_it_shows_settings_adapter_text_and_timings() -> None:
    text = " ".join(parsed(render(sample_record())).text.split())
    for shown in ("chromium 156.0.1", "google swiftshader", "tiny, f32 weights", "256 positions", "webgpu_port",
                  "ids 5 6 7 8", "40.0", "12.5", "2/4 (50 %)", "MTP equals plain", "a" * 64, "b" * 64, "1,073,741,824"):
        assert shown in text, shown


def test_a_software_adapter_is_labelled_and_a_gpu_is_not() -> None:
    """B6."""
    label = SOFTWARE_LABEL.casefold()
    assert label in render(sample_record()).casefold()
    gpu = sample_record()
    gpu["adapter"] = {"vendor": "nvidia", "architecture": "hopper", "software": False, "features": [], "limits": {}}
    assert "software adapter" not in render(gpu).casefold()


def test_bars_are_proportional_and_sorted() -> None:
    profile = record_of(sample_record()).runs[2].profile
    assert profile is not None
    chart = chart_of("x", [profile])
    assert [(bar.name, bar.width, bar.share, bar.calls, bar.mean_us) for bar in chart.bars] == [
        ("linear_f32", 100.0, 75.0, 4, 450.0), ("rms_norm", pytest.approx(100 / 3), 25.0, 6, 100.0)]
    assert (chart.total_ms, chart.calls) == (2.4, 10)
    html = render(sample_record())
    assert 'width="380.00"' in html
    assert 'width="126.67"' in html


def test_charts_of_several_prompts_are_summed_and_kept_apart() -> None:
    charts = variant_charts(record_of(sample_record()))
    assert [chart.variant for chart in charts] == ["plain-profile", "mtp-profile"]
    assert charts[0].whole.total_ms == pytest.approx(4.8)
    assert charts[0].whole.calls == 20
    assert [chart.title for chart in charts[0].single] == ["first", "second"]


def test_a_profile_of_nothing_divides_by_nothing() -> None:
    assert chart_of("x", [Profile(timestamp_quantum_ns=0.0, kernels=[])]).bars == ()


def test_an_adapter_without_timestamps_is_said() -> None:
    document = sample_record()
    for run in document["runs"]:
        run["profile"] = None
    assert "the adapter offers no timestamps" in render(document)


def test_comparisons_use_wall_builds_only() -> None:
    rows = comparisons(record_of(sample_record()))
    assert [(row.prompt_id, row.equal, row.ratio) for row in rows] == [("first", True, 1.0), ("second", True, None)]
    assert {run.variant for row in rows for run in (row.plain, row.mtp)} == {"plain-wall", "mtp-wall"}


def test_a_difference_is_shown_with_its_place() -> None:
    """R12: the first differing token is named, in the report and for the terminal."""
    document = sample_record()
    document["runs"][4]["tokens"][2] = 99
    mismatches = mtp_mismatches(record_of(document).runs)
    assert len(mismatches) == 1
    assert "differ from token 2 on: 99 and 7" in mismatches[0]
    html = render(document)
    assert "MTP equals plain: no." in html
    assert "MTP equals plain, token for token" not in html


def test_a_shorter_answer_is_a_difference() -> None:
    document = sample_record()
    run = document["runs"][4]
    run["tokens"].pop()
    run["mtp"].update(emitted=3, cut=2)
    assert "differ from token 3 on: the end and 8" in mtp_mismatches(record_of(document).runs)[0]


def test_text_of_a_model_cannot_become_markup() -> None:
    document = sample_record()
    for run in document["runs"]:
        run["text"] = "<script>alert(1)</script>\n</blockquote>&amp;"
    html = render(document)
    assert "<script" not in html
    assert "<script>alert(1)</script>\n</blockquote>&amp;" in parsed(html).text


def test_an_unwritable_place_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_report(tmp_path / "file" / "index.html", record_of(sample_record()), manifest=MANIFEST, settings={},
                     record_name="run.json")
