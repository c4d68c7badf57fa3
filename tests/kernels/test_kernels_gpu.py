"""Every kernel in headless Chromium against its float64 reference (O1, O2, O9, O10, R5; P19, P21, P27, P32, P37, P38)."""

from __future__ import annotations

import re
from collections.abc import Callable

import cases_attention
import cases_attention_ways
import cases_fused
import cases_index
import cases_linear
import cases_linear_dp4a
import cases_linear_matrix
import cases_linear_routes
import cases_norm
import cases_round
import cases_staged
import kernel_reference
import numpy as np
import pytest
from kernel_case import (
    BUILDERS,
    KERNEL_DIR,
    LOCK_PATH,
    SEED,
    Case,
    Expected,
    build,
    dispatch,
    kernels,
    run_case,
    single_row,
)
from mutants import MUTANTS, Mutant
from tests.support.gpu_page import GpuDevice, GpuPage

from gemma4web.errors import BrowserError
from gemma4web.files import load_json
from gemma4web.kernels import check_lock, fold_grid, group_count
from gemma4web.kernels.dispatch import GROUP_LIMIT
from gemma4web.kernels.render import minify
from gemma4web.oracle import ops

CASE_MODULES = (cases_attention, cases_attention_ways, cases_fused, cases_index, cases_linear, cases_linear_dp4a,
                cases_linear_matrix, cases_linear_routes, cases_norm, cases_round, cases_staged)

DeviceOf = Callable[[str], GpuDevice]


def groups_of(made: Case) -> int:
    return group_count(kernels()[made.kernel], made.params)


CASES = sorted(BUILDERS)
ROW_CASES = [name for name in CASES if build(name).per_row and build(name).params["rows"] > 1]
FOLDING_CASES = [name for name in CASES if groups_of(build(name)) > 1]


def smallest_limit(groups: int) -> int:
    """The grid limit under which so many groups still fold, which wastes some."""
    return next(limit for limit in range(1, GROUP_LIMIT) if limit**3 >= groups)


def fail_on(problems: list[str]) -> None:
    assert not problems, "\n".join([*problems, f"GEMMA4WEB_SEED={SEED} makes the same inputs"])


def test_every_kernel_of_the_lock_has_a_case() -> None:
    """V11: no kernel is untested, and the committed lock is that of the sources (O7)."""
    check_lock(KERNEL_DIR, LOCK_PATH)
    tested = {name.partition(":")[0] for name in BUILDERS}
    assert tested == set(load_json(LOCK_PATH, schema=1)["kernels"])


def test_every_kernel_has_a_mutant() -> None:
    assert {mutant.kernel for mutant in MUTANTS} == set(kernels())


def test_references_exist() -> None:
    """The header's reference is a function of the oracle or of the kernel tests."""
    missing = [f"{kernel.name}: {kernel.header.reference}" for kernel in kernels().values()
               if not hasattr(ops, kernel.header.reference) and not hasattr(kernel_reference, kernel.header.reference)]
    assert not missing


def test_kernel_files_are_short() -> None:
    long = [path.name for path in KERNEL_DIR.glob("*.wgsl") if len(path.read_text().splitlines()) > 150]
    assert not long


def test_local_variables_have_initialisers() -> None:
    """Chromium's compiler zeroes a variable without one only once, not in every turn of the loop that declares it."""
    bare = [f"{name}: {found}" for name, kernel in kernels().items()
            for found in re.findall(r"\bvar [\w]+ *: *[^;={}]+;", kernel.text)]
    assert not bare


def test_grids_fold_under_every_limit() -> None:
    """P19: all groups are covered, no dimension is above the limit, less than one row of groups is wasted."""
    for limit in (1, 3, 256, 65535):
        for groups in (1, 2, 3, 4, 26, 27, 65534, 65535, 65536, 131071):
            if groups > limit**3:
                with pytest.raises(ValueError, match="do not fold"):
                    fold_grid(groups, limit)
                continue
            x, y, z = fold_grid(groups, limit)
            assert max(x, y, z) <= limit and x * y * (z - 1) < groups <= x * y * z


@pytest.mark.browser
@pytest.mark.parametrize("name", sorted(kernels()))
def test_both_texts_compile_with_default_limits(device_of: DeviceOf, name: str) -> None:
    """P17: the text as it stands and the minified one, on a device that was asked for no limit but storage buffers."""
    kernel = kernels()[name]
    kinds = [str(binding.kind) for binding in kernel.interface.bindings]
    device_of(name).compile(kernel.text, kinds)
    device_of(name).compile(minify(kernel.text), kinds)


