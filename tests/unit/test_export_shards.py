"""Weight shards: distribution, layout, determinism, and agreement with the safetensors package."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
from micro_checkpoint import assistant_config, assistant_tensors, target_config, target_tensors, write_checkpoint
from safetensors import safe_open
from safetensors.numpy import load

from gemma4web.errors import CheckpointError
from gemma4web.export import shards
from gemma4web.export.quantise import quantise
from gemma4web.export.tensors import Checkpoint
from gemma4web.program.ir import Dtype, Role, Storage, Tensor


def _tensor(name: str, *dims: int, dtype: Dtype = Dtype.F32) -> Tensor:
    return Tensor(name=name, dtype=dtype, storage=Storage.WEIGHT, dims=dims)


def _written(plan: shards.ShardPlan, checkpoint: Checkpoint) -> tuple[bytes, shards.WrittenShard, int]:
    sink, told = io.BytesIO(), []
    done = shards.write(plan, checkpoint, sink, told.append)
    return sink.getvalue(), done, sum(told)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "target", target_config(), target_tensors())


def test_f32_shard(target: Path) -> None:
    wanted = target_tensors()
    tensors = [_tensor(name, *values.shape) for name, values in wanted.items()]
    [plan] = shards.plan(tensors)
    with Checkpoint(target) as checkpoint:
        data, done, told = _written(plan, checkpoint)
        assert _written(plan, checkpoint)[0] == data
    assert (plan.file, plan.role) == ("target-00001-of-00001.safetensors", Role.TARGET)
    assert done.shard.bytes == len(data) == told == shards.planned_bytes(plan)
    assert done.shard.sha256 == hashlib.sha256(data).hexdigest()
    found = load(data)
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values)
        span = done.spans[name]
        assert span.begin % 4 == 0
        assert data[span.begin : span.begin + span.bytes] == values.tobytes()


def test_q4_shard(target: Path) -> None:
    """Packed values under the tensor's own name, scales beside them; norms stay f32; scales never misalign a value."""
    wanted = target_tensors()
    tensors = [_tensor(name, *values.shape, dtype=Dtype.Q4 if values.ndim == 2 else Dtype.F32)
               for name, values in wanted.items()]
    [plan] = shards.plan(tensors)
    with Checkpoint(target) as checkpoint:
        data, done, _ = _written(plan, checkpoint)
    found = load(data)
    for name, values in wanted.items():
        assert done.spans[name].begin % 4 == 0
        if values.ndim == 1:
            np.testing.assert_array_equal(found[name], values)
            continue
        packed, scales = quantise(values, name=name)
        np.testing.assert_array_equal(found[name], packed)
        np.testing.assert_array_equal(found[name + ".scale"], scales)
        assert found[name].dtype == np.uint8 and found[name + ".scale"].dtype == np.float16


def test_odd_scales_stand_last(tmp_path: Path) -> None:
    """A [1, 32] matrix has one scale of two bytes: nothing that follows begins off a multiple of four."""
    tensors = {"a": np.ones((1, 32), np.float32), "b": np.ones((2, 32), np.float32), "c": np.ones(3, np.float32)}
    folder = write_checkpoint(tmp_path, {}, tensors)
    [plan] = shards.plan([_tensor("a", 1, 32, dtype=Dtype.Q4), _tensor("b", 2, 32, dtype=Dtype.Q4), _tensor("c", 3)])
    with Checkpoint(folder) as checkpoint:
        data, done, _ = _written(plan, checkpoint)
    assert load(data)["c"].tolist() == [1, 1, 1]
    assert max(done.spans, key=lambda name: done.spans[name].begin) == "a.scale"
    assert all(span.begin % 4 == 0 for span in done.spans.values())


def test_roles_never_share_a_shard(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "t", target_config(), target_tensors())
    folder = write_checkpoint(tmp_path / "a", assistant_config(), assistant_tensors())
    tensors = [_tensor("model.norm.weight", 32), _tensor("assistant.model.norm.weight", 32),
               _tensor("assistant.masked_embedding.token_ordering", 8, 8, dtype=Dtype.I32)]
    plans = shards.plan(tensors)
    assert [(plan.file, plan.role) for plan in plans] == [
        ("target-00001-of-00001.safetensors", Role.TARGET), ("assistant-00001-of-00001.safetensors", Role.ASSISTANT)]
    with Checkpoint(folder) as checkpoint:
        data, _, _ = _written(plans[1], checkpoint)
    found = load(data)
    ordering = found["assistant.masked_embedding.token_ordering"]
    assert ordering.dtype == np.int32 and ordering.shape == (8, 8)
    np.testing.assert_array_equal(ordering.reshape(-1), assistant_tensors()["masked_embedding.token_ordering"])


