"""The two halves of the WebGPU port agree with each other, with its rules and with what the runtime calls.

These tests read the sources; test_webgpu_port_build.py compiles them and tests/browser/test_webgpu_port.py runs them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PORT: Final = CHECKOUT / "runtime_cpp/webgpu_port"
LIBRARY: Final = (PORT / "library_webgpu_port.js").read_text(encoding="utf-8")
IMPORTS: Final = (PORT / "imports.h").read_text(encoding="utf-8")
CPP: Final = {path.name: path.read_text(encoding="utf-8") for path in sorted(PORT.glob("*.cc"))}

# Letters of Emscripten's signatures for the C types of imports.h.
_LETTERS: Final = {"uint32_t": "i", "double": "d", "size_t": "p", "void": "v", "WGPUStatus": "i"}
# What the library may write after a dot: its own names, and those of JavaScript that Closure's externs know.
OWN_NAMES: Final = {
    "addReference", "callBack", "device", "endMapping", "entries", "entry", "errorType", "featureName", "featureNames",
    "vendorFeatureNames", "languageFeatureNames", "finalize", "get",
    "guarded", "hasFeature", "insert", "lastHandle", "limitNames", "mapMode", "mapRange", "messageOf", "object", "pointer",
    "queue", "ranges", "references", "release", "report", "settle", "source", "storeLimits", "text", "writable",
}
LANGUAGE_NAMES: Final = {
    "delete", "forEach", "from", "has", "join", "length", "map", "push", "resolve", "set", "slice", "subarray", "then",
}


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def without_strings(text: str) -> str:
    text = re.sub(r"\$\{([^}]*)\}", r"`+\1+`", text)
    return re.sub(r"'[^'\n]*'|`[^`]*`", "''", text)


CODE: Final = without_strings(without_comments(LIBRARY))


def declared_imports() -> dict[str, str]:
    """Name to signature of every function that imports.h declares for the JavaScript half."""
    body = without_comments(IMPORTS).split('extern "C" {', 1)[1]
    found: dict[str, str] = {}
    for result, name, parameters in re.findall(r"([\w ]+\*?)\s*\b(webgpu_port_\w+)\((.*?)\);", body.replace("[[noreturn]]", ""),
                                               flags=re.DOTALL):
        types = [re.sub(r"\s+", " ", item).strip().rsplit(" ", 1)[0] for item in parameters.split(",") if item.strip()]
        found[name] = "".join(_letter(kind) for kind in [result.strip(), *types])
    return found


def _letter(kind: str) -> str:
    return _LETTERS.get(kind.removeprefix("const ").strip(), "p")


def signatures() -> dict[str, str]:
    return dict(re.findall(r"^  (\w+)__sig: '(\w+)'", LIBRARY, flags=re.MULTILINE))


def parameter_counts() -> dict[str, int]:
    """Parameters of every function that the library defines under its own name."""
    found: dict[str, int] = {}
    for name, parameters in re.findall(r"^  ((?:wgpu|webgpu_port_)\w+): \(([^)]*)\) =>", LIBRARY, flags=re.MULTILINE):
        found[name] = len([item for item in parameters.split(",") if item.strip()])
    return found


def aliased() -> set[str]:
    types = re.findall(r"'(\w+)'", LIBRARY.split("for (const type of [", 1)[1].split("])", 1)[0])
    return {f"wgpu{kind}{action}" for kind in types for action in ("AddRef", "Release")}


def provided() -> set[str]:
    """Functions of the C API that a program can link with the port."""
    in_cpp = {name for text in CPP.values() for name in re.findall(r"^\w[\w ]*\b(wgpu\w+)\([^;]*?\) \{", text, flags=re.MULTILINE)}
    return in_cpp | {name for name in parameter_counts() if name.startswith("wgpu")} | aliased()


def test_every_import_is_defined_with_its_signature() -> None:
    """A wrong letter would pass a double as an integer, or a pointer above 2 GiB as a negative number."""
    declared = declared_imports()
    assert len(declared) > 20
    defined = {name: signature for name, signature in signatures().items() if name in declared}
    assert defined == declared


def test_signatures_count_the_parameters() -> None:
    counts = parameter_counts()
    assert {name: len(signature) - 1 for name, signature in signatures().items()} == counts


def test_every_function_depends_on_the_table() -> None:
    """A library function is stripped of what it does not name in its dependencies."""
    names = set(parameter_counts())
    assert set(re.findall(r"^  (\w+)__deps: \['\$webgpuPort'\]", LIBRARY, flags=re.MULTILINE)) == names


def test_names_of_webgpu_are_quoted() -> None:
    """P01: Closure renames every name after a dot that its externs do not know."""
    used = set(re.findall(r"\.([A-Za-z_]\w*)", CODE))
    assert used <= OWN_NAMES | LANGUAGE_NAMES, used - OWN_NAMES - LANGUAGE_NAMES
    keys = set(re.findall(r"[{,]\s*([A-Za-z_]\w*)\s*:", CODE.split("$webgpuPort: {", 1)[1]))
    shorthand = {"__deps", "__sig"}
    assert {key for key in keys if not key.startswith(("wgpu", "webgpu_port_"))} - OWN_NAMES - shorthand == set()
    bare = {name for group in re.findall(r"\{\s*([a-z]\w*(?:,\s*[a-z]\w*)*)\s*[,}]", CODE) for name in re.split(r",\s*", group)}
    bare |= set(re.findall(r"^\s+([a-z]\w*),$", CODE, flags=re.MULTILINE))
    assert bare <= OWN_NAMES, bare - OWN_NAMES


def test_no_view_of_memory_is_kept() -> None:
    """P05: a view goes stale when memory grows; it may be read from, written to or copied where it stands."""
    assert not re.search(r"(?:const|let|var)\s+\w+\s*=\s*HEAP\w+\s*[;.]", CODE)
    for match in re.finditer(r"HEAP\w+\.subarray\([^;]*", CODE):
        before = CODE[: match.start()]
        assert re.search(r"(?:Array\.from|\.set)\($", before), match.group()
    assert not re.search(r"return\s+HEAP|=>\s*HEAP\w+\.subarray", CODE)


def test_nothing_suspends() -> None:
    """P02: no Asyncify and no JSPI, so no exported function returns a promise."""
    assert "__async" not in LIBRARY
    assert "Asyncify" not in LIBRARY


def test_limits_stand_in_one_order() -> None:
    in_cpp = re.findall(r"(?:Narrow|Wide)\(&WGPULimits::(\w+)\)", CPP["adapter.cc"])
    in_js = re.findall(r"'(\w+)'", LIBRARY.split("limitNames: [", 1)[1].split("]", 1)[0])
    assert in_cpp == in_js
    assert len(set(in_cpp)) == len(in_cpp)


def test_callback_kinds_are_the_ones_of_the_header() -> None:
    kinds = {name: int(value) for name, value in re.findall(r"^  k(\w+) = (\d+),", IMPORTS, flags=re.MULTILINE)}
    used = {int(kind) for kind in re.findall(r"callBack\((\d),", CODE)}
    used |= {int(kind) for kind in re.findall(r"settle\(.*?\), (\d), ", CODE)}
    used |= {int(kind) for kind in re.findall(r"settle\(\w+, (\d), ", CODE)}
    assert used == set(kinds.values())


def runtime_calls() -> set[str]:
    """Functions of the C API that the runtime's sources name."""
    found: set[str] = set()
    for path in sorted((CHECKOUT / "runtime_cpp/src").rglob("*")):
        if path.suffix in (".h", ".cc"):
            found |= set(re.findall(r"\bwgpu[A-Z]\w+", without_comments(path.read_text(encoding="utf-8"))))
    return found


def test_the_port_covers_what_the_runtime_calls() -> None:
    """G9: the same sources build with each provider. A gap would show at link time; here it has a name."""
    called = runtime_calls()
    if not called:
        pytest.fail("runtime_cpp/src calls nothing of webgpu.h")
    assert called - provided() == set()


def test_every_object_that_the_port_creates_can_be_released() -> None:
    created = set(re.findall(r"WGPU(\w+) (?:wgpu|webgpu_port_)\w+\(", IMPORTS)) - {"Status", "Future"}
    assert {f"wgpu{kind}Release" for kind in created} <= provided()


@pytest.mark.parametrize("name", sorted([*CPP, "imports.h", "library_webgpu_port.js", "webgpu_port.port.py"]))
def test_files_are_short(name: str) -> None:
    assert len((PORT / name).read_text(encoding="utf-8").splitlines()) <= 600
