"""One export: checkpoints -> programs, shards and receipts in a new folder."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from gemma4web.errors import CheckpointError, UsageError
from gemma4web.export import destination, shards
from gemma4web.export.acquisition import Acquisition, FileRecord
from gemma4web.export.destination import MODEL_FILE, SOURCE_FILE
from gemma4web.export.folder_source import FolderSource
from gemma4web.export.gguf_source import GgufSource
from gemma4web.export.publish import Publication
from gemma4web.export.quantise import Q4_0_GROUP
from gemma4web.export.reading import unreadable
from gemma4web.export.source import Source, spelled_out
from gemma4web.export.tensors import Q4_0
from gemma4web.files import dump_json, sha256_bytes
from gemma4web.program import certify, codec, ir, methods
from gemma4web.program.architecture import Assistant, Target
from gemma4web.program.ir import Dtype, Program, QueryPositions, Role, ScaleDtype, Tensor, Weight
from gemma4web.toolchain.progress import NoProgress, SetUpProgress, counted

DEFAULT_PREFILL_ROWS: Final = 512
DEFAULT_CONTEXT: Final = 8960
SCHEMA: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """``target``, ``assistant``: each a checkpoint folder or a GGUF file.

    ``weights`` None: q4 when an input has 4-bit matrices, else f32. ``context`` None: the smaller of 8960 and the
    model's own limit. ``group_size``, ``scale_dtype``: of q4; a matrix whose columns the group does not divide has the
    largest smaller one that does. ``name`` None: taken from the target. ``acquired``: where inputs came from that a hub named.
    """

    target: Path
    out: Path
    assistant: Path | None = None
    weights: str | None = None
    group_size: int = ir.Q4_GROUPS[0]
    scale_dtype: ScaleDtype = ScaleDtype.F16
    prefill_rows: int = DEFAULT_PREFILL_ROWS
    context: int | None = None
    all_logits: bool = False
    query_positions: QueryPositions = QueryPositions.CONSTANT
    max_shard_bytes: int = shards.MAX_SHARD_BYTES
    name: str | None = None
    acquired: Mapping[Role, Acquisition] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What an export would read and write, all sizes in bytes. ``inputs`` by role; ``certificates``: what is proven of
    each method."""

    name: str
    weights: str
    context: int
    inputs: dict[str, dict[str, int]]
    shards: dict[str, int]
    texts: dict[str, int]
    censuses: dict[str, ir.Census]
    certificates: dict[str, tuple[ir.Proof, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Input:
    """One input file as it was when its hash was taken."""

    path: Path
    bytes: int
    modified_ns: int
    sha256: str


def _hash_inputs(source: Source, acquired: Acquisition | None, progress: SetUpProgress) -> dict[str, _Input]:
    """Inputs by name; of a fetched checkpoint by path in its repository, where each has to be what was fetched."""
    paths, inputs = source.inputs(), {}
    with counted(progress, f"hash {source.path.name}", sum(path.stat().st_size for path in paths)) as through:
        for path in paths:
            before, digest = path.stat(), hashlib.sha256()
            try:
                with path.open("rb") as stream:
                    while block := stream.read(1 << 20):
                        digest.update(block)
                        through(len(block))
            except OSError as error:
                raise unreadable(path, error) from None
            found = FileRecord(bytes=before.st_size, sha256=digest.hexdigest())
            name = spelled_out(path.name) if acquired is None else acquired.check(path, found)
            inputs[name] = _Input(path=path, bytes=found.bytes, modified_ns=before.st_mtime_ns, sha256=found.sha256)
    return inputs


def _check_unchanged(inputs: dict[str, dict[str, _Input]]) -> None:
    for files in inputs.values():
        for file in files.values():
            now = file.path.stat() if file.path.is_file() else None
            if now is None or (now.st_size, now.st_mtime_ns) != (file.bytes, file.modified_ns):
                raise CheckpointError(f"{file.path} changed during the export", advice="export again")


def open_source(path: Path) -> Source:
    """A GGUF file, or else the folder of a checkpoint. Raises CheckpointError."""
    return GgufSource(path) if path.is_file() or path.suffix == ".gguf" else FolderSource(path)


def _check_options(options: ExportOptions, target: Target) -> methods.GraphOptions:
    if options.name is not None and not (options.name.strip() and options.name.isprintable()):
        raise UsageError(f"name {options.name!a} is blank or cannot be shown", advice="give --name printable words, or leave it out")
    if options.weights not in ("f32", "q4"):
        raise UsageError(f"weights {options.weights!r}, wanted f32 or q4", advice="name one of the two with --weights")
    if options.group_size not in ir.Q4_GROUPS:
        raise UsageError(f"groups of {options.group_size}, wanted one of {', '.join(map(str, ir.Q4_GROUPS))}",
                         advice="name one of these with --group-size, or leave it out")
    if options.weights == "f32" and (options.group_size, options.scale_dtype) != (ir.Q4_GROUPS[0], ScaleDtype.F16):
        raise UsageError("f32 weights have neither groups nor scales", advice="leave out --group-size and --scale-dtype, "
                         "or export with --weights q4")
    context = min(DEFAULT_CONTEXT, target.max_positions) if options.context is None else options.context
    if not 1 <= context <= target.max_positions:
        raise UsageError(f"context {context}, wanted 1..{target.max_positions}, the model's own limit",
                         advice="name a number in that range with --context, or leave it out")
    if not 1 <= options.prefill_rows <= DEFAULT_PREFILL_ROWS:
        raise UsageError(f"prefill rows {options.prefill_rows}, wanted 1..{DEFAULT_PREFILL_ROWS}",
                         advice="name a number in that range with --prefill-rows, or leave it out")
    if options.max_shard_bytes < 1:
        raise UsageError(f"shards of {options.max_shard_bytes} bytes, wanted at least 1",
                         advice="name what the static host serves with --max-shard-bytes, or leave it out")
    return methods.GraphOptions(
        linear_dtype=Dtype.F32 if options.weights == "f32" else Dtype.Q4, prefill_rows=options.prefill_rows,
        context=context, all_logits=options.all_logits, query_positions=options.query_positions,
        group=options.group_size, scale_dtype=options.scale_dtype,
    )


def _weights_of(graphs: list[ir.Graph]) -> list[Tensor]:
    """Every weight of the graphs once, in order of first use."""
    seen: dict[str, Tensor] = {}
    for graph in graphs:
        for _, tensor in graph.weights():
            seen.setdefault(tensor.name, tensor)
    return list(seen.values())


def _check_tensors(tensors: list[Tensor], sources: dict[Role, Source]) -> None:
    """Finds a tensor that is missing, misshapen or of a dtype that nothing reads, before anything is written."""
    for tensor in tensors:
        shape = (tensor.elements,) if tensor.dtype is Dtype.I32 else tensor.dims
        entry = sources[shards.role_of(tensor)].readable(shards.checkpoint_name(tensor), shape, integers=tensor.dtype is Dtype.I32)
        if entry.dtype == Q4_0 and tensor.dtype is Dtype.Q4 and tensor.group != Q4_0_GROUP:
            raise UsageError(f"{entry.file}: {entry.name} is {Q4_0}, whose groups have {Q4_0_GROUP} columns, not {tensor.group}",
                             advice="leave out --group-size: packing once more would lose what was trained")


def place(graph: ir.Graph, certificate: tuple[ir.Proof, ...], written: list[shards.WrittenShard],
          stop_ids: tuple[int, ...], source: str) -> Program:
    """A graph with its certificate and the spans of its weights; only shards that it reads are listed."""
    index_of = {tensor.name: index for index, tensor in graph.weights()}
    used = [shard for shard in written if any(item.tensor.name in index_of for item in shard.items)]
    placed: dict[int, list[Weight]] = {index: [] for index in index_of.values()}
    for number, shard in enumerate(used):
        for item in shard.items:
            if item.tensor.name in index_of:
                spans = [dataclasses.replace(shard.spans[part.name], shard=number) for part in item.parts]
                index = index_of[item.tensor.name]
                placed[index].append(Weight(tensor=index, values=spans[0], scales=spans[1] if len(spans) > 1 else None))
    weights = tuple(weight for ranges in placed.values() for weight in ranges)
    return Program(graph=graph, shards=tuple(shard.shard for shard in used), weights=weights, stop_ids=stop_ids,
                   source_sha256=source, certificate=certificate).counted()


def _text_files(source: Source, vocab: int) -> dict[str, bytes]:
    """tokenizer.json and chat_template.jinja, as far as the model has them; the tokenizer can be loaded and fits."""
    files = source.text_files(vocab)
    if "tokenizer.json" in files:
        try:
            size = Tokenizer.from_str(files["tokenizer.json"].decode()).get_vocab_size()
        except Exception as error:  # noqa: BLE001  the tokenizers package raises nothing narrower
            text = files["tokenizer.json"].strip()
            raise CheckpointError(f"{source.path}: its tokenizer.json " + (
                f"cannot be loaded: {str(error)!r:.300}" if text else "is blank"),
                advice="fetch this file of the checkpoint again") from None
        if size > vocab:
            raise CheckpointError(f"{source.path}: its tokenizer.json has {size} pieces, the model's vocabulary {vocab}",
                                  advice="check that the tokenizer belongs to this model")
    return files


def _sizes(model: Target | Assistant | None) -> dict[str, Any] | None:
    """The architecture as a receipt shows it."""
    if model is None:
        return None
    sizes = dataclasses.asdict(model)
    sizes["layers"] = [{"type": str(layer.type), "head_dim": layer.head_dim, "kv_heads": layer.kv_heads,
                        "intermediate": layer.intermediate, "donor": layer.donor,
                        "values_from_keys": layer.values_from_keys} for layer in model.layers]
    sizes["rope"] = {str(type_): dataclasses.asdict(settings) for type_, settings in model.rope.items()}
    return sizes


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """Everything an export has read and decided before it writes."""

    options: ExportOptions
    target: Target
    assistant: Assistant | None
    sources: dict[Role, Source]
    graphs: list[ir.Graph]
    certificates: dict[str, tuple[ir.Proof, ...]]
    plans: list[shards.ShardPlan]
    bos_id: int | None
    stop_ids: tuple[int, ...]
    text_files: dict[str, bytes]


def _certified(graph: ir.Graph, sources: dict[Role, Source]) -> tuple[ir.Graph, tuple[ir.Proof, ...]]:
    """A graph and what is proven of it; a round gets unique scatters where the token-ordering table proves them."""
    tables = {tensor.name: shards.token_ordering(sources[shards.role_of(tensor)], tensor)
              for _, tensor in graph.weights() if tensor.dtype is Dtype.I32}
    return certify.certify(graph, tables)


def _prepare(options: ExportOptions, sources: dict[Role, Source]) -> _Job:
    source = sources[Role.TARGET]
    target = source.target()
    graph_options = _check_options(options, target)
    graphs, assistant = [methods.text_decoder(target, graph_options)], None
    if Role.ASSISTANT in sources:
        assistant = sources[Role.ASSISTANT].assistant(target)
        graphs.append(methods.k2_round(target, assistant, graph_options))
    tensors = _weights_of(graphs)
    _check_tensors(tensors, sources)
    certified = [_certified(graph, sources) for graph in graphs]
    bos_id, stop_ids = source.special_ids(target.vocab)
    return _Job(
        options=options, target=target, assistant=assistant, sources=sources, graphs=[graph for graph, _ in certified],
        certificates={graph.method: proofs for graph, proofs in certified},
        plans=shards.plan(tensors, max_bytes=options.max_shard_bytes), bos_id=bos_id, stop_ids=stop_ids,
        text_files=_text_files(source, target.vocab),
    )


def _acquisition(job: _Job, inputs: dict[str, dict[str, _Input]]) -> dict[str, Any]:
    """Every input file by role (X19): with its repository and commit when a hub named it, else with a bare name."""
    described: dict[str, Any] = {}
    for role, files in inputs.items():
        acquired = job.options.acquired.get(Role[role.upper()])
        described[role] = {
            "name": spelled_out(job.sources[Role[role.upper()]].path.resolve().name),
            "files": {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in files.items()},
            **({"hub": acquired.hub, "repo": acquired.repo, "revision": acquired.revision} if acquired else {})}
    return described


def _q4_form(options: ExportOptions) -> dict[str, Any]:
    """What a receipt says of groups and scales that are not the usual ones."""
    if (options.group_size, options.scale_dtype) == (ir.Q4_GROUPS[0], ScaleDtype.F16):
        return {}
    return {"group_size": options.group_size, "scale_dtype": options.scale_dtype.name.lower()}


def _source_receipt(job: _Job, inputs: dict[str, Any]) -> bytes:
    options = job.options
    return dump_json({
        "schema": SCHEMA,
        "options": {
            "weights": options.weights, "prefill_rows": options.prefill_rows, "context": job.graphs[0].context,
            "logits": "all" if options.all_logits else "last", "query_positions": options.query_positions.name.lower(),
            "max_shard_bytes": options.max_shard_bytes, **_q4_form(options),
        },
        "inputs": inputs,
    }).encode()


def _model_receipt(job: _Job, programs: list[Program], files: dict[str, dict[str, Any]], source: str,
                   inputs: dict[str, Any]) -> bytes:
    roles = {role.name.lower(): [plan.file for plan in job.plans if plan.role is role] for role in Role}
    return dump_json({
        "schema": SCHEMA, "name": job.options.name or job.sources[Role.TARGET].name, "files": files, "source_sha256": source,
        "acquisition": inputs,
        "architecture": {"target": _sizes(job.target), "assistant": _sizes(job.assistant)},
        "weights": job.options.weights,
        "methods": {program.graph.method: {"program": f"{program.graph.method}.g4p",
                                           "shards": [shard.file for shard in program.shards]}
                    for program in programs},
        "roles": {role: names for role, names in roles.items() if names},
        "prefill_rows": job.options.prefill_rows, "context": job.graphs[0].context, "vocab": job.target.vocab,
        "query_positions": job.options.query_positions.name.lower(), "bos_id": job.bos_id,
        "stop_ids": list(job.stop_ids),
        "tokenizer": "tokenizer.json" if "tokenizer.json" in job.text_files else None,
        "chat_template": "chat_template.jinja" if "chat_template.jinja" in job.text_files else None,
    }).encode()


def _write(job: _Job, publication: Publication, progress: SetUpProgress) -> None:
    destination.refuse_too_small(publication.destination, sum(map(shards.planned_bytes, job.plans)))
    inputs = {role.name.lower(): _hash_inputs(source, job.options.acquired.get(role), progress)
              for role, source in job.sources.items()}
    acquisition = _acquisition(job, inputs)
    files: dict[str, dict[str, Any]] = {}

    def put(name: str, data: bytes) -> str:
        publication.write(name, data)
        files[name] = {"bytes": len(data), "sha256": sha256_bytes(data)}
        return str(files[name]["sha256"])

    receipt = put(SOURCE_FILE, _source_receipt(job, acquisition))
    written = []
    with counted(progress, "write weights", sum(map(shards.planned_bytes, job.plans))) as through:
        for shard_plan in job.plans:
            with publication.open(shard_plan.file) as stream:
                done = shards.write(shard_plan, job.sources[shard_plan.role], stream, through)
            written.append(done)
            files[done.shard.file] = {"bytes": done.shard.bytes, "sha256": done.shard.sha256}
    programs = [place(graph, job.certificates[graph.method], written, job.stop_ids, receipt) for graph in job.graphs]
    for program in programs:
        data = codec.to_bytes(program)
        codec.from_bytes(data, name=f"{program.graph.method}.g4p")
        put(f"{program.graph.method}.g4p", data)
    for name, data in job.text_files.items():
        put(name, data)
    _check_unchanged(inputs)
    publication.write(MODEL_FILE, _model_receipt(job, programs, files, receipt, acquisition))


@contextmanager
def _prepared(options: ExportOptions) -> Iterator[_Job]:
    """The inputs open and everything decided; closes them at the end."""
    paths = {Role.TARGET: options.target}
    if options.assistant is not None:
        paths[Role.ASSISTANT] = options.assistant
    destination.refuse_inside_others(options.out, paths.values())
    sources: dict[Role, Source] = {}
    try:
        for role, path in paths.items():
            sources[role] = open_source(path)
        form = "q4" if any(source.packed for source in sources.values()) else "f32"
        yield _prepare(dataclasses.replace(options, weights=options.weights or form), sources)
    except OSError as error:
        if error.filename is None:  # of no file: what is written, and what is read in blocks, has words of its own
            raise
        raise unreadable(Path(os.fsdecode(error.filename)), error) from None
    finally:
        for source in sources.values():
            source.close()


def plan(options: ExportOptions) -> Plan:
    """What `export` would do, from the sizes and tables of the inputs alone. Raises what it would raise by then."""
    destination.refuse_taken(options.out)
    destination.refuse_unwritable(options.out)
    with _prepared(options) as job:
        return Plan(
            name=job.options.name or job.sources[Role.TARGET].name, weights=str(job.options.weights),
            context=job.graphs[0].context,
            inputs={role.name.lower(): {path.name: path.stat().st_size for path in source.inputs()}
                    for role, source in job.sources.items()},
            shards={shard.file: shards.planned_bytes(shard) for shard in job.plans},
            texts={name: len(data) for name, data in job.text_files.items()},
            censuses={graph.method: ir.count(graph.ops) for graph in job.graphs},
            certificates=job.certificates)


def export(options: ExportOptions, progress: SetUpProgress | None = None) -> Path:
    """Exports a target, and an assistant when one is given, to a new folder; returns the folder.

    Raises CheckpointError, UsageError or PublishError; the destination then does not exist.
    """
    destination.refuse_inside_others(options.out)
    with Publication(options.out) as publication:
        with _prepared(options) as job:
            _write(job, publication, progress or NoProgress())
        publication.commit()
    return publication.destination
