"""Choosing an implementation of webgpu.h, and what its hash covers (DESIGN, WebGPU provider)."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path, PurePosixPath

import pytest
from fake_tools import Lines, fake_package, fake_sdk, says

from gemma4web.errors import FetchError, ToolchainError
from gemma4web.toolchain.emscripten import Emscripten, inspect
from gemma4web.toolchain.model import Provider, ProviderKind, port_file, port_value
from gemma4web.toolchain.provider import (
    RemotePort,
    download_package,
    find_provider,
    package_provider,
    port_provider,
    remote_port,
    unpack_package,
)


@pytest.fixture
def compiler(tmp_path: Path) -> Emscripten:
    node = says(tmp_path / "bin" / "node", "v20.1.0")
    sdk = fake_sdk(tmp_path / "emsdk")
    return inspect(sdk / "upstream/emscripten", origin="EMSDK", node=node, closure=None, least=(6,))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout mit ä" / "runtime_cpp" / "webgpu_port"
    folder.mkdir(parents=True)
    (folder / "webgpu_port.port.py").write_text("LICENSE = ''\n", encoding="utf-8")
    (folder / "library.js").write_text("// js\n", encoding="utf-8")
    return tmp_path / "checkout mit ä"


def choose(compiler: Emscripten, checkout: Path, choice: str, package: Path | None = None,
           progress: Lines | None = None) -> Provider:
    return find_provider(choice, package, emscripten=compiler, checkout=checkout, webgpu_include=Path("/headers"),
                         cache=checkout.parent / "cache", progress=progress or Lines())


@contextmanager
def served(data: bytes, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *values: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/package.zip"
        finally:
            server.shutdown()
            thread.join()


def zipped(tmp_path: Path, folder: Path) -> bytes:
    path = tmp_path / "made.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for inner in sorted(folder.rglob("*")):
            if inner.is_file():
                archive.write(inner, f"emdawnwebgpu_pkg/{inner.relative_to(folder).as_posix()}")
    return path.read_bytes()


@pytest.mark.parametrize("inner", ["emdawnwebgpu_pkg", "emdawnwebgpu_pkg/emdawnwebgpu.port.py", ""])
def test_a_package_is_found_by_its_folder_its_port_file_or_the_folder_above(tmp_path: Path, inner: str) -> None:
    folder = fake_package(tmp_path / "emdawnwebgpu_pkg")
    found = package_provider(tmp_path / inner)
    assert found.kind is ProviderKind.PACKAGE
    assert found.port == f"{folder / 'emdawnwebgpu.port.py'}:cpp_bindings=false"


def test_the_hash_covers_names_and_contents_but_not_the_place(tmp_path: Path) -> None:
    one = package_provider(fake_package(tmp_path / "one"))
    two = package_provider(fake_package(tmp_path / "somewhere else" / "two"))
    assert one.sha256 == two.sha256
    compiled = tmp_path / "one" / "__pycache__" / "emdawnwebgpu.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"x")
    assert package_provider(tmp_path / "one").sha256 == one.sha256
    assert package_provider(fake_package(tmp_path / "three", "// other\n")).sha256 != one.sha256
    fake_package(tmp_path / "four")
    (tmp_path / "four/webgpu/src/library_webgpu.js").rename(tmp_path / "four/webgpu/src/renamed.js")
    assert package_provider(tmp_path / "four").sha256 != one.sha256


def test_a_folder_that_is_no_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="EMDAWNWEBGPU_PKG=.*no emdawnwebgpu.port.py"):
        package_provider(tmp_path)
    fake_package(tmp_path / "source")
    (tmp_path / "source/webgpu/include/webgpu/webgpu.h").unlink()
    with pytest.raises(ToolchainError, match="source tree of Dawn"):
        package_provider(tmp_path / "source")


def test_the_own_port_is_given_the_headers(compiler: Emscripten, checkout: Path) -> None:
    found = choose(compiler, checkout, "webgpu_port")
    path = checkout / "runtime_cpp/webgpu_port/webgpu_port.port.py"
    assert (found.kind, found.port) == (ProviderKind.OWN, f"{path}:include=/headers")
    assert port_file(found.port) == path


def test_auto_falls_back_to_the_own_port_and_says_so(compiler: Emscripten, checkout: Path) -> None:
    progress = Lines()
    assert choose(compiler, checkout, "auto", progress=progress).kind is ProviderKind.OWN
    said = [line for line in progress.lines if "cannot be downloaded" in line]
    assert len(said) == 1 and "webgpu_port" in said[0]


def test_emdawnwebgpu_asked_for_by_name_is_an_error_when_it_cannot_be_had(compiler: Emscripten, checkout: Path) -> None:
    with pytest.raises(FetchError, match="cannot be downloaded") as caught:
        choose(compiler, checkout, "emdawnwebgpu")
    assert "EMDAWNWEBGPU_PKG" in caught.value.advice


def test_contradictions_and_unknown_names_are_refused(compiler: Emscripten, checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="contradict"):
        choose(compiler, checkout, "webgpu_port", fake_package(tmp_path / "pkg"))
    with pytest.raises(ToolchainError, match="PROVIDER=dawn"):
        choose(compiler, checkout, "dawn")


def test_the_package_that_the_compiler_names_is_downloaded_once_and_checked(
    compiler: Emscripten, checkout: Path, tmp_path: Path,
) -> None:
    data = zipped(tmp_path, fake_package(tmp_path / "pkg"))
    description = compiler.root / "tools/ports/emdawnwebgpu.py"
    with served(data) as url:
        description.write_text(f"EXTERNAL_PORT = {url!r}\nSHA512 = {hashlib.sha512(data).hexdigest()!r}\n"
                               "PORT_FILE = 'emdawnwebgpu_pkg/emdawnwebgpu.port.py'\n", encoding="utf-8")
        found = choose(compiler, checkout, "auto")
    assert found.kind is ProviderKind.PORT
    assert found.sha256 == package_provider(tmp_path / "pkg").sha256
    assert choose(compiler, checkout, "emdawnwebgpu") == found, "the kept package needs no server"


@pytest.mark.parametrize(("status", "words"), [(404, "cannot be downloaded"), (200, "has sha512")])
def test_a_bad_download_leaves_nothing(tmp_path: Path, status: int, words: str) -> None:
    with served(b"other bytes", status) as url, pytest.raises(FetchError, match=words):
        download_package(RemotePort(url=url, sha512="0" * 128, inner=PurePosixPath("p")), tmp_path / "package.zip")
    assert not (tmp_path / "package.zip").exists()


def test_an_archive_may_not_leave_its_folder(tmp_path: Path) -> None:
    archive = tmp_path / "bad.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("../outside", "x")
    with pytest.raises(FetchError, match="outside its folder"):
        unpack_package(archive, tmp_path / "folder")
    assert not (tmp_path / "outside").exists()
    archive.write_bytes(b"not a zip")
    with pytest.raises(FetchError, match="no zip archive"):
        unpack_package(archive, tmp_path / "folder")


@pytest.mark.parametrize(("text", "words"), [
    ("X = 1\n", "names no emdawnwebgpu"),
    ("EXTERNAL_PORT = SHA512 = 'x'\nPORT_FILE = '../emdawnwebgpu.port.py'\n", "as its port file"),
])
def test_a_compiler_with_an_odd_description_is_refused(compiler: Emscripten, text: str, words: str) -> None:
    (compiler.root / "tools/ports/emdawnwebgpu.py").write_text(text, encoding="utf-8")
    with pytest.raises(ToolchainError, match=words):
        remote_port(compiler)


def test_a_compiler_without_the_description_falls_back(compiler: Emscripten, checkout: Path) -> None:
    (compiler.root / "tools/ports/emdawnwebgpu.py").unlink()
    with pytest.raises(ToolchainError, match="names no emdawnwebgpu"):
        port_provider(compiler, checkout, Lines())
    assert choose(compiler, checkout, "auto").kind is ProviderKind.OWN


def test_port_values_survive_spaces_and_colons_where_emcc_allows_them() -> None:
    value = port_value(Path("/a b/ä/x.port.py"), include=Path("/c:d"))
    assert value == "/a b/ä/x.port.py:include=/c::d"
    assert port_file(value) == Path("/a b/ä/x.port.py")
    with pytest.raises(ToolchainError, match="no colon"):
        port_value(Path("/a:b/x.port.py"))
