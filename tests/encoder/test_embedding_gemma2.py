"""EmbeddingGemma 2: its text network, alone and inside the model for texts, images and sounds."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.encoder.test_architectures import read_folder, some_ids

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.encoder.engines.reference import PlainNetwork
from gemel.encoder.weights import read_network
from gemel.errors import InputError, ModelError
from tiny import tiny_checkpoint

TEXTS = ["a man is playing a guitar", "rain", "how do i reset my password"]
TOKENS = {
    "audio_token_id": 258881,
    "boa_token_id": 256000,
    "eoa_token_index": 258883,
    "image_token_id": 258880,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    pytest.importorskip("transformers", reason="the tiny model is made by transformers")
    return tiny_checkpoint(tmp_path_factory.mktemp("gemma2") / "text", "embedding_gemma2_text")


@pytest.fixture(scope="module")
def whole(source):
    """As it is published: the text network inside, beside a network for images."""
    folder = source.parent / "whole"
    shutil.copytree(source, folder)
    inside = json.loads((source / "config.json").read_text())
    inside["per_layer_config"] = {
        f"{int(key):02}": value for key, value in inside["per_layer_config"].items()
    }
    config = {"architectures": ["EmbeddingGemma2Model"], "model_type": "embedding_gemma2", **TOKENS}
    (folder / "config.json").write_text(json.dumps({**config, "text_config": inside, "vision_config": None}))
    weights = load_file(source / "model.safetensors")
    named = {f"language_model.{name}": weight for name, weight in weights.items()}
    vision = {"vision_tower.encoder.layers.0.mlp.gate_proj.linear.weight": np.zeros((3, 3), np.float32)}
    save_file({**named, **vision}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_the_whole_model_has_the_vectors_of_its_text_network(source, whole):
    text, inside = gemel.load(source), gemel.load(whole)
    assert inside.dim == 24 and inside.engine_name != "torch"
    assert np.array_equal(inside.encode(TEXTS), text.encode(TEXTS))


def test_transformers_runs_the_whole_model_to_the_same_vectors(whole):
    import torch
    import transformers

    ids = some_ids(2, 9)
    with torch.no_grad():
        reference = transformers.AutoModel.from_pretrained(whole).eval()
        wanted = reference(input_ids=torch.from_numpy(ids).long()).last_hidden_state.numpy()
    network = read_network(*read_folder(whole))
    np.testing.assert_allclose(PlainNetwork(network).hidden(ids), wanted, rtol=0, atol=1e-5)


def test_what_is_saved_is_the_whole_model(whole, tmp_path):
    gemel.load(whole).save(tmp_path / "saved")
    assert np.array_equal(gemel.load(tmp_path / "saved").encode(TEXTS), gemel.load(whole).encode(TEXTS))


def test_a_text_has_at_most_as_many_tokens_as_it_was_trained_for(source):
    config, weights = read_folder(source)
    assert read_network({**config, "max_position_embeddings": 262_144}, weights).max_positions == 8192


def test_global_layers_have_their_own_heads_where_config_json_gives_only_two_numbers(source):
    config, weights = read_folder(source)
    wanted = [block.heads for block in read_network(config, weights).blocks]
    del config["per_layer_config"]
    config |= {"global_head_dim": 20, "num_global_key_value_heads": 1}
    assert [block.heads for block in read_network(config, weights).blocks] == wanted


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"per_layer_config": {"2": {"intermediate_size": 3}}}, "'intermediate_size' of layer 2"),
        ({"per_layer_config": {"two": {}}}, "'per_layer_config' as an object"),
        ({"per_layer_config": [3]}, "'per_layer_config' as an object"),
        ({"layer_types": ["sliding_attention"] * 3}, "the last layer"),
        ({"num_key_value_heads": 3}, "3 heads of keys"),
    ],
)
def test_settings_that_are_not_followed_are_refused(source, values, message):
    config, weights = read_folder(source)
    with pytest.raises(ModelError, match=message):
        read_network({**config, **values}, weights)


def test_no_layer_can_be_left_out(source, tmp_path):
    from gemel.training.distill.methods import keep_layers

    with pytest.raises(InputError, match="share a weight"):
        keep_layers(read_checkpoint(source), (0, 2), tmp_path / "out")
