"""Pickled weights become safetensors with the same numbers; nothing in a pickle is ever run."""

from __future__ import annotations

import json
import pickle
import tomllib
from pathlib import Path

import numpy as np
import pytest

from gemel.checkpoint.convert import convert
from gemel.checkpoint.files import reason_of
from gemel.checkpoint.folder import read_checkpoint
from gemel.checkpoint.tokenizer import load_tokenizer
from gemel.errors import InputError, MissingExtra, ModelError
from tiny import tiny_bert

torch = pytest.importorskip("torch", reason="converting needs the train extra")


def pickled(folder: Path, *, legacy: bool = False) -> Path:
    """The checkpoint in `folder` with every safetensors file turned into pytorch_model.bin."""
    from safetensors.torch import load_file

    for path in folder.rglob("model.safetensors"):
        target = path.with_name("pytorch_model.bin")
        torch.save(load_file(path), target, _use_new_zipfile_serialization=not legacy)
        path.unlink()
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def numbers(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = read_checkpoint(folder)
    dense = {f"dense {n}": layer.weight for n, layer in enumerate(checkpoint.dense)}
    return {**checkpoint.weights, **dense}


@pytest.mark.parametrize("legacy", [False, True])
def test_conversion_in_place_keeps_the_values_and_the_old_file(tmp_path, legacy):
    expected = numbers(tiny_bert(tmp_path / "reference", dense=4))
    folder = pickled(tiny_bert(tmp_path / "tiny", dense=4), legacy=legacy)
    with pytest.raises(ModelError, match="gemel models convert"):
        read_checkpoint(folder)
    result = convert(folder)
    assert result.written == (folder / "model.safetensors", folder / "2_Dense" / "model.safetensors")
    actual = numbers(folder)
    assert actual.keys() == expected.keys()
    assert all(np.array_equal(actual[name], expected[name]) for name in expected)
    assert (folder / "pytorch_model.bin").is_file()
    assert convert(folder).written == ()


def test_conversion_into_a_new_folder_leaves_the_pickles_out(tmp_path):
    folder = pickled(tiny_bert(tmp_path / "tiny", dense=4))
    (folder / "extra.json").write_text("{}")
    before = sorted(folder.rglob("*"))
    out = tmp_path / "below" / "new"
    result = convert(folder, out)
    assert result.folder == out
    assert all(path.is_file() for path in result.written)
    assert read_checkpoint(out).dim == 4
    assert (out / "extra.json").is_file()
    assert not list(out.rglob("*.bin"))
    assert sorted(folder.rglob("*")) == before
    assert names(out.parent) == ["new"]
    with pytest.raises(InputError, match="exists already"):
        convert(folder, out)


def test_a_link_out_of_the_model_is_not_copied(tmp_path):
    (tmp_path / "secret").write_text("private", encoding="utf-8")
    folder = pickled(tiny_bert(tmp_path / "tiny"))
    (folder / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelError, match=r"notes.txt is a link to a file outside the model"):
        convert(folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_links_of_the_hub_s_cache_are_followed(tmp_path):
    blobs, folder = tmp_path / "models--tiny" / "blobs", tmp_path / "models--tiny" / "snapshots" / "a1"
    folder.mkdir(parents=True)
    for number, path in enumerate(sorted(pickled(tiny_bert(blobs)).iterdir())):
        if path.is_file():
            (folder / path.name).symlink_to(path.rename(blobs / f"blob{number}"))
        else:
            path.rename(folder / path.name)
    convert(folder, tmp_path / "new")
    assert read_checkpoint(tmp_path / "new").weights


def test_shared_and_strided_tensors_and_old_names_are_written_out(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    table = torch.arange(12.0).reshape(3, 4)
    content = {
        "a": table,
        "tied": table,
        "turned": table.T,
        "view": table[1:],
        "LayerNorm.gamma": table[0],
        "n": 3,
    }
    torch.save({"state_dict": content}, folder / "pytorch_model.bin")
    convert(folder)
    weights = read_checkpoint(folder).weights
    assert sorted(weights) == ["LayerNorm.weight", "a", "tied", "turned", "view"]
    assert np.array_equal(weights["turned"], table.T.numpy())
    assert np.array_equal(weights["view"], table[1:].numpy())


def test_shards_become_one_file(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.ones(2)}, folder / "one.bin")
    torch.save({"b": torch.zeros(3)}, folder / "two.bin")
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.bin", "b": "two.bin"}}))
    convert(folder)
    assert sorted(read_checkpoint(folder).weights) == ["a", "b"]
    (folder / "model.safetensors").unlink()
    index.write_text(json.dumps({"weight_map": {"a": "../one.bin"}}))
    with pytest.raises(ModelError, match="leaves the model's folder"):
        convert(folder)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "Weights only load failed. Set `weights_only` to `False`.\n\nUnsupported operand 149",
            "Weights only load failed.",
        ),
        (
            "Weights only load failed.\n\tWeightsUnpickler: GLOBAL os.system was not allowed",
            "it calls os.system, which is code",
        ),
        (
            "The folder has custom code. Pass `trust_remote_code=True` to run it.",
            "The folder has custom code.",
        ),
        ("Loading requires allow_pickle=True", "ValueError"),
        ("", "ValueError"),
    ],
)
def test_advice_to_disable_safety_checks_is_not_shown(message, reason):
    shown = reason_of(ValueError(message))
    assert shown.startswith(reason)
    assert not any(word in shown for word in ("weights_only", "trust_remote_code", "allow_pickle", "\n"))


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("ran"),))


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_a_pickle_with_code_in_it_is_refused_and_not_run(tmp_path, monkeypatch, writer):
    monkeypatch.chdir(tmp_path)
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    with (folder / "pytorch_model.bin").open("wb") as stream:
        (torch.save if writer == "torch" else pickle.dump)({"a": Evil()}, stream)
    with pytest.raises(ModelError, match=r"as plain weights.*Do not use this checkpoint") as caught:
        convert(folder)
    for advice in ("weights_only", "trusted source", "Re-running", "False"):
        assert advice not in str(caught.value)
    assert not Path("ran").exists()
    assert not (folder / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("2.5.1+cpu", False),
        ("2.6.0", False),
        ("2.9.1+cu128", False),
        ("2.10.0a0+git1", False),
        ("2.10.0", True),
        ("2.10.0+cpu", True),
        ("2.13.0", True),
        ("3.0.0", True),
    ],
)
def test_a_torch_version_with_unsafe_unpickling_is_refused(tmp_path, monkeypatch, version, safe):
    """CVE-2025-32434 (before 2.6) and CVE-2026-24747 (before 2.10) run code although only weights are read."""
    folder = pickled(tiny_bert(tmp_path / "tiny"))
    monkeypatch.setattr(torch, "__version__", version)
    if safe:
        assert convert(folder).written == (folder / "model.safetensors",)
        return
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(ModelError, match=r"a pickle can run code in torch.*pip install 'torch>=2\.10'"):
        convert(folder)


