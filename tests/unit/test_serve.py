"""The static server: containment (P49), ranges, HEAD, types, ports, and the nonce that names a server (P59)."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma4web.errors import UsageError
from gemma4web.serve import NONCE_HEADER, ByteRange, RangeNotSatisfiableError, locate, main, parse_range, serving

CANARY = b"secret outside of the bundle"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with ordinary and odd names, a canary outside, and links that lead there."""
    root = tmp_path / "site"
    (root / "runtime").mkdir(parents=True)
    (root / "index.html").write_text("<!doctype html>front")
    (root / "runtime" / "index.html").write_text("inner")
    (root / "runtime" / "g.wasm").write_bytes(bytes(range(256)) * 5)
    (root / "app.js").write_text("export {};")
    (root / "a name..with dots").write_text("odd")
    (root / "empty.bin").write_bytes(b"")
    (tmp_path / "canary").write_bytes(CANARY)
    (tmp_path / "site-leak").mkdir()
    (tmp_path / "site-leak" / "canary").write_bytes(CANARY)
    (root / "link-out").symlink_to(tmp_path / "canary")
    (root / "folder-out").symlink_to(tmp_path / "site-leak")
    (root / "link-in.js").symlink_to(root / "app.js")
    (root / "loop").symlink_to(root / "loop")
    return root


