"""One file over HTTP against a hub that misbehaves: what is kept, what is asked again, what is refused and how it is said."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import hub_site
import pytest
from fake_tools import Lines
from hub_site import Fault, Handler, Site, breaks_after, drips, redirects, sends, sends_chunks, status

from gemma4web.errors import DiskFullError, FetchError, Gemma4WebError, UsageError
from gemma4web.export.acquisition import FileRecord
from gemma4web.export.download import download, partial_of
from gemma4web.export.hub import HubFile, list_files
from gemma4web.export.hub_name import HubName
from gemma4web.export.transport import Patience, Transport, token_of

REPO, BIG, SMALL = "owner/model", "model.safetensors", "config.json"
DATA = random.Random(5).randbytes(3_000_000)
TEXT = b'{"a": 1}' * 20
PATIENT = Patience(connect_s=5, read_s=5, attempts=3, backoff_s=0.01, longest_wait_s=5, slow_s=0.4, least_bytes_per_s=1000)


@pytest.fixture(scope="module")
def servers() -> Iterator[Site]:
    with hub_site.serving() as site:
        yield site


@pytest.fixture
def site(servers: Site) -> Site:
    servers.clear()
    servers.add(REPO, {BIG: DATA, SMALL: TEXT, "empty.json": b""})
    return servers


class Case:
    """One download and everything that can be asked about it."""

    def __init__(self, site: Site, folder: Path, file: str = BIG, token: str | None = None) -> None:
        self.progress, self.came = Lines(), 0
        self.transport = Transport(site.hub, token=token, progress=self.progress, patience=PATIENT)
        self.name = HubName(repo=REPO, revision=site.branches[REPO, "main"])
        data = site.repos[REPO][self.name.revision][file]
        self.file = list_files(self.transport, self.name)[file]
        assert (self.file.bytes, self.file.sha256) == (len(data), hashlib.sha256(data).hexdigest() if file == BIG else None)
        self.target = folder / file
        self.partial = partial_of(self.target)

    def run(self, file: HubFile | None = None) -> FileRecord:
        def came(count: int) -> None:
            self.came += count

        self.came = self.partial.stat().st_size if self.partial.exists() else 0
        try:
            return download(self.transport, self.name, file or self.file, self.target, came)
        finally:
            self.transport.close()

    def refused(self, message: str, kind: type[Gemma4WebError] = FetchError) -> str:
        """The remedy of the error that the download ends in. Nothing stands under the file's name."""
        with pytest.raises(kind, match=message) as caught:
            self.run()
        assert not self.target.exists() and caught.value.advice
        assert "secret" not in str(caught.value) and "good" not in str(caught.value)
        return caught.value.advice


@pytest.fixture
def case(site: Site, tmp_path: Path) -> Case:
    return Case(site, tmp_path)


def asked_ranges(site: Site) -> list[str | None]:
    return [asked.headers.get("range") for asked in site.asked_for(BIG, "store")]


def test_a_whole_file(site: Site, case: Case) -> None:
    """The size and the hash are those of the bytes; nothing else stays in the folder."""
    assert case.run() == FileRecord(bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())
    assert case.target.read_bytes() == DATA and case.came == len(DATA)
    assert list(case.target.parent.iterdir()) == [case.target]
    assert case.target.stat().st_mode & 0o777 == 0o644 and case.progress.lines == []