def test_the_extra_requires_a_torch_that_can_convert():
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "torch>=2.10" in extras["project"]["optional-dependencies"]["train"]


def test_a_file_without_tensors_is_refused(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    torch.save([1, 2], folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="has no table of tensors"):
        convert(folder)
    with pytest.raises(ModelError, match="no model folder"):
        convert(tmp_path / "absent")


def test_an_interrupted_write_leaves_no_partial_file(tmp_path, monkeypatch):
    folder = pickled(tiny_bert(tmp_path / "tiny"))
    before = sorted(folder.rglob("*"))

    def stopped(_tensors, path, metadata):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save_file", stopped)
    with pytest.raises(KeyboardInterrupt):
        convert(folder)
    assert sorted(folder.rglob("*")) == before
    with pytest.raises(KeyboardInterrupt):
        convert(folder, tmp_path / "out")
    assert names(tmp_path) == ["tiny"]


def test_a_missing_tokenizer_json_is_made_by_transformers(tmp_path):
    pytest.importorskip("transformers", reason="converting a tokenizer needs the train extra")
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "tokenizer.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "roberta", "pad_token_id": 1}))
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "c", "a", "t", "ca", "cat", "\u0120"]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\nc a\nca t\n")
    with pytest.raises(ModelError, match="gemel models convert"):
        read_checkpoint(folder)
    assert convert(folder).written == (folder / "tokenizer.json",)
    tokenizer = load_tokenizer(read_checkpoint(folder))
    assert tokenizer.encode("cat").tokens == ["<s>", "cat", "</s>"]


def test_without_the_extra_the_message_says_what_to_install(tmp_path, monkeypatch):
    folder = pickled(tiny_bert(tmp_path / "tiny"))
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'gemel\[train\]'"):
        convert(folder)


def test_a_sentencepiece_model_requires_sentencepiece(tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="tokenizers are converted by transformers")
    folder = tiny_bert(tmp_path / "tiny")
    (folder / "tokenizer.json").rename(folder / "sentencepiece.bpe.model")
    monkeypatch.setattr("gemel.checkpoint.convert.find_spec", lambda _: None)
    with pytest.raises(ModelError, match="pip install sentencepiece protobuf"):
        convert(folder)
