"""The Vulkan driver of the tests, from stand-in packages: what is said of it, and what is refused (TOOLCHAIN)."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_tools import Lines

from gemma4web.errors import ToolchainError
from gemma4web.pins import load_pins
from gemma4web.toolchain import packages
from gemma4web.toolchain.cache import STAMP
from gemma4web.toolchain.elf import read_elf
from gemma4web.toolchain.packages import lavapipe_environment

LIBRARIES = "usr/lib/x86_64-linux-gnu"
UNPACKED: list[Path] = []


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path | None]:
    """What the packages hold: a library's name and the file that it is a copy of, or None for an empty one."""
    found: dict[str, Path | None] = {"libvulkan.so.1": None, "libvulkan_lvp.so": None}

    def unpack(root: object, pins: object, name: str, folder: Path, *more: object) -> dict[str, Any]:
        UNPACKED.append(folder)
        (folder / LIBRARIES).mkdir(parents=True)
        for library, source in found.items():
            if source is None:
                (folder / LIBRARIES / library).touch()
            else:
                shutil.copy2(source, folder / LIBRARIES / library)
        return {"packages": {}}

    UNPACKED.clear()
    monkeypatch.setattr(packages, "_running_release", lambda *_: None)
    monkeypatch.setattr(packages, "_unpack_group", unpack)
    return found


def test_the_variables_name_the_unpacked_driver_wherever_the_cache_is(tmp_path: Path, held: object) -> None:
    """The loader takes a driver's relative place from the manifest's folder; Debian's own names /usr."""
    cache = tmp_path / "mit ä und Leerzeichen"
    found = lavapipe_environment(load_pins(), cache, Lines())
    manifest = Path(found["VK_DRIVER_FILES"])
    assert found["VK_ICD_FILENAMES"] == str(manifest)
    driver = json.loads(manifest.read_text(encoding="utf-8"))["ICD"]["library_path"]
    assert driver.startswith("./") and (manifest.parent / driver).is_file()
    assert found["LD_LIBRARY_PATH"] == str(manifest.parent / LIBRARIES)
    assert lavapipe_environment(load_pins(), cache, Lines()) == found and len(UNPACKED) == 1


@pytest.mark.parametrize("name", ["libvulkan.so.1", "libvulkan_lvp.so"])
def test_packages_without_the_driver_or_the_loader_are_refused(
    tmp_path: Path, held: dict[str, Path | None], name: str,
) -> None:
    del held[name]
    with pytest.raises(ToolchainError, match=f"hold no {name}"):
        lavapipe_environment(load_pins(), tmp_path, Lines())
    assert not list(tmp_path.rglob(STAMP))


def test_a_library_that_the_driver_lacks_is_named(tmp_path: Path, held: dict[str, Path | None]) -> None:
    """A package too many on the list of what is left out shows here, not in a driver that no loader accepts."""
    held["libvulkan_lvp.so"] = Path("/bin/ls")
    elf = read_elf(Path("/bin/ls"))
    assert elf is not None
    lacks = ", ".join(sorted(name for name in elf.needed if not name.startswith(("libc.so.", "ld-linux"))))
    with pytest.raises(ToolchainError, match=rf"libvulkan_lvp\.so needs {re.escape(lacks)}, which no unpacked package"):
        lavapipe_environment(load_pins(), tmp_path, Lines())


@pytest.mark.parametrize("package", ["libllvm15", "libllvm19", "libstdc++6", "libgcc-s1", "libz3-4", "libtinfo6", "libedit2",
                                     "libdrm2", "libxcb1", "libexpat1", "mesa-vulkan-drivers", "libvulkan1"])
def test_what_the_driver_needs_is_not_left_out(package: str) -> None:
    assert not load_pins().debian["lavapipe"].leaves(package)


def test_the_driver_keeps_the_systems_libc() -> None:
    assert load_pins().debian["lavapipe"].leaves("libc6")