@pytest.mark.parametrize("file", [SMALL, "empty.json"])
def test_a_file_without_a_sha256_gets_one(site: Site, tmp_path: Path, file: str) -> None:
    case = Case(site, tmp_path, file)
    data = site.repos[REPO][case.name.revision][file]
    assert case.run() == FileRecord(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    assert case.target.read_bytes() == data and case.file.git_sha1 is not None


@pytest.mark.parametrize("reset", [False, True])
def test_a_broken_connection_goes_on_where_it_stopped(site: Site, case: Case, reset: bool) -> None:
    site.fault(BIG, breaks_after(1_200_000, reset=reset), breaks_after(1_300_000, reset=reset))
    case.run()
    assert case.target.read_bytes() == DATA and case.came == len(DATA)
    ranges = asked_ranges(site)
    assert ranges[0] is None and len(ranges) == 3 and all(text and text.startswith("bytes=") for text in ranges[1:])
    if not reset:  # a reset may overtake bytes
        assert ranges[1:] == ["bytes=1200000-", "bytes=2500000-"]
        assert all("attempt 2 of 3" in line for line in case.progress.lines)
    assert [asked.headers.get("if-range") for asked in site.asked_for(BIG, "store")][1:] == [
        f'"{hashlib.sha256(DATA).hexdigest()[:32]}"'] * 2
    assert len(case.progress.lines) == 2


def test_what_an_earlier_run_kept_is_taken_up(site: Site, case: Case) -> None:
    site.fault(BIG, *[breaks_after(10_000)] * 3)
    assert "what was fetched is kept" in case.refused(
        r"model\.safetensors could not be fetched in 3 attempts; the last one: localhost:\d+: the connection ended too early")
    assert case.partial.stat().st_size == 30_000
    site.asked.clear()
    case.run()
    assert case.target.read_bytes() == DATA and asked_ranges(site) == ["bytes=30000-"]
    assert any("0.0 of 3.0 MB are here already" in line for line in case.progress.lines)
    assert list(case.target.parent.iterdir()) == [case.target]


def test_attempts_that_bring_something_do_not_wear_out(site: Site, case: Case) -> None:
    site.fault(BIG, status(503), breaks_after(1_100_000), status(503), breaks_after(1_100_000), status(503))
    case.run()
    assert case.target.read_bytes() == DATA and len(asked_ranges(site)) == 6


def test_small_steps_wear_out(site: Site, case: Case) -> None:
    """A server that gives a little each time cannot hold a client for ever."""
    site.fault(BIG, *[breaks_after(100)] * 50)
    case.refused("in 3 attempts")
    assert len(asked_ranges(site)) == 3


def test_a_server_that_gives_and_takes_back_wears_out(site: Site, case: Case) -> None:
    """Only what comes further than anything before counts."""
    site.fault(BIG, *[breaks_after(1_100_000), status(416)] * 50)
    case.refused("in 3 attempts")
    assert len(asked_ranges(site)) <= 6


def _other_etag(handler: Handler, data: bytes) -> None:
    handler.file(data, etag='"another"')


def _other_etag_with_206(handler: Handler, data: bytes) -> None:
    """A server that knows no If-Range and goes on with another file."""
    handler.headers.replace_header("If-Range", '"another"')
    handler.file(data, etag='"another"')


@pytest.mark.parametrize("again", [_other_etag, _other_etag_with_206])
def test_another_entity_tag_starts_over(site: Site, case: Case, again: Fault) -> None:
    """The first bytes were of another file: they are given up, not joined to the rest."""
    def other(handler: Handler, data: bytes) -> None:
        breaks_after(1000)(handler, bytes(len(data)))

    site.fault(BIG, other, again)
    case.run()
    assert case.target.read_bytes() == DATA and case.came == len(DATA)
    assert asked_ranges(site)[1] == "bytes=1000-"


def test_without_any_hash_the_entity_tag_decides(site: Site, case: Case) -> None:
    """A mirror may list neither sha256 nor git id: bytes of two files would pass for one."""
    def other(handler: Handler, data: bytes) -> None:
        breaks_after(1000)(handler, bytes(len(data)))

    site.fault(BIG, other, _other_etag_with_206)
    case.run(replace(case.file, sha256=None, git_sha1=None))
    assert case.target.read_bytes() == DATA


def test_without_hash_and_entity_tag_nothing_is_resumed(site: Site, case: Case) -> None:
    site.fault(BIG, sends(DATA[:1000], length=len(DATA)))
    case.run(replace(case.file, sha256=None, git_sha1=None))
    assert case.target.read_bytes() == DATA and case.came == len(DATA) and asked_ranges(site) == [None, None]


def test_a_server_without_ranges_sends_all_again(site: Site, case: Case) -> None:
    site.fault(BIG, breaks_after(1000), lambda handler, data: handler.file(data, ranges=False))
    case.run()
    assert case.target.read_bytes() == DATA and case.came == len(DATA) and len(asked_ranges(site)) == 2


@pytest.mark.parametrize("content_range", ["bytes 0-999/3000000", "bytes 1000-1999/3000000", "bytes 1000-2999999/4000000", "", "x"])
def test_a_wrong_range_is_not_joined(site: Site, case: Case, content_range: str) -> None:
    """P44: 206 with another range than was asked for."""
    site.fault(BIG, breaks_after(1000), status(206, {"Content-Range": content_range}, DATA[1000:]))
    case.run()
    assert case.target.read_bytes() == DATA and asked_ranges(site) == [None, "bytes=1000-", None]


def test_416_starts_over(site: Site, case: Case) -> None:
    site.fault(BIG, breaks_after(1000), status(416, {"Content-Range": "bytes */3000000"}))
    case.run()
    assert case.target.read_bytes() == DATA and asked_ranges(site) == [None, "bytes=1000-", None]


def test_an_unasked_206_is_refused(site: Site, case: Case) -> None:
    site.fault(BIG, status(206, {"Content-Range": "bytes 0-2999999/3000000"}, DATA))
    case.refused("answered 206")


def test_whole_bytes_of_a_killed_run_are_only_hashed(site: Site, case: Case) -> None:
    """Killed between the last byte and the rename."""
    site.fault(BIG, *[breaks_after(10_000)] * 3)
    case.refused("in 3 attempts")
    case.partial.write_bytes(DATA)
    site.asked.clear()
    case.run()
    assert case.target.read_bytes() == DATA and site.asked == []


def test_rests_of_another_file_are_not_taken_up(site: Site, case: Case) -> None:
    """The sidecar names the file that the beginning belongs to; without one, or with more bytes than wanted, it goes."""
    for data, sidecar in ((DATA[:10], None), (DATA[:10], {"schema": 1, "file": {"bytes": 5}, "etag": None}), (DATA + b"x", None)):
        case.partial.write_bytes(data)
        if sidecar:
            case.partial.with_name(case.partial.name + ".json").write_text(json.dumps(sidecar))
        case.target.unlink(missing_ok=True)
        site.asked.clear()
        case.run()
        assert case.target.read_bytes() == DATA and asked_ranges(site) == [None]


def test_a_damaged_rest_costs_one_more_transfer(site: Site, case: Case) -> None:
    """What a crash of the machine left may be zeros: the whole is fetched again once, and is right."""
    site.fault(BIG, *[breaks_after(10_000)] * 3)
    case.refused("in 3 attempts")
    case.partial.write_bytes(bytes(20_000))
    case.run()
    assert case.target.read_bytes() == DATA and case.came == len(DATA)


def test_wrong_bytes_are_refused_and_removed(site: Site, case: Case) -> None:
    wrong = bytes([DATA[0] ^ 1]) + DATA[1:]
    site.fault(BIG, sends(wrong))
    assert "run the command again" in case.refused(
        f"{BIG} came with sha256 {hashlib.sha256(wrong).hexdigest()}, wanted {hashlib.sha256(DATA).hexdigest()}; it was removed")
    assert list(case.target.parent.iterdir()) == [] and len(asked_ranges(site)) == 1


def test_wrong_bytes_after_a_seam_are_refused_in_the_end(site: Site, case: Case) -> None:
    site.fault(BIG, breaks_after(1000), *[sends(bytes(len(DATA)))] * 5)
    case.refused("came with sha256")
    assert list(case.target.parent.iterdir()) == [] and len(asked_ranges(site)) == 3


def test_wrong_bytes_of_a_small_file_are_refused(site: Site, tmp_path: Path) -> None:
    """git's own id pins what has no sha256."""
    site.fault(SMALL, sends(TEXT.replace(b"1", b"2")))
    Case(site, tmp_path, SMALL).refused(r"config\.json came with git object id [0-9a-f]{40}, wanted")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [DATA[:-1], DATA + b"x"])
