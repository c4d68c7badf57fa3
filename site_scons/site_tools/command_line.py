"""What is checked before anything is declared: the options, and that no other build works in this checkout."""

from __future__ import annotations

import fcntl
import os
import re
import sys

from SCons.Script import COMMAND_LINE_TARGETS, Exit, SConsignFile

from gemma4web.variants import VARIANTS
from site_tools.adapter import root

LOCK_VARIABLE = "GEMMA4WEB_BUILD_LOCK"


def _faults(env, options):
    """What is wrong with the values that SCons itself cannot judge."""
    names = sorted(variant.name for variant in VARIANTS)
    if unknown := sorted(options.UnknownVariables()):
        yield f"{', '.join(unknown)} is no option, wanted one of {', '.join(sorted(options.keys()))}"
    for entry in filter(None, map(str.strip, env["DEFINE"].split(","))):
        if re.fullmatch(rf"({'|'.join(names)}):[A-Za-z_]\w*=.*", entry) is None:
            yield f"DEFINE={entry!r}, wanted <variant>:NAME=VALUE with a variant of {', '.join(names)}"
    if not re.fullmatch(r"[1-9]\d{0,3}", env["REPEATS"]):
        yield f"REPEATS={env['REPEATS']!r}, wanted a number from 1 to 9999"
    if not re.fullmatch(r"\d{1,5}", env["PORT"]) or int(env["PORT"]) > 65535:
        yield f"PORT={env['PORT']!r}, wanted a number from 0 to 65535; 0 takes any free one"
    if env["MODEL"] and not (root(env) / env["MODEL"] / "model.json").is_file():
        yield f"MODEL={env['MODEL']!r} is no finished export: it holds no model.json"
    if {"run", "bench"} & set(COMMAND_LINE_TARGETS) and not (root(env) / env["PROMPTS"]).is_file():
        yield f"PROMPTS={env['PROMPTS']!r} is no file"


def check_options(env, options):
    """Refuses what is misspelt or impossible before anything is declared, so that nothing silently is the default.

    A dry run in a checkout that was never built gets no database, which SCons would create empty.
    """
    if env.GetOption("no_exec") and not any(root(env).glob(".sconsign*")):
        SConsignFile(None)
    if env.GetOption("help") or env.GetOption("clean"):
        return
    if faults := list(_faults(env, options)):
        print("\n".join(f"UsageError: {fault}" for fault in faults), file=sys.stderr)
        print("  remedy: `scons -h` lists the options", file=sys.stderr)
        Exit(2)


def one_at_a_time(env):
    """Two builds in one checkout would remove each other's outputs: the second waits for the first.

    The lock lies on SConstruct itself, so it writes nothing, and ends with the process. `scons serve` gives it back, and
    what a build starts may build again.
    """
    if env.GetOption("help") or env.GetOption("no_exec") or LOCK_VARIABLE in os.environ:
        return
    lock = (root(env) / "SConstruct").open("rb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("another scons works in this checkout; waiting for it", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    os.environ[LOCK_VARIABLE] = "held"
    env["LOCK"] = lock


def generate(env):
    env.AddMethod(check_options, "CheckOptions")
    env.AddMethod(one_at_a_time, "OneAtATime")


def exists(env):
    return True
