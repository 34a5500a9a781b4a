"""LoRA adapters are added to the weights of their base model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.errors import ModelError
from tiny import tiny_bert

TEXTS = ["A man is playing a guitar.", "the", "a dog and a cat"]
LAYERS = ("encoder.layer.0.attention.self.query", "encoder.layer.1.output.dense")
RANK = 4


def matrices(seed: int = 0, prefix: str = "base_model.model.") -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = ((32, 32), (32, 64))
    parts: dict[str, np.ndarray] = {}
    for layer, (outputs, inputs) in zip(LAYERS, shapes, strict=True):
        parts[f"{prefix}{layer}.lora_A.weight"] = random.normal(0, 0.3, (RANK, inputs)).astype(np.float32)
        parts[f"{prefix}{layer}.lora_B.weight"] = random.normal(0, 0.3, (outputs, RANK)).astype(np.float32)
    return parts


def write_adapter(folder: Path, base: Path | str, tensors: dict[str, np.ndarray], **settings: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(base),
        "r": RANK,
        "lora_alpha": 8,
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps({**config, **settings}))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_checkpoint(folder)
    return str(caught.value)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_vectors_are_those_of_the_sum(tmp_path, precision):
    base, tensors = tiny_bert(tmp_path / "base"), matrices()
    adapted = gemel.load(write_adapter(tmp_path / "adapter", base, tensors), precision=precision)
    merged = tiny_bert(tmp_path / "merged")
    weights = load_file(merged / "model.safetensors")
    for layer in LAYERS:
        a, b = (tensors[f"base_model.model.{layer}.lora_{part}.weight"] for part in "AB")
        weights[f"{layer}.weight"] = weights[f"{layer}.weight"] + b @ a * np.float32(2)
    save_file(weights, merged / "model.safetensors")
    expected = gemel.load(merged, precision=precision).encode(TEXTS)
    np.testing.assert_array_equal(adapted.encode(TEXTS), expected)
    assert np.abs(expected - gemel.load(base, precision=precision).encode(TEXTS)).max() > 1e-3
    saved = gemel.load(adapted.save(tmp_path / "saved"), precision=precision)
    np.testing.assert_array_equal(saved.encode(TEXTS), expected)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft uses a name that transformers renamed
@pytest.mark.parametrize(
    "settings", [{}, {"use_rslora": True}, {"alpha_pattern": {"attention.self.query": 1.5}}], ids=str
)
def test_the_sum_is_that_of_peft(tmp_path, settings):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    base = tiny_bert(tmp_path / "base")
    network = transformers.BertModel.from_pretrained(base)
    config = peft.LoraConfig(r=RANK, lora_alpha=6, target_modules=["query", "output.dense"], **settings)
    wrapped = peft.get_peft_model(network, config)
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.2)
    wrapped.save_pretrained(tmp_path / "adapter")
    model = gemel.load(tmp_path / "adapter")
    assert model.checkpoint.adapter is not None
    for text in TEXTS:
        ids = torch.tensor([[piece.id for piece in model.tokenizer.pieces(text)]])
        with torch.no_grad():
            expected = wrapped.eval()(input_ids=ids).last_hidden_state[0].numpy()
        (tokens,) = model.tokens([text])
        np.testing.assert_allclose(tokens.vectors, expected, rtol=0, atol=1e-5)


def test_a_folder_of_sentence_transformers_with_an_adapter(tmp_path):
    base = tiny_bert(tmp_path / "base", pooling="cls")
    folder = tiny_bert(
        tmp_path / "adapter", pooling="mean", normalize=False, prompts={"query": "q: "}, max_length=9
    )
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).unlink()
    write_adapter(folder, base, matrices())
    plain = write_adapter(tmp_path / "plain", base, matrices())
    checkpoint = read_checkpoint(folder)
    assert (checkpoint.pooling.modes, checkpoint.normalize, checkpoint.max_length) == (("mean",), False, 9)
    assert checkpoint.tokenizer_file == base / "tokenizer.json"
    assert checkpoint.prompts == {"query": "q: "}
    (one,), (other,) = (gemel.load(each).tokens(["the"]) for each in (folder, plain))
    np.testing.assert_array_equal(one.vectors, other.vectors)
    assert read_checkpoint(plain).pooling.modes == ("cls",)


def test_prefixes_of_either_side_and_transposed_weights(tmp_path):
    base = tiny_bert(tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    save_file({f"bert.{name}": weight for name, weight in weights.items()}, base / "model.safetensors")
    tensors = matrices()
    checkpoint = read_checkpoint(write_adapter(tmp_path / "one", base, tensors))
    name = f"bert.{LAYERS[0]}.weight"
    a, b = (tensors[f"base_model.model.{LAYERS[0]}.lora_{part}.weight"] for part in "AB")
    expected = weights[f"{LAYERS[0]}.weight"] + 2 * (b @ a)
    np.testing.assert_allclose(checkpoint.weights[name], expected, rtol=1e-6)
    square = {
        key: value for key, value in matrices(prefix="base_model.model.bert.").items() if "query" in key
    }
    folder = write_adapter(tmp_path / "two", base, square, fan_in_fan_out=True)
    expected = weights[f"{LAYERS[0]}.weight"] + 2 * (b @ a).T
    np.testing.assert_allclose(read_checkpoint(folder).weights.read(name), expected, rtol=1e-6)


def test_the_fingerprint_depends_on_the_adapter_and_its_settings(tmp_path):
    base = tiny_bert(tmp_path / "base")
    folders = [
        base,
        write_adapter(tmp_path / "one", base, matrices()),
        write_adapter(tmp_path / "two", base, matrices(), lora_alpha=9),
        write_adapter(tmp_path / "three", base, matrices(1)),
    ]
    assert len({gemel.load(folder).weights_hash for folder in folders}) == len(folders)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"peft_type": "IA3"}, "the kind 'IA3' is not supported"),
        ({"use_dora": True}, "the key 'use_dora'"),
        ({"modules_to_save": ["classifier"]}, "the key 'modules_to_save'"),
        ({"bias": "all"}, "'bias' is 'all'"),
        ({"init_lora_weights": "pissa"}, "'pissa' changed the base model"),
        ({"alpha_pattern": {"(a+)+$": 3}}, "only names of layers"),
        ({"alpha_pattern": {"query": "3"}}, "must be finite numbers"),
        ({"lora_alpha": 10**400}, "must be finite numbers"),
        ({"base_model_name_or_path": ""}, "does not name its base model"),
        ({"base_model_name_or_path": "./absent"}, "no model folder absent"),
    ],
)
def test_what_is_not_followed_is_refused(tmp_path, settings, reason):
    base = tiny_bert(tmp_path / "base")
    assert reason in refusal(write_adapter(tmp_path / "adapter", base, matrices(), **settings))


def test_matrices_that_do_not_fit_are_refused(tmp_path):
    base, tensors = tiny_bert(tmp_path / "base"), matrices()
    first = next(iter(tensors))
    for changed, reason in (
        (
            {**tensors, "base_model.model.embeddings.lora_embedding_A": np.ones((2, 2), np.float32)},
            "is not a LoRA",
        ),
        ({name: value for name, value in tensors.items() if name != first}, "one of the two matrices"),
        ({**tensors, first: np.ones((RANK, 31), np.float32)}, "for a weight of shape (32, 31)"),
        (
            {name.replace("query", "absent"): value for name, value in tensors.items()},
            "has none of that name",
        ),
        (
            {name: value[:0] if "lora_A" in name else value[:, :0] for name, value in tensors.items()},
            "have the ranks 0 and 0",
        ),
        ({}, "no matrices"),
    ):
        assert reason in refusal(write_adapter(tmp_path / "adapter", base, changed))


def test_torch_does_not_run_the_base_model_without_its_adapter(tmp_path):
    pytest.importorskip("transformers")
    folder = write_adapter(tmp_path / "adapter", tiny_bert(tmp_path / "base"), matrices())
    with pytest.raises(ModelError, match=r"Save the two as one model first: gemel.load\(\.\.\.\)\.save"):
        gemel.load(folder, engine="torch")
