"""The toolchain as a target: build/toolchain.json, browser.json and the state of both, rewritten only on change."""

from __future__ import annotations

from SCons.Script import AlwaysBuild, Depends, Precious, Value

from gemma4web.files import provider_files
from site_tools.adapter import action, literal, modules, root

OWN_PROVIDER = "runtime_cpp/webgpu_port"
TARGETS = ("build/toolchain.json", "build/browser.json", "build/toolchain-status.json")


def _options(env):
    from gemma4web.toolchain import ToolchainOptions
    return ToolchainOptions(
        emsdk=env["EMSDK"] or None, emdawnwebgpu_pkg=env["EMDAWNWEBGPU_PKG"] or None, provider=env["PROVIDER"],
        browser=env["BROWSER"] or None, cache=env["CACHE"] or None, checkout=root(env))


def _set_up(target, source, env):
    from gemma4web import toolchain
    from gemma4web.toolchain.progress import default_progress
    toolchain.set_up(_options(env), root(env) / TARGETS[0], default_progress())


def _is_current(env):
    """Compares recorded paths, sizes and times; a tool that changed in place makes the set-up run again."""
    from gemma4web import toolchain
    return toolchain.is_current(root(env) / TARGETS[0], _options(env))


def toolchain_target(env):
    """Declares the two files; whatever is compiled or run depends on the first or second of them."""
    named = [env[name] for name in ("EMSDK", "EMDAWNWEBGPU_PKG", "PROVIDER", "BROWSER", "CACHE")]
    nodes = env.Command(list(TARGETS), [], action(_set_up, "setting up the toolchain"))
    Depends(nodes, [Value(repr(named)), *modules(env, "toolchain", "pins", "process"),
                    "site_scons/gemma4web/pins.yaml",
                    *(literal(path.relative_to(root(env))) for path in provider_files(root(env) / OWN_PROVIDER))])
    Precious(nodes)
    if not env.GetOption("clean") and not env.GetOption("help") and not _is_current(env):
        AlwaysBuild(nodes)
    return nodes


def generate(env):
    env.AddMethod(toolchain_target, "Toolchain")


def exists(env):
    return True
