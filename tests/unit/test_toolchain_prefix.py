"""Programs of a newer release in a folder of their own: reading ELF, patching, and finding what is missing (TOOLCHAIN)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_tools import Lines

from gemma4web.errors import ToolchainError
from gemma4web.files import sha256_file
from gemma4web.toolchain.elf import is_elf, read_elf
from gemma4web.toolchain.prefix import (
    find_loader,
    library_folders,
    missing_libraries,
    patch_prefix,
    patchelf_program,
)

PROGRAM = Path("/bin/ls")
_ELF = read_elf(PROGRAM)
assert _ELF is not None and _ELF.interpreter is not None
INTERPRETER = Path(_ELF.interpreter)


def patchelf(*words: str | Path) -> str:
    return subprocess.run([patchelf_program(), *words], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture
def libraries() -> dict[str, Path]:
    """Every shared library that the program loads on this machine."""
    listing = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True, timeout=60).stdout
    words = [line.split() for line in listing.splitlines()]
    return {line[0]: Path(line[2]) for line in words if len(line) > 2 and line[1] == "=>"}


@pytest.fixture
def prefix(tmp_path: Path, libraries: dict[str, Path]) -> Path:
    """An unpacked release: the program, its libraries and its loader, in a folder that will be renamed."""
    root = tmp_path / ".partial"
    folder = root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (root / "usr/bin").mkdir()
    (root / "usr/lib64").mkdir()
    for name, path in libraries.items():
        shutil.copy2(path.resolve(), folder / name)
    shutil.copy2(INTERPRETER.resolve(), root / "usr/lib64" / INTERPRETER.name)
    shutil.copy2(PROGRAM.resolve(), root / "usr/bin/ls")
    (root / "usr/bin/script").write_text("#!/bin/sh\n", encoding="utf-8")
    return root


def test_what_is_read_of_an_elf_file_agrees_with_patchelf(libraries: dict[str, Path]) -> None:
    for path in (PROGRAM, Path(sys.executable).resolve(), *libraries.values()):
        found = read_elf(path)
        assert found is not None and found.dynamic
        assert list(found.needed) == patchelf("--print-needed", path).split()
    program = read_elf(PROGRAM)
    assert program is not None and program.interpreter == patchelf("--print-interpreter", PROGRAM).strip()


def test_other_files_are_no_elf(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for content in (b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(60)):
        path.write_bytes(content)
        assert read_elf(path) is None
    assert not is_elf(tmp_path / "absent") and not is_elf(tmp_path)


def test_a_patched_prefix_runs_with_its_own_loader_after_the_rename(tmp_path: Path, prefix: Path) -> None:
    """The place has a space and a letter beyond ASCII; the pristine hash does not depend on it."""
    final = tmp_path / "fertig mit ä"
    before = sha256_file(prefix / "usr/bin/ls")
    pristine = patch_prefix(prefix, final, Lines())
    prefix.rename(final)
    assert pristine == {"usr/bin/ls": before}
    assert sha256_file(final / "usr/bin/ls") != before
    program = read_elf(final / "usr/bin/ls")
    assert program is not None and program.interpreter == str(final / "usr/lib64" / INTERPRETER.name)
    shown = subprocess.run([final / "usr/bin/ls", final / "usr"], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.split() == ["bin", "lib", "lib64"]
    traced = subprocess.run([final / "usr/bin/ls"], env={"LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, text=True,
                            check=True, timeout=60)
    outside = [line for line in traced.stdout.splitlines() if "=>" in line and str(final) not in line]
    assert outside == [], "every library comes from the prefix"


def test_a_missing_library_is_found_also_behind_another(prefix: Path, libraries: dict[str, Path]) -> None:
    program = prefix / "usr/bin/ls"
    assert missing_libraries(program, library_folders(prefix), system_libc=False) == [INTERPRETER.name]
    assert missing_libraries(program, library_folders(prefix), system_libc=True) == []
    direct = read_elf(program)
    assert direct is not None
    behind = next(name for name in libraries if name not in direct.needed)
    (prefix / "usr/lib/x86_64-linux-gnu" / behind).unlink()
    assert missing_libraries(program, library_folders(prefix), system_libc=True) == [behind]


def test_a_prefix_without_a_loader_is_refused(tmp_path: Path, prefix: Path) -> None:
    (prefix / "usr/lib64" / INTERPRETER.name).unlink()
    with pytest.raises(ToolchainError, match="holds 0 dynamic loaders"):
        find_loader(prefix)
    with pytest.raises(ToolchainError, match="holds 0 dynamic loaders"):
        patch_prefix(prefix, tmp_path / "final", Lines())
