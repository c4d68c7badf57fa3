"""Builds the host test programs: the runtime's C++ and tests/cpp, compiled by em++ for Node, once a decoding kind.

Undefined-behaviour checks and asserts are on. Objects are kept below ``build/host-tests`` and made again only when one
of the files that they were made from has changed. A file in which GEMMA4_MTP stands nowhere is compiled once for both
kinds.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemma4web import kernels
from gemma4web.compile import read_depfile
from gemma4web.errors import CompileError
from gemma4web.files import sha256_bytes, sha256_file, write_atomic, write_if_changed
from gemma4web.process import run
from gemma4web.toolchain import Toolchain, identity
from gemma4web.variants import Decoding

CHECKOUT: Final = Path(__file__).resolve().parents[2]
TESTS: Final = CHECKOUT / "tests/cpp"
SOURCES: Final = CHECKOUT / "runtime_cpp/src"
LAYERS: Final = ("base", "gpu", "ops", "program", "decode")
_COMPILE_S: Final = 600.0
_RUN_S: Final = 900.0
_FLAGS: Final = (
    "-std=c++20", "-O1", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined",
    "-fno-sanitize-recover=undefined", "-DGEMMA4_PROFILE=0",
)
# FlatBuffers' verifier adds an element's offset to an address before it checks the sum; with 32-bit addresses the sum
# wraps, as the check expects.
_SOURCE_FLAGS: Final[dict[str, tuple[str, ...]]] = {"program/reader.cc": ("-fno-sanitize=pointer-overflow",)}
_LINK_FLAGS: Final = (
    "-O1", "-fno-exceptions", "-fno-rtti", "-fsanitize=undefined", "-sNODERAWFS=1", "-sALLOW_MEMORY_GROWTH=1",
    "-sEXIT_RUNTIME=1", "-sASSERTIONS=1", "-sSTACK_SIZE=1MB", "-sENVIRONMENT=node",
)
_CASE = re.compile(r"^GEMMA4_TEST\((\w+)\)", re.MULTILINE)


def case_sources() -> list[Path]:
    return sorted(TESTS.glob("*.cc"))


def case_names() -> list[str]:
    """Every case of the C++ tests, read from their sources, so that pytest can list them before anything is built."""
    return [name for path in case_sources() for name in _CASE.findall(path.read_text(encoding="utf-8"))]


def runtime_sources() -> list[Path]:
    """The layers under test. Timestamp queries belong to profile builds."""
    return [path for layer in LAYERS for path in sorted((SOURCES / layer).glob("*.cc")) if path.stem != "query_pool"]


def generate(toolchain: Toolchain, folder: Path) -> None:
    """kernels.h, kernels.cc and program_generated.h, touched only when their content changes."""
    generated = kernels.generate(CHECKOUT / "runtime_cpp/kernels")
    write_if_changed(folder / "kernels.h", generated.header)
    write_if_changed(folder / "kernels.cc", generated.source)
    fresh = folder / "flatc"
    fresh.mkdir(parents=True, exist_ok=True)
    schema = CHECKOUT / "site_scons/gemma4web/program/program.fbs"
    run([toolchain.flatc, "--cpp", "-o", fresh, schema], env=toolchain.environment(), error=CompileError, what="flatc")
    write_if_changed(folder / "program_generated.h", (fresh / "program_generated.h").read_bytes())


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Two test runs of one checkout share their objects: the second waits."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another test run builds in {folder}; waiting for it", flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, kw_only=True, slots=True)
class HostBuild:
    """One decoding kind's program. ``folder`` holds its objects; ``other`` is the kind that was built before."""

    toolchain: Toolchain
    decoding: Decoding
    folder: Path
    other: HostBuild | None = None

    @property
    def program(self) -> Path:
        return self.folder / "host_tests.js"

    def _flags(self, source: Path) -> list[str]:
        generated, name = self.folder.parent / "gen", f"{source.parent.name}/{source.name}"
        return [*_FLAGS, *_SOURCE_FLAGS.get(name, ()), f"-DGEMMA4_MTP={int(self.decoding is Decoding.MTP)}",
                f"-I{SOURCES}", f"-I{TESTS}", f"-I{generated}",
                "-isystem", str(self.toolchain.flatbuffers_include), "-isystem", str(self.toolchain.webgpu_include)]

    def _key(self, words: Iterable[str], files: Iterable[Path]) -> str:
        parts = [*words, json.dumps(identity(self.toolchain), sort_keys=True)]
        parts += [f"{path} {sha256_file(path) if path.is_file() else 'missing'}" for path in files]
        return sha256_bytes("\n".join(parts).encode())

    def _object(self, source: Path) -> tuple[Path, list[Path]] | None:
        """The object of a source and the files that it was made from, when none of them has changed since."""
        target = self.folder / f"{source.parent.name}-{source.stem}.o"
        record = target.with_suffix(".json")
        if not (target.is_file() and record.is_file()):
            return None
        known = json.loads(record.read_text(encoding="utf-8"))
        files = [Path(name) for name in known["files"]]
        return (target, files) if known["key"] == self._key(self._flags(source), files) else None

    def _compile(self, source: Path) -> Path:
        if self.other is not None and (shared := self.other._object(source)) is not None:
            own = [path for path in shared[1] if path.is_relative_to(CHECKOUT)]
            if not any(b"GEMMA4_MTP" in path.read_bytes() for path in own):
                return shared[0]
        if (ready := self._object(source)) is not None:
            return ready[0]
        target = self.folder / f"{source.parent.name}-{source.stem}.o"
        depfile, started = target.with_suffix(".d"), time.time()
        run([*self.toolchain.emcc, *self._flags(source), "-MMD", "-MF", depfile, "-c", source, "-o", target],
            env=self.toolchain.environment(), error=CompileError, what=f"compiling {source.name}", timeout_s=_COMPILE_S)
        files = [Path(name) for name in sorted(read_depfile(depfile.read_text(encoding="utf-8")))]
        depfile.unlink()
        # A file that was edited meanwhile may be newer than the object: then the next build compiles again.
        if all(path.stat().st_mtime < started for path in files):
            record = {"files": [str(path) for path in files], "key": self._key(self._flags(source), files)}
            write_atomic(target.with_suffix(".json"), json.dumps(record))
        return target

    def build(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        sources = [*runtime_sources(), *case_sources(), self.folder.parent / "gen/kernels.cc"]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = list(pool.map(self._compile, sources))
        key, record = self._key(_LINK_FLAGS, objects), self.folder / "host_tests.json"
        if not (self.program.is_file() and record.is_file() and record.read_text(encoding="utf-8") == key):
            run([*self.toolchain.emcc, *_LINK_FLAGS, *objects, "-o", self.program], env=self.toolchain.environment(),
                error=CompileError, what=f"linking the {self.decoding} host tests", timeout_s=_COMPILE_S)
            write_atomic(record, key)
        return self.program

    def run(self, *words: str | Path) -> list[dict[str, Any]]:
        """The program's lines. A crash raises CompileError with the end of its output."""
        argv: Sequence[str | Path] = [self.toolchain.node, self.program, *words]
        text = run(argv, env=self.toolchain.environment(), error=CompileError, what=f"{self.decoding} host tests",
                   timeout_s=_RUN_S)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
