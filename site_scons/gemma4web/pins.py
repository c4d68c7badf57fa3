"""Reads ``pins.yaml``: the one list of what a set-up fetches and of the oldest versions that are accepted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from gemma4web.errors import ToolchainError

PINS_PATH: Final = Path(__file__).with_name("pins.yaml")
SCHEMA: Final = 1

Version = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DebianGroup:
    """Packages that are unpacked together: the named ones with their minimum version, and what is left out."""

    name: str
    roots: dict[str, Version]
    leave: tuple[str, ...]

    def leaves(self, package: str) -> bool:
        return any(re.fullmatch(pattern, package) for pattern in self.leave)


@dataclass(frozen=True, kw_only=True, slots=True)
class NpmPackage:
    """One npm package: the exact version and the integrity (``sha512-<base64>``) of its archive."""

    name: str
    version: str
    integrity: str
    platform: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PypiFile:
    """One PyPI release, with the sha256 of every wheel that may be chosen."""

    name: str
    version: str
    sha256: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pins:
    minimum: dict[str, Version]
    debian_suite: str
    debian: dict[str, DebianGroup]
    npm: dict[str, tuple[NpmPackage, ...]]
    pypi: dict[str, PypiFile]


def parse_version(text: str) -> Version:
    """Leading numbers of a version: ``6.0.5+dfsg`` is (6, 0, 5), a Debian epoch is dropped.

    Raises ToolchainError when there is no number at its start.
    """
    match = re.match(r"(?:\d+:)?v?(\d+(?:\.\d+)*)", text.strip())
    if match is None:
        raise ToolchainError(f"{text!r} is not a version")
    return tuple(int(part) for part in match[1].split("."))


def version_text(version: Version) -> str:
    return ".".join(str(part) for part in version)


def _group(name: str, entry: dict[str, Any]) -> DebianGroup:
    return DebianGroup(
        name=name, roots={package: parse_version(str(least)) for package, least in entry["roots"].items()},
        leave=tuple(entry["leave"]),
    )


def parse_pins(text: str, *, source: str = "pins.yaml") -> Pins:
    """Raises ToolchainError naming ``source`` when the text does not have the shape of ``pins.yaml``."""
    import yaml  # only a set-up reads the pins, while every build imports this module

    try:
        document = yaml.safe_load(text)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            found = document.get("schema") if isinstance(document, dict) else type(document).__name__
            raise ToolchainError(f"{source} has schema {found!r}, wanted {SCHEMA}")
        debian = document["debian"]
        return Pins(
            minimum={tool: parse_version(str(least)) for tool, least in document["minimum"].items()},
            debian_suite=debian["suite"],
            debian={name: _group(name, entry) for name, entry in debian.items() if name != "suite"},
            npm={
                group: tuple(
                    NpmPackage(name=name, version=str(entry["version"]), integrity=entry["integrity"],
                               platform=entry.get("platform"))
                    for name, entry in packages.items()
                )
                for group, packages in document["npm"].items()
            },
            pypi={
                name: PypiFile(name=name, version=str(entry["version"]), sha256=tuple(entry["sha256"]))
                for name, entry in document["pypi"].items()
            },
        )
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ToolchainError(f"{source} is malformed: {error!r}", advice="restore the committed file") from None


@cache
def load_pins(path: Path = PINS_PATH) -> Pins:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ToolchainError(f"{path} cannot be read: {error.strerror}", advice="restore the committed file") from None
    return parse_pins(text, source=str(path))
