"""Reads the system's apt sources, in one-line and in deb822 form, so that packages come from the mirror already in use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemma4web.errors import FetchError

_ONE_LINE: Final = re.compile(r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<components>.*)$")
_FALSE: Final = frozenset({"no", "false", "without", "off", "disable", "0"})


@dataclass(frozen=True, kw_only=True, slots=True)
class AptSource:
    """One archive: a URI, one suite of it, its components, and the keyring that signs it (None: apt's trusted ones)."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str | None = None

    def deb822(self) -> str:
        """The stanza that names this source to apt; an inline key keeps its own line breaks."""
        lines = ["Types: deb", f"URIs: {self.uri}", f"Suites: {self.suite}"]
        if self.components:
            lines.append(f"Components: {' '.join(self.components)}")
        if self.signed_by is not None:
            lines.append(f"Signed-By: {self.signed_by}")
        return "\n".join(lines) + "\n"


def parse_one_line(text: str) -> list[AptSource]:
    """Sources of a ``sources.list``; comments, ``deb-src`` and lines that are not understood are left out."""
    found: list[AptSource] = []
    for line in text.splitlines():
        match = _ONE_LINE.match(line.split("#", 1)[0].strip())
        if match is None:
            continue
        options = dict(
            word.split("=", 1) for word in (match["options"] or "").split() if "=" in word
        )
        found.append(AptSource(
            uri=match["uri"], suite=match["suite"], components=tuple(match["components"].split()),
            signed_by=options.get("signed-by") or None,
        ))
    return found


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    """Fields of each deb822 paragraph, names in lower case; a continuation line is kept after a line break."""
    fields: dict[str, str] = {}
    name = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0] in " \t":
            if name:
                fields[name] += "\n" + line
        elif ":" in line:
            name, value = line.split(":", 1)
            name = name.strip().lower()
            fields[name] = value.strip()


def parse_deb822(text: str) -> list[AptSource]:
    """Sources of a ``*.sources`` file; disabled paragraphs and ``deb-src`` are left out."""
    found: list[AptSource] = []
    for fields in _stanzas(text):
        if fields.get("enabled", "yes").lower() in _FALSE or "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                found.append(AptSource(
                    uri=uri, suite=suite, components=tuple(fields.get("components", "").split()),
                    signed_by=fields.get("signed-by") or None,
                ))
    return found


def system_sources(etc: Path = Path("/etc/apt")) -> list[AptSource]:
    """Every binary source that apt itself would read under ``etc``, in apt's order."""
    found: list[AptSource] = []
    files = [etc / "sources.list"]
    parts = etc / "sources.list.d"
    if parts.is_dir():
        files += sorted(path for path in parts.iterdir() if path.suffix in {".list", ".sources"})
    for path in files:
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            found += parse_deb822(text) if path.suffix == ".sources" else parse_one_line(text)
    return found


def os_codename(os_release: Path = Path("/etc/os-release")) -> str | None:
    """The release name of the running system (``bookworm``), or None where the file has none."""
    try:
        text = os_release.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"^VERSION_CODENAME=\"?([\w.-]+)\"?\s*$", text, re.MULTILINE)
    return match[1] if match else None


def main_archives(sources: list[AptSource], codename: str | None, keyring: Path) -> list[AptSource]:
    """Sources that may be Debian's main archive, likeliest first; apt's signature check has the last word.

    Third parties also use a bare code name as suite, so the plain ``main`` component and the keyring order the list.
    """
    names = {codename, "stable", "testing", "unstable", "sid", "oldstable", "forky", "trixie", "bookworm"} - {None}

    def rank(source: AptSource) -> tuple[bool, bool]:
        return (source.signed_by not in {None, str(keyring)}, "debian" not in source.uri)

    candidates = [
        source for source in sources
        if source.suite in names and "main" in source.components and not source.uri.startswith("cdrom:")
    ]
    unique = {source.uri: source for source in sorted(candidates, key=rank, reverse=True)}
    return sorted(unique.values(), key=rank)


def release_sources(sources: list[AptSource], codename: str) -> list[AptSource]:
    """The running release with its security and update suites, as the system names them."""
    wanted = {codename, f"{codename}-security", f"{codename}-updates", f"{codename}/updates"}
    return [source for source in sources if source.suite in wanted and "main" in source.components]


def no_mirror() -> FetchError:
    return FetchError(
        "no Debian mirror found in /etc/apt/sources.list or /etc/apt/sources.list.d",
        advice="name installed tools (EMSDK=, BROWSER=, flatc on PATH), or add a Debian mirror to apt's sources",
    )
