"""A page with llama.cpp as WebAssembly on the CPU (npm's @wllama/wllama): a reader of GGUF files that shares no code with ours."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.chrome import Chrome, Remote
from tests.support.sites import served_page

PACKAGE: Final = "@wllama/wllama"
_WASM: Final = "single-thread/wllama.wasm"
BEST: Final = 40
"""Tokens of every step whose probability is read."""

# Caches in f32, attention without its fused form: nothing is rounded that need not be.
_OPEN: Final = """async ({ model, wasm }) => {
    const { Wllama } = await import('./index.js');
    const lines = [];
    const keep = (...words) => lines.push(words.join(' '));
    window.llama = new Wllama({ [wasm]: new URL(wasm, location).href },
                              { logger: { debug: keep, log: keep, warn: keep, error: keep } });
    try {
        await llama.loadModel([await (await fetch(model)).blob()],
                              { n_ctx: 512, n_batch: 512, n_threads: 1, flash_attn: false, cache_type_k: 'f32', cache_type_v: 'f32' });
    } catch (error) {
        return `${error}\\n${lines.slice(-20).join('\\n')}`;
    }
    return '';
}"""
_DECODE: Final = """async ({ ids, count, stops, forced, best }) => {
    await llama.kvClear();
    await llama.samplingInit({ temp: 0 });
    await llama.decode(ids, {});
    const steps = [];
    while (steps.length < count) {
        const { token } = await llama.samplingSample();
        steps.push([token, (await llama.getLogits(best)).map(({ token, p }) => [token, Math.log(p)])]);
        const next = forced === null ? token : forced[steps.length - 1];
        if (stops.includes(next) || steps.length === count) break;
        await llama.decode([next], {});
    }
    return steps;
}"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The token that llama.cpp takes, and the natural logarithms of its best tokens' probabilities."""

    token: int
    log_p: dict[int, float]


class LlamaPage:
    def __init__(self, page: Remote) -> None:
        self._page = page

    def greedy(self, ids: Sequence[int], count: int, stops: Sequence[int]) -> list[Step]:
        """At most ``count`` greedy steps after ``ids``; a stop token is the last one."""
        return self._decode(ids, count, stops, None)

    def along(self, ids: Sequence[int], tokens: Sequence[int]) -> list[Step]:
        """What it would take at every place of ``tokens``, when these are what follows ``ids``."""
        return self._decode(ids, len(tokens), (), list(tokens))

    def tokenize(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are read as such; none is added."""
        found: list[int] = self._page.evaluate("text => llama.tokenize(text, true)", text)
        return found

    def _decode(self, ids: Sequence[int], count: int, stops: Sequence[int], forced: list[int] | None) -> list[Step]:
        found: list[Any] = self._page.evaluate(
            _DECODE, {"ids": list(ids), "count": count, "stops": list(stops), "forced": forced, "best": BEST})
        return [Step(token=token, log_p=dict(best)) for token, best in found]


def make_site(folder: Path, npm_modules: Path) -> Path:
    """A folder with the package's two files; models go beside them."""
    package = npm_modules / PACKAGE / "esm"
    (folder / _WASM).parent.mkdir(parents=True)
    for name in ("index.js", _WASM):
        shutil.copyfile(package / name, folder / name)
    (folder / "index.html").write_text("<!doctype html><title>llama.cpp</title>\n", encoding="utf-8")
    return folder


@contextmanager
def llama(chrome: Chrome, site: Path, model: str) -> Iterator[LlamaPage]:
    """llama.cpp with the file ``model`` of ``site`` loaded. Raises AssertionError with its log when it refuses the file."""
    with served_page(chrome, site) as page:
        refusal = page.evaluate(_OPEN, {"model": model, "wasm": _WASM})
        assert refusal == "", f"llama.cpp refuses {model}: {refusal}"
        yield LlamaPage(page)
