"""Reading safetensors: correct values, no copies, and a clear error for every kind of damage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gemel.checkpoint.files import Tensors
from gemel.errors import ModelError


def written(path: Path, header: object, data: bytes = b"", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        Tensors({path: None})
    return str(caught.value)


def test_float32_is_a_read_only_view_of_the_file(tmp_path):
    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    save_file({"a": numbers}, tmp_path / "model.safetensors")
    tensors = Tensors.of_folder(tmp_path)
    array = tensors["a"]
    assert np.array_equal(array, numbers)
    assert array.dtype == np.float32
    assert not array.flags.owndata
    assert not array.flags.writeable
    assert np.shares_memory(array, tensors["a"])


def test_names_and_shapes_are_available_without_reading_values(tmp_path, monkeypatch):
    save_file({"a": np.ones((2, 3), np.float16), "b": np.ones(1, np.float32)}, tmp_path / "model.safetensors")
    tensors = Tensors.of_folder(tmp_path)
    monkeypatch.setattr(Tensors, "__getitem__", None)
    assert sorted(tensors) == ["a", "b"]
    assert len(tensors) == 2
    assert "a" in tensors
    assert "c" not in tensors
    assert tensors.shape("a") == (2, 3)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_become_float32_once(tmp_path, dtype):
    numbers = np.array([[0.5, -2.0], [1e-3, 7.0]], dtype=dtype)
    save_file({"a": numbers}, tmp_path / "model.safetensors")
    tensors = Tensors.of_folder(tmp_path)
    assert tensors["a"].dtype == np.float32
    assert np.array_equal(tensors["a"], numbers.astype(np.float32))
    assert tensors["a"] is tensors["a"]
    assert not tensors["a"].flags.writeable


def test_bfloat16_is_the_upper_half_of_float32(tmp_path):
    numbers = np.array([1.0, -0.5, 3.140625, 0.0], dtype=np.float32)
    half = (numbers.view(np.uint32) >> 16).astype("<u2").tobytes()
    path = written(tmp_path / "model.safetensors", {"a": entry("BF16", [4], 0, 8)}, half)
    assert np.array_equal(Tensors({path: None})["a"], numbers)


def test_integers_are_returned_unchanged(tmp_path):
    save_file({"ids": np.arange(3), "small": np.array([-1], np.int8)}, tmp_path / "model.safetensors")
    tensors = Tensors.of_folder(tmp_path)
    assert tensors["ids"].dtype == np.int64
    assert tensors["small"].dtype == np.int8


def test_unaligned_numbers_are_copied(tmp_path):
    header = json.dumps({"x": entry("U8", [1], 0, 1), "a": entry("F32", [2], 1, 9)}).encode()
    data = b"\x07" + np.array([1.5, -2.5], "<f4").tobytes()
    tensors = Tensors({written(tmp_path / "m.safetensors", header, data): None})
    assert tensors["a"].flags.aligned
    assert tensors["a"].tolist() == [1.5, -2.5]


def test_scalars_and_empty_tensors_are_read(tmp_path):
    save_file(
        {"s": np.array(3, np.float32), "e": np.zeros((0, 5), np.float32)}, tmp_path / "model.safetensors"
    )
    tensors = Tensors.of_folder(tmp_path)
    assert tensors["s"].shape == ()
    assert tensors["e"].shape == (0, 5)


def test_shards_are_read_as_one_table(tmp_path):
    save_file({"a": np.ones(2, np.float32), "unused": np.ones(1, np.float32)}, tmp_path / "one.safetensors")
    save_file({"b": np.zeros(3, np.float32)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    tensors = Tensors.of_folder(tmp_path)
    assert sorted(tensors) == ["a", "b"]
    assert tensors["b"].shape == (3,)
    assert [path.name for path in tensors.files] == ["one.safetensors", "two.safetensors"]


def test_an_index_may_not_point_outside_of_the_folder(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "secret.safetensors")
    for trick in (
        "../secret.safetensors",
        str(tmp_path / "secret.safetensors"),
        "..\\secret.safetensors",
        "C:\\x",
    ):
        index = {"weight_map": {"a": trick}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ModelError, match="leaves the model's folder"):
            Tensors.of_folder(model)


def test_a_shard_without_its_tensor_is_named(tmp_path):
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "one.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"one\.safetensors has no tensor 'b'"):
        Tensors.of_folder(tmp_path)


def test_a_file_cut_at_any_byte_is_refused(tmp_path):
    save_file({"a": np.ones((3, 2), np.float32)}, tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    path = tmp_path / "cut"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert "not a complete safetensors file" in refusal(path)
    path.write_bytes(content + b"x")
    assert "the file at" in refusal(path)


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        (b"{not json", b"", "header is not JSON"),
        (b"[" * 5000, b"", "header is not JSON"),
        ([1], b"", "not a JSON object"),
        ({"a": 3}, b"", "not a dtype, a shape and two offsets"),
        ({"a": entry("F32", [1], 0, 4) | {"shape": "1"}}, b"0000", "not a dtype, a shape"),
        ({"a": entry("F32", [-1], 0, 4)}, b"0000", "not a dtype, a shape"),
        ({"a": entry("F32", [True], 0, 4)}, b"0000", "not a dtype, a shape"),
        ({"a": entry("F32", [1.0], 0, 4)}, b"0000", "not a dtype, a shape"),  # type: ignore[list-item]
        ({"a": entry("F32", [1], -4, 0)}, b"0000", "not a dtype, a shape"),
        ({"a": entry("F32", [2], 0, 8)}, b"0000", "is the file cut"),
        ({"a": entry("F32", [1], 4, 0)}, b"0000", "is the file cut"),
        ({"a": entry("F32", [3], 0, 4)}, b"0000", "does not fill 4 bytes"),
        ({"a": entry("F32", [2**40, 2**40], 0, 4)}, b"0000", "does not fill 4 bytes"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, b"0000", "the one before it ends"),
        ({"a": entry("F32", [1], 4, 8)}, b"00000000", "the one before it ends"),
        ({"a": entry("F8_E4M3", [4], 0, 4)}, b"0000", "type 'F8_E4M3'. Known: F64"),
    ],
)
def test_a_wrong_header_is_refused_with_its_reason(tmp_path, header, data, reason):
    assert reason in refusal(written(tmp_path / "m", header, data))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 101 * 2**20])
def test_a_header_that_claims_too_much_is_not_read(tmp_path, length):
    assert "at most 104,857,600 are allowed" in refusal(written(tmp_path / "m", {}, length=length))


def test_a_missing_file_is_named(tmp_path):
    assert "no weights at" in refusal(tmp_path / "model.safetensors")


def test_any_changed_byte_before_the_numbers_is_refused_or_harmless(tmp_path):
    numbers = {"a": np.ones((3, 2), np.float32), "b": np.ones(2, np.float16)}
    save_file(numbers, tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    path = tmp_path / "changed"
    for position in range(len(content) - 28):
        for flip in (1, 16, 255):
            changed = bytearray(content)
            changed[position] ^= flip
            path.write_bytes(changed)
            try:
                tensors = Tensors({path: None})
            except ModelError:
                continue
            assert sum(array.size for array in tensors.values()) > 0