def test_a_wrong_length_is_refused_before_it_is_read(site: Site, case: Case, data: bytes) -> None:
    site.fault(BIG, sends(data))
    case.refused(f"comes with {len(data)} bytes, the hub lists {len(DATA)}")
    assert case.partial.stat().st_size == 0


def test_bytes_beyond_the_end_are_refused(site: Site, case: Case) -> None:
    """A body without a length is cut off where the listing says that it ends."""
    site.fault(BIG, sends_chunks(DATA + bytes(50_000_000)))
    case.refused(r"does not end after the 3000000 bytes")
    assert list(case.target.parent.iterdir()) == []


def test_a_body_without_a_length_will_do(site: Site, case: Case) -> None:
    site.fault(BIG, sends_chunks(DATA))
    case.run()
    assert case.target.read_bytes() == DATA


@pytest.mark.parametrize("fault", [
    status(200, {"Content-Type": "text/html; charset=utf-8"}, b"<p>Sign in"),
    sends(b"\n <!DOCTYPE HTML><html>" + b"x" * 1000), sends(b"<html>", length=3_000_000),
])
def test_a_web_page_is_refused(site: Site, case: Case, fault: Fault) -> None:
    site.fault(BIG, fault, fault, fault)
    assert "sign-in page" in case.refused("a web page came instead of model.safetensors")
    assert case.partial.stat().st_size == 0