def ask(url: str, method: str, target: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
    """One raw request: the target is sent exactly as written, without any client's normalisation."""
    host, port = url.removeprefix("http://").split("/")[0].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.fixture
def url(site: Path) -> Iterator[str]:
    with serving(site) as server:
        yield server.url


@pytest.mark.parametrize("target", [
    "/../canary", "/..%2fcanary", "/..%2Fcanary", "/%2e%2e/canary", "/%2e%2e%2fcanary", "/.%2e/canary",
    "/%252e%252e/canary", "/%252e%252e%252fcanary", "/%5c../canary", "/..%5ccanary", "/%5c..%5ccanary", "/..\\canary",
    "/../site-leak/canary", "/..%2fsite-leak/canary", "/runtime/../../canary", "/runtime/..%2f..%2fcanary",
    "/link-out", "/folder-out/canary", "/loop", "/%00", "/app.js%00.html", "//canary", "/./app.js", "/%2e/app.js",
    "/runtime//g.wasm", "/%ff%fe", "/%c0%ae%c0%ae/canary", "canary", "/missing.js", "/runtime", "/.git/config",
    "/a" * 2000, "http://other.example/../canary",
])
def test_nothing_outside_is_ever_served(url: str, target: str) -> None:
    """P49: every way out of the folder is a 404 with a body of ours."""
    status, _, body = ask(url, "GET", target)
    assert status == 404
    assert body == b"404 Not Found\n"


@pytest.mark.parametrize(("target", "text"), [
    ("/", b"<!doctype html>front"), ("/index.html", b"<!doctype html>front"), ("/runtime/", b"inner"),
    ("/a%20name..with%20dots", b"odd"), ("/app.js?v=1", b"export {};"), ("/link-in.js", b"export {};"),
    ("/%61pp.js", b"export {};"),
])
def test_ordinary_names_are_served(url: str, target: str, text: bytes) -> None:
    """P49's other side: dots, spaces, queries and links that stay inside keep working."""
    status, _, body = ask(url, "GET", target)
    assert (status, body) == (200, text)


@pytest.mark.parametrize(("target", "kind"), [
    ("/", "text/html; charset=utf-8"), ("/app.js", "text/javascript; charset=utf-8"),
    ("/runtime/g.wasm", "application/wasm"), ("/empty.bin", "application/octet-stream"),
])
def test_types_do_not_depend_on_the_machine(url: str, target: str, kind: str) -> None:
    _, headers, _ = ask(url, "GET", target)
    assert headers["content-type"] == kind
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("headers", [{}, {"Range": "bytes=3-9"}, {"Range": "bytes=9999-"}])
@pytest.mark.parametrize("target", ["/runtime/g.wasm", "/", "/missing", "/empty.bin"])
def test_head_is_get_without_a_body(url: str, target: str, headers: dict[str, str]) -> None:
    got = ask(url, "GET", target, headers)
    head = ask(url, "HEAD", target, headers)
    unstable = {"date"}
    assert head[0] == got[0]
    assert {k: v for k, v in head[1].items() if k not in unstable} == {k: v for k, v in got[1].items() if k not in unstable}
    assert head[2] == b""
    assert int(got[1]["content-length"]) == len(got[2])


@pytest.mark.parametrize(("asked", "status", "begin", "end"), [
    ("bytes=0-0", 206, 0, 1), ("bytes=3-9", 206, 3, 10), ("bytes=1270-", 206, 1270, 1280), ("bytes=-10", 206, 1270, 1280),
    ("bytes=-99999", 206, 0, 1280), ("bytes=1279-99999", 206, 1279, 1280),
    ("bytes=0-1,5-6", 200, 0, 1280), ("items=0-1", 200, 0, 1280), ("bytes=9-3", 200, 0, 1280), ("bytes=-", 200, 0, 1280),
])
def test_ranges(url: str, asked: str, status: int, begin: int, end: int) -> None:
    """P44's server side: a range is that range, and what is not understood is the whole file, never something between."""
    whole = bytes(range(256)) * 5
    found, headers, body = ask(url, "GET", "/runtime/g.wasm", {"Range": asked})
    assert (found, body) == (status, whole[begin:end])
    assert headers.get("content-range") == (f"bytes {begin}-{end - 1}/1280" if status == 206 else None)


@pytest.mark.parametrize("asked", ["bytes=1280-", "bytes=5000-6000", "bytes=-0"])
def test_a_range_outside_the_file_is_416(url: str, asked: str) -> None:
    status, headers, _ = ask(url, "GET", "/runtime/g.wasm", {"Range": asked})
    assert (status, headers["content-range"]) == (416, "bytes */1280")


def test_parse_range_of_an_empty_file() -> None:
    assert parse_range(None, 0) is None
    with pytest.raises(RangeNotSatisfiableError):
        parse_range("bytes=0-", 0)
    assert parse_range("bytes=2-", 5) == ByteRange(begin=2, end=5)


def test_other_methods_are_refused(url: str) -> None:
    assert ask(url, "POST", "/")[0] == 501
    assert ask(url, "PUT", "/app.js")[0] == 501


def test_a_prefix_is_the_whole_site(site: Path) -> None:
    """P13: the same files under a sub-path, and nothing at the root."""
    with serving(site, prefix="/a/b/") as server:
        assert server.url.endswith("/a/b/")
        assert ask(server.url, "GET", "/a/b/app.js")[0] == 200
        assert ask(server.url, "GET", "/app.js")[0] == 404
        assert ask(server.url, "GET", "/a/b/../../canary")[0] == 404
    assert locate(site, "/a/b", prefix="/a/b/") is None


def test_every_answer_names_its_server(site: Path) -> None:
    """P59: two servers of one folder are told apart, on success and on failure alike."""
    with serving(site) as one, serving(site) as two:
        assert one.nonce != two.nonce
        for target in ("/", "/missing"):
            assert ask(one.url, "GET", target)[1][NONCE_HEADER.lower()] == one.nonce
            assert ask(two.url, "HEAD", target)[1][NONCE_HEADER.lower()] == two.nonce


def test_a_port_in_use_is_named_with_the_remedy(site: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {port} on 127\.0\.0\.1 is in use.*\n.*--port N \(`scons serve PORT=N`\)"), serving(site, port=port):
            pytest.fail("the port was shared")


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_exist(site: Path, port: int) -> None:
    with pytest.raises(UsageError, match="not between 0 and 65535"), serving(site, port=port):
        pytest.fail("there is no such port")


def test_only_loopback_is_bound(site: Path) -> None:
    with serving(site) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_the_port_is_free_after_the_block(site: Path) -> None:
    """P56: nothing listens afterwards; the very same port can be taken again."""
    with serving(site) as server:
        port = server.server_address[1]
    with serving(site, port=port) as again:
        assert ask(again.url, "GET", "/app.js")[0] == 200


def test_ctrl_c_ends_the_server_quietly(site: Path) -> None:
    """P56: also right after it said that it serves."""
    (site / "manifest.json").write_text("{}")
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-m", "gemma4web", "serve", "--bundle", str(site), "--port", "0"],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None and process.stdout.readline().startswith("Serving ")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20)[0] == ""
        assert process.returncode == 0


def test_serving_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no staged bundle"):
        main(["--bundle", str(tmp_path)])
    with pytest.raises(UsageError, match="is no folder"), serving(tmp_path / "nothing"):
        pytest.fail("served nothing")
