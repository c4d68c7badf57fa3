"""Compiling a variant's translation units, and the accessors of the program: flags as functions from tables to text.

Flags never hold an absolute path: what depends on the machine (include folders of the tools, the provider's port, the
prefix maps) is added when the command is run, so that action logs and hashes are the same in every folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gemma4web.errors import CompileError
from gemma4web.process import run
from gemma4web.receipts import Action, identity_sha256, log_path, write_action
from gemma4web.variants import VARIANTS, Variant

if TYPE_CHECKING:
    from gemma4web.toolchain import Toolchain

TIMEOUT_S: Final = 900.0
_VARIANT_MACROS: Final = frozenset(entry.partition("=")[0] for variant in VARIANTS for entry in variant.defines)
INCLUDE_FOLDERS: Final = ("runtime_cpp/src", "build/gen")


class Mode(StrEnum):
    RELEASE = "release"
    DEBUG = "debug"


_COMPILE_FLAGS: Final = ("-std=c++20", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror")
_MODE_FLAGS: Final[Mapping[Mode, tuple[str, ...]]] = {
    Mode.RELEASE: ("-Oz",),
    Mode.DEBUG: ("-O1", "-g"),
}
_MODE_DEFINES: Final[Mapping[Mode, tuple[str, ...]]] = {Mode.RELEASE: ("NDEBUG=1",), Mode.DEBUG: ()}


def defines(variant: Variant, mode: Mode, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """Preprocessor definitions of a variant, `NAME=VALUE` each; a name is defined once."""
    merged: dict[str, str] = {}
    for entry in (*variant.defines, *_MODE_DEFINES[mode], *extra):
        name, separator, value = entry.partition("=")
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None or not separator:
            raise CompileError(f"{entry!r} is not a definition, wanted NAME=VALUE")
        if merged.setdefault(name, value) != value:
            raise CompileError(f"{name} is defined as {merged[name]!r} and as {value!r} for {variant.name}")
    return tuple(f"{name}={value}" for name, value in merged.items())


def compile_flags(definitions: Sequence[str], mode: Mode) -> tuple[str, ...]:
    """Everything that changes an object file, in the order in which the compiler gets it."""
    return (*_COMPILE_FLAGS, *_MODE_FLAGS[mode], *(f"-D{entry}" for entry in definitions),
            *(f"-I{folder}" for folder in INCLUDE_FOLDERS))


class Mentions:
    """Which of the variants' macros a translation unit or anything that it includes speaks of.

    Two thirds of the units speak of none or of one: these are compiled once for all variants that agree, with the other
    macros undefined. The answer is textual, so it errs on the side of compiling apart; `compile_object` refuses a unit
    in which an undefined macro turns up all the same, for instance in a generated header.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._texts: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {}

    def of(self, source: str) -> frozenset[str]:
        """The macros in ``source`` (relative to the checkout) and in the project files that it includes."""
        found: set[str] = set()
        seen: set[str] = set()
        waiting = [source]
        while waiting:
            if (path := waiting.pop()) not in seen:
                seen.add(path)
                names, includes = self._read(path)
                found |= names
                waiting += includes
        return frozenset(found)

    def _read(self, path: str) -> tuple[frozenset[str], tuple[str, ...]]:
        if path not in self._texts:
            file = self._root / path
            text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
            names = re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', text, flags=re.MULTILINE)
            folders = (*INCLUDE_FOLDERS, str(Path(path).parent))
            self._texts[path] = mentioned(text), tuple(
                f"{folder}/{name}" for name in names for folder in folders if (self._root / folder / name).is_file())
        return self._texts[path]


def mentioned(text: str) -> frozenset[str]:
    """The variants' macros that occur in a source's text, comments included."""
    return frozenset(_VARIANT_MACROS.intersection(re.findall(r"\w+", text)))


def unit_defines(variant: Variant, mode: Mode, macros: frozenset[str], extra: Sequence[str] = ()) -> tuple[str, ...]:
    """The definitions that a unit which mentions ``macros`` is compiled with: all of them when ``extra`` has any."""
    return tuple(entry for entry in defines(variant, mode, extra)
                 if extra or (name := entry.partition("=")[0]) in macros or name not in _VARIANT_MACROS)


def unit_group(variant: Variant, macros: frozenset[str], extra: Sequence[str] = ()) -> str:
    """Whom such a unit serves: one variant, all that share an axis of the matrix, or all four as `shared`."""
    if extra:
        return variant.name
    axes = zip(variant.defines, (variant.decoding, variant.timing), strict=True)
    return "-".join(axis for entry, axis in axes if entry.partition("=")[0] in macros) or "shared"


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectJob:
    """One translation unit for a group of variants; paths are relative to ``root`` and use `/`."""

    root: Path
    group: str
    source: str
    output: str
    flags: tuple[str, ...]
    defines: tuple[str, ...]
    known_inputs: frozenset[str]


