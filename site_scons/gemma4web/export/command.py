"""``python -m gemma4web export``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gemma4web.export import destination
from gemma4web.export.exporter import (
    DEFAULT_CONTEXT,
    DEFAULT_PREFILL_ROWS,
    SCHEMA,
    ExportOptions,
    Plan,
    export,
    plan,
)
from gemma4web.export.hub_name import SPELLING
from gemma4web.export.inputs import Input, add_hub_options, inputs_of
from gemma4web.export.shards import MAX_SHARD_BYTES
from gemma4web.files import load_json
from gemma4web.program import codec
from gemma4web.program.certify import in_words
from gemma4web.program.ir import Q4_GROUPS, Proof, Property, QueryPositions, Role, ScaleDtype
from gemma4web.toolchain.progress import default_progress


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def _named(text: str) -> str:
    """A blank name would be the folder that the command runs in; ``--out=~/x`` is no place of a home to a shell."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is blank, wanted a path")
    return os.path.expanduser(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gemma4web export", formatter_class=_Help,
        description="Exports Hugging Face checkpoints (config.json + safetensors) or GGUF files to a folder with the "
                    "programs text_decoder and, with an assistant, k2_round, weight shards and receipts. The folder "
                    "appears only when it is complete.",
        epilog="Input tensors may be f32, bf16 or f16, in GGUF also Q4_0, Q6_K and Q8_0. q4 packs every matrix in groups of "
               "columns with one scale each; where --group-size does not divide a matrix's columns, it gets the largest "
               "smaller group that does. Q4_0 matrices keep their codes, scales and groups of 32 as they are. "
               f"On a hub a checkpoint is {SPELLING}; a branch is looked up once, and its commit told and recorded. "
               "HF_TOKEN holds the token for repositories that need one.",
    )
    parser.add_argument("--target", type=_named, required=True, metavar="DIR|GGUF|NAME", help="checkpoint of a Gemma 4 text model")
    parser.add_argument("--assistant", type=_named, metavar="DIR|GGUF|NAME", help="checkpoint of its multi-token assistant")
    parser.add_argument("--out", type=lambda text: Path(_named(text)), required=True, metavar="DIR", help="folder to create; it must not exist")
    parser.add_argument("--dry-run", action="store_true",
                        help="tell what would be read and written, and the ops of the programs; write nothing")
    parser.add_argument("--weights", choices=("f32", "q4"),
                        help="form of the matrices (default: q4 if an input has quantised matrices, else f32)")
    parser.add_argument("--group-size", type=int, choices=Q4_GROUPS, default=Q4_GROUPS[0],
                        help="columns of a q4 matrix that share one scale")
    parser.add_argument("--scale-dtype", choices=("f16", "f32"), default="f16", help="type of the scales of q4 matrices")
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
    add_hub_options(parser)
    return parser


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count:,} B"


def _show(found: Plan, inputs: dict[Role, Input], out: Path) -> None:
    """A plan for a person, on standard output."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    table = Table(title=f"{found.name}: {found.weights}, context {found.context}; nothing was written",
                  title_justify="left")
    table.add_column("file", overflow="fold")
    table.add_column("what")
    table.add_column("size", justify="right")
    for role, entry in inputs.items():
        what = f"{role.name.lower()}, " + ("to be fetched" if entry.missing else "here")
        table.add_row(entry.name, "", "", style="bold")
        for name, count in (entry.missing or found.inputs[role.name.lower()]).items():
            table.add_row(f"  {name}", what, _size(count))
    table.add_section()
    table.add_row(str(out), "", "", style="bold")
    for name, count in found.shards.items():
        table.add_row(f"  {name}", "weights", _size(count))
    for name, count in found.texts.items():
        table.add_row(f"  {name}", "text", _size(count))
    table.add_section()
    fetched = sum(sum(entry.missing.values()) for entry in inputs.values())
    table.add_row("in all", "to be fetched", _size(fetched))
    table.add_row("", "to be written", _size(sum(found.shards.values()) + sum(found.texts.values())))
    table.add_row("", "free on that disk", _size(destination.free_bytes(out)))
    console.print(table)
    ops = Table("method", "ops", "argmax", "scatter", "top-k", "attention", "cache writes", title="ops of the programs",
                title_justify="left")
    for method, census in found.censuses.items():
        unique = any(proof.property is Property.UNIQUE_SCATTER for proof in found.certificates[method])
        scatter = f"{census.scatter} {'unique' if unique else 'generic'}" if census.scatter else "0"
        ops.add_row(method, str(census.ops), str(census.argmax), scatter, str(census.top_k),
                    f"{census.attention_target} + {census.attention_assistant}", str(census.cache_writes))
    console.print(ops)
    for method, certificate in found.certificates.items():
        _tell_certificate(method, certificate)


def _tell_certificate(method: str, certificate: tuple[Proof, ...]) -> None:
    print(f"certificate of {method}:{'' if certificate else ' nothing is proven'}")
    for proof in certificate:
        print(f"  {in_words(proof)}")


def _options(arguments: argparse.Namespace, inputs: dict[Role, Input]) -> ExportOptions:
    return ExportOptions(
        target=inputs[Role.TARGET].path, out=arguments.out,
        assistant=inputs[Role.ASSISTANT].path if Role.ASSISTANT in inputs else None,
        weights=arguments.weights, group_size=arguments.group_size, scale_dtype=ScaleDtype[arguments.scale_dtype.upper()],
        prefill_rows=arguments.prefill_rows, context=arguments.context,
        all_logits=arguments.logits == "all", query_positions=QueryPositions[arguments.query_positions.upper()],
        max_shard_bytes=arguments.max_shard_bytes, name=arguments.name,
        acquired={role: entry.acquired for role, entry in inputs.items() if entry.acquired is not None},
    )


def main(argv: list[str]) -> int:
    """Runs one export and prints where it went, or what it would be. Raises errors of the tree."""
    arguments = _parser().parse_args(argv)
    for refuse in (destination.refuse_inside_others, destination.refuse_taken, destination.refuse_unwritable):
        refuse(arguments.out)  # before a long download
    with inputs_of(arguments) as inputs:
        options = _options(arguments, inputs)
        if arguments.dry_run:
            _show(plan(options), inputs, arguments.out)
        else:
            _export(options)
    return 0


def _export(options: ExportOptions) -> None:
    began = time.monotonic()
    folder = export(options, default_progress())
    size = sum(path.stat().st_size for path in folder.iterdir())
    receipt = load_json(folder / destination.MODEL_FILE, schema=SCHEMA)
    print(f"{folder}: {size / 1e6:.1f} MB, {receipt['weights']}, in {time.monotonic() - began:.1f} s")
    for method in sorted(receipt["methods"], reverse=True):  # plain decoding first
        _tell_certificate(method, codec.read(folder / receipt["methods"][method]["program"]).certificate)
    print(f"source receipt: {receipt['source_sha256']}, which every program and the model receipt name")
