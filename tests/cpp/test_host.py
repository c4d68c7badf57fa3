"""The C++ host tests, compiled by em++ and run in Node: every case is reported as a test of its own.

Beside the cases, the loader's verdict on programs that break one rule each (X1 to X8, X13, V4, P42, P49), and on the
deliberate mistakes of ``program.mutants``. The fixtures are exports of a checkpoint of a few kilobytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from broken_programs import BROKEN, Broken, set_op, subtracting, uncertified, wrong_operands
from host_build import CHECKOUT, HostBuild, alone, case_names, generate
from larger_models import M12B, M31B
from micro_checkpoint import write_pair, write_unified_pair
from micro_program import placed

from gemma4web.errors import CompileError, ProgramError, ToolchainError
from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.folder import ModelFolder, open_folder
from gemma4web.program import codec, ir, mutants
from gemma4web.program.check import check
from gemma4web.program.ir import Program, QueryPositions, ScaleDtype
from gemma4web.program.methods import GraphOptions, k2_round, text_decoder
from gemma4web.toolchain import load
from gemma4web.variants import Decoding

pytestmark = pytest.mark.emcc

METHODS: Final[Mapping[Decoding, str]] = {Decoding.PLAIN: ir.TEXT_DECODER, Decoding.MTP: ir.K2_ROUND}
DECODINGS: Final = {method: decoding for decoding, method in METHODS.items()}
MODELS: Final[dict[str, dict[str, Any]]] = {
    "f32": {},
    "q4": {"weights": "q4", "max_shard_bytes": 20_000},
    "groups": {"weights": "q4", "group_size": 64, "scale_dtype": ScaleDtype.F32},
    "split": {"weights": "q4", "max_shard_bytes": 3_000},
    "all_logits": {"weights": "q4", "all_logits": True},
    "progressive": {"query_positions": QueryPositions.PROGRESSIVE},
    "unified": {},
    "unified_q4": {"weights": "q4"},
}
Verdict = dict[str, Any]
Probe = Callable[[str, Mapping[str, Program]], dict[str, Verdict]]


@pytest.fixture(scope="session")
def builds() -> dict[Decoding, HostBuild]:
    try:
        toolchain = load(CHECKOUT / "build/toolchain.json")
    except ToolchainError as error:
        pytest.skip(f"no toolchain is set up: run `scons toolchain` ({error.args[0]})")
    folder = CHECKOUT / "build/host-tests"
    mtp = HostBuild(toolchain=toolchain, decoding=Decoding.MTP, folder=folder / Decoding.MTP)
    plain = HostBuild(toolchain=toolchain, decoding=Decoding.PLAIN, folder=folder / Decoding.PLAIN, other=mtp)
    made = {build.decoding: build for build in (mtp, plain)}
    with alone(folder):
        generate(toolchain, folder / "gen")
        for build in made.values():
            build.build()
    return made


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports of the micro checkpoints, a folder for each of MODELS."""
    root = tmp_path_factory.mktemp("host-data")
    pairs = {False: write_pair(root / "checkpoint"), True: write_unified_pair(root / "unified_checkpoint")}
    for name, options in MODELS.items():
        target, assistant = pairs[name.startswith("unified")]
        export(ExportOptions(target=target, assistant=assistant, out=root / name, prefill_rows=8, context=64,
                             **options))
    return root


@pytest.fixture(scope="session")
def model(data: Path) -> Callable[[str], ModelFolder]:
    return lambda name: open_folder(data / name)


@pytest.fixture(scope="session")
def probe(builds: dict[Decoding, HostBuild], tmp_path_factory: pytest.TempPathFactory) -> Probe:
    """The loader's verdict on programs, by name."""

    def run(method: str, programs: Mapping[str, Program]) -> dict[str, Verdict]:
        folder = tmp_path_factory.mktemp("probe")
        names = {}
        for number, (name, program) in enumerate(programs.items()):
            path = folder / f"{number}.g4p"
            path.write_bytes(codec.to_bytes(program))
            names[str(path)] = name
        lines = builds[DECODINGS[method]].run("probe", method, *names)
        return {names[line["file"]]: line for line in lines}

    return run


class _Results:
    """Failures of every case of one program, run once; what the program said when it crashed."""

    def __init__(self, build: HostBuild, data: Path) -> None:
        self._build, self._data = build, data
        self._failures: dict[str, list[str]] | None = None
        self._crash = ""

    def of(self, case: str, soak: bool = False) -> list[str]:
        if self._failures is None:
            self._failures = {}
            try:
                lines = self._build.run("run", self._data, *(["soak"] if soak else []))
                self._failures = {line["case"]: line["failures"] for line in lines}
            except CompileError as error:
                self._crash = str(error)
        return self._failures.get(case, [f"did not run: {self._crash or 'no result was printed'}"])


