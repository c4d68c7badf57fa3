"""Targets that are run, not built: run, bench, serve, test and check. Each runs whenever it is asked for."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from SCons.Script import AlwaysBuild, Exit
from site_tools.adapter import action, root


def _chromium(env):
    from gemma4web.toolchain import load_browser
    return load_browser(root(env) / "build/browser.json")


def _run(name):
    def body(target, source, env):
        from gemma4web import browser
        top = root(env)
        browser.run_bundle(
            Path(source[0].abspath).parent, prompts=top / env["PROMPTS"], chromium=_chromium(env),
            record=top / f"build/records/{name}.json", report=top / "build/report/index.html",
            repeats=int(env["REPEATS"]) if name == "bench" else 1)
    return body


def _serve(target, source, env):
    from gemma4web import serve
    serve.serve_forever(Path(source[0].abspath).parent)


def _streamed(argv, env):
    """Runs a program with its output on this terminal; its failure is the target's failure."""
    from gemma4web.errors import Gemma4WebError
    print(shlex.join(argv), flush=True)
    if code := subprocess.run(argv, cwd=root(env), stdin=subprocess.DEVNULL, check=False).returncode:
        raise Gemma4WebError(f"{argv[2]} failed with exit code {code}")


def _test(target, source, env):
    _streamed([sys.executable, "-m", "pytest", *shlex.split(env["PYTEST"])], env)


def _check(target, source, env):
    from gemma4web import kernels
    _streamed([sys.executable, "-m", "ruff", "check", "."], env)
    _streamed([sys.executable, "-m", "mypy"], env)
    kernels.check_lock(root(env) / "runtime_cpp/kernels", root(env) / "runtime_cpp/kernels/kernels.lock.json")


def _always(env, name, dependencies, body, text):
    return AlwaysBuild(env.Alias(name, dependencies, action(body, text)))


def check_options(env, options):
    """Refuses an option that does not exist, so that a misspelt one is never silently the default."""
    if unknown := sorted(options.UnknownVariables()):
        print(f"UsageError: {', '.join(unknown)} is no option, wanted one of {', '.join(sorted(options.keys()))}\n"
              "  remedy: `scons -h` lists them", file=sys.stderr)
        Exit(2)


def generate(env):
    env.AddMethod(check_options, "CheckOptions")
    env.AddMethod(lambda env, name, tools, bundle: _always(
        env, name, [bundle[0], tools], _run(name), f"{name}: running the bundle in Chromium"), "Run")
    env.AddMethod(lambda env, name, bundle: _always(env, name, [bundle[0]], _serve, "serving the bundle"), "Serve")
    env.AddMethod(lambda env, name, tools, bundle: _always(env, name, [bundle[0], tools], _test, "running all tests"),
                  "Test")
    env.AddMethod(lambda env, name, tools: _always(env, name, [tools], _check, "checking"), "Check")


def exists(env):
    return True
