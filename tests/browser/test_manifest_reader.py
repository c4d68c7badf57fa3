"""The page's manifest reader agrees with Python's on every document that readers might read differently (P50, P49)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.chrome import Chrome

from gemma4web.errors import Gemma4WebError
from gemma4web.manifest import parse
from gemma4web.serve import serving

pytestmark = pytest.mark.browser

Edit = Callable[[bytes], bytes]

READ = """async (text) => {
    const { Manifest } = await import('./manifest.js');
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    try { new Manifest(bytes, new URL('./', location.href)); return null; } catch (error) { return [error.code, error.message]; }
}"""


@pytest.fixture(scope="module")
def reader(chrome: Chrome, fake_bundle: Path) -> Iterator[Callable[[bytes], Any]]:
    context = chrome.context()
    with serving(fake_bundle) as server:
        page = context.new_page()
        page.goto(server.url + "run.html")
        yield lambda data: page.evaluate(READ, base64.b64encode(data).decode())
    context.close()


def swap(old: str, new: str, count: int = 1) -> Edit:
    def edit(data: bytes) -> bytes:
        assert old.encode() in data, old
        return data.replace(old.encode(), new.encode(), count)
    return edit


SHA = '"sha256": "'

BAD: dict[str, Edit] = {
    "byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "utf-16": lambda data: data.decode().encode("utf-16"),
    "latin-1": lambda data: data.replace(b'"stand-in"', '"Ärger"'.encode("latin-1")),
    "trailing data": lambda data: data + b"{}",
    "trailing comma": swap('"schema": 1,', '"schema": 1,,'),
    "cut": lambda data: data[:-3],
    "empty": lambda _: b"",
    "a list": lambda _: b"[]",
    "null": lambda _: b"null",
    "deep": lambda _: b"[" * 100_000,
    "duplicate top-level key": swap('"provenance": "verified"', '"provenance": "verified",\n  "provenance": "verified"'),
    "duplicate file": swap('"app.js": {', '"app.js": {"bytes": 1, "sha256": "' + "0" * 64 + '"}, "app.js": {'),
    "duplicate digest": swap(SHA, '"sha256": "' + "0" * 64 + '", ' + SHA),
    "__proto__": swap('"app.js": {', '"__proto__": {"bytes": 1, "sha256": "' + "0" * 64 + '"}, "app.js": {'),
    "NaN": swap('"schema": 1,', '"schema": NaN,'),
    "1e400": swap('"prefill_rows": 64', '"prefill_rows": 1e400'),
    "half a surrogate": swap('"stand-in"', '"\\ud800"'),
    "single quotes": swap('"stand-in"', "'stand-in'"),
    "raw control character": swap('"stand-in"', '"stand\tin"'),
    "unknown schema": swap('"schema": 1,\n  "source', '"schema": 2,\n  "source'),
    "schema as text": swap('"schema": 1,\n  "source', '"schema": "1",\n  "source'),
    "schema as fraction": swap('"schema": 1,\n  "source', '"schema": 1.0,\n  "source'),
    "schema as bool": swap('"schema": 1,\n  "source', '"schema": true,\n  "source'),
    "pending": swap('"verified"', '"pending"'),
    "bytes as text": swap('"bytes": ', '"bytes": "1", "x": '),
    "bytes as fraction": lambda data: data.replace(b",\n      \"sha256\"", b".0,\n      \"sha256\"", 1),
    "bytes negative": swap('"bytes": ', '"bytes": -'),
    "bytes with leading zero": swap('"bytes": ', '"bytes": 0'),
    "bytes as bool": lambda data: data.replace(b'"app.js": {\n      "bytes": ', b'"app.js": {\n      "bytes": true, "x": ', 1),
    "digest in upper case": lambda data: data.replace(b'"app.js": {', b'"b.js": {"bytes": 1, "sha256": "' + b"A" * 64
                                                      + b'"}, "app.js": {', 1),
    "digest too short": lambda data: data.replace(b'"app.js": {', b'"b.js": {"bytes": 1, "sha256": "' + b"a" * 63
                                                  + b'"}, "app.js": {', 1),
    "digest missing": swap('"app.js": {', '"b.js": {"bytes": 1}, "app.js": {'),
}
PATHS = ["../x", "/etc/passwd", "a/../../x", "C:\\\\x", "a\\\\..\\\\x", "a\\u0000b", "", ".", "..", "a/./b", "a//b", "x.", "x ",
         "a/x. /b", "x" * 300, "a/", "a?b", "a#b", "a%2fb", "a:b"]


@pytest.mark.parametrize("edit", BAD.values(), ids=BAD.keys())
def test_both_readers_refuse(fake_bundle: Path, reader: Callable[[bytes], Any], edit: Edit) -> None:
    data = edit((fake_bundle / "manifest.json").read_bytes())
    found = reader(data)
    assert found is not None, "the page accepts it"
    assert found[0] == "manifest"
    assert "manifest.json" in found[1]
    with pytest.raises(Gemma4WebError):
        parse(data)


@pytest.mark.parametrize("path", PATHS)
def test_both_readers_refuse_the_path(fake_bundle: Path, reader: Callable[[bytes], Any], path: str) -> None:
    """P49: a listed path that could leave the bundle, or that hosts read differently."""
    data = swap('"app.js": {', f'"{path}": {{"bytes": 1, "sha256": "{"0" * 64}"}}, "app.js": {{')(
        (fake_bundle / "manifest.json").read_bytes())
    found = reader(data)
    assert found is not None, "the page accepts it"
    assert found[0] == "manifest"
    with pytest.raises(Gemma4WebError):
        parse(data)


def test_both_readers_accept_the_untouched_one(fake_bundle: Path, reader: Callable[[bytes], Any]) -> None:
    data = (fake_bundle / "manifest.json").read_bytes()
    assert reader(data) is None
    parse(data)


def test_two_identities_of_one_module_are_refused(fake_bundle: Path, reader: Callable[[bytes], Any]) -> None:
    data = (fake_bundle / "manifest.json").read_bytes()
    place = data.index(b'"path": "runtime/gemma4.wasm"')
    sha = data.index(b'"sha256": "', place) + len(b'"sha256": "')
    broken = data[:sha] + b"0" * 64 + data[sha + 64:]
    assert "two identities for runtime/gemma4.wasm" in reader(broken)[1]
    with pytest.raises(Gemma4WebError):
        parse(broken)