@pytest.fixture(scope="session")
def results(builds: dict[Decoding, HostBuild], data: Path) -> dict[Decoding, _Results]:
    return {kind: _Results(build, data) for kind, build in builds.items()}


@pytest.mark.parametrize("case", case_names())
@pytest.mark.parametrize("decoding", list(Decoding))
def test_case(results: dict[Decoding, _Results], decoding: Decoding, case: str) -> None:
    assert results[decoding].of(case) == []


@pytest.mark.soak
@pytest.mark.parametrize("decoding", list(Decoding))
def test_soak(
    request: pytest.FixtureRequest, builds: dict[Decoding, HostBuild], data: Path, decoding: Decoding
) -> None:
    """Every byte of the programs flipped and cut, every allocation failed."""
    if "soak" not in request.config.getoption("-m"):
        pytest.skip("long repetition: run with -m soak")
    found = _Results(builds[decoding], data)
    assert {case: found.of(case, soak=True) for case in case_names() if found.of(case, soak=True)} == {}


def test_case_names_are_unique() -> None:
    names = case_names()
    assert len(names) == len(set(names)) > 30


@pytest.mark.parametrize("method", list(DECODINGS))
@pytest.mark.parametrize("name", list(MODELS))
def test_plan(probe: Probe, model: Callable[[str], ModelFolder], name: str, method: str) -> None:
    """The plan of a good program says what the exporter wrote: shards, weight bytes, header."""
    folder = model(name)
    program = folder.program(method)
    verdict = probe(method, {"good": program})["good"]
    assert (verdict["code"], verdict["message"]) == ("ok", "")
    plan = json.loads(verdict["plan"])
    spans = [span for weight in program.weights for span in (weight.values, weight.scales) if span is not None]
    caches = [tensor for tensor in program.graph.tensors if tensor.storage is ir.Storage.CACHE]
    assert plan["weight_bytes"] == sum(span.bytes for span in spans)
    assert plan["cache_bytes"] == sum(4 * tensor.elements for tensor in caches)
    assert plan["largest_binding"]["bytes"] >= max(span.bytes for span in spans)
    assert [shard["file"] for shard in plan["shards"]] == folder.receipt["methods"][method]["shards"]
    assert all(folder.receipt["files"][shard["file"]] == {"bytes": shard["bytes"], "sha256": shard["sha256"]}
               for shard in plan["shards"])
    assert plan["method"] == method and plan["vocab"] == program.graph.vocab and plan["ops"] == len(program.graph.ops)
    assert [(proof["subject"], proof["sha256"]) for proof in plan["certificate"]] == [
        (proof.subject, proof.sha256) for proof in program.certificate]
    centroids = method == ir.K2_ROUND and program.graph.draft_head is ir.DraftHead.CENTROIDS
    assert [proof["property"] for proof in plan["certificate"]] == [
        *(["UniqueScatter"] if centroids else []), "SingleComputePass"]
    assert plan["query_positions"] == program.graph.query_positions.name.lower()
    assert plan["total_bytes"] == sum(plan[f"{part}_bytes"] for part in ("weight", "cache", "activation", "scratch"))


STORY: Final = CHECKOUT / "fixtures/story"
_STORY_TARGET: Final = {"gated_linear": 10, "linear_with_gate": 10, "norm_pair": 19, "three_linears": 5,
                         "cache_write_pair": 5}
STORY_FUSIONS: Final[Mapping[str, dict[str, int]]] = {
    ir.TEXT_DECODER: _STORY_TARGET,
    ir.K2_ROUND: {**_STORY_TARGET, "gated_linear": 18, "norm_pair": 35, "two_linears": 1},
}
"""Ten layers of the target, of which five own caches and tail rows part one pair of norms; two drafts of four layers."""
STORY_DISPATCHES: Final[Mapping[str, tuple[int, int]]] = {ir.TEXT_DECODER: (163, 227), ir.K2_ROUND: (271, 368)}
"""Of a decode step or a round: fused, unfused."""


@pytest.mark.parametrize("method", list(DECODINGS))
def test_fusions_of_the_story_model(probe: Probe, tmp_path: Path, method: str) -> None:
    """G6: exact numbers of sites and dispatches, and X13's census is of the graph that was exported."""
    target, assistant = STORY / "story-target.gguf", STORY / "story-assistant.gguf"
    folder = open_folder(export(ExportOptions(target=target, assistant=assistant, out=tmp_path / "story")))
    program = folder.program(method)
    verdict = probe(method, {"story": program})["story"]
    plan = json.loads(verdict["plan"])
    fusions: dict[str, int] = {}
    for sites in plan["routes"]["fusions"]:
        fusions[sites["fusion"]] = fusions.get(sites["fusion"], 0) + sites["count"]
    assert fusions == STORY_FUSIONS[method]
    assert (verdict["dispatches"], verdict["unfused_dispatches"]) == STORY_DISPATCHES[method]
    assert plan["ops"] == len(program.graph.ops)


