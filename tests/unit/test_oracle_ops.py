"""The reference ops against small cases by hand, where their edges lie."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gemma4web.oracle import ops

NAN = float("nan")


def test_embedding_scales_and_zeroes_bad_ids() -> None:
    table = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(ops.embedding([2, -1, 3, 0], table, 2.0), [[8, 10], [0, 0], [0, 0], [0, 2]])


def test_rms_norm_groups_residual_and_scalar() -> None:
    x = np.array([[3.0, 4.0, 0.0, 2.0]])
    first, second = math.sqrt(12.5), math.sqrt(2.0)
    got = ops.rms_norm(x, width=2, eps=0.0, weight=np.array([2.0, 1.0]), residual=np.ones((1, 4)), scalar=np.array([0.5]))
    np.testing.assert_allclose(got, [[(1 + 6 / first) / 2, (1 + 4 / first) / 2, 0.5, (1 + 2 / second) / 2]], rtol=1e-15)


def test_rms_norm_has_no_unit_offset() -> None:
    assert ops.rms_norm(np.array([[1.0, 1.0]]), width=2, eps=0.0, weight=np.zeros(2)).tolist() == [[0, 0]]


def test_rope_turns_halves_and_leaves_the_rest() -> None:
    """Pair 0 turns by the position itself; pairs past rotated_pairs stay; the pairing is (i, i + d/2)."""
    x = np.array([[1.0, 10.0, 0.0, 20.0]])
    got = ops.rope(x, [3], head_dim=4, rotated_pairs=1, denominator=4, theta=100.0)
    np.testing.assert_allclose(got, [[math.cos(3), 10, math.sin(3), 20]], rtol=1e-15)


def test_rope_exponent_runs_over_the_denominator() -> None:
    full = ops.rope_frequencies(head_dim=8, rotated_pairs=4, denominator=8, theta=1e4)
    np.testing.assert_allclose(full, [1, 1e-1, 1e-2, 1e-3])
    part = ops.rope_frequencies(head_dim=8, rotated_pairs=2, denominator=4, theta=1e4)
    np.testing.assert_allclose(part, [1, 1e-2, 0, 0])


def test_rope_turns_table_wraps_like_the_angle() -> None:
    """Fixed-point phases stay within 1e-5 of the exact angle at the last position of the context."""
    sizes = {"head_dim": 512, "rotated_pairs": 64, "denominator": 512, "theta": 1e6}
    turns, radians = ops.rope_turns(**sizes), ops.rope_frequencies(**sizes)
    position = 8959
    phase = (turns.astype(np.uint64) * position % 2**32).astype(np.float64) / 2**32 * 2 * math.pi
    error = np.angle(np.exp(1j * (phase - radians * position)))
    assert np.abs(error).max() < 1e-5 and turns[64:].any() == 0 and turns[0] == round(2**32 / (2 * math.pi))


def test_cache_write_wraps_and_later_rows_win() -> None:
    cache = np.zeros((1, 3, 1, 1))
    after = ops.cache_write(np.array([[1.0], [2.0], [3.0], [4.0]]), [4, 5, 6, 7], cache)
    assert after.reshape(-1).tolist() == [3, 4, 2] and not cache.any()


@pytest.mark.parametrize(("query", "window", "donor", "seen"), [
    (0, 0, False, [0]), (5, 0, False, [0, 1, 2, 3, 4, 5]), (5, 3, False, [3, 4, 5]), (1, 3, False, [0, 1]),
    (0, 3, True, []), (5, 0, True, [0, 1, 2, 3, 4]), (5, 3, True, [3, 4]), (2, 3, True, [0, 1]), (5, 1, True, [])])
def test_visible_positions(query: int, window: int, donor: bool, seen: list[int]) -> None:
    """Exactly W positions, the own row included; a donor's rows end before the query and keep the query's window."""
    assert ops.visible_positions(query, window, donor=donor).tolist() == seen


def test_donor_view_is_a_slice_of_the_sequence() -> None:
    """X5: BHSD values of a BSHD cache, and the rows that attention reads from a wrapped ring."""
    cache = np.random.default_rng(1).normal(size=(1, 5, 2, 3))
    view = ops.donor_view(cache)
    assert view.shape == (1, 2, 5, 3)
    np.testing.assert_array_equal(view[0, 1, 4], cache[0, 4, 1])
    q = np.random.default_rng(2).normal(size=(1, 6))
    got = ops.attention(q, view, view, [8], head_dim=3, window=4, donor=True)
    rows = [5 % 5, 6 % 5, 7 % 5]
    for head in range(2):
        score = cache[0, rows, head] @ q[0, head * 3 : head * 3 + 3]
        weight = np.exp(score) / np.exp(score).sum()
        np.testing.assert_allclose(got[0, head * 3 : head * 3 + 3], weight @ cache[0, rows, head], rtol=1e-12)


def test_attention_groups_heads_and_has_no_scale() -> None:
    rng = np.random.default_rng(3)
    keys, values, q = rng.normal(size=(1, 4, 2, 8)), rng.normal(size=(1, 4, 2, 8)), rng.normal(size=(2, 4 * 8))
    got = ops.attention(q, keys, values, [1, 3], head_dim=8, window=0, donor=False)
    for row, position in enumerate((1, 3)):
        for head in range(4):
            score = keys[0, : position + 1, head // 2] @ q[row, head * 8 : head * 8 + 8]
            weight = np.exp(score) / np.exp(score).sum()
            np.testing.assert_allclose(got[row, head * 8 : head * 8 + 8], weight @ values[0, : position + 1, head // 2])


def test_attention_of_nothing_is_zero() -> None:
    view = np.ones((1, 1, 4, 2))
    assert ops.attention(np.ones((1, 2)), view, view, [0], head_dim=2, window=0, donor=True).tolist() == [[0, 0]]


def test_gelu_forms_differ_by_less_than_a_thousandth_but_differ() -> None:
    x = np.linspace(-6, 6, 201)
    gap = np.abs(ops.gelu_tanh(x) - ops.gelu_exact(x)).max()
    assert 1e-4 < gap < 1e-3
    assert ops.gelu_tanh(np.array([1.0]))[0] == pytest.approx(0.8411919906082768, abs=1e-15)


def test_gelu_mul_takes_its_columns() -> None:
    got = ops.gelu_mul(np.array([[1e3, 1e3]]), np.array([[1.0, 2.0, 3.0, 4.0]]), offset=1)
    np.testing.assert_allclose(got, [[2e3, 3e3]])


def test_ple_combine() -> None:
    context, token = np.array([[6.0, 8.0, 1.0, 1.0]]), np.array([[1.0, 0.0, 0.0, 2.0]])
    got = ops.ple_combine(context, token, np.array([1.0, 2.0]), eps=0.0, context_scale=0.5, scale=0.5)
    root = math.sqrt(12.5)
    np.testing.assert_allclose(got, [[(3 / root + 1) / 2, 4 / root, 0.5, 2.0]])


def test_argmax_takes_the_lowest_and_reports_nan() -> None:
    rows = np.array([[1.0, 3.0, 3.0], [NAN, 5.0, 1.0], [-np.inf, -np.inf, -np.inf]])
    assert ops.argmax(rows).tolist() == [1, -1, 0]


def test_top_k_order() -> None:
    """O1: descending, NaN first, both zeros equal, ties by the lower index, infinities in place."""
    values, indices = ops.top_k(np.array([[0.0, 2.0, -0.0, NAN, np.inf, 2.0, -np.inf, NAN]]), 8)
    assert indices.tolist() == [[3, 7, 4, 1, 5, 0, 2, 6]]
    assert values[0, 2] == np.inf and np.isnan(values[0, :2]).all()


def test_gathers_mark_bad_indices() -> None:
    table = np.arange(6, dtype=np.int32).reshape(3, 2)
    assert ops.gather_rows(table, [[2, 3, -1]]).tolist() == [[4, 5, -1, -1, -1, -1]]
    got = ops.gather_linear(np.array([[1.0, 2.0]]), np.array([[1.0, 1.0], [3.0, 0.0]]), [[1, -1, 0, 2]])
    assert got.tolist() == [[3, -np.inf, 3, -np.inf]]


def test_scatter_is_last_write_wins() -> None:
    """O2: duplicates and ids out of range."""
    got = ops.scatter(np.zeros((1, 4)), [[1, 3, 1, 4, -1]], np.array([[1.0, 2.0, 3.0, 4.0, 5.0]]))
    assert got.tolist() == [[0, 3, 0, 2]]


def test_fill_and_amin() -> None:
    assert ops.fill(ops.amin(np.array([[2.0, -3.0]])), 3, -1.0).tolist() == [[-4, -4, -4]]


@pytest.mark.parametrize(("value", "add", "wanted"), [(5, 2, 7), (2**31 - 1, 1, -(2**31)), (-(2**31), -1, 2**31 - 1)])
def test_add_scalar_wraps(value: int, add: int, wanted: int) -> None:
    assert ops.add_scalar(np.array([value], np.int32), add).tolist() == [wanted]


@pytest.mark.parametrize(("a", "b", "wanted"), [
    ([5, 7], [2, 9], [3, -2]), ([-(2**31), 2**31 - 1], [1, -1], [2**31 - 1, -(2**31)]), ([0, -1], [-(2**31)], [-(2**31), 2**31 - 1]),
    ([[1, 2], [3, 4]], [1], [[0, 1], [2, 3]])])
def test_subtract_wraps(a: list[int], b: list[int], wanted: list[int]) -> None:
    """O5: tensors of one shape, or one integer from all."""
    assert ops.subtract(a, b).tolist() == wanted


def test_pass_rows() -> None:
    ids, positions = [[7, 8, 9, 0]], [[4, 5, 6, 0]]
    assert [x.tolist() for x in ops.pass_rows(ids, positions, 0, 1, 2, rows=2)] == [[7, 8], [4, 5]]
    assert [x.tolist() for x in ops.pass_rows(ids, positions, 1, 1, 2, rows=3)] == [[7, 1, 2], [4, 5, 6]]


@pytest.mark.parametrize(("drafts", "match"), [((5, 6), 2), ((5, 9), 1), ((9, 6), 0), ((9, 9), 0)])
def test_accept_in_a_round(drafts: tuple[int, int], match: int) -> None:
    """X3: a later draft that happens to fit does not count after a wrong one."""
    got = [x.tolist() for x in ops.accept(1, *drafts, [5, 6, 7])]
    assert got == [[list(drafts)], [[5, 6, 7]], [[match]], [[[5, 6, 7][match]]]]


def test_accept_in_a_prefill() -> None:
    """X3: match 0, three equal greedy tokens, bonus equal."""
    assert [x.tolist() for x in ops.accept(0, 1, 2, [3, 4])] == [[[-1, -1]], [[4, 4, 4]], [[0]], [[4]]]


def test_seed_write_picks_the_matched_row() -> None:
    hidden = np.arange(6.0).reshape(3, 2)
    for flag, match, row in ((1, 0, 0), (1, 2, 2), (0, 0, 2)):
        seed, probe = ops.seed_write(flag, hidden, match)
        assert seed.reshape(-1).tolist() == hidden[row].tolist() and probe.tolist() == [[hidden[row, 0]]]


def test_dtype_is_selectable() -> None:
    x = np.float64([[1.0, 2.0]])
    for got in (ops.linear(x, x, dtype=np.float32), ops.rms_norm(x, width=2, eps=1e-6, dtype=np.float32),
                ops.rope(x, [1], head_dim=2, rotated_pairs=1, denominator=2, theta=10.0, dtype=np.float32)):
        assert got.dtype == np.float32