@pytest.mark.parametrize("file", [BIG, SMALL])
def test_a_pointer_is_refused(site: Site, tmp_path: Path, file: str) -> None:
    """A hub that lists the file but holds its pointer."""
    site.fault(file, sends(hub_site.POINTER % (b"0" * 64, 5)))
    remedy = Case(site, tmp_path, file).refused(f"a Git LFS pointer instead of {file}")
    assert "git lfs pull" in remedy and "mirror" in remedy


def test_a_pointer_that_the_listing_takes_for_the_file(site: Site, tmp_path: Path) -> None:
    pointer = hub_site.POINTER % (b"0" * 64, 5)
    site.add(REPO, {SMALL: pointer})
    Case(site, tmp_path, SMALL).refused("a Git LFS pointer instead of")


def test_compressed_bytes_are_refused(site: Site, case: Case) -> None:
    site.fault(BIG, sends(DATA, {"Content-Encoding": "gzip"}))
    assert "proxy" in case.refused("comes in the encoding 'gzip', wanted the bytes as they are")
    assert {asked.headers["accept-encoding"] for asked in site.asked} == {"identity"}


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_a_server_in_trouble_is_asked_again(site: Site, case: Case, code: int) -> None:
    site.fault(BIG, status(code), status(code))
    case.run()
    assert case.target.read_bytes() == DATA
    assert [re.sub(r"localhost:\d+", "HOST", line) for line in case.progress.lines] == [
        f"model.safetensors: HOST answered {code} {reason}; attempt {number} of 3 in {wait} s"
        for reason in [case.progress.lines[0].split(f"{code} ")[1].split(";")[0]] for number, wait in ((2, "0.01"), (3, "0.02"))]


def test_retry_after_is_waited_for(site: Site, case: Case) -> None:
    site.fault(BIG, status(429, {"Retry-After": "1"}))
    began = time.monotonic()
    case.run()
    assert time.monotonic() - began >= 1 and "in 1 s" in case.progress.lines[0]


def test_a_long_retry_after_is_told_instead(site: Site, case: Case) -> None:
    site.fault(BIG, status(429, {"Retry-After": "3600"}))
    assert "again after 3600 s" in case.refused("asks to wait for 3600 s")


@pytest.mark.parametrize("code", [400, 404, 410, 418, 451])
def test_other_answers_are_final(site: Site, case: Case, code: int) -> None:
    site.fault(BIG, status(code))
    case.refused("has no model.safetensors in owner/model" if code == 404 else f"answered {code}")
    assert len(asked_ranges(site)) == 1


def test_a_signature_that_ran_out_is_asked_for_again(site: Site, case: Case) -> None:
    site.fault(BIG, status(403))
    case.run()
    assert case.target.read_bytes() == DATA and len(site.asked_for(f"resolve/{case.name.revision}/{BIG}")) == 2


def test_dripping_ends(site: Site, case: Case) -> None:
    """No single wait is long, and yet the deadline of a transfer that gets nowhere holds."""
    site.fault(BIG, *[drips(0.05, 20)] * 5)
    began = time.monotonic()
    case.refused("bytes a second came")
    assert time.monotonic() - began < 15