def machine_flags(root: Path, toolchain: Toolchain) -> list[str]:
    """What depends on where things lie: the provider's port, the tools' headers, and the prefix maps that keep those
    folders' names out of debug information and `__FILE__`. The provider is given to every compile and every link.
    """
    return [f"--use-port={toolchain.provider.port}",
            "-isystem", str(toolchain.flatbuffers_include),
            f"-ffile-prefix-map={toolchain.em_cache}=/toolchain",
            f"-ffile-prefix-map={toolchain.flatbuffers_include}=/flatbuffers",
            f"-ffile-prefix-map={root}=."]


def compiler_environment(toolchain: Toolchain) -> dict[str, str]:
    """The whole environment of a compiler run. The tools were tried when they were set up, so no run tries them again."""
    return {**toolchain.environment(), "EMCC_SKIP_SANITY_CHECK": "1"}


def compile_object(job: ObjectJob, toolchain: Toolchain, identity: Mapping[str, object]) -> Action:
    """Compiles one translation unit and writes its action log.

    Raises CompileError with the compiler's output, and when the source includes a project file that the build's own
    scanner did not see, because such a file would not trigger a rebuild, or one that mentions a macro not given.
    """
    depfile = f"{job.output}.d"
    argv = [*toolchain.emcc, *job.flags, *machine_flags(job.root, toolchain),
            "-MD", "-MF", depfile, "-c", job.source, "-o", job.output]
    try:
        run(argv, env=compiler_environment(toolchain), cwd=job.root, error=CompileError,
            what=f"compiling {job.source} for {job.group}", timeout_s=TIMEOUT_S)
        inputs = project_inputs(read_depfile((job.root / depfile).read_text(encoding="utf-8")), job.root)
    except FileNotFoundError:
        raise CompileError(f"the compiler wrote no list of includes for {job.source}") from None
    finally:
        (job.root / depfile).unlink(missing_ok=True)
    if unseen := sorted(inputs - job.known_inputs):
        raise CompileError(f"{job.source} includes {', '.join(unseen)}, which the build does not see as its input",
                           advice='write the include as a plain #include "layer/file.h"')
    given = {entry.partition("=")[0] for entry in job.defines}
    for path in sorted(inputs):
        if missing := mentioned((job.root / path).read_text(encoding="utf-8", errors="replace")) - given:
            raise CompileError(f"{path} mentions {', '.join(sorted(missing))}, but {job.source} is compiled without it "
                               f"for {job.group}", advice="generated headers must not depend on the variant")
    return write_action(
        job.root, kind="compile", variant=job.group, defines=job.defines, flags=job.flags, inputs=inputs,
        outputs=[job.output], log=str(log_path(Path(job.output))), toolchain=identity_sha256(identity))


def read_depfile(text: str) -> list[str]:
    """Prerequisites in a make-style dependency file: `\\` continues a line and escapes a space, `$$` is a dollar."""
    _, _, body = text.replace("\\\n", " ").partition(": ")
    words = re.findall(r"(?:\\.|[^\s\\])+", body)
    return [re.sub(r"\\([ #\\])", r"\1", word).replace("$$", "$") for word in words]


def project_inputs(paths: Iterable[str], root: Path) -> frozenset[str]:
    """The paths that lie in the project's own source and generated folders, relative to ``root``.

    Everything else belongs to the tools or the provider, which the toolchain's identity covers.
    """
    own = ("runtime_cpp/src/", "build/gen/")
    found: set[str] = set()
    for path in paths:
        absolute = Path(path) if Path(path).is_absolute() else root / path
        parts: list[str] = []
        for part in absolute.parts:
            if part == "..":
                parts.pop()
            else:
                parts.append(part)
        clean = Path(*parts)
        if clean.is_relative_to(root) and (relative := clean.relative_to(root).as_posix()).startswith(own):
            found.add(relative)
    return frozenset(found)


def generate_accessors(flatc: Path, schema: str, output: str, root: Path, toolchain: Toolchain,
                       identity: Mapping[str, object], generators: Iterable[str]) -> Action:
    """Runs flatc over the program's schema. Raises CompileError with flatc's output."""
    folder = str(Path(output).parent)
    (root / folder).mkdir(parents=True, exist_ok=True)
    run([flatc, "--cpp", "--warnings-as-errors", "-o", folder, schema], env=toolchain.environment(), cwd=root,
        error=CompileError, what=f"flatc on {schema}", timeout_s=60.0)
    if not (root / output).is_file():
        raise CompileError(f"flatc wrote no {output} from {schema}")
    return write_action(root, kind="generate", flags=["--cpp"], inputs=[schema, *generators], outputs=[output],
                        log=str(log_path(Path(output))), toolchain=identity_sha256(identity))
