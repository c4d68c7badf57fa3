"""Debian packages without root: an isolated apt root resolves and downloads them, dpkg-deb unpacks them into a folder.

Nothing of the system's package state is read or changed. apt checks every signature against Debian's keyring and every
package against the signed index; this module only chooses what to ask for.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemma4web.errors import FetchError, ToolchainError
from gemma4web.files import sha256_bytes, write_atomic
from gemma4web.pins import DebianGroup, parse_version, version_text
from gemma4web.process import run
from gemma4web.toolchain.apt_sources import AptSource, no_mirror
from gemma4web.toolchain.cache import other_cache
from gemma4web.toolchain.progress import SetUpProgress, folder_bytes, step

DEBIAN_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_INST: Final = re.compile(r"^Inst (\S+) \((\S+) ")
_URI: Final = re.compile(r"^'[^']*' (?P<file>\S+) (?P<bytes>\d+) ")
_NEEDED_PROGRAMS: Final = ("apt-get", "apt-config", "dpkg", "dpkg-deb")
_UPDATE_TIMEOUT_S: Final = 600.0
_DOWNLOAD_TIMEOUT_S: Final = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DebianPackage:
    name: str
    version: str


def require_programs() -> None:
    """Raises FetchError naming the missing program when this system has no apt or dpkg."""
    missing = [name for name in _NEEDED_PROGRAMS if shutil.which(name) is None]
    if missing:
        raise FetchError(
            f"cannot fetch Debian packages: {', '.join(missing)} not found",
            advice="install emscripten (EMSDK=<folder>), flatc and Chromium (BROWSER=<program>) yourself and name them",
        )


def architecture() -> str:
    return run(["dpkg", "--print-architecture"], error=FetchError, what="dpkg").strip()


class AptRoot:
    """An apt of our own: its lists, cache and (empty) status live in ``folder``; sources are given, not inherited.

    Of the system's settings only ``Acquire::`` (proxies, timeouts, clock checks) and the password files hold.
    """

    def __init__(self, folder: Path, sources: Sequence[AptSource]) -> None:
        require_programs()
        if not sources:
            raise no_mirror()
        self.folder = folder
        self.sources = tuple(sources)
        self.architecture = architecture()

    @property
    def archives(self) -> Path:
        """Where downloaded packages are kept."""
        return self.folder / "archives"

    def update(self) -> None:
        """Writes the configuration and fetches the indexes. Raises FetchError with apt's own words."""
        for name in ("lists/partial", "archives", "empty", "log"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / "status", "")
        write_atomic(self.folder / "gemma4web.sources", "\n".join(source.deb822() for source in self.sources))
        write_atomic(self.folder / "apt.conf", self._configuration())
        self._apt("apt-get", "update", "--error-on=any", timeout_s=_UPDATE_TIMEOUT_S)

    def _configuration(self) -> str:
        here = str(self.folder)
        if '"' in here or "\n" in here:
            raise ToolchainError(
                f"the cache folder {here!r} has a quote or a line break in its name, which apt cannot be told",
                advice=other_cache(self.folder.parent),
            )
        settings = {
            "Dir::State": here, "Dir::State::lists": f"{here}/lists", "Dir::State::status": f"{here}/status",
            "Dir::State::extended_states": f"{here}/extended_states", "Dir::Cache": here,
            "Dir::Cache::archives": f"{here}/archives",
            "Dir::Etc::sourcelist": f"{here}/gemma4web.sources", "Dir::Etc::sourceparts": f"{here}/empty",
            "Dir::Etc::main": "/dev/null", "Dir::Etc::parts": f"{here}/empty",
            "Dir::Etc::preferences": "/dev/null", "Dir::Etc::preferencesparts": f"{here}/empty",
            "Dir::Log": f"{here}/log", "APT::Architecture": self.architecture,
            "APT::Install-Recommends": "false", "APT::Install-Suggests": "false", "APT::Sandbox::User": "root",
            "APT::Get::AllowUnauthenticated": "false", "Acquire::Languages": "none", "Acquire::Retries": "3",
        }
        lines = self._inherited()
        lines += [f'{name} "{value}";' for name, value in settings.items()]
        lines += [f'APT::Architectures {{ "{self.architecture}"; }};']
        return "\n".join(lines) + "\n"

    def _inherited(self) -> list[str]:
        dump = run(["apt-config", "dump"], error=FetchError, what="reading apt's settings")
        kept = re.compile(r"^Acquire::(?!IndexTargets|Languages|Changelogs|CompressionTypes|Retries)[^ ]+ \"[^\"]+\";$")
        return [line for line in dump.splitlines() if kept.match(line)]

    def _apt(self, program: str, *words: str, timeout_s: float = 300.0, cwd: Path | None = None) -> str:
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(self.folder), "LC_ALL": "C",
            "APT_CONFIG": str(self.folder / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive",
        }
        for name in ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy"):
            if name in os.environ:
                environment[name] = os.environ[name]
        return run([program, *words], env=environment, cwd=cwd, error=FetchError, timeout_s=timeout_s,
                   what=f"{program} {words[0]}")

    def resolve(self, group: DebianGroup) -> list[DebianPackage]:
        """The closure of the group's packages, without those it leaves out, in name order.

        Raises FetchError when apt cannot satisfy it, ToolchainError when a named package is older than its minimum.
        """
        text = self._apt("apt-get", "-s", "-y", "install", *group.roots)
        found = {match[1].split(":")[0]: match[2] for match in map(_INST.match, text.splitlines()) if match}
        for name, least in group.roots.items():
            if name not in found:
                raise FetchError(f"the Debian mirror has no package {name}")
            if parse_version(found[name]) < least:
                raise ToolchainError(f"the Debian mirror has {name} {found[name]}, wanted {version_text(least)} or newer")
        return [DebianPackage(name=name, version=found[name]) for name in sorted(found) if not group.leaves(name)]

    def download(self, packages: Iterable[DebianPackage], progress: SetUpProgress, title: str) -> list[Path]:
        """Downloads what is not there yet (apt compares size and hash) and returns the package files."""
        words = [f"{package.name}={package.version}" for package in packages]
        listing = self._apt("apt-get", "download", "--print-uris", *words, cwd=self.archives)
        sizes = {match["file"]: int(match["bytes"]) for match in map(_URI.match, listing.splitlines()) if match}
        if sizes:
            before = folder_bytes(self.archives)
            with step(progress, title, measure=lambda: folder_bytes(self.archives) - before, total=sum(sizes.values())):
                self._apt("apt-get", "download", *words, cwd=self.archives, timeout_s=_DOWNLOAD_TIMEOUT_S)
        files = [self._archive(word) for word in words]
        return files

    def _archive(self, word: str) -> Path:
        name, version = word.split("=", 1)
        for architecture in (self.architecture, "all"):
            path = self.archives / f"{name}_{version.replace(':', '%3a')}_{architecture}.deb"
            if path.is_file():
                return path
        raise FetchError(f"apt downloaded no archive of {name} {version} into {self.archives}")


