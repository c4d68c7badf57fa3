"""Targets that are run, not built: run, bench, bench-kernels, serve, test and check. Each runs whenever it is asked for."""

from __future__ import annotations

import atexit
import os
import shlex
import subprocess
from pathlib import Path

from SCons.Script import AlwaysBuild, Main

from site_tools.adapter import EndedError, action, python, root


def _run(target, source, env):
    _streamed(env, "-m", "gemma4web", "run", "--bundle", str(Path(source[0].abspath).parent), "--prompts", env["PROMPTS"])


def _bench(target, source, env):
    _streamed(env, "-m", "gemma4web", "bench", "--bundle", str(Path(source[0].abspath).parent),
              "--prompts", env["PROMPTS"], "--repeats", env["REPEATS"])


def _bench_kernels(target, source, env):
    _streamed(env, "-m", "gemma4web", "bench-kernels", f"--rows={env['ROWS']}", *(["--cache", env["CACHE"]] if env["CACHE"] else []))


def _serve(target, source, env):
    """SCons becomes the server once it is done: Ctrl-C then ends the server alone, and a page that is being looked at
    stops no build."""
    argv, environment = python(env, "-m", "gemma4web", "serve", "--bundle", str(Path(source[0].abspath).parent),
                               "--port", env["PORT"])

    def become():
        if not Main.exit_status:
            print(shlex.join(argv), flush=True)
            os.chdir(root(env))
            os.execve(argv[0], argv, environment)

    atexit.register(become)


def _streamed(env, *words):
    """Runs a program with its output on this terminal; its failure is the target's failure."""
    argv, environment = python(env, *words)
    print(shlex.join(argv), flush=True)
    if code := subprocess.run(argv, cwd=root(env), env=environment, stdin=subprocess.DEVNULL, check=False).returncode:
        name = " ".join(words[1:3]) if words[1] == "gemma4web" else words[1]
        code = code if code > 0 else 128 - code
        raise EndedError(f"{name} ended with exit code {code}", code)


# Most tests wait for a browser: a process for each core, up to four, and whole files to each, which share what they set up.
_PARALLEL = ("-n", "auto", "--maxprocesses", "4", "--dist", "loadfile")


def _test(target, source, env):
    _streamed(env, "-m", "pytest", *_PARALLEL, *shlex.split(env["PYTEST"]))


def _check(target, source, env):
    from gemma4web import kernels
    _streamed(env, "-m", "ruff", "check", ".")
    _streamed(env, "-m", "mypy")
    kernels.check_lock(root(env) / "runtime_cpp/kernels", root(env) / "runtime_cpp/kernels/kernels.lock.json")


def tasks(env, tools, bundle):
    """Declares the targets that run something; all of them work on an up-to-date bundle."""
    ready = [bundle[0], *tools]
    for name, body, text in (("run", _run, "running the bundle in Chromium"), ("bench", _bench, "measuring the bundle"),
                             ("serve", _serve, "serving the bundle"), ("test", _test, "running all tests")):
        AlwaysBuild(env.Alias(name, ready, action(body, text)))
    AlwaysBuild(env.Alias("bench-kernels", tools, action(_bench_kernels, "measuring the kernels")))
    AlwaysBuild(env.Alias("check", tools, action(_check, "checking")))


def generate(env):
    env.AddMethod(tasks, "Tasks")


def exists(env):
    return True