def test_silence_ends(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(site, tmp_path)
    case.transport.patience = Patience(connect_s=5, read_s=0.3, attempts=2, backoff_s=0.01)
    site.fault(BIG, *[lambda handler, data: (time.sleep(1), None)[1]] * 2)
    case.refused("nothing came for 0.3 s")


def test_nobody_there(tmp_path: Path, site: Site) -> None:
    case = Case(site, tmp_path)
    case.transport.endpoint = "http://127.0.0.1:9"
    assert "network" in case.refused("127.0.0.1:9: connection refused")


def test_a_circle_of_redirects(site: Site, case: Case) -> None:
    site.repos[REPO][case.name.revision]["loop.json"] = b"x"
    site.fault("loop.json", *[redirects(f"{site.hub}/{REPO}/resolve/{case.name.revision}/loop.json")] * 50)
    with pytest.raises(FetchError, match="redirects more than 8 times"):
        case.run(HubFile(path="loop.json", bytes=1, sha256=None, git_sha1=None))


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://x/y", "http://[::1", "javascript:x", "http://\xe4\xff/"])
def test_redirects_out_of_http(site: Site, tmp_path: Path, target: str) -> None:
    site.fault(SMALL, redirects(target))
    Case(site, tmp_path, SMALL).refused("redirects to an address that is none of http")


def test_the_token_stays_with_the_hub(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the token nor what ~/.netrc has for it goes to the store."""
    (tmp_path / "netrc").write_text("machine localhost login a password b\nmachine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    site.gated.add(REPO)
    folder = tmp_path / "fetched"
    Case(site, folder, token="good").run()
    for server, wanted in (("hub", {"Bearer good"}), ("store", {None})):
        assert {asked.headers.get("authorization") for asked in site.asked if asked.server == server} == wanted


@pytest.mark.parametrize("code", [503, 418])
def test_a_server_cannot_write_to_the_terminal(site: Site, case: Case, code: int) -> None:
    """Control characters in its status line or in an address."""
    def fault(handler: Handler, data: bytes) -> None:
        handler.wfile.write(b"HTTP/1.1 %d \x1b[2Jmine\r\nContent-Length: 0\r\n\r\n" % code)

    site.fault(BIG, fault, fault, redirects("http://user:word@127.0.0.1\x1b[2J:9/"))
    with pytest.raises(FetchError) as caught:
        case.run()
    shown = "\n".join([str(caught.value), *case.progress.lines])
    assert "\x1b" not in shown and "mine" not in shown and "word" not in shown


@pytest.mark.parametrize(("text", "token"), [(None, None), ("", None), (" \n", None), ("hf_abc\n", "hf_abc")])
def test_tokens(text: str | None, token: str | None) -> None:
    assert token_of(text) == token


@pytest.mark.parametrize("text", ["hf_a\nb", "hf a", "hf_ä", "hf_\0"])
def test_what_is_no_token_is_not_sent(text: str) -> None:
    with pytest.raises(UsageError, match="HF_TOKEN holds a character") as caught:
        token_of(text)
    assert text not in str(caught.value)


def _fills_up(monkeypatch: pytest.MonkeyPatch, code: int, after: int) -> None:
    """Every file takes ``after`` bytes, the last block only in part, and then no more."""
    class Full(io.FileIO):
        def write(self, data: object, /) -> int:
            left = after - self.tell()
            if left <= 0:
                raise OSError(code, "No space left on device")
            return super().write(memoryview(data)[:left])  # type: ignore[arg-type]

    monkeypatch.setattr("gemma4web.export.download.io.FileIO", Full)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk(site: Site, case: Case, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """What fits is kept and taken up when there is room again."""
    with monkeypatch.context() as patch:
        _fills_up(patch, code, 1_500_001)
        remedy = case.refused("no space left on device; .* MB are free there", DiskFullError)
    assert "GEMMA4WEB_CACHE" in remedy and case.partial.stat().st_size == 1_500_001
    site.asked.clear()
    case.run()
    assert case.target.read_bytes() == DATA and asked_ranges(site) == ["bytes=1500001-"]


def test_a_folder_that_cannot_be_made(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    case = Case(site, tmp_path / "file" / "folder")
    with pytest.raises(FetchError, match="cannot be written"):
        case.run()


def test_an_interrupt_keeps_what_came(site: Site, case: Case) -> None:
    site.fault(BIG, breaks_after(1_000_000))
    original: Callable[[str], None] = case.progress.line

    def interrupt(text: str) -> None:
        original(text)
        raise KeyboardInterrupt

    case.progress.line = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        case.run()
    assert case.partial.stat().st_size == 1_000_000 and not case.target.exists()
