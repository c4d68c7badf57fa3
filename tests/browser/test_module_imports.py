"""The modules where people import them: Node.js, and a page whose code went through a bundler (V7, P13)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.chrome import Remote

from gemma4web.serve import BundleServer
from gemma4web.variants import VARIANTS

pytestmark = [pytest.mark.browser, pytest.mark.emcc]

FACTORIES = [variant.factory for variant in VARIANTS]

NODE = """
import { readFile } from 'node:fs/promises';
const found = [];
for (const stem of JSON.parse(process.argv[2])) {
    const factory = (await import(`${process.argv[1]}/${stem}.js`)).default;
    const module = await factory({ wasmBinary: await readFile(`${process.argv[1]}/${stem}.wasm`) });
    found.push([factory.name, module._g4_create() > 0]);
}
console.log(JSON.stringify(found));
"""

PAGE = """async () => {
    const { factories } = await import('./bundled.js');
    const found = [];
    for (const factory of factories) {
        const module = await factory({ locateFile: (file) => new URL(`./runtime/${file}`, location.href).href });
        found.push([factory.name, module._g4_create() > 0]);
    }
    return found;
}"""


def test_in_node(bundle: Path) -> None:
    node = shutil.which("node")
    assert node is not None, "Node.js is part of what the README asks for"
    finished = subprocess.run(
        [node, "--input-type=module", "-e", NODE, str(bundle / "runtime"), json.dumps([v.stem for v in VARIANTS])],
        capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(finished.stdout) == [[name, True] for name in FACTORIES]


def test_through_a_bundler(bundle: Path, npm_modules: Path, context: Remote, page: Any, site: BundleServer,
                           tmp_path: Path) -> None:
    """esbuild puts all four into one file elsewhere; locateFile says where the wasm is. Node's own modules, which the
    glue imports in Node alone, stay outside, as every bundler for the web needs to be told."""
    entry, out = tmp_path / "entry.mjs", tmp_path / "out.js"
    lines = [f"import {v.factory} from {json.dumps(str(bundle / 'runtime' / v.stem) + '.js')};" for v in VARIANTS]
    entry.write_text("\n".join([*lines, f"export const factories = [{', '.join(FACTORIES)}];"]))
    esbuild = next((npm_modules / "@esbuild").glob("*/bin/esbuild"))
    subprocess.run([esbuild, entry, "--bundle", "--minify", "--format=esm", "--external:node:*", f"--outfile={out}",
                    "--keep-names", "--log-level=error"], timeout=60, check=True)
    context.route("**/bundled.js", lambda route: route.fulfill(content_type="text/javascript", body=out.read_text()))
    page.goto(site.url + "run.html")
    assert page.evaluate(PAGE) == [[name, True] for name in FACTORIES]