def test_size_limit(target: Path, tmp_path: Path) -> None:
    """Shards stay within the limit, keep the order, lose nothing, and can all be opened."""
    wanted = target_tensors()
    tensors = [_tensor(name, *values.shape) for name, values in wanted.items()]
    limit = 60_000
    plans = shards.plan(tensors, max_bytes=limit)
    assert len(plans) > 2
    assert [item.tensor.name for plan in plans for item in plan.items] == list(wanted)
    with Checkpoint(target) as checkpoint:
        for number, plan in enumerate(plans, 1):
            assert plan.file == f"target-{number:05}-of-{len(plans):05}.safetensors"
            data, done, _ = _written(plan, checkpoint)
            assert len(data) == done.shard.bytes <= limit
            (tmp_path / plan.file).write_bytes(data)
            with safe_open(tmp_path / plan.file, "np") as opened:
                assert set(opened.keys()) == {item.tensor.name for item in plan.items}


@pytest.mark.parametrize(("rows", "columns", "dtype", "limit"), [
    (64, 160, Dtype.Q4, 2000), (64, 160, Dtype.F32, 3000), (63, 96, Dtype.Q4, 1500), (64, 160, Dtype.Q4, 6300)])
def test_tensor_larger_than_a_shard_is_split(tmp_path: Path, rows: int, columns: int, dtype: Dtype, limit: int) -> None:
    """Row ranges in order, each an even number of rows from an even row on, whose bytes are those of the whole tensor."""
    values = np.random.default_rng(3).normal(size=(rows, columns)).astype(np.float32)
    folder = write_checkpoint(tmp_path, {}, {"before": np.ones(8, np.float32), "w": values, "after": np.ones(8, np.float32)})
    plans = shards.plan([_tensor("before", 8), _tensor("w", rows, columns, dtype=dtype), _tensor("after", 8)], max_bytes=limit)
    items = [item for plan in plans for item in plan.items]
    assert [item.tensor.name for item in items] == ["before"] + ["w"] * (len(items) - 2) + ["after"] and len(items) > 3
    ranges = [(item.first, item.last) for item in items[1:-1]]
    assert [first for first, _ in ranges] == [0, *(last for _, last in ranges[:-1])] and ranges[-1][1] == rows
    assert all(first % 2 == 0 for first, _ in ranges)
    assert max(last - first for first, last in ranges) - (ranges[-1][1] - ranges[-1][0]) <= 2 * len(ranges)
    found: dict[str, bytes] = {}
    with Checkpoint(folder) as checkpoint:
        for plan in plans:
            data, done, _ = _written(plan, checkpoint)
            assert len(data) == done.shard.bytes == shards.planned_bytes(plan) <= limit
            assert done.items == plan.items and load(data).keys() == done.spans.keys()
            found |= {name: data[span.begin : span.begin + span.bytes] for name, span in done.spans.items()}
        [whole] = shards.plan([_tensor("w", rows, columns, dtype=dtype)])
        data, done, _ = _written(whole, checkpoint)
    for number in range(len(items[1].parts)):
        span = done.spans[whole.items[0].parts[number].name]
        parts = b"".join(found[item.parts[number].name] for item in items[1:-1])
        assert parts == data[span.begin : span.begin + span.bytes]
    assert items[1].parts[0].name == f"w[0:{ranges[0][1]}]"


def test_split_table_of_integers(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {}, assistant_tensors())
    plans = shards.plan([_tensor("assistant.masked_embedding.token_ordering", 8, 8, dtype=Dtype.I32)], max_bytes=550)
    with Checkpoint(folder) as checkpoint:
        tables = [values for plan in plans for values in load(_written(plan, checkpoint)[0]).values()]
    assert len(tables) > 1
    np.testing.assert_array_equal(np.concatenate(tables).reshape(-1), assistant_tensors()["masked_embedding.token_ordering"])


def test_two_rows_larger_than_a_shard_are_refused() -> None:
    with pytest.raises(CheckpointError, match="embed needs 2000000 bytes for 2 rows, a shard holds 999936"):
        shards.plan([_tensor("embed", 4, 250_000)], max_bytes=1_000_000)


def test_columns_that_q4_cannot_group_are_named() -> None:
    with pytest.raises(CheckpointError, match="model.odd: 48 columns are no multiple of 32"):
        shards.plan([_tensor("model.odd", 4, 48, dtype=Dtype.Q4)])


@pytest.mark.parametrize("spoil", [lambda ids: ids.__setitem__(0, ids[1]), lambda ids: ids.__setitem__(0, 64),
                                   lambda ids: ids.__setitem__(0, -1)])
def test_ordering_that_is_no_permutation(tmp_path: Path, spoil: object) -> None:
    """X11: twice the same id, an id beyond the vocabulary, a negative id."""
    tensors = assistant_tensors()
    spoil(tensors["masked_embedding.token_ordering"])  # type: ignore[operator]
    folder = write_checkpoint(tmp_path, {}, tensors)
    [plan] = shards.plan([_tensor("assistant.masked_embedding.token_ordering", 8, 8, dtype=Dtype.I32)])
    with Checkpoint(folder) as checkpoint, pytest.raises(CheckpointError, match="is no permutation of 0..63"):
        _written(plan, checkpoint)