@pytest.mark.browser
@pytest.mark.parametrize("name", CASES)
def test_case(device_of: DeviceOf, name: str) -> None:
    """Values against float64; every element written; nothing written behind an output."""
    made = build(name)
    fail_on(run_case(device_of(made.kernel), made))


@pytest.mark.browser
@pytest.mark.parametrize("name", FOLDING_CASES)
def test_case_on_a_folded_grid(device_of: DeviceOf, name: str) -> None:
    """P19: the same with a grid limit so small that the groups fold into y, and where it can be into z."""
    made = build(name)
    groups = groups_of(made)
    limit = smallest_limit(groups)
    fail_on(run_case(device_of(made.kernel), made, limit=limit))


@pytest.mark.browser
@pytest.mark.parametrize("name", ROW_CASES)
def test_a_row_does_not_depend_on_the_rows_beside_it(device_of: DeviceOf, name: str) -> None:
    """P33: three rows at once and each of them alone give the same bits."""
    made = build(name)
    device = device_of(made.kernel)
    together, problems = dispatch(device, made)
    rows = int(made.params["rows"])
    for row in sorted({0, rows // 2, rows - 1}):
        alone, more = dispatch(device, single_row(made, row))
        problems += more
        for output in made.outputs:
            if output in made.per_row:
                mine = together[output].reshape(rows, -1)[row]
                if mine.tobytes() != alone[output].tobytes():
                    problems.append(f"{output}: row {row} alone differs in {np.sum(mine != alone[output])} elements")
    fail_on(problems)


def cheapest_first(kernel: str) -> list[Case]:
    """By the bytes that a case binds: most faults show in a small one, and in many."""
    return sorted((build(name) for name in CASES if name.startswith(f"{kernel}: ")), key=lambda made: sum(
        item.nbytes for item in (*made.inputs.values(), *(output.values for output in made.outputs.values()))))


def rows_differ(device: GpuDevice, made: Case, text: str) -> bool:
    if not made.per_row or made.params["rows"] == 1:
        return False
    together, _ = dispatch(device, made, text=text)
    alone, _ = dispatch(device, single_row(made, 0), text=text)
    return any(not together[name].tobytes().startswith(alone[name].tobytes())
               for name in made.outputs if name in made.per_row)


@pytest.mark.browser
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.kernel}: {mutant.fault}")
def test_mutant_is_caught(device_of: DeviceOf, mutant: Mutant) -> None:
    """A kernel with this fault fails at least one of the tests above: a case on a plain grid, else on a folded one, else
    row by row."""
    text = kernels()[mutant.kernel].text
    assert mutant.old in text
    broken = text.replace(mutant.old, mutant.new)
    device, cases = device_of(mutant.kernel), cheapest_first(mutant.kernel)
    assert (any(run_case(device, made, text=broken) for made in cases)
            or any(run_case(device, made, text=broken, limit=smallest_limit(groups_of(made))) for made in cases)
            or any(rows_differ(device, made, broken) for made in cases)), f"no case notices: {mutant.fault}"


@pytest.mark.browser
@pytest.mark.parametrize("groups", [65534, 65535, 65536, 131071])
def test_real_group_counts(gpu_page: GpuPage, groups: int) -> None:
    """O4, P19: the counts around the limit of one grid dimension. Every kernel takes its index from the same include."""
    source = np.random.default_rng([SEED, groups]).integers(0, 2**32, 64 * groups - 5, dtype=np.uint32)
    fail_on(run_case(gpu_page, Case(kernel="copy_words", inputs={"source": source},
                                    outputs={"out": Expected(values=source)},
                                    params={"count": source.size, "source_offset": 0})))


@pytest.mark.browser
@pytest.mark.parametrize("groups", [65534, 65535, 65536, 131071])
def test_real_group_counts_of_scatter_unique(gpu_page: GpuPage, groups: int) -> None:
    """O4: an element of every part of the grid lands, the others are out of range."""
    count, step = 64 * groups - 5, 8191
    place = np.arange(count)
    index = np.where(place % step == step - 1, place // step, -1).astype(np.int32)
    source = np.random.default_rng([SEED, groups]).standard_normal(count).astype(np.float32)
    wanted = source[step - 1::step]
    fail_on(run_case(gpu_page, Case(kernel="scatter_unique", inputs={"index": index, "source": source},
                                    outputs={"out": Expected(values=wanted)},
                                    params={"count": count, "size": wanted.size})))


@pytest.mark.browser
@pytest.mark.parametrize("groups", [65534, 65535, 65536, 131071])
def test_real_group_counts_of_argmax(gpu_page: GpuPage, groups: int) -> None:
    """O4: one part a row, and both stages over so many rows."""
    x = np.random.default_rng([SEED, groups]).standard_normal((groups, 3)).astype(np.float32)
    index = ops.argmax(x)
    best = np.stack([kernel_reference.order_key(x.max(axis=1)), index.astype(np.uint32)], axis=-1)
    fail_on(run_case(gpu_page, Case(kernel="argmax_parts", inputs={"x": x}, outputs={"out": Expected(values=best)},
                                    params={"rows": groups, "width": 3})))
    fail_on(run_case(gpu_page, Case(kernel="argmax_final", inputs={"best": best},
                                    outputs={"out": Expected(values=index)}, params={"rows": groups, "parts": 1})))


def test_every_folding_kernel_uses_the_grid_include() -> None:
    """P19: the linear index comes from include/grid.wgsl alone, unless there is a single group."""
    by_hand = [name for name, kernel in kernels().items()
               if not re.search(r"\blinear_(group|element)\(group, groups", kernel.text)]
    assert {kernels()[name].header.dispatch for name in by_hand} == {"one group"}
    assert not [name for name, kernel in kernels().items() if "global_invocation_id" in kernel.text]


@pytest.mark.browser
def test_proportional_rope_leaves_unrotated_lanes_alone(gpu_page: GpuPage) -> None:
    """P27: lanes 64..255 and 320..511 of a full-attention head keep their bits, also -0 and NaN beside them."""
    made = build("rope: full, proportional, 2 heads of 512")
    x = made.inputs["x"].reshape(-1, 512).copy()
    x[:, 100], x[:, 356], x[:, 101] = -0.0, np.inf, np.nan
    found, problems = dispatch(gpu_page, Case(kernel="rope", inputs={**made.inputs, "x": x.reshape(6, -1)},
                                              outputs=made.outputs, params=made.params))
    out = found["out"].reshape(-1, 512)
    for lanes in (slice(64, 256), slice(320, 512)):
        assert out[:, lanes].tobytes() == x[:, lanes].tobytes()
    turned = np.r_[0:64, 256:320]
    assert np.all((out[2:][:, turned] != x[2:][:, turned]).any(axis=1))
    fail_on(problems)


@pytest.mark.browser
@pytest.mark.parametrize(("head_dim", "form"), [(256, cases_norm.SLIDING), (512, cases_norm.FULL)])
def test_rope_equals_the_formula_in_radians(gpu_page: GpuPage, head_dim: int, form: dict[str, float]) -> None:
    """P27: fixed-point turns are theta^(-2i/denominator) to within half a unit of 2^-32 turn a position."""
    rng = np.random.default_rng(SEED)
    positions = np.array(cases_norm.POSITIONS, np.int32)
    x = rng.standard_normal((positions.size, head_dim)).astype(np.float32)
    made = cases_norm.rope_case(x, positions, ops.rope_turns(head_dim=head_dim, **form), head_dim)  # type: ignore[arg-type]
    found, problems = dispatch(gpu_page, made)
    wanted = ops.rope(x, positions, head_dim=head_dim, **form)  # type: ignore[arg-type]
    error = np.abs(found["out"].reshape(x.shape) - wanted) / np.maximum(1.0, np.abs(x)).max()
    bound = 1e-6 + positions * np.pi * 2.0**-32
    assert np.all(error <= bound[:, None]), f"error {error.max(axis=1)}, bound {bound}, seed {SEED}"
    fail_on(problems)


@pytest.mark.browser
def test_sine_and_cosine_are_within_2e_7(gpu_page: GpuPage) -> None:
    """The polynomial sine and cosine over a whole turn, at random phases and at the edges of all octants."""
    rng = np.random.default_rng(SEED)
    edges = [(octant * 2**29 + step) % 2**32 for octant in range(8) for step in range(-2, 3)]
    turns = np.concatenate([np.array(edges, np.uint32), rng.integers(0, 2**32, 8152, dtype=np.uint32)])
    x = np.concatenate([np.ones(turns.size), np.zeros(turns.size)]).astype(np.float32)[None]
    made = cases_norm.rope_case(x, np.array([1], np.int32), turns, 2 * turns.size)
    found, problems = dispatch(gpu_page, made)
    wanted = kernel_reference.rope_of_turns(x, np.array([1], np.int32), turns)
    assert np.abs(found["out"] - wanted).max() <= 2e-7
    fail_on(problems)


@pytest.mark.browser
@pytest.mark.parametrize("name", ["embedding_f32: vocabulary edges and bad ids at prime sizes",
                                  "embedding_q4: vocabulary edges and bad ids"])
def test_parts_of_a_table_together_equal_the_whole(gpu_page: GpuPage, name: str) -> None:
    """O10: in any order, bit for bit."""
    whole = build(name)
    wanted, problems = dispatch(gpu_page, whole)
    for order in ([(0, 16), (16, 64), (80, 17)], [(80, 17), (0, 16), (16, 64)]):
        so_far = np.full_like(whole.outputs["out"].values, np.nan, np.float32)
        for first, count in order:
            part = cases_linear.embedding_part(whole, so_far, first, count)
            found, more = dispatch(gpu_page, part)
            so_far = found["out"].reshape(so_far.shape).copy()
            problems += more
        assert so_far.tobytes() == wanted["out"].tobytes()
    fail_on(problems)


@pytest.mark.browser
@pytest.mark.parametrize("groups", [65534, 65535, 65536, 131071])
def test_real_group_counts_of_subtraction(gpu_page: GpuPage, groups: int) -> None:
    """O4, O5: exact in every part of the grid, the wraps among it."""
    rng = np.random.default_rng([SEED, groups])
    a, b = cases_index.integers(rng, 64 * groups - 5), cases_index.integers(rng, 64 * groups - 5)
    made = cases_index.offset_case(a, 0, b)
    exact = a.astype(np.int64) - b
    assert np.any(exact != made.outputs["out"].values)
    fail_on(run_case(gpu_page, made))


@pytest.mark.browser
@pytest.mark.parametrize("value", cases_index.INTEGER_EDGES)
def test_subtraction_is_addition_of_the_wrapped_negative(gpu_page: GpuPage, value: int) -> None:
    """O5: x - value, wrapped at 32 bits, for every int32 value, the one without a negative included."""
    rng = np.random.default_rng([SEED, value % 2**32])
    x = np.concatenate([np.array(cases_index.INTEGER_EDGES, np.int32), rng.integers(-2**31, 2**31, 97).astype(np.int32)])
    negative = (-value + 2**31) % 2**32 - 2**31
    wanted = np.array([(item - value + 2**31) % 2**32 - 2**31 for item in x.tolist()], np.int32)
    assert ops.add_scalar(x, negative).tolist() == wanted.tolist()
    assert ops.subtract(x, [value]).tolist() == wanted.tolist()
    for made in (cases_index.offset_case(x, negative, None), cases_index.offset_case(x, 0, np.array([value], np.int32))):
        assert made.outputs["out"].values.tolist() == wanted.tolist()
        fail_on(run_case(gpu_page, made))


@pytest.mark.browser
def test_softcap_of_the_known_values(gpu_page: GpuPage) -> None:
    """P37: neither missing, nor doubled (21.5639), nor x times tanh (40.7317)."""
    found, problems = dispatch(gpu_page, build("softcap: 0, 45, 2000, -1e4 with cap 30, and what is around them"))
    assert found["out"][:4].tolist() == pytest.approx([0.0, 27.1544, 30.0, -30.0], abs=1e-4)
    fail_on(problems)


@pytest.mark.browser
def test_the_harness_sees_what_it_must(gpu_page: GpuPage) -> None:
    """Unwritten elements, writes behind the end, and shaders that the browser refuses do not pass."""
    made = build("fill: 10007 elements")
    text = kernels()["fill"].text
    for old, new, words in (("out[i] =", "out[i / 2u] =", "elements are wrong"),
                            ("first - lane + VECTORS <= params.count / 4u", "true", "behind the output")):
        assert old in text and any(words in problem for problem in run_case(gpu_page, made, text=text.replace(old, new)))
    with pytest.raises(BrowserError, match="unresolved"):
        run_case(gpu_page, made, text=text.replace("scalar[0]", "scaler[0]"))
