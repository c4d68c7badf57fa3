"""What every site tool shares: actions that end in an error of the tree, and Python modules as dependencies."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from SCons.Errors import BuildError
from SCons.Script import Action

from gemma4web.errors import Gemma4WebError

_toolchains = {}


class EndedError(BuildError):
    """A step that ended with ``status`` and has said why itself. SCons makes every exit code 2; this keeps the step's."""

    def __init__(self, text, status):
        super().__init__(errstr=text, status=status)

    @property
    def exitstatus(self):
        return self.status

    @exitstatus.setter
    def exitstatus(self, code):
        pass


def interrupted():
    """Whether Ctrl-C was pressed: only SCons's own handler knows, and it holds the jobs that it stopped."""
    jobs, *_ = getattr(signal.getsignal(signal.SIGINT), "__defaults__", None) or (None,)
    return jobs is not None and jobs.were_interrupted()


def action(function, text, varlist=()):
    """An SCons action around ``function(target, source, env)``; an error of the tree is printed with its remedy.

    A step that failed because of Ctrl-C says that and no more.
    """
    def run(target, source, env):
        try:
            function(target, source, env)
        except KeyboardInterrupt:
            return EndedError("interrupted", 128 + signal.SIGINT)
        except EndedError as error:
            return error
        except Gemma4WebError as error:
            if interrupted():
                return EndedError("interrupted", 128 + signal.SIGINT)
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return error.exit_code
        return None
    return Action(run, text, varlist=list(varlist))


def root(env):
    """The checkout."""
    return Path(env.Dir("#").abspath)


def paths(nodes):
    """Nodes as paths relative to the checkout, with `/`."""
    return [node.get_internal_path().replace("\\", "/") for node in nodes]


def literal(path):
    """A path for SCons, which would otherwise expand a dollar in it."""
    return str(path).replace("$", "$$")


def files(env, folder, *patterns):
    """Every file below ``folder`` that matches, sorted, relative to the checkout."""
    top = root(env)
    return sorted({literal(path.relative_to(top)) for pattern in patterns for path in (top / folder).rglob(pattern)
                   if path.is_file()})


def modules(env, *names):
    """The Python sources of these parts of gemma4web: what they generate depends on how they are written."""
    found = []
    for name in names:
        base = f"site_scons/gemma4web/{name}"
        found += files(env, base, "*.py", "*.yaml", "*.fbs", "*.j2") or [f"{base}.py"]
    return found


def python(env, *words):
    """This interpreter on this checkout's own package, whichever one it was installed from: argv and environment."""
    folders = [str(root(env) / "site_scons"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return [sys.executable, *words], {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def toolchain(env):
    """The tools that build/toolchain.json names, with their identity; read when an action runs, never before."""
    from gemma4web import toolchain as tools
    path = root(env) / "build/toolchain.json"
    status = path.stat() if path.is_file() else None
    key = (str(path), status and (status.st_size, status.st_mtime_ns))
    if key not in _toolchains:
        loaded = tools.load(path)
        _toolchains[key] = (loaded, tools.identity(loaded))
    return _toolchains[key]
