"""`scons bench`: sessions in turned order, cold and warm apart, and a wrong token is no measurement (B5, P58)."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gemma4web.bench import Bench, main, order_of
from gemma4web.chromium import Chromium
from gemma4web.errors import BrowserError, UsageError
from gemma4web.variants import VARIANTS

pytestmark = pytest.mark.browser


def command(bundle: Path, chromium: Chromium, tokens: list[int], tmp_path: Path, *more: str, count: int = 16) -> list[str]:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps([{"id": "one", "tokens": tokens, "max_new_tokens": count}]))
    return ["--bundle", str(bundle), "--prompts", str(prompts), "--record", str(tmp_path / "bench.json"), "--report",
            str(tmp_path / "bench.html"), "--browser", str(chromium.executable), "--deadline", "60", *more]


def test_every_session_is_kept_apart(fake_bundle: Path, chromium: Chromium, tmp_path: Path,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(fake_bundle, chromium, [2, 17], tmp_path, "--repeats", "2")) == 0
    bench = msgspec.json.decode((tmp_path / "bench.json").read_bytes(), type=Bench)
    assert bench.orders == [["plain-wall", "mtp-wall"], ["mtp-wall", "plain-wall"]]
    assert [(row.variant, row.prompt_id, row.tokens) for row in bench.results] == [
        ("plain-wall", "one", 16), ("mtp-wall", "one", 16)]
    for row in bench.results:
        for samples in (row.cold, row.warm):
            assert len(samples.prefill_ms) == len(samples.decode_tokens_per_s) == 2
            assert min(samples.decode_tokens_per_s) > 0
        assert (row.drafted > 0) == (row.variant == "mtp-wall")
    html = (tmp_path / "bench.html").read_text()
    assert "Software adapter: times are no GPU results" in html
    assert "plain-wall, mtp-wall; then mtp-wall, plain-wall" in html
    assert "warm tokens/s" in capsys.readouterr().out


def test_a_wrong_token_is_no_measurement(fake_bundle: Path, chromium: Chromium, tmp_path: Path) -> None:
    with pytest.raises(BrowserError, match="MTP equals plain: NO"):
        main(command(fake_bundle, chromium, [909, 3], tmp_path, "--repeats", "1"))
    assert not (tmp_path / "bench.json").exists()


def test_a_dead_assistant_is_no_measurement(fake_bundle: Path, chromium: Chromium, tmp_path: Path) -> None:
    """P60: the text is right, and every draft wrong."""
    with pytest.raises(BrowserError, match="0 of 156 drafts were accepted"):
        main(command(fake_bundle, chromium, [912, 3], tmp_path, "--repeats", "1", count=40))
    assert not (tmp_path / "bench.json").exists()


def test_no_repeats_are_refused(fake_bundle: Path, chromium: Chromium, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--repeats 0 measures nothing"):
        main(command(fake_bundle, chromium, [2], tmp_path, "--repeats", "0"))


def test_each_variant_takes_each_place() -> None:
    orders = [order_of(VARIANTS, session) for session in range(4)]
    assert all(sorted(variant.name for variant in order) == sorted(variant.name for variant in VARIANTS) for order in orders)
    assert [len({order[place].name for order in orders}) for place in range(4)] == [4, 4, 4, 4]
