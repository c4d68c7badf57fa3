"""``python -m gemma4web export``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from gemma4web.export.exporter import (
    DEFAULT_CONTEXT,
    DEFAULT_PREFILL_ROWS,
    MODEL_FILE,
    SCHEMA,
    ExportOptions,
    Step,
    export,
)
from gemma4web.export.shards import MAX_SHARD_BYTES
from gemma4web.files import load_json
from gemma4web.program.ir import QueryPositions


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gemma4web export", formatter_class=_Help,
        description="Exports Hugging Face checkpoints (config.json + safetensors) or GGUF files to a folder with the "
                    "programs text_decoder and, with an assistant, k2_round, weight shards and receipts. The folder "
                    "appears only when it is complete.",
        epilog="Input tensors may be f32, bf16 or f16, in GGUF also Q4_0, Q6_K and Q8_0. q4 packs every matrix in groups of "
               "32 columns, each with one f16 scale; Q4_0 matrices keep their codes and scales as they are.",
    )
    parser.add_argument("--target", type=Path, required=True, metavar="DIR|GGUF",
                        help="checkpoint of a Gemma 4 text model")
    parser.add_argument("--assistant", type=Path, metavar="DIR|GGUF", help="checkpoint of its multi-token assistant")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to create; it must not exist")
    parser.add_argument("--weights", choices=("f32", "q4"),
                        help="form of the matrices (default: q4 if an input has quantised matrices, else f32)")
    parser.add_argument("--prefill-rows", type=int, default=DEFAULT_PREFILL_ROWS, metavar="N",
                        help="tokens of the largest prefill pass")
    parser.add_argument("--context", type=int, metavar="N",
                        help=f"positions of the KV cache (default: {DEFAULT_CONTEXT}, or the model's limit if smaller)")
    parser.add_argument("--logits", choices=("last", "all"), default="last",
                        help="compute the logits of the last row of a pass, or of all rows (for tests)")
    parser.add_argument("--query-positions", choices=("constant", "progressive"), default="constant",
                        help="position of the drafts' queries: that of the pending token, or one more each draft")
    parser.add_argument("--max-shard-bytes", type=int, default=MAX_SHARD_BYTES, metavar="N",
                        help="largest weight file")
    parser.add_argument("--name", help="name of the model in its receipt (default: from the target)")
    return parser


def _display(console: Console) -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
                    TimeRemainingColumn(), console=console)


def main(argv: list[str]) -> int:
    """Runs one export and prints where it went. Raises errors of the tree."""
    arguments = _parser().parse_args(argv)
    options = ExportOptions(
        target=arguments.target, assistant=arguments.assistant, out=arguments.out, weights=arguments.weights,
        prefill_rows=arguments.prefill_rows, context=arguments.context, all_logits=arguments.logits == "all",
        query_positions=QueryPositions[arguments.query_positions.upper()], max_shard_bytes=arguments.max_shard_bytes,
        name=arguments.name,
    )
    console = Console(stderr=True)
    tasks: dict[str, TaskID] = {}
    began = time.monotonic()
    with _display(console) as progress:

        def report(step: Step) -> None:
            if step.total:
                tasks[step.name] = progress.add_task(step.name, total=step.total)
            else:
                progress.advance(tasks[step.name], step.done)

        folder = export(options, report)
    size = sum(path.stat().st_size for path in folder.iterdir())
    form = load_json(folder / MODEL_FILE, schema=SCHEMA)["weights"]
    print(f"{folder}: {size / 1e6:.1f} MB, {form}, in {time.monotonic() - began:.1f} s", file=sys.stdout)
    return 0
