"""A tiny project that is built by the real SConstruct and site tools, with stand-ins for the tools and the exporter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
STANDIN = Path(__file__).with_name("standin")
VARIANTS = ("plain-wall", "plain-profile", "mtp-wall", "mtp-profile")
TIMEOUT_S = 120.0

_FILES = {
    "tools.txt": "1.0\n",
    "runtime_cpp/exports.txt": "# the C functions that the page calls\ng4_number\n",
    "runtime_cpp/src/base/number.h": "#pragma once\nint number();\n",
    "runtime_cpp/src/base/number.cc": '#include "base/number.h"\nint number() { return 4; }\n',
    "runtime_cpp/src/api/entry.cc":
        '#include "base/number.h"\n#include "base/timer.h"\n#include "kernels.h"\n#include "program_generated.h"\n'
        "int entry() { return GEMMA4_MTP; }\n",
    "runtime_cpp/src/base/timer.h": "#pragma once\n#if GEMMA4_PROFILE\nint timer();\n#endif\n",
    "runtime_cpp/src/base/timer.cc": '#include "base/timer.h"\n',
    "runtime_cpp/src/api/events.js": "// events\n",
    "runtime_cpp/kernels/double.wgsl": """\
//! formula: out[i] = 2 * x[i]
//! dispatch: one thread an element
//! reference: double
//! tolerance: exact
//! include: include/twice.wgsl

struct Params {
  count: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  if id.x < params.count {
    out[id.x] = twice(x[id.x]);
  }
}
""",
    "runtime_cpp/kernels/include/twice.wgsl": "fn twice(x: f32) -> f32 {\n  return x + x;\n}\n",
    "web/index.html": "<!doctype html><title>page</title>\n",
    "web/run.html": "<!doctype html><title>runner</title>\n",
    "web/app.js": "export const page = 1;\n",
    "web/tsconfig.json": "{}\n",
    "web/templates/report.html.j2": "{{ page }}\n",
    "web/vendor.json": '{"schema": 1, "files": [{"package": "pkg", "file": "dist/a.js", "as": "vendor/pkg/a.js"}]}\n',
    "node_modules/pkg/dist/a.js": "export const a = 1;\n",
    "node_modules/pkg/package.json": '{"name": "pkg", "version": "1.2.3"}\n',
    "fixtures/story/story-target.gguf": "target weights\n",
    "fixtures/story/story-assistant.gguf": "assistant weights\n",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    code: int
    out: str

    @property
    def up_to_date(self) -> bool:
        return self.code == 0 and "`bundle' is up to date" in self.out


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """The folder of one tiny project; ``scons`` runs in it, ``calls`` is what the stand-in tools did meanwhile."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a person's shell would hand over: without what a build that runs these tests has set, its lock first."""
        return {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}

    def scons(self, *words: str, expect: int | None = 0) -> Result:
        finished = subprocess.run(
            [sys.executable, "-m", "SCons", *words], cwd=self.root, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False)
        assert expect is None or finished.returncode == expect, finished.stdout
        return Result(code=finished.returncode, out=finished.stdout)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """SCons as a terminal starts it: in a process group of its own, which Ctrl-C reaches as a whole."""
        return subprocess.Popen([sys.executable, "-m", "SCons", *words], cwd=self.root, env=self.environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                start_new_session=True)

    def calls(self) -> list[str]:
        """What the tools were asked to do since the last look."""
        log = self.root / "compiler.log"
        lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
        log.unlink(missing_ok=True)
        return lines

    def path(self, name: str) -> Path:
        return self.root / name

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.path(name)
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    def edit_secretly(self, name: str, old: str, new: str) -> None:
        """An edit that keeps the file's size and modification time."""
        assert len(old) == len(new)
        status = self.path(name).stat()
        self.edit(name, old, new)
        os.utime(self.path(name), ns=(status.st_atime_ns, status.st_mtime_ns))

    def snapshot(self) -> dict[str, tuple[int, int]]:
        """Size and time of every file outside Python's own caches."""
        return {path.relative_to(self.root).as_posix(): (path.stat().st_size, path.stat().st_mtime_ns)
                for path in self.root.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def make_project(root: Path) -> Project:
    """Lays out a tiny project in ``root``: the real build, the real kernel generator, stand-ins for what is heavy."""
    root.mkdir(parents=True)
    shutil.copy(CHECKOUT / "SConstruct", root)
    shutil.copytree(CHECKOUT / "site_scons", root / "site_scons",
                    ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "toolchain", "generated", "export"))
    package = root / "site_scons/gemma4web"
    for source, target in (("toolchain.py", "toolchain/__init__.py"), ("progress.py", "toolchain/progress.py"),
                           ("codec.py", "program/codec.py"), ("export.py", "export/__init__.py"),
                           ("main.py", "__main__.py")):
        (package / target).parent.mkdir(exist_ok=True)
        shutil.copy(STANDIN / source, package / target)
    (root / "tools").mkdir()
    shutil.copy(STANDIN / "emxx.py", root / "tools")
    shutil.copy(STANDIN / "flatc", root / "tools")
    for name, text in _FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    project = Project(root=root)
    project.scons("kernels-lock")
    project.calls()
    return project
