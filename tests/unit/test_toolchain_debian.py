"""Debian packages without root, with stand-in apt programs: what is asked for, kept, and refused (TOOLCHAIN)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from fake_tools import Lines, says, write_program

from gemma4web.errors import FetchError, ToolchainError
from gemma4web.pins import DebianGroup
from gemma4web.toolchain.apt_sources import AptSource
from gemma4web.toolchain.debian import AptRoot, DebianPackage, open_apt_root, unpack

GROUP = DebianGroup(name="compiler", roots={"emscripten": (6, 0, 0)}, leave=("python3.*", "node-.*"))
MIRROR = AptSource(uri="http://mirror.example/debian", suite="forky", components=("main",), signed_by="/k.gpg")

# Says what apt-get says, and keeps its words and its configuration for the test to look at.
_APT = """#!/bin/sh
here={state}
echo "$APT_CONFIG $*" >> "$here/calls"
case "$*" in
  update*) grep -q refused {sources} && {{ echo "E: The repository is not signed." >&2; exit 100; }} ;;
  *-s*install*) cat "$here/closure" ;;
  *--print-uris*) for word in "$@"; do case $word in *=*)
      name=${{word%%=*}} version=${{word#*=}}
      file=${{name}}_$(echo "$version" | sed 's/:/%3a/')_amd64.deb
      [ -f "$file" ] || echo "'http://mirror.example/$file' $file 4 SHA256:00" ;; esac; done ;;
  download*) for word in "$@"; do case $word in *=*)
      name=${{word%%=*}} version=${{word#*=}}
      file=${{name}}_$(echo "$version" | sed 's/:/%3a/')_amd64.deb
      [ "$name" = "$(cat "$here/broken" 2>/dev/null)" ] && {{ echo "E: Hash Sum mismatch" >&2; exit 100; }}
      [ -f "$file" ] || {{ printf data > "$file"; echo "$name" >> "$here/fetched"; }} ;; esac; done ;;
esac
exit 0
"""

CLOSURE = """\
Reading package lists...
Inst emscripten (6.0.5+dfsg-2 Debian:testing [all])
Inst libllvm21 (1:21.1.8-13 Debian:testing [amd64])
Inst python3 (3.14.7-3 Debian:testing [amd64]) []
Inst node-acorn (8.17.0-1 Debian:testing [all])
Conf emscripten (6.0.5+dfsg-2 Debian:testing [all])
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the stand-in apt keeps what it was asked."""
    folder, programs = tmp_path / "state", tmp_path / "bin"
    folder.mkdir()
    (folder / "closure").write_text(CLOSURE, encoding="utf-8")
    sources = '"$(dirname "$APT_CONFIG")/gemma4web.sources"'
    write_program(programs / "apt-get", _APT.format(state=f"'{folder}'", sources=sources))
    says(programs / "apt-config", 'Acquire::http::Proxy "http://proxy:3128";\nAcquire::Check-Valid-Until "false";\n'
         'Acquire::Languages:: "none";\nAPT::Update::Post-Invoke:: "rm -rf /";\nAcquire "";')
    says(programs / "dpkg", "amd64")
    says(programs / "dpkg-deb", "")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return folder


def root(tmp_path: Path) -> AptRoot:
    made = AptRoot(tmp_path / "Ordner mit ä" / "apt", [MIRROR])
    made.update()
    return made


def test_the_configuration_is_isolated_and_keeps_only_how_to_reach_the_net(tmp_path: Path, state: Path) -> None:
    made = root(tmp_path)
    text = (made.folder / "apt.conf").read_text(encoding="utf-8")
    assert f'Dir::State::status "{made.folder}/status";' in text
    assert 'Acquire::http::Proxy "http://proxy:3128";' in text and 'Check-Valid-Until "false"' in text
    assert "Post-Invoke" not in text and 'APT::Get::AllowUnauthenticated "false";' in text
    assert (made.folder / "status").read_text(encoding="utf-8") == ""
    assert "Signed-By: /k.gpg" in (made.folder / "gemma4web.sources").read_text(encoding="utf-8")
    assert (state / "calls").read_text(encoding="utf-8") == f"{made.folder}/apt.conf update --error-on=any\n"


def test_the_real_apt_reads_the_configuration(tmp_path: Path, state: Path) -> None:
    """Spaces and letters beyond ASCII in the folder's name must reach apt whole."""
    made = root(tmp_path)
    found = subprocess.run(
        ["/usr/bin/apt-config", "shell", "STATUS", "Dir::State::status/f", "LISTS", "Dir::State::lists/d", "LIST",
         "Dir::Etc::sourcelist/f"],
        env={"APT_CONFIG": str(made.folder / "apt.conf"), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        timeout=60, check=True)
    assert f"STATUS='{made.folder}/status'" in found.stdout
    assert f"LIST='{made.folder}/gemma4web.sources'" in found.stdout
    assert f"LISTS='{made.folder}/lists/'" in found.stdout
    assert found.stderr == ""


def test_the_closure_without_what_is_left_out(tmp_path: Path, state: Path) -> None:
    assert root(tmp_path).resolve(GROUP) == [
        DebianPackage(name="emscripten", version="6.0.5+dfsg-2"), DebianPackage(name="libllvm21", version="1:21.1.8-13")]


def test_a_mirror_with_an_old_or_no_package_is_named(tmp_path: Path, state: Path) -> None:
    made = root(tmp_path)
    (state / "closure").write_text("Inst emscripten (3.1.69-1 Debian:stable [all])\n", encoding="utf-8")
    with pytest.raises(ToolchainError, match="emscripten 3.1.69-1, wanted 6.0.0"):
        made.resolve(GROUP)
    (state / "closure").write_text("", encoding="utf-8")
    with pytest.raises(FetchError, match="no package emscripten"):
        made.resolve(GROUP)


def test_finished_downloads_are_kept_and_not_fetched_again(tmp_path: Path, state: Path) -> None:
    made = root(tmp_path)
    packages = made.resolve(GROUP)
    (state / "broken").write_text("libllvm21", encoding="utf-8")
    with pytest.raises(FetchError, match="Hash Sum mismatch"):
        made.download(packages, Lines(), "downloading")
    assert [path.name for path in made.archives.iterdir()] == ["emscripten_6.0.5+dfsg-2_amd64.deb"]
    (state / "broken").unlink()
    names = [path.name for path in made.download(packages, Lines(), "downloading")]
    assert names == ["emscripten_6.0.5+dfsg-2_amd64.deb", "libllvm21_1%3a21.1.8-13_amd64.deb"]
    assert (state / "fetched").read_text(encoding="utf-8").split() == ["emscripten", "libllvm21"]
    progress = Lines()
    made.download(packages, progress, "downloading")
    assert progress.lines == [], "nothing is left to download"


def test_the_next_mirror_is_tried_and_every_failure_is_told(tmp_path: Path, state: Path) -> None:
    refused = AptSource(uri="http://refused.example", suite="forky", components=("main",))
    found = open_apt_root(tmp_path, "compiler", [[refused], [MIRROR]], Lines())
    assert found.sources == (MIRROR,)
    with pytest.raises(FetchError, match="not signed"):
        open_apt_root(tmp_path, "compiler", [[refused]], Lines())


def test_a_system_without_a_mirror_or_without_apt_has_a_remedy(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(FetchError, match="no Debian mirror") as caught:
        open_apt_root(tmp_path, "compiler", [], Lines())
    assert "EMSDK=" in caught.value.advice
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(FetchError, match="apt-get, apt-config, dpkg, dpkg-deb not found") as caught:
        AptRoot(tmp_path, [MIRROR])
    assert "EMSDK=" in caught.value.advice and "BROWSER=" in caught.value.advice


def test_a_folder_that_apt_cannot_be_told_is_refused(tmp_path: Path, state: Path) -> None:
    with pytest.raises(ToolchainError, match="has a quote"):
        AptRoot(tmp_path / 'a"b', [MIRROR]).update()


def test_a_broken_archive_is_named(tmp_path: Path, state: Path) -> None:
    says(tmp_path / "bin" / "dpkg-deb", "", code=2)
    with pytest.raises(FetchError, match="unpacking x.deb"):
        unpack([tmp_path / "x.deb"], tmp_path, Lines(), "unpacking")
