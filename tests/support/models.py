"""Exported models in a staged bundle, and a page that runs them: what the whole-model tests compare with the reference."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.support.chrome import Chrome, Remote
from tests.support.sites import copy_bundle, served_page

from gemma4web.files import dump_json, sha256_file

Array = npt.NDArray[np.float64]

# Reads `logits` as base64: [rows, vocab] f32 of the pass just run.
_READ = """
const read = async (client) => {
    const bytes = await client.read('logits');
    let text = '';
    for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
    return btoa(text);
};
"""
_OPEN = """async ({ variant, routeMask }) => {
    window.faults = [];
    window.client = gemma4web.client({ onFault: (error) => window.faults.push(error.message),
                                       onEnded: (error) => window.faults.push(error.message) });
    return client.open({ baseUrl: gemma4web.baseUrl, variant, routeMask });
}"""
_GENERATE = """async ({ ids, count }) => {
    const batches = [];
    const done = await client.generate({ kind: 'ids', ids }, { maxNewTokens: count,
        onTokens: ({ tokens }) => batches.push(tokens) });
    return { ...done.generation, batches, faults: window.faults, inspected: await client.inspect() };
}"""
_PASSES = "async ({ ids, chunk, steps }) => {" + _READ + """
    await client.reset();
    const passes = [];
    let tokens = [];
    for (let at = 0; at < ids.length; at += chunk) {
        ({ tokens } = await client.prefill(ids.slice(at, at + chunk), at));
        passes.push({ tokens, drafts: [], logits: await read(client) });
    }
    let position = ids.length;
    let newest = tokens[tokens.length - 1];
    for (let step = 0; step < steps; step += 1) {
        const done = await client.step(newest, position);
        passes.push({ ...done, logits: await read(client) });
        position += done.tokens.length;
        newest = done.tokens[done.tokens.length - 1];
    }
    return { passes, faults: window.faults };
}"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """One pass of the runtime: the tokens it yields, its drafts, and logits [rows, vocab]."""

    tokens: list[int]
    drafts: list[int]
    logits: Array


class ModelPage:
    """A page with one variant of one model loaded."""

    def __init__(self, page: Remote, opened: dict[str, Any]) -> None:
        self.page, self.opened = page, opened

    def generate(self, ids: Sequence[int], count: int) -> dict[str, Any]:
        """`generate` in full: tokens, rounds, counters, finish, the batches as they came, and what `inspect` says after."""
        found: dict[str, Any] = self.page.evaluate(_GENERATE, {"ids": list(ids), "count": count})
        assert found["faults"] == []
        return found

    def passes(self, ids: Sequence[int], steps: int) -> list[Pass]:
        """Prefill in passes of at most `prefill_rows` rows, then ``steps`` single steps, with the logits of every pass."""
        found = self.page.evaluate(_PASSES, {"ids": list(ids), "chunk": self.opened["model"]["prefillRows"], "steps": steps})
        assert found["faults"] == []
        vocab = self.opened["model"]["vocab"]
        return [Pass(tokens=item["tokens"], drafts=item["drafts"],
                     logits=np.frombuffer(base64.b64decode(item["logits"]), np.float32).reshape(-1, vocab).astype(np.float64))
                for item in found["passes"]]

    def evaluate(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)


def bundle_with(bundle: Path, model: Path, target: Path) -> Path:
    """A copy of a staged bundle whose model is the exported folder ``model``."""
    copy_bundle(bundle, target)
    shutil.rmtree(target / "model")
    shutil.copytree(model, target / "model")
    manifest = json.loads((target / "manifest.json").read_bytes())
    manifest["model"] = {**json.loads((model / "model.json").read_bytes()), "path": "model"}
    files = {path: entry for path, entry in manifest["files"].items() if not path.startswith("model/")}
    for path in sorted((target / "model").rglob("*")):
        if path.is_file():
            files[path.relative_to(target).as_posix()] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    manifest["files"] = files
    (target / "manifest.json").unlink()
    (target / "manifest.json").write_text(dump_json(manifest))
    return target


def change_file(bundle: Path, name: str, before: str) -> None:
    """Puts text before a file of a bundle that is the test's own, and lists the file as it is then."""
    path = bundle / name
    text = before.encode() + path.read_bytes()
    path.unlink()
    path.write_bytes(text)
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    manifest["files"][name] = {"bytes": len(text), "sha256": sha256_file(path)}
    (bundle / "manifest.json").write_text(dump_json(manifest))


@contextmanager
def opened(chrome: Chrome, bundle: Path, variant: str, *, route_mask: int = 0) -> Iterator[ModelPage]:
    """Loads a variant of a bundle in a page of its own and gives it back at the end."""
    with served_page(chrome, bundle, "run.html") as page:
        page.wait_for_function("() => window.gemma4web !== undefined")
        yield ModelPage(page, page.evaluate(_OPEN, {"variant": variant, "routeMask": route_mask}))
        page.evaluate("() => client.close()")
