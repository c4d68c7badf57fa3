"""The page's vendored modules, and the source receipt that joins the logs of all actions."""

from __future__ import annotations

import json

from SCons.Script import Depends

from site_tools.adapter import action, files, modules, paths, root, toolchain

VENDOR_LIST = "web/vendor.json"


def _vendor(target, source, env):
    from gemma4web import receipts
    tools, identity = toolchain(env)
    receipts.copy_vendored(root(env), tools.npm_modules, receipts.identity_sha256(identity))


def _receipt(target, source, env):
    from gemma4web import receipts
    from gemma4web.files import write_if_changed
    from gemma4web.manifest import encode
    top = root(env)
    _, identity = toolchain(env)
    receipt = receipts.assemble(top, logs=[top / path for path in env["ACTION_LOGS"]], toolchain=identity,
                                assets=receipts.page_assets(top))
    write_if_changed(top / paths(target)[0], encode(receipt))


def vendored(env):
    """The vendored files that web/vendor.json asks for, as build targets."""
    listing = root(env) / VENDOR_LIST
    entries = json.loads(listing.read_text(encoding="utf-8"))["files"] if listing.is_file() else []
    return [f"build/{entry['as']}" for entry in entries]


def receipt_target(env, tools, logs, made):
    """Declares the receipt over these action logs and everything that goes into a bundle except the model."""
    suffix, logs = "" if env["MODE"] == "release" else f"-{env['MODE']}", list(logs)
    if vendor := vendored(env):
        copies = env.Command([*vendor, "build/vendor.json"], VENDOR_LIST, action(_vendor, "copying the page's modules"))
        Depends(copies, [tools[0], *modules(env, "receipts")])
        logs.append(copies[-1])
    mine = env.Clone(ACTION_LOGS=paths(logs))
    node = mine.Command(f"build/receipt{suffix}.json", [*logs, *files(env, "web", "*"), *vendor, *made],
                        action(_receipt, "writing $TARGET", ["ACTION_LOGS"]))
    Depends(node, [tools[0], *modules(env, "receipts", "manifest")])
    return node


def generate(env):
    env.AddMethod(receipt_target, "Receipt")


def exists(env):
    return True