def test_fusions_of_a_model_with_values_from_keys(probe: Probe, model: Callable[[str], ModelFolder]) -> None:
    """G6: query and keys of the full layers are one dispatch, as there is no third; sliding layers have three."""
    plan = json.loads(probe(ir.TEXT_DECODER, {"good": model("unified_q4").program(ir.TEXT_DECODER)})["good"]["plan"])
    counts = {name: sum(site["count"] for site in plan["routes"]["fusions"] if site["fusion"] == name)
              for name in ("three_linears", "two_linears", "cache_write_pair")}
    assert counts == {"three_linears": 3, "two_linears": 2, "cache_write_pair": 5}


LARGER_FUSIONS: Final = {
    "12B": (M12B, {"three_linears": 40, "two_linears": 8, "gated_linear": 48, "cache_write_pair": 48}),
    "31B": (M31B, {"three_linears": 50, "two_linears": 10, "gated_linear": 60, "cache_write_pair": 60}),
}


@pytest.mark.parametrize("name", list(LARGER_FUSIONS))
def test_plan_of_the_larger_models(probe: Probe, name: str) -> None:
    """X22 at real sizes, without weights: both methods load, and decoding and prefill take the fast ways."""
    (target, assistant), wanted = LARGER_FUSIONS[name]
    options = GraphOptions(linear_dtype=ir.Dtype.Q4, prefill_rows=512, context=8960)
    programs = {ir.TEXT_DECODER: placed(text_decoder(target, options)), ir.K2_ROUND: placed(k2_round(target, assistant, options))}
    for method, program in programs.items():
        verdict = probe(method, {name: program})[name]
        assert (verdict["code"], verdict["message"]) == ("ok", "")
        plan, found = json.loads(verdict["plan"]), dict[str, int]()
        for site in plan["routes"]["fusions"]:
            found[site["fusion"]] = found.get(site["fusion"], 0) + site["count"]
        if method == ir.TEXT_DECODER:
            assert {fusion: found[fusion] for fusion in wanted} == wanted
        attention = [row["route"] for site in plan["routes"]["sites"] if site["op"] == "Attention" for row in site["rows"]]
        assert set(attention) == {"attention_decode_split", "attention_streaming"}


def _rescored(program: Program, step: int) -> Program:
    """A draft scored by the target's table, which has the size of the assistant's here."""
    table = next(number for number, tensor in enumerate(program.graph.tensors) if tensor.name == "model.embed_tokens.weight")
    scores = [number for number, op in enumerate(program.graph.ops) if isinstance(op.kind, ir.Linear)
              and program.graph.tensors[op.outputs[0]].name == f"draft_logits_{step}"]
    op = program.graph.ops[scores[0]]
    return set_op(program, scores[0], inputs=(op.inputs[0], table))


def _declared(program: Program, head: ir.DraftHead) -> Program:
    return replace(program, graph=replace(program.graph, draft_head=head))


def test_draft_heads(probe: Probe, model: Callable[[str], ModelFolder]) -> None:
    """X10: a program says which head it has, and has no other; a dense head is one weight in both drafts."""
    dense, centroids = (model(name).program(ir.K2_ROUND) for name in ("unified", "f32"))
    assert (dense.census.top_k, dense.census.scatter) == (0, 0)
    programs = {
        "dense": dense, "centroids": centroids,
        "dense called centroids": _declared(dense, ir.DraftHead.CENTROIDS),
        "centroids called dense": _declared(centroids, ir.DraftHead.DENSE),
        "scattered without a certificate, called dense": _declared(uncertified(centroids), ir.DraftHead.DENSE),
        "second draft by another table": _rescored(dense, 1), "first draft by another table": _rescored(dense, 0),
        "both drafts by the target's table": _rescored(_rescored(dense, 0), 1),
    }
    verdicts = probe(ir.K2_ROUND, programs)
    assert {name: verdict["code"] for name, verdict in verdicts.items()} == {
        name: "ok" if name in ("dense", "centroids") else "corrupt_data" for name in programs}
    for name, program in programs.items():
        if name not in ("dense", "centroids"):
            with pytest.raises(ProgramError):
                check(program)
    assert "draft_head is centroids" in verdicts["dense called centroids"]["message"]
    assert "TopK, wanted 0" in verdicts["centroids called dense"]["message"]
    plain = _declared(model("unified").program(ir.TEXT_DECODER), ir.DraftHead.DENSE)
    assert "makes no drafts" in probe(ir.TEXT_DECODER, {"plain": plain})["plain"]["message"]


