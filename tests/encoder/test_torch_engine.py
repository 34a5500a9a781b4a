"""The torch engine: exactly the checkpoint's weights, the same bits in any batch and after any text, clear errors."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.encoder.engines.engine import open_engine
from gemel.encoder.engines.torch import TorchEngine
from gemel.errors import InputError, ModelError
from tiny import tiny_bert, tiny_checkpoint
from tiny_torch import OTHERS, change_config, tiny_other, tiny_sentence_encoder

torch = pytest.importorskip("torch", reason="the torch engine is in the train extra")
transformers = pytest.importorskip("transformers", reason="the torch engine is in the train extra")
RUN = sorted(set(OTHERS) - {"clip", "reformer"})
TEXTS = ["a man is playing a guitar", "hello", "the stock market fell", "a cat", "rain", "a dog is running"]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tiny networks wait for threads more than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def megatron(tmp_path_factory):
    return tiny_other(tmp_path_factory.mktemp("models") / "megatron", "megatron-bert")


def copy_of(folder, target):
    shutil.copytree(folder, target)
    return target


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def save_weights(folder, weights):
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def some_ids(texts, tokens, seed=0):
    return np.random.default_rng(seed).integers(4, 212, (texts, tokens)).astype(np.int32)


def refusal(folder, **settings):
    with pytest.raises(ModelError) as caught:
        open_engine(read_checkpoint(folder), **settings)
    return str(caught.value)


# The same bits in any batch and after any other text.


@pytest.mark.parametrize("name", RUN)
def test_a_text_has_the_same_bits_after_a_longer_one_and_in_any_batch(tmp_path, name):
    checkpoint = read_checkpoint(tiny_other(tmp_path / "tiny", name))
    engine = TorchEngine(checkpoint)
    long, middle, short = (some_ids(1, tokens) for tokens in (180, 100, 9))
    first = engine.hidden(short)
    longest = engine.hidden(long)
    np.testing.assert_array_equal(engine.hidden(middle), TorchEngine(checkpoint).hidden(middle))
    np.testing.assert_array_equal(engine.hidden(short), first)
    np.testing.assert_array_equal(engine.hidden(long), longest)
    for tokens in (1, 3, 17):
        ids = some_ids(7, tokens)
        alone = np.concatenate([engine.hidden(row[None]) for row in ids])
        for _ in range(2):  # a shape is compared the first time and trusted the second
            np.testing.assert_array_equal(engine.hidden(ids), alone)
        np.testing.assert_array_equal(engine.hidden(ids[::-1]), alone[::-1])


def test_the_bits_are_the_same_with_the_threads_that_torch_takes_by_itself(megatron):
    torch.set_num_threads(2)
    try:
        engine = TorchEngine(read_checkpoint(megatron))
        ids = some_ids(3, 9)
        alone = np.concatenate([engine.hidden(row[None]) for row in ids])
        np.testing.assert_array_equal(engine.hidden(ids), alone)
        np.testing.assert_array_equal(engine.hidden(ids), alone)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(("cores", "threads"), [("1", 1), ("3", 3), ("8", 4)])
def test_torch_takes_no_more_threads_than_the_process_may_use(megatron, monkeypatch, cores, threads):
    monkeypatch.setenv("GEMEL_THREADS", cores)
    torch.set_num_threads(4)
    try:
        TorchEngine(read_checkpoint(megatron))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)


class Counting:
    """Replaces a network whose bits depend on the batch size, or do not."""

    def __init__(self, engine, *, steady):
        self.calls, self._forward, self._steady = [], engine._forward, steady

    def __call__(self, tokens):
        self.calls.append(len(tokens))
        states = self._forward(tokens)
        return states if self._steady else states + len(tokens) * 1e-7


@pytest.mark.parametrize("steady", [True, False])
def test_rows_share_a_call_only_where_that_changes_no_bit(megatron, monkeypatch, steady):
    engine = TorchEngine(read_checkpoint(megatron))
    # One row gives numbers that do not depend on kernels, so that only `steady` decides.
    monkeypatch.setattr(engine, "_forward", lambda tokens: tokens[..., None].float().expand(-1, -1, 32))
    counting = Counting(engine, steady=steady)
    monkeypatch.setattr(engine, "_forward", counting)
    ids = some_ids(32, 40)
    first = engine.hidden(ids)
    counting.calls.clear()
    np.testing.assert_array_equal(engine.hidden(ids), first)
    assert counting.calls == ([32] if steady else [1] * 32)
    np.testing.assert_array_equal(engine.hidden(ids[3:4]), first[3:4])


def test_a_network_of_experts_is_run_row_by_row(tmp_path, monkeypatch):
    engine = TorchEngine(read_checkpoint(tiny_other(tmp_path / "tiny", "qwen3_moe")))
    counting = Counting(engine, steady=True)
    monkeypatch.setattr(engine, "_forward", counting)
    engine.hidden(some_ids(4, 9))
    assert counting.calls == [1] * 4


def test_a_long_text_has_sparse_attention_whatever_came_before(tmp_path):
    folder = tiny_other(tmp_path / "tiny", "big_bird", attention_type="block_sparse")
    long = some_ids(1, 180)
    engine = TorchEngine(read_checkpoint(folder))
    engine.hidden(some_ids(1, 5))
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        wanted = reference(input_ids=torch.from_numpy(long).long()).last_hidden_state
    np.testing.assert_allclose(engine.hidden(long), wanted.numpy(), rtol=0, atol=1e-5)


# Exactly the weights of the checkpoint.


def test_a_layer_that_is_missing_is_refused_by_name(megatron, tmp_path):
    folder = copy_of(megatron, tmp_path / "tiny")
    save_weights(folder, {k: v for k, v in weights_of(folder).items() if "layer.1." not in k})
    assert "'encoder.layer.1.attention" in refusal(folder)
    assert "missing from the checkpoint" in refusal(folder)


def test_names_with_a_wrong_prefix_are_refused(megatron, tmp_path):
    folder = copy_of(megatron, tmp_path / "tiny")
    save_weights(folder, {f"other.{k}": v for k, v in weights_of(folder).items()})
    assert "missing from the checkpoint" in refusal(folder)


def test_an_extra_layer_is_refused_by_name(megatron, tmp_path):
    folder = copy_of(megatron, tmp_path / "tiny")
    change_config(folder, num_hidden_layers=1)
    assert "'encoder.layer.1.attention" in refusal(folder)
    assert "does not have" in refusal(folder)


def test_an_unknown_weight_is_refused_by_name(megatron, tmp_path):
    folder = copy_of(megatron, tmp_path / "tiny")
    save_weights(folder, {**weights_of(folder), "projection.weight": np.ones((4, 32), np.float32)})
    assert "'projection.weight'" in refusal(folder)


@pytest.mark.parametrize("auto", ["AutoModelForMaskedLM", "AutoModelForSequenceClassification"])
def test_the_head_of_a_larger_model_is_left_out(tmp_path, auto):
    folder = tiny_other(tmp_path / "tiny", "megatron-bert", auto=auto)
    change_config(folder, architectures=["MegatronBertModel"])
    assert TorchEngine(read_checkpoint(folder)).width == 32


def test_a_pooler_may_be_missing_and_a_buffer_may_be_stored(tmp_path):
    folder = tiny_other(tmp_path / "tiny", "big_bird")
    weights = {k: v for k, v in weights_of(folder).items() if "pooler" not in k}
    assert len(weights) < len(weights_of(folder))
    save_weights(folder, {**weights, "embeddings.position_ids": np.arange(256)[None]})
    assert TorchEngine(read_checkpoint(folder)).width == 32


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 64}, r"with shape .*, where config.json asks for"),
        ({"vocab_size": 10**9}, "vocab_size as 1,000,000,000"),
        ({"vocab_size": 50_000_000}, r"\(212, 32\), where config.json asks for \(50000000, 32\)"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers as 1,000,000"),
        ({"num_hidden_layers": 300}, "num_hidden_layers as 300"),
        ({"num_hidden_layers": 3}, "missing from the checkpoint"),
        ({"intermediate_size": 10**7}, "where config.json asks for"),
        ({"num_attention_heads": 0}, "transformers cannot load"),
        ({"hidden_size": "wide"}, "transformers cannot load"),
        ({"model_type": "no-such-type"}, "transformers cannot load"),
    ],
)
def test_sizes_that_do_not_fit_the_weights_are_refused_before_memory_is_allocated(
    megatron, tmp_path, values, message
):
    folder = copy_of(megatron, tmp_path / "tiny")
    change_config(folder, **values)
    assert re.search(message, refusal(folder)), refusal(folder)


def test_training_makes_the_same_checks(megatron, tmp_path):
    from gemel.training.network import open_body
    from gemel.training.options import TrainOptions

    folder = copy_of(megatron, tmp_path / "tiny")
    save_weights(folder, {k: v for k, v in weights_of(folder).items() if "layer.1." not in k})
    with pytest.raises(ModelError, match=r"'encoder\.layer\.1\..*missing from the checkpoint"):
        open_body(read_checkpoint(folder), TrainOptions())


# Other kinds of networks.


@pytest.mark.parametrize("name", ["t5", "mt5", "umt5"])
@pytest.mark.parametrize("auto", ["AutoModel", "AutoModelForTextEncoding", "AutoModelForSeq2SeqLM"])
def test_a_t5_is_run_by_its_encoder(tmp_path, name, auto):
    folder = tiny_sentence_encoder(tmp_path / "tiny", name, auto=auto)
    model = gemel.load(folder, engine="torch")
    reference = transformers.AutoModelForTextEncoding.from_pretrained(folder).eval()
    ids = some_ids(1, 9)
    with torch.no_grad():
        wanted = reference(input_ids=torch.from_numpy(ids).long()).last_hidden_state
    np.testing.assert_allclose(model.engine.hidden(ids), wanted.numpy(), rtol=0, atol=1e-5)
    own = gemel.load(folder)
    assert own.engine_name != "torch"
    np.testing.assert_allclose(own.encode(TEXTS), model.encode(TEXTS), rtol=0, atol=1e-5)


def test_a_t5_without_a_layer_of_its_encoder_is_refused(tmp_path):
    folder = tiny_sentence_encoder(tmp_path / "tiny", "t5")
    save_weights(folder, {k: v for k, v in weights_of(folder).items() if "encoder.block.1." not in k})
    assert "'encoder.block.1." in refusal(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [("clip", "no table of words"), ("reformer", "draws random numbers")],
)
def test_a_network_that_is_not_an_encoder_is_refused(tmp_path, name, message):
    assert message in refusal(tiny_other(tmp_path / "tiny", name))


def test_an_encoder_that_cannot_be_loaded_alone_is_refused(megatron, tmp_path):
    folder = copy_of(megatron, tmp_path / "tiny")
    change_config(folder, model_type="marian")
    assert "its encoder cannot be loaded alone" in refusal(folder)


def test_the_torch_engine_finds_a_transformer_in_a_sub_folder(tmp_path):
    folder = tiny_sentence_encoder(tmp_path / "tiny", "megatron-bert")
    expected = gemel.load(folder).encode(TEXTS)
    inner = folder / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).rename(inner / name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    np.testing.assert_array_equal(gemel.load(folder).encode(TEXTS), expected)


def test_positions_after_the_padding_leave_room_for_fewer_tokens(tmp_path):
    folder = tiny_sentence_encoder(tmp_path / "tiny", "longformer")
    model = gemel.load(folder)
    assert model.max_length == 254
    assert np.isfinite(model.encode(["a man " * 300], on_long="truncate")).all()


def test_a_plain_language_model_gives_the_vector_of_its_last_token(tmp_path):
    model = gemel.load(tiny_other(tmp_path / "tiny", "qwen3", auto="AutoModelForCausalLM"))
    (tokens,) = model.tokens(["a man is playing"])
    np.testing.assert_array_equal(model.encode(["a man is playing"])[0], tokens.vectors[-1])


def test_experts_and_long_texts_do_not_change_what_encode_gives(tmp_path):
    model = gemel.load(tiny_sentence_encoder(tmp_path / "tiny", "megatron-bert"))
    together = model.encode([*TEXTS, "a man " * 60])
    alone = np.concatenate([model.encode([text], threads=1) for text in TEXTS])
    np.testing.assert_array_equal(together[: len(TEXTS)], alone)


# Architectures that gemel reads itself.


def extra_layer(weights, word):
    result = {k: v for k, v in weights.items() if word in k}
    return {k.replace(word, word.replace("1", "2")): v for k, v in result.items()}


def test_an_extra_layer_is_refused_by_the_native_engine_too(tmp_path):
    folder = tiny_bert(tmp_path / "tiny", layers=2)
    weights = weights_of(folder)
    save_weights(folder, {**weights, **extra_layer(weights, "encoder.layer.1.")})
    assert "'encoder.layer.2.attention" in refusal(folder)
    assert "'encoder.layer.2.attention" in refusal(folder, engine="torch")


def test_heads_poolers_and_buffers_next_to_the_network_are_left_out(tmp_path):
    folder = tiny_bert(tmp_path / "tiny")
    expected = gemel.load(folder).encode(TEXTS)
    weights = {f"bert.{name}": weight for name, weight in weights_of(folder).items()}
    other = {
        "bert.pooler.dense.weight": np.ones((32, 32), np.float32),
        "cls.predictions.bias": np.ones(4, np.float32),
    }
    save_weights(folder, {**weights, **other, "bert.embeddings.position_ids": np.arange(128)[None]})
    np.testing.assert_array_equal(gemel.load(folder).encode(TEXTS), expected)


def test_a_million_layers_that_share_their_weights_are_refused(tmp_path):
    folder = tiny_checkpoint(tmp_path / "tiny", "albert")
    change_config(folder, num_hidden_layers=10**6)
    assert "num_hidden_layers as 1,000,000" in refusal(folder)


@pytest.mark.parametrize("buckets", [8, 64])
def test_an_mpnet_with_another_number_of_buckets(tmp_path, buckets):
    folder = tiny_checkpoint(tmp_path / "tiny", "mpnet", relative_attention_num_buckets=buckets)
    if buckets < 32:
        assert "relative_attention_num_buckets as 8" in refusal(folder)
        return
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    ids = some_ids(1, 40)
    with torch.no_grad():
        wanted = reference(input_ids=torch.from_numpy(ids).long()).last_hidden_state
    result = open_engine(read_checkpoint(folder)).hidden(ids)
    np.testing.assert_allclose(result, wanted.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("values", [{"is_decoder": True}, {"hidden_act": "gelu_fast"}])
def test_a_refusal_says_where_the_torch_engine_would_work(tmp_path, values):
    folder = tiny_bert(tmp_path / "tiny")
    change_config(folder, **values)
    assert "It may run with engine='torch'" in refusal(folder)
    assert open_engine(read_checkpoint(folder), engine="torch").name == "torch"


def test_a_requested_engine_is_not_replaced(megatron):
    with pytest.raises(InputError, match="Use engine='torch'"):
        open_engine(read_checkpoint(megatron), engine="native")
