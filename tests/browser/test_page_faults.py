"""A broken bundle or connection: the demo page says which file and why, within ten seconds (P04, P13, P47)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.chrome import Remote
from tests.support.sites import breaking, copy_bundle, edit_manifest, flip, replace

from gemma4web.serve import serving

pytestmark = pytest.mark.browser

LIMIT_S: Final = 10.0
# A module that imports env.missing, a function () -> (); what is given to it has no such member.
MISSING_IMPORT: Final = (b"\0asm\x01\0\0\0" b"\x01\x04\x01\x60\x00\x00" b"\x02\x0f\x01\x03env\x07missing\x00\x00")


def error_of(page: Remote, url: str) -> tuple[str, float]:
    """Opens the demo page, runs it, and returns the error shown and the seconds until it was."""
    begin = time.monotonic()
    page.goto(url)
    page.wait_for_selector("#run:not([disabled]), #error:not([hidden])")
    if not page.is_visible("#error"):
        begin = time.monotonic()
        page.click("#run")
    page.wait_for_selector("#error:not([hidden])")
    return page.inner_text("#error"), time.monotonic() - begin


def remove(path: str) -> Callable[[Path], None]:
    return lambda bundle: (bundle / path).unlink()


def change(path: str, edit: Callable[[bytes], bytes], *, list_it: bool = False) -> Callable[[Path], None]:
    return lambda bundle: replace(bundle, path, edit, list_it=list_it)


JS, WASM = "runtime/gemma4_mtp.js", "runtime/gemma4_mtp.wasm"
PROGRAM = "model/k2_round.g4p"
SHARD = "model/assistant-00001-of-00001.safetensors"


@pytest.mark.parametrize(("damage", "names"), [
    pytest.param(remove(WASM), [WASM, "is missing on the server", "404"], id="wasm-404"),
    pytest.param(change(WASM, lambda data: data[:-9]), [WASM, "found 12 bytes", "wants 21"], id="wasm-cut"),
    pytest.param(change(WASM, lambda data: data[:12], list_it=True), [WASM, "could not be started", "CompileError"],
                 id="wasm-cut-but-listed"),
    pytest.param(change(WASM, lambda _: MISSING_IMPORT, list_it=True), [WASM, "could not be started", "missing"],
                 id="wasm-import-missing"),
    pytest.param(change(WASM, lambda _: b"<!doctype html>", list_it=True), [WASM, "could not be started"], id="wasm-is-html"),
    pytest.param(change(WASM, flip(-1)), [WASM, "sha256"], id="wasm-of-another-version"),
    pytest.param(remove(JS), [JS, "is missing on the server"], id="js-404"),
    pytest.param(change(JS, flip(100)), [JS, "sha256"], id="js-of-another-version"),
    pytest.param(change(JS, lambda data: data + b"\n}", list_it=True), [JS, "could not be imported", "SyntaxError"],
                 id="js-syntax"),
    pytest.param(change(JS, lambda _: b"export const x = 1;", list_it=True), [JS, "no default export"], id="js-no-factory"),
    pytest.param(change(JS, lambda _: b"export default () => new Promise(() => {});", list_it=True),
                 [WASM, "no answer within 8 s"], id="factory-never-settles"),
    pytest.param(change(JS, lambda _: b"export default (o) => { o.onAbort('start-up failed'); return new Promise(() => {}); };",
                        list_it=True), [WASM, "start-up failed"], id="factory-aborts-and-never-settles"),
    pytest.param(remove(PROGRAM), [PROGRAM, "is missing on the server"], id="program-404"),
    pytest.param(change(PROGRAM, lambda data: data[:-1]), [PROGRAM, "bytes"], id="program-cut"),
    pytest.param(change(PROGRAM, flip(5)), [PROGRAM, "sha256"], id="program-flipped"),
    pytest.param(change(PROGRAM, lambda _: b"not a program", list_it=True), [PROGRAM, "fails verification"],
                 id="program-malformed"),
    pytest.param(change(PROGRAM, lambda data: data.replace(b"k2_round", b"text_decoder"), list_it=True),
                 [PROGRAM, "method is text_decoder"], id="program-wrong-method"),
    pytest.param(remove(SHARD), [SHARD, "is missing on the server"], id="shard-404"),
    pytest.param(change(SHARD, lambda data: data[:-1]), [SHARD, "found 9000000 bytes", "wants 9000001"], id="shard-cut"),
    pytest.param(change(SHARD, lambda data: data + b"x"), [SHARD, "at least 90000", "wants 9000001"], id="shard-longer"),
    pytest.param(change(SHARD, flip(-1)), [SHARD, "9000001 bytes came", "sha256"], id="shard-flipped"),
    pytest.param(change(SHARD, flip(7), list_it=True), [SHARD, "the program wants", "the manifest lists"],
                 id="shard-other-than-the-programs"),
    pytest.param(remove("manifest.json"), ["manifest.json", "is missing on the server"], id="manifest-404"),
    pytest.param(change("manifest.json", lambda data: data[:-40]), ["manifest.json"], id="manifest-cut"),
    pytest.param(lambda b: edit_manifest(b, lambda m: m.update(schema=2)), ["manifest.json", "schema 2"], id="manifest-schema"),
    pytest.param(lambda b: edit_manifest(b, lambda m: m.update(provenance="pending")), ["provenance", "pending"],
                 id="manifest-pending"),
    pytest.param(lambda b: edit_manifest(b, lambda m: m["files"].update({"../x": m["files"]["app.js"]})), ["../x"],
                 id="manifest-leaves-the-bundle"),
    pytest.param(remove("worker.js"), ["worker"], id="worker-404"),
    pytest.param(remove("session.js"), ["worker"], id="worker-import-404"),
    pytest.param(change("session.js", lambda data: data + b"\n}"), ["worker"], id="worker-import-syntax"),
])
def test_the_page_names_file_and_cause(fake_bundle: Path, tmp_path: Path, page: Any, damage: Callable[[Path], None],
                                       names: list[str]) -> None:
    """P04 a-c and what is like it: an error within ten seconds, never a spinner, with advice."""
    broken = copy_bundle(fake_bundle, tmp_path / "bundle")
    damage(broken)
    with serving(broken) as server:
        text, seconds = error_of(page, server.url)
    assert all(name in text for name in names), text
    assert "What to do:" in text
    assert seconds < LIMIT_S
    assert page.is_hidden("#loading")


@pytest.mark.parametrize("name", ["gemma4_mtp.wasm", "gemma4_mtp.js", "assistant-00001-of-00001.safetensors"])
def test_a_connection_reset_half_way(fake_bundle: Path, page: Any, name: str) -> None:
    """P04 d."""
    with breaking(fake_bundle, reset=name) as server:
        text, seconds = error_of(page, server.url)
    assert name in text
    assert "the connection broke after" in text
    assert seconds < LIMIT_S


def test_a_connection_that_goes_silent(fake_bundle: Path, page: Any) -> None:
    """P04's kind: not broken, just nothing more."""
    with breaking(fake_bundle, stall="k2_round.g4p") as server:
        text, seconds = error_of(page, server.url)
    assert "k2_round.g4p: the server sent nothing for 8 s" in text
    assert seconds < LIMIT_S