def _broken_cases() -> Iterable[Any]:
    for broken in BROKEN:
        for method in broken.methods:
            yield pytest.param(broken, method, id=f"{method}-{broken.name}".replace(" ", "_"))


@pytest.fixture(scope="session")
def verdicts(probe: Probe, model: Callable[[str], ModelFolder]) -> dict[tuple[str, str], Verdict]:
    """Verdicts on all broken programs, by (method, name): one start of the program a method."""
    found: dict[tuple[str, str], Verdict] = {}
    for method in DECODINGS:
        good = model("f32").program(method)
        programs = {broken.name: broken.change(good) for broken in BROKEN if method in broken.methods}
        found |= {(method, name): verdict for name, verdict in probe(method, programs).items()}
    return found


@pytest.mark.parametrize(("broken", "method"), list(_broken_cases()))
def test_broken_program_is_refused(verdicts: dict[tuple[str, str], Verdict], broken: Broken, method: str) -> None:
    verdict = verdicts[method, broken.name]
    assert verdict["code"] in ("corrupt_data", "unsupported"), verdict["message"]
    missing = [part for part in broken.says if part not in verdict["message"]]
    assert missing == [], verdict["message"]


@pytest.mark.parametrize("method", list(DECODINGS))
def test_wrong_operands_are_refused(probe: Probe, model: Callable[[str], ModelFolder], method: str) -> None:
    """V4: every operand of every kind of op with a wrong dtype, width, rank or number."""
    good = model("progressive").program(method)
    programs = dict(wrong_operands(good))
    assert len(programs) > 150
    if method == ir.K2_ROUND:  # the kinds that an export has no use for
        programs |= {name: program for name, program in wrong_operands(uncertified(good)) if name.startswith("Scatter ")}
        programs |= {name: program for name, program in wrong_operands(subtracting(good)) if name.startswith("Subtract ")}
        assert {"Scatter input 1 dtype", "ScatterUnique input 1 dtype", "Subtract input 1 wider"} <= programs.keys()
        assert probe(method, {"subtracting": subtracting(good)})["subtracting"]["code"] == "ok"
    wrong = {name: verdict["message"] for name, verdict in probe(method, programs).items()
             if verdict["code"] != "corrupt_data" or not verdict["message"].startswith("op ")}
    assert wrong == {}


def test_round_without_a_certificate_loads(probe: Probe, model: Callable[[str], ModelFolder]) -> None:
    """X9: an export certifies both scatters; a program with neither certified is as good."""
    good = model("f32").program(ir.K2_ROUND)
    plain = uncertified(good)
    assert sum(isinstance(op.kind, ir.ScatterUnique) for op in good.graph.ops) == ir.DRAFTS
    assert sum(isinstance(op.kind, ir.Scatter) for op in plain.graph.ops) == ir.DRAFTS
    assert probe(ir.K2_ROUND, {"plain": plain})["plain"]["code"] == "ok"
    assert probe(ir.TEXT_DECODER, {"plain": plain})["plain"]["code"] != "ok"


@pytest.mark.parametrize("method", list(DECODINGS))
@pytest.mark.parametrize("name", list(MODELS))
def test_a_single_pass_needs_its_proof(probe: Probe, model: Callable[[str], ModelFolder], name: str, method: str) -> None:
    """R11: a step or round of an export is one compute pass; without the proof it is not, and the program is as good."""
    good = model(name).program(method)
    unproven = replace(good, certificate=tuple(proof for proof in good.certificate
                                               if proof.property is not ir.Property.SINGLE_COMPUTE_PASS))
    verdicts = probe(method, {"good": good, "unproven": unproven})
    assert {name: (verdict["code"], verdict["passes_apart"]) for name, verdict in verdicts.items()} == {
        "good": ("ok", ""), "unproven": ("ok", "the program has no proof of a single compute pass")}


@pytest.mark.parametrize("method", list(DECODINGS))
def test_mutants(probe: Probe, model: Callable[[str], ModelFolder], method: str) -> None:
    """Mistakes that break a contract are refused; consistent programs that compute something else load."""
    models = {unified: model("unified" if unified else "f32").program(method) for unified in (False, True)}
    names = [name for name in mutants.MUTANTS if method == ir.K2_ROUND or name not in mutants.ROUND_ONLY]
    verdicts = probe(method, {name: mutants.mutate(models[name in mutants.UNIFIED_ONLY], name) for name in names})
    refused = {name for name, verdict in verdicts.items() if verdict["code"] != "ok"}
    assert refused == mutants.REFUSED & set(names)
