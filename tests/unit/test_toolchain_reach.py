"""A set-up without a network says so at once, and does not wait at 0 % (V14)."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_tools import Lines, write_program

from gemma4web.errors import FetchError
from gemma4web.pins import load_pins
from gemma4web.toolchain import reach
from gemma4web.toolchain.reach import unreachable
from gemma4web.toolchain.registries import npm_modules


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in reach._PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def closed() -> str:
    """An address that refuses every connection."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def answering() -> Iterator[str]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def npm_set_to(folder: Path, **settings: str) -> Path:
    """npm that tells its settings, writes down how it was called otherwise, and fails."""
    return write_program(folder / "npm", f"""#!/bin/sh
case "$*" in
  "config list --json") echo '{json.dumps({key.replace('_', '-'): value for key, value in settings.items()})}' ;;
  *) echo "$*" > '{folder}/called'; echo 'npm error code EAI_AGAIN' >&2; exit 1 ;;
esac
""")


def test_a_registry_that_answers_or_is_unknown_is_no_reason(tmp_path: Path, answering: str, closed: str) -> None:
    assert unreachable(str(npm_set_to(tmp_path, registry=f"http://{answering}/")), tmp_path) == ""
    assert unreachable(str(npm_set_to(tmp_path, registry=f"http://{closed}/", https_proxy=f"http://{answering}")), tmp_path) == ""
    assert unreachable(str(npm_set_to(tmp_path)), tmp_path) == ""
    assert unreachable(str(npm_set_to(tmp_path, registry="http://[::1/")), tmp_path) == ""
    assert unreachable(str(write_program(tmp_path / "odd", "#!/bin/sh\necho nonsense\n")), tmp_path) == ""


def test_a_dead_proxy_is_named_without_its_password(tmp_path: Path, closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", f"http://me:secret@{closed}")
    said = unreachable(str(npm_set_to(tmp_path, registry=f"http://{closed}/")), tmp_path)
    assert f"npm's registry {closed} cannot be reached" in said
    assert f"the proxy {closed} cannot be reached" in said
    assert said.endswith("of the variables that name a proxy, set: https_proxy")
    assert "secret" not in said


def test_no_network_is_said_before_npm_tries_once(tmp_path: Path, closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    npm_set_to(tmp_path / "bin", registry=f"https://{closed}/")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    progress = Lines()
    with pytest.raises(FetchError, match="(?s)EAI_AGAIN.*cannot be reached.*none is set") as caught:
        npm_modules(load_pins(), tmp_path / "cache", progress)
    assert "set https_proxy" in caught.value.advice
    assert progress.lines[0].startswith(f"no network? npm's registry {closed} cannot be reached")
    assert progress.lines[1].startswith("begin installing")
    called = (tmp_path / "bin/called").read_text()
    assert set(reach.QUICK) <= set(called.split())