def test_after_a_repair_the_same_page_runs(fake_bundle: Path, tmp_path: Path, page: Any) -> None:
    """An error is no end: the reader may try again."""
    broken = copy_bundle(fake_bundle, tmp_path / "bundle")
    replace(broken, SHARD, flip(3))
    with serving(broken) as server:
        text, _ = error_of(page, server.url)
        assert SHARD in text
        (broken / SHARD).unlink()
        (broken / SHARD).hardlink_to(fake_bundle / SHARD)
        page.click("#run")
        page.wait_for_function("() => document.querySelector('#status').textContent.startsWith('Done')")
        assert page.is_hidden("#error")


def test_a_page_of_another_version_is_refused(fake_bundle: Path, tmp_path: Path, page: Any) -> None:
    """P47: the bundle is replaced while the page is open; the mixed pair is refused before it is loaded."""
    changing = copy_bundle(fake_bundle, tmp_path / "bundle")
    with serving(changing) as server:
        page.goto(server.url)
        page.wait_for_selector("#run:not([disabled])")
        edit_manifest(changing, lambda manifest: manifest["model"].update(name="version two"))
        page.click("#run")
        page.wait_for_selector("#error:not([hidden])")
        assert "another version answers under this address: reload the page" in page.inner_text("#error")
        assert not any("runtime/" in line for line in server.requests)
