"""The system's apt sources in both forms; which of them may be Debian's archive (TOOLCHAIN)."""

from __future__ import annotations

from pathlib import Path

from gemma4web.toolchain.apt_sources import (
    AptSource,
    main_archives,
    os_codename,
    parse_deb822,
    parse_one_line,
    release_sources,
    system_sources,
)

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

ONE_LINE = """\
# deb http://old.example/debian buster main
deb http://mirror.example/debian bookworm main contrib  # ours
deb [ arch=amd64 signed-by=/k.gpg ] https://m.example/debian-security bookworm-security main
deb-src http://mirror.example/debian bookworm main
deb http://flat.example/repo ./
"""

DEB822 = """\
Types: deb deb-src
# a comment inside
URIs: http://mirror.example/debian http://second.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://third.example/debian
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
 -----END PGP PUBLIC KEY BLOCK-----

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main
"""


def test_one_line_form() -> None:
    assert parse_one_line(ONE_LINE) == [
        AptSource(uri="http://mirror.example/debian", suite="bookworm", components=("main", "contrib")),
        AptSource(uri="https://m.example/debian-security", suite="bookworm-security", components=("main",),
                  signed_by="/k.gpg"),
        AptSource(uri="http://flat.example/repo", suite="./", components=()),
    ]


def test_deb822_form_with_lists_comments_inline_key_and_disabled_parts() -> None:
    found = parse_deb822(DEB822)
    assert [(source.uri, source.suite) for source in found] == [
        ("http://mirror.example/debian", "bookworm"), ("http://mirror.example/debian", "bookworm-updates"),
        ("http://second.example/debian", "bookworm"), ("http://second.example/debian", "bookworm-updates"),
        ("https://third.example/debian", "bookworm"),
    ]
    assert found[0].signed_by == str(KEYRING)
    key = found[-1].signed_by
    assert key is not None and key.startswith("\n -----BEGIN") and " .\n abc" in key


def test_a_written_stanza_reads_back_as_the_same_source() -> None:
    for source in [*parse_one_line(ONE_LINE), *parse_deb822(DEB822)]:
        assert parse_deb822(source.deb822()) == [source]


def test_every_file_that_apt_reads_is_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE, encoding="utf-8")
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822, encoding="utf-8")
    (tmp_path / "sources.list.d" / "more.list").write_text("deb http://more.example/debian sid main\n", encoding="utf-8")
    (tmp_path / "sources.list.d" / "off.sources.disabled").write_text(DEB822, encoding="utf-8")
    assert len(system_sources(tmp_path)) == 3 + 5 + 1
    assert system_sources(tmp_path / "absent") == []


def test_the_likeliest_archive_comes_first_and_third_parties_last() -> None:
    vendor = AptSource(uri="https://packages.vendor.example/prod", suite="bookworm", components=("main",),
                       signed_by="/vendor.gpg")
    tools = AptSource(uri="https://tools.example/linux", suite="bookworm", components=("stable",))
    cdrom = AptSource(uri="cdrom:[Debian]/", suite="bookworm", components=("main",))
    security = AptSource(uri="http://m.example/debian-security", suite="bookworm-security", components=("main",))
    mirror = AptSource(uri="http://m.example/debian", suite="bookworm", components=("main",), signed_by=str(KEYRING))
    found = main_archives([vendor, tools, cdrom, security, mirror], "bookworm", KEYRING)
    assert found == [mirror, vendor]


def test_the_running_release_includes_its_security_suite() -> None:
    names = ["bookworm", "bookworm-security", "bookworm-updates", "bookworm-backports", "forky"]
    sources = [AptSource(uri="http://m.example", suite=name, components=("main",)) for name in names]
    assert [source.suite for source in release_sources(sources, "bookworm")] == names[:3]


def test_the_code_name_of_the_running_system(tmp_path: Path) -> None:
    path = tmp_path / "os-release"
    path.write_text('ID=debian\nVERSION_CODENAME="trixie"\n', encoding="utf-8")
    assert os_codename(path) == "trixie"
    path.write_text("ID=other\n", encoding="utf-8")
    assert os_codename(path) is None
    assert os_codename(tmp_path / "absent") is None
