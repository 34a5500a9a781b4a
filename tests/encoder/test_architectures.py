"""Every architecture: read from its weights, equal to the reference, and batch-invariant."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from gemel.checkpoint.architecture import architecture_of, model_types
from gemel.encoder.engines.onnx import OnnxEngine
from gemel.encoder.engines.reference import PlainNetwork
from gemel.encoder.weights import read_network
from gemel.errors import ModelError
from tiny import ARCHITECTURES, VARIANTS, reference_network, tiny_bert, tiny_checkpoint

LENGTHS = (1, 2, 3, 9, 40)


@pytest.fixture(scope="module", params=[*model_types(), *VARIANTS])
def folder(request, tmp_path_factory):
    pytest.importorskip("transformers", reason="the reference implementation is in the train extra")
    model_type, settings = VARIANTS.get(request.param, (request.param, {}))
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / model_type, model_type, **settings)


@pytest.fixture(scope="module")
def network(folder):
    return read_network(*read_folder(folder))


def read_folder(folder):
    config = json.loads((folder / "config.json").read_text())
    return config, load_file(folder / "model.safetensors")


def some_ids(texts, tokens, seed=0):
    return np.random.default_rng(seed).integers(4, 212, (texts, tokens)).astype(np.int32)


def mean_cosine(left, right):
    left, right = left.mean(axis=1), right.mean(axis=1)
    return (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


def test_every_architecture_has_a_tiny_model():
    assert sorted(ARCHITECTURES) == model_types()


def test_hidden_states_equal_the_reference(folder, network):
    import torch

    reference = reference_network(folder)
    engine = OnnxEngine(network)
    for tokens in LENGTHS:
        ids = some_ids(3, tokens)
        with torch.no_grad():
            wanted = reference(
                input_ids=torch.from_numpy(ids).long(), attention_mask=torch.ones(ids.shape, dtype=torch.long)
            )
        np.testing.assert_allclose(engine.hidden(ids), wanted.last_hidden_state.numpy(), rtol=0, atol=1e-5)


def test_the_numpy_reference_equals_the_engine(network):
    engine, page = OnnxEngine(network), PlainNetwork(network)
    for tokens in LENGTHS:
        ids = some_ids(2, tokens)
        np.testing.assert_allclose(page.hidden(ids), engine.hidden(ids), rtol=0, atol=1e-5)


def test_a_long_text_is_as_exact_as_in_the_reference(tmp_path):
    """512 tokens of an mT5, whose states are as large as 4, differ from torch by 1.4e-5: rounding, on both sides alike.

    Held to the same network in float64, torch itself is off by 1.3e-5.
    """
    pytest.importorskip("transformers", reason="the reference implementation is in the train extra")
    import torch

    folder = tiny_checkpoint(tmp_path, "mt5")
    network, ids = read_network(*read_folder(folder)), some_ids(1, 512)
    exact = PlainNetwork(network, exact=True).hidden(ids)
    with torch.no_grad():
        theirs = reference_network(folder)(input_ids=torch.from_numpy(ids).long()).last_hidden_state.numpy()
    ours, torch_is_off = OnnxEngine(network).hidden(ids), np.abs(theirs - exact).max()
    assert exact.dtype == np.float64 and 2e-6 < torch_is_off < 3e-5
    assert np.abs(ours - exact).max() < 3 * torch_is_off


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_row_has_the_same_bits_alone_and_among_others(network, precision):
    engine = OnnxEngine(network, precision=precision)
    for tokens in LENGTHS:
        ids = some_ids(17, tokens)
        together = engine.hidden(ids)
        for row in range(len(ids)):
            assert np.array_equal(engine.hidden(ids[row : row + 1])[0], together[row])
        assert np.array_equal(engine.hidden(ids[::-1]), together[::-1])


def test_int8_is_near_float32(network):
    exact, near = OnnxEngine(network), OnnxEngine(network, precision="int8")
    for tokens in LENGTHS:
        ids = some_ids(8, tokens)
        assert mean_cosine(near.hidden(ids), exact.hidden(ids)).min() > 0.99


def test_the_word_table_is_not_copied(folder):
    config, weights = read_folder(folder)
    word = read_network(config, weights).word
    assert any(np.shares_memory(word, weight) for weight in weights.values())


def test_mpnet_distances_fall_into_the_buckets_of_the_reference():
    pytest.importorskip("transformers", reason="the reference implementation is in the train extra")
    import torch
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    from gemel.encoder.architectures.mpnet import bucket_of

    distances = np.arange(-600, 601)
    wanted = MPNetEncoder.relative_position_bucket(torch.from_numpy(distances))
    assert np.array_equal(bucket_of(distances), wanted.numpy())


@pytest.mark.parametrize(("buckets", "farthest"), [(256, 512), (8, 64), (32, 128), (256, 1680)])
def test_deberta_distances_fall_into_the_buckets_of_the_reference(buckets, farthest):
    pytest.importorskip("transformers", reason="the reference implementation is in the train extra")
    import torch
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    from gemel.encoder.architectures.deberta import bucket_of

    distances = np.arange(1 - farthest, farthest)
    wanted = make_log_bucket_position(torch.from_numpy(distances), buckets, farthest)
    assert np.array_equal(bucket_of(distances, buckets, farthest), wanted.numpy().astype(np.int64))


@pytest.mark.parametrize("positions", [False, True])
def test_a_deberta_with_a_narrower_word_table_is_projected_once(tmp_path, positions):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", reason="the tiny DeBERTa is made by transformers")
    settings = {"embedding_size": 16, "position_biased_input": positions}
    folder = tiny_checkpoint(tmp_path, "deberta-v2", **settings)
    network, ids = read_network(*read_folder(folder)), some_ids(2, 9)
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        wanted = reference(input_ids=torch.from_numpy(ids).long()).last_hidden_state.numpy()
    np.testing.assert_allclose(PlainNetwork(network).hidden(ids), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"conv_kernel_size": 4}, "'conv_kernel_size'"),
        ({"conv_kernel_size": 3, "conv_groups": 2}, "'conv_groups'"),
        ({"conv_kernel_size": 3}, "encoder.conv.conv.weight' is missing"),
        ({"talking_head": True}, "'talking_head'"),
        ({"attention_head_size": 16}, "'attention_head_size'"),
        ({"pos_att_type": "c2p|p2p"}, "pos_att_type 'p2p'"),
        ({"pos_att_type": 3}, "'pos_att_type' as a list"),
        ({"type_vocab_size": 2, "embedding_size": 16}, "'embedding_size'"),
    ],
)
def test_a_deberta_with_steps_that_are_not_read_is_refused(tmp_path, values, message):
    pytest.importorskip("transformers", reason="the tiny DeBERTa is made by transformers")
    sizes = {key: value for key, value in values.items() if key.endswith("_size") and "conv" not in key}
    sizes.pop("attention_head_size", None)
    config, weights = read_folder(tiny_checkpoint(tmp_path, "deberta-v2", **sizes))
    with pytest.raises(ModelError, match=message):
        read_network({**config, **values}, weights)


@pytest.mark.parametrize("theta", [10_000.0, 160_000.0])
def test_rotary_angles_are_those_of_the_reference_at_every_position(theta):
    pytest.importorskip("transformers", reason="the reference implementation is in the train extra")
    import torch
    from transformers import ModernBertConfig
    from transformers.models.modernbert.modeling_modernbert import ModernBertRotaryEmbedding

    from gemel.encoder.network import Rotary, rotary_speeds

    kinds = {
        name: {"rope_type": "default", "rope_theta": theta}
        for name in ("full_attention", "sliding_attention")
    }
    config = ModernBertConfig(hidden_size=128, num_attention_heads=2, rope_parameters=kinds)
    positions = torch.arange(8192)[None]
    wanted = ModernBertRotaryEmbedding(config)(torch.zeros(1), positions, "full_attention")
    for ours, theirs in zip(Rotary(rotary_speeds(theta, 64)).tables(8192), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs[0, :, :32].numpy(), rtol=0, atol=2e-7)


def test_albert_layers_of_a_group_are_one_object(tmp_path):
    pytest.importorskip("transformers", reason="the tiny ALBERT is made by transformers")
    config, weights = read_folder(tiny_checkpoint(tmp_path, "albert"))
    first, second, third, fourth = read_network(config, weights).blocks
    assert first is second and third is fourth and first is not third


def test_modernbert_reads_the_older_names_of_its_settings(tmp_path):
    pytest.importorskip("transformers", reason="the tiny ModernBERT is made by transformers")
    config, weights = read_folder(tiny_checkpoint(tmp_path, "modernbert"))
    del config["rope_parameters"], config["layer_types"]
    config |= {"global_attn_every_n_layers": 2, "global_rope_theta": 5000.0, "local_rope_theta": 100.0}
    blocks = read_network(config, weights).blocks
    thetas = [1 / block.rotary.speeds[1] ** (8 / 2) for block in blocks]  # heads of 8 numbers
    assert thetas == pytest.approx([5000.0, 100.0, 5000.0, 100.0], rel=1e-5)
    assert [block.window for block in blocks] == [None, 4, None, 4]


@pytest.fixture
def bert(tmp_path):
    return read_folder(tiny_bert(tmp_path / "model"))


@pytest.mark.parametrize("prefix", ["bert.", "model.", "0.auto_model.", "encoder.bert."])
def test_a_prefix_on_the_names_changes_nothing(bert, prefix):
    config, weights = bert
    ids = some_ids(2, 5)
    plain = OnnxEngine(read_network(config, weights)).hidden(ids)
    other = {prefix + name: weight for name, weight in weights.items()} | {
        "cls.bias": np.zeros(3, np.float32)
    }
    assert np.array_equal(OnnxEngine(read_network(config, other)).hidden(ids), plain)


def test_norms_may_have_their_old_names(bert):
    config, weights = bert
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): weight
        for name, weight in weights.items()
    }
    assert "embeddings.LayerNorm.gamma" in old
    new, renamed = read_network(config, weights), read_network(config, old)
    assert np.array_equal(new.blocks[1].ffn_norm.weight, renamed.blocks[1].ffn_norm.weight)


def test_an_unknown_architecture_is_refused(bert):
    config, weights = bert
    assert architecture_of(config) and not architecture_of({"model_type": "gpt2"}) and not architecture_of({})
    with pytest.raises(ModelError, match=r"unknown architecture 'gpt2'.*Known: albert, bert, camembert"):
        read_network({"model_type": "gpt2"}, weights)


def test_a_missing_weight_is_named(bert):
    config, weights = bert
    del weights["encoder.layer.1.intermediate.dense.bias"]
    with pytest.raises(ModelError, match=r"'encoder.layer.1.intermediate.dense.bias' is missing"):
        read_network(config, weights)


def test_weights_without_a_word_table_are_refused(bert):
    config, weights = bert
    del weights["embeddings.word_embeddings.weight"]
    with pytest.raises(ModelError, match=r"'embeddings.word_embeddings.weight' is missing"):
        read_network(config, weights)


def test_two_encoders_in_one_file_are_refused(bert):
    config, weights = bert
    two = {f"{part}.{name}": weight for name, weight in weights.items() for part in ("query", "document")}
    with pytest.raises(ModelError, match=r"2 encoders \(prefixes 'document.', 'query.'\)"):
        read_network(config, two)


def test_a_weight_of_another_shape_is_named_with_both_shapes(bert):
    config, weights = bert
    with pytest.raises(
        ModelError, match=r"intermediate.dense.weight' has shape \(64, 32\).* asks for \(99, 32\)"
    ):
        read_network({**config, "intermediate_size": 99}, weights)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder"),
        ({"hidden_act": "mish"}, "unknown activation 'mish'.*Known: .*gelu"),
        ({"hidden_act": ["gelu"]}, "unknown activation"),
        ({"layer_norm_eps": "x"}, "'layer_norm_eps' as a number from 0 to 1, got 'x'"),
        ({"num_attention_heads": 5}, "5 attention heads, which do not divide the width 32"),
        ({"hidden_size": None}, "'hidden_size' as a whole number"),
    ],
)
def test_settings_that_would_be_silently_wrong_are_refused(bert, setting, message):
    config, weights = bert
    with pytest.raises(ModelError, match=message):
        read_network({**config, **setting}, weights)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "scales the rotary positions"),
        ({"layer_types": ["full_attention"]}, "4 layer_types"),
    ],
)
def test_modernbert_variants_are_refused(tmp_path, setting, message):
    pytest.importorskip("transformers", reason="the tiny ModernBERT is made by transformers")
    config, weights = read_folder(tiny_checkpoint(tmp_path, "modernbert"))
    with pytest.raises(ModelError, match=message):
        read_network({**config, **setting}, weights)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("albert", {"num_hidden_layers": 1_000_000}),
        ("albert", {"num_hidden_layers": 900, "inner_group_num": 900}),
        ("albert", {"num_hidden_groups": 1_000_000_000}),
        ("bert", {"num_hidden_layers": 1_000_000}),
        ("distilbert", {"n_layers": 1_000_000}),
        ("modernbert", {"num_hidden_layers": 1_000_000_000, "layer_types": None}),
        ("modernbert", {"max_position_embeddings": 1_000_000_000}),
        ("mpnet", {"num_hidden_layers": 1_000_000}),
    ],
)
def test_a_network_with_excessive_sizes_is_refused_immediately(tmp_path, kind, changes):
    folder = tiny_checkpoint(tmp_path, kind)
    config, weights = (
        json.loads((folder / "config.json").read_text()),
        load_file(folder / "model.safetensors"),
    )
    with pytest.raises(ModelError, match=r"config.json (asks for .* are run|(must )?gives? )"):
        read_network({**config, **changes}, weights)


@pytest.mark.parametrize(
    ("model_type", "settings", "lost"),
    [
        ("qwen3", {}, "self_attn.q_norm.weight"),
        ("qwen3", {}, "self_attn.k_norm.weight"),
        ("gemma3_text", {}, "self_attn.q_norm.weight"),
        ("qwen2", {}, "self_attn.q_proj.bias"),
        ("qwen2", {}, "self_attn.v_proj.bias"),
        ("llama", {"attention_bias": True}, "self_attn.o_proj.bias"),
        ("llama", {"mlp_bias": True}, "mlp.up_proj.bias"),
    ],
)
def test_a_decoder_that_lost_a_kind_of_weight_is_refused(tmp_path, model_type, settings, lost):
    pytest.importorskip("transformers", reason="the tiny decoders are made by transformers")
    config, weights = read_folder(tiny_checkpoint(tmp_path, model_type, **settings))
    left = {name: weight for name, weight in weights.items() if not name.endswith(lost)}
    assert len(left) < len(weights)
    with pytest.raises(ModelError, match=f"{lost.replace('.', '[.]')}' is missing"):
        read_network(config, left)


def test_a_decoder_with_a_bias_that_its_config_does_not_have_is_refused(tmp_path):
    pytest.importorskip("transformers", reason="the tiny decoders are made by transformers")
    config, weights = read_folder(tiny_checkpoint(tmp_path, "mistral"))
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    weights[name.replace("weight", "bias")] = np.zeros(len(weights[name]), np.float32)
    with pytest.raises(
        ModelError, match=r"q_proj\.bias.*which the network of its config\.json does not have"
    ):
        read_network(config, weights)
