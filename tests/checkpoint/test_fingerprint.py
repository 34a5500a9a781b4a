"""A fingerprint changes with everything that changes a vector, and with nothing else."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from gemel.checkpoint.fingerprint import Fingerprint, weights_hash
from gemel.checkpoint.folder import read_checkpoint
from gemel.errors import ModelError
from tiny import tiny_bert

EXAMPLE = Fingerprint(
    weights="ab" * 32,
    pooling=("mean", "max"),
    prompt="query: ",
    normalize=True,
    dim=384,
    precision="float32",
    output="float32",
    max_length=256,
    on_long="warn",
)


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_json_round_trip():
    text = json.dumps(EXAMPLE.to_json())
    back = Fingerprint.from_json({**json.loads(text), "later": "addition"})
    assert back == EXAMPLE
    assert back.digest == EXAMPLE.digest


def test_the_digest_is_short_and_stable():
    assert EXAMPLE.digest == "ec3cff925b826d92"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weights", "cd" * 32),
        ("pooling", ("max", "mean")),
        ("prompt", ""),
        ("normalize", False),
        ("dim", 128),
        ("precision", "int8"),
        ("output", "binary"),
        ("max_length", 128),
        ("on_long", "chunk"),
    ],
)
def test_every_field_changes_the_digest_and_is_named_as_the_difference(name, value):
    other = replace(EXAMPLE, **{name: value})
    assert other.digest != EXAMPLE.digest
    (line,) = EXAMPLE.differences(other)
    assert line.startswith(f"{name}: ")
    assert EXAMPLE.differences(EXAMPLE) == []


def test_invalid_json_is_not_a_fingerprint():
    with pytest.raises(ModelError, match="it has no pooling, prompt"):
        Fingerprint.from_json({"weights": "x"})


def test_the_same_model_elsewhere_has_the_same_hash(tmp_path):
    first = tiny_bert(tmp_path / "a", dense=4)
    shutil.copytree(first, tmp_path / "b")
    (tmp_path / "b" / "README.md").write_text("a model")
    change(tmp_path / "b" / "config.json", transformers_version="9", _name_or_path="x")
    one, two = (weights_hash(read_checkpoint(tmp_path / name)) for name in "ab")
    assert one == two
    assert len(one) == 64


def test_every_part_that_computes_changes_the_hash(tmp_path):
    seen = set()
    for number in range(7):
        folder = tiny_bert(tmp_path / str(number), dense=4, seed=1 if number == 1 else 0)
        if number == 2:
            tokenizer = folder / "tokenizer.json"
            tokenizer.write_text(tokenizer.read_text() + " ")
        if number == 3:
            shutil.copy(tmp_path / "1" / "2_Dense" / "model.safetensors", folder / "2_Dense")
        if number == 4:
            change(folder / "2_Dense" / "config.json", activation_function="torch.nn.modules.linear.Identity")
        if number == 5:
            change(folder / "sentence_bert_config.json", do_lower_case=True)
        if number == 6:
            change(folder / "config.json", hidden_act="relu")
        seen.add(weights_hash(read_checkpoint(folder)))
    assert len(seen) == 7