def open_apt_root(
    parent: Path, name: str, candidates: Sequence[Sequence[AptSource]], progress: SetUpProgress,
) -> AptRoot:
    """The first candidate list of sources that apt accepts. Raises FetchError with every mirror's failure."""
    if not candidates:
        raise no_mirror()
    failures: list[str] = []
    for sources in candidates:
        key = sha256_bytes("\n".join(source.deb822() for source in sources).encode())[:12]
        root = AptRoot(parent / f"apt-{name}-{key}", sources)
        suites = ", ".join(dict.fromkeys(source.suite for source in sources))
        try:
            with step(progress, f"reading the package index of Debian {suites}"):
                root.update()
            return root
        except FetchError as error:
            failures.append(str(error.args[0]))
    raise FetchError("no Debian mirror of this system could be read:\n" + "\n".join(failures))


def unpack(files: Sequence[Path], folder: Path, progress: SetUpProgress, title: str) -> None:
    """Unpacks package files into ``folder``; maintainer scripts are never run."""
    done = 0
    total = len(files)
    with step(progress, title, measure=lambda: done, total=total, unit="packages", scale=1.0):
        for path in files:
            run(["dpkg-deb", "--extract", path, folder], error=FetchError, what=f"unpacking {path.name}", timeout_s=600.0)
            done += 1
