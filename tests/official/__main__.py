"""Compares random models with the official implementation; see ``tests/official/test_official.py``.

    python -m tests.official --cases 62 --browser 16      seeds 0..61, 16 of them in headless Chromium too
    python -m tests.official --seed 37 --cases 1 --browser 1      one case again

Ends with 1 when a case failed; its folder is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tests.official import report
from tests.official.cases import browser_cases, draw_case
from tests.official.comparison import compare
from tests.support.chrome import Chrome
from tests.support.gpu_page import set_up_chromium

from gemma4web.errors import Gemma4WebError, UsageError

REPOSITORY: Final = Path(__file__).resolve().parents[2]
BUNDLE: Final = REPOSITORY / "build/bundle"
RECORD: Final = REPOSITORY / "build/records/official.json"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.official", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the first case (default: 0)")
    parser.add_argument("--cases", type=int, default=10, help="how many, one seed after the other (default: 10)")
    parser.add_argument("--browser", type=int, default=0, help="how many of them in Chromium too, from build/bundle: those "
                        "that cover the table evenly, three in four with q4 weights and an assistant (default: 0)")
    parser.add_argument("--record", type=Path, default=RECORD, help="file to write (default: build/records/official.json)")
    return parser


@contextlib.contextmanager
def _staged(wanted: bool) -> Iterator[tuple[Chrome, Path] | None]:
    if not wanted:
        yield None
        return
    if not (BUNDLE / "manifest.json").is_file():
        raise UsageError("no bundle is staged", advice="run `scons bundle`, or leave --browser out")
    chrome = Chrome(set_up_chromium())
    try:
        yield chrome, BUNDLE
    finally:
        chrome.close()


def main() -> int:
    arguments = _parser().parse_args()
    torch.set_num_threads(1)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    cases = [draw_case(seed) for seed in range(arguments.seed, arguments.seed + arguments.cases)]
    in_browser = {case.seed for case in browser_cases(cases, arguments.browser)}
    results: list[report.Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with _staged(arguments.browser > 0) as staged, Progress(*columns, console=console) as progress:
        task = progress.add_task("cases", total=len(cases))
        for case in cases:
            seed = case.seed
            progress.update(task, description=f"seed {seed}")
            work, began = Path(tempfile.mkdtemp(prefix=f"official-{seed}-")), time.monotonic()
            outcome = compare(case, work, staged if seed in in_browser else None)
            results.append(report.Result(case=case, outcome=outcome, seconds=time.monotonic() - began))
            report.write(arguments.record, results, wanted=len(cases))
            if outcome.failures:
                console.print(f"seed {seed} failed, kept in {work}; again: python -m tests.official --seed {seed} --cases 1"
                              f"{' --browser 1' if seed in in_browser else ''}", style="bold red")
                for failure in outcome.failures:
                    console.print(f"  {failure}", highlight=False, markup=False)
            else:
                shutil.rmtree(work)
            progress.advance(task)
    report.show(console, results)
    console.print(f"record: {arguments.record}")
    return int(any(result.outcome.failures for result in results))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Gemma4WebError as problem:
        print(problem, file=sys.stderr)
        sys.exit(problem.exit_code)
