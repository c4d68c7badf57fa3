"""The pin table: its shape, and what may not stand in it (TOOLCHAIN)."""

from __future__ import annotations

import re

import pytest

from gemma4web.errors import ToolchainError
from gemma4web.pins import PINS_PATH, load_pins, parse_pins, parse_version, version_text


@pytest.mark.parametrize(("text", "version"), [
    ("6.0.5+dfsg+~1.41.5-2", (6, 0, 5)), ("1:21.1.8-13", (21, 1, 8)), ("v20.20.2", (20, 20, 2)), ("130", (130,)),
    ("20260629.0.0", (20260629, 0, 0)), (" 23.5.26\n", (23, 5, 26)),
])
def test_version_numbers_are_read_from_every_form(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version
    assert parse_version(version_text(version)) == version


def test_a_version_without_a_number_is_refused() -> None:
    with pytest.raises(ToolchainError, match="'unknown' is not a version"):
        parse_version("unknown")


def test_the_committed_pins_are_exact_and_name_no_host() -> None:
    pins = load_pins()
    for group in pins.npm.values():
        for package in group:
            assert re.fullmatch(r"\d+\.\d+\.\d+", package.version), package.name
            assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", package.integrity), package.name
    for wheel in pins.pypi.values():
        assert wheel.sha256 and all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in wheel.sha256)
    assert "://" not in PINS_PATH.read_text(encoding="utf-8")


def test_every_native_npm_package_is_pinned_for_both_machines() -> None:
    pins = load_pins()
    for name, group in pins.npm.items():
        platforms = [package.platform for package in group if package.platform]
        assert platforms.count("linux-x64") == platforms.count("linux-arm64"), name


@pytest.mark.parametrize(("package", "left"), [
    ("libllvm21", False), ("libclang-cpp21", False), ("libstdc++6", False), ("libxml2-16", False), ("emscripten", False),
    ("libclang-common-21-dev", False), ("libflatbuffers-dev", False), ("zlib1g", False), ("libc6", False),
    ("python3.14", True), ("libnode137", True), ("node-acorn", True), ("libstdc++-16-dev", True), ("libc6-dev", True),
    ("gcc-16-base", True), ("libcurl4t64", True),
])
def test_what_the_compiler_prefix_leaves_out(package: str, left: bool) -> None:
    assert load_pins().debian["emscripten"].leaves(package) is left


@pytest.mark.parametrize("package", ["libnss3", "libvulkan1", "libgbm1", "libgtk-3-0", "fonts-dejavu-core", "chromium"])
def test_what_chromium_needs_is_not_left_out(package: str) -> None:
    assert not load_pins().debian["chromium"].leaves(package)


def test_chromium_keeps_the_systems_libc() -> None:
    assert load_pins().debian["chromium"].leaves("libc6")


@pytest.mark.parametrize(("text", "words"), [
    ("schema: 2", "schema 2, wanted 1"), ("- 1", "schema 'list'"), ("schema: 1", "malformed"), ("a: [", "malformed"),
])
def test_a_malformed_table_is_named(text: str, words: str) -> None:
    with pytest.raises(ToolchainError, match=words):
        parse_pins(text, source="table")
