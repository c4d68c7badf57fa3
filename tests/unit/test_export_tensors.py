"""Reading safetensors checkpoints: every form, and every kind of damage that the format lets one notice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from micro_checkpoint import safetensors_bytes, target_tensors, write_checkpoint

from gemma4web.errors import CheckpointError
from gemma4web.export.tensors import Checkpoint, read_header

TABLE = np.arange(12, dtype=np.float32).reshape(3, 4) / 8 - 0.5


def _single(folder: Path, **tensors: np.ndarray) -> Path:
    return write_checkpoint(folder, {}, tensors or {"table": TABLE})


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_float_forms_widen_exactly(tmp_path: Path, dtype: str) -> None:
    """Values with few bits come back as they are from all three float forms (X22)."""
    write_checkpoint(tmp_path, {}, {"table": TABLE}, dtype=dtype)
    with Checkpoint(tmp_path) as checkpoint:
        np.testing.assert_array_equal(checkpoint.float_rows("table", (3, 4), slice(None)), TABLE)
        np.testing.assert_array_equal(checkpoint.float_rows("table", (3, 4), slice(1, 3)), TABLE[1:])


def test_bf16_is_not_read_as_f16(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {}, {"table": np.float32([[1e30, 3.0]])}, dtype="BF16")
    with Checkpoint(tmp_path) as checkpoint:
        values = checkpoint.float_rows("table", (1, 2), slice(None))
    assert abs(values[0, 0] / 1e30 - 1) < 0.01 and values[0, 1] == 3


def test_sharded_checkpoint(tmp_path: Path) -> None:
    tensors = target_tensors()
    write_checkpoint(tmp_path, {}, tensors, shards=3)
    with Checkpoint(tmp_path) as checkpoint:
        assert set(checkpoint.names()) == set(tensors) and len(checkpoint.files) == 3
        for name, values in tensors.items():
            np.testing.assert_array_equal(checkpoint.float_rows(name, values.shape, slice(None)), values)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {}, target_tensors(), shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00003.safetensors, which is missing"):
        Checkpoint(tmp_path)


def test_index_may_not_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with pytest.raises(CheckpointError, match="no file name"):
        Checkpoint(tmp_path)


def test_same_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {}, target_tensors(), shards=2)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match="stands in"):
        Checkpoint(tmp_path)


def test_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither model.safetensors nor"):
        Checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="is neither a folder nor a file"):
        Checkpoint(tmp_path / "absent")


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    """A file cut anywhere, also inside the data, is refused."""
    whole, path = safetensors_bytes({"table": TABLE}), tmp_path / "model.safetensors"
    for length in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read_header(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="the header describes"):
        read_header(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_header_bits_never_escape_as_other_errors(tmp_path: Path, data: st.DataObject) -> None:
    """A flip either still gives a consistent header or raises CheckpointError, never anything else."""
    whole = bytearray(safetensors_bytes({"table": TABLE, "norm": TABLE[0]}))
    length = 8 + int.from_bytes(whole[:8], "little")
    place = data.draw(st.integers(0, length - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(whole))
    try:
        entries = read_header(path)
    except CheckpointError:
        return
    assert sum(entry.end - entry.begin for entry in entries.values()) == len(whole) - length


@pytest.mark.parametrize(("change", "message"), [
    ({"dtype": "F33"}, "unknown dtype"),
    ({"shape": [3, -4]}, "malformed shape"),
    ({"shape": [3, 5]}, "needs 60 bytes, its offsets hold 48"),
    ({"data_offsets": [4, 52]}, "begins at byte"),
    ({"data_offsets": [0]}, "malformed offsets"),
    ({"data_offsets": [48, 0]}, "needs 48 bytes, its offsets hold -48"),
    ({"shape": [1] * 9}, "malformed shape"),
    ({"shape": [2**54]}, "malformed shape"),
    ({"shape": [True, 12]}, "malformed shape"),
    ({"dtype": ["F32"]}, "unknown dtype"),
    ({"extra": 1}, "entry of table is malformed"),
])
def test_malformed_entries(tmp_path: Path, change: dict[str, object], message: str) -> None:
    header = {"table": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48], **change}}
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + TABLE.tobytes())
    with pytest.raises(CheckpointError, match=message):
        read_header(path)


def test_name_that_stands_twice(tmp_path: Path) -> None:
    entry = '{"dtype":"F32","shape":[12],"data_offsets":[0,48]}'
    text = f'{{"a":{entry},"a":{entry}}}'.encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + TABLE.tobytes())
    with pytest.raises(CheckpointError, match="stands twice"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, poison: float) -> None:
    values = TABLE.copy()
    values[2, 1] = poison
    _single(tmp_path, table=values)
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(CheckpointError, match=r"table holds a NaN or infinity .*row 2"):
        checkpoint.float_rows("table", (3, 4), slice(None))


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    _single(tmp_path)
    with Checkpoint(tmp_path) as checkpoint:
        with pytest.raises(CheckpointError, match="tensor absent is missing"):
            checkpoint.entry("absent", (3, 4))
        with pytest.raises(CheckpointError, match=r"table has shape \[3, 4\], wanted \[4, 3\]"):
            checkpoint.entry("table", (4, 3))


def test_wrong_kinds_of_numbers(tmp_path: Path) -> None:
    _single(tmp_path, ids=np.arange(4), table=TABLE)
    with Checkpoint(tmp_path) as checkpoint:
        with pytest.raises(CheckpointError, match="ids is I64, wanted one of F32"):
            checkpoint.float_rows("ids", (4,), slice(None))
        with pytest.raises(CheckpointError, match="table is F32, wanted one of I64"):
            checkpoint.integers("table", (12,))


def test_wide_integers_are_refused(tmp_path: Path) -> None:
    _single(tmp_path, ids=np.array([0, 1 << 40]))
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(CheckpointError, match="beyond 32 bits"):
        checkpoint.integers("ids", (2,))
