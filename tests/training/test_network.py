"""The network of training and the model of inference are the same model."""

import json

import numpy as np
import pytest

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.training.bi_encoder import BiEncoderNetwork
from gemel.training.network import _checkpoint_activations
from gemel.training.options import TrainOptions
from tiny import POOLINGS, tiny_bert, tiny_checkpoint

# The tests are about other things than prompts.
pytestmark = pytest.mark.filterwarnings("ignore::gemel.PromptWarning")

torch = pytest.importorskip("torch", reason="training needs torch")

TEXTS = [
    "the cat is sleeping",
    "a man is playing guitar in the rain and the dog is running",
    "hello",
    "",
    "rain",
    "the [PAD] cat [UNK] [UNK] is [SEP] in the rain",
]
ARCHITECTURES = [
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "electra",
    "albert",
    "mpnet",
    "modernbert",
    "deberta",
    "deberta-v2",
    "t5",
    "mt5",
    "umt5",
    "embedding_gemma2_text",
]


def network(folder, **settings):
    return BiEncoderNetwork(read_checkpoint(folder), TrainOptions(**settings), torch.device("cpu"))


def scrambled(net):
    with torch.no_grad():
        for weight in net.module.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_training_starts_from_the_vectors_of_inference(tmp_path, model_type):
    folder = tiny_checkpoint(tmp_path / "m", model_type)
    np.testing.assert_allclose(
        network(folder).encoder().encode(TEXTS), gemel.load(folder).encode(TEXTS), atol=1e-5
    )


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_inference_reads_what_training_saves(tmp_path, model_type):
    net = network(tiny_checkpoint(tmp_path / "m", model_type))
    scrambled(net)
    net.write(tmp_path / "out", objective=None, about={})
    vectors = gemel.load(tmp_path / "out").encode(TEXTS)
    np.testing.assert_allclose(vectors, net.encoder().encode(TEXTS), atol=1e-5)
    assert np.abs(vectors - gemel.load(tmp_path / "m").encode(TEXTS)).max() > 1e-3


@pytest.mark.parametrize("pooling", [*POOLINGS, ("cls", "max", "mean")])
def test_every_pooling_is_the_one_of_inference(tmp_path, pooling):
    folder = tiny_bert(tmp_path / "m", pooling=pooling, normalize=False, dense=8)
    net = network(folder)
    np.testing.assert_allclose(net.encoder().encode(TEXTS), gemel.load(folder).encode(TEXTS), atol=1e-5)
    scrambled(net)
    net.write(tmp_path / "out", objective=None, about={})
    np.testing.assert_allclose(
        gemel.load(tmp_path / "out").encode(TEXTS), net.encoder().encode(TEXTS), atol=1e-5
    )


def test_a_text_does_not_attend_to_others_in_its_pack(tmp_path):
    encoder = network(tiny_bert(tmp_path / "m")).encoder()
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(encoder.encode(TEXTS), alone, atol=1e-6)


def test_a_shorter_max_length_is_saved_with_the_model(tmp_path):
    net = network(tiny_bert(tmp_path / "m"), max_length=5)
    net.write(tmp_path / "out", objective=None, about={})
    model = gemel.load(tmp_path / "out")
    assert model.max_length == 5
    np.testing.assert_allclose(
        model.encode(TEXTS, on_long="truncate"), net.encoder().encode(TEXTS), atol=1e-5
    )


def prompted(folder, *, default=None, counts=True):
    """A model with prompts; `counts` says whether pooling counts their tokens."""
    tiny_bert(folder, prompts={"query": "how do i ", "document": "the man "})
    for name, changes in (
        ("config_sentence_transformers.json", {"default_prompt_name": default}),
        ("1_Pooling/config.json", {"include_prompt": counts}),
    ):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **changes}))
    return folder


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("default", [None, "document"])
def test_prompts_are_those_of_inference(tmp_path, default, counts):
    folder = prompted(tmp_path / "m", default=default, counts=counts)
    net, model = network(folder), gemel.load(folder)
    ours = net.encoder()
    np.testing.assert_allclose(ours.encode(TEXTS), model.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(ours.encode_query(TEXTS), model.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(ours.encode_document(TEXTS), model.encode_document(TEXTS), atol=1e-5)
    net.module.eval()
    in_training = net.forward(net.tokens(TEXTS)).detach().numpy()
    np.testing.assert_allclose(in_training, model.encode(TEXTS), atol=1e-5)


def test_noise_leaves_a_prompt_intact(tmp_path):
    net = network(prompted(tmp_path / "m", default="query"))
    (ids,) = net.tokens([TEXTS[1]], noise=0.99, rng=np.random.default_rng(0))
    assert net.tokenizer.names(ids)[1:4] == ["how", "do", "i"]


def test_a_length_beyond_the_positions_of_the_network_is_refused(tmp_path):
    folder = tiny_checkpoint(tmp_path / "m", "roberta")
    positions = gemel.load(folder).checkpoint.config["max_position_embeddings"] - 2
    assert network(folder, max_length=positions).max_length == positions
    with pytest.raises(gemel.InputError, match=f"at most {positions}"):
        network(folder, max_length=positions + 1)


def test_dropout_is_set_where_a_config_writes_it_without_a_point(tmp_path):
    folder = tiny_checkpoint(tmp_path / "m", "albert", hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    config = network(folder, dropout=0.25).body.module.config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.25, 0.25)


def test_frozen_layers_stay_frozen_with_low_rank_additions(tmp_path):
    pytest.importorskip("peft", reason="LoRA needs peft")
    net = network(tiny_bert(tmp_path / "m", layers=2), freeze_layers=1, lora_rank=2)
    trained = {name for name, weight in net.module.named_parameters() if weight.requires_grad}
    assert trained and not any("layer.0." in name for name in trained)


def test_frozen_layers_have_no_gradient(tmp_path):
    net = network(tiny_bert(tmp_path / "m", layers=2), freeze_layers=1)
    net.forward(net.tokens(TEXTS[:2])).sum().backward()
    trained = {name for name, weight in net.module.named_parameters() if weight.grad is not None}
    assert trained and not any("embeddings" in name or "layer.0." in name for name in trained)


def test_more_layers_than_there_are_cannot_be_frozen(tmp_path):
    with pytest.raises(gemel.InputError, match="at most 2"):
        network(tiny_bert(tmp_path / "m", layers=2), freeze_layers=3)


def test_gradient_checkpointing_changes_no_gradient(tmp_path):
    folder = tiny_bert(tmp_path / "m")

    def gradient(**settings):
        net = network(folder, dropout=0.0, **settings)
        net.module.train()
        net.forward(net.tokens(TEXTS[:3])).pow(3).sum().backward()
        return net.body.module.embeddings.word_embeddings.weight.grad

    torch.testing.assert_close(gradient(gradient_checkpointing=True), gradient())


def test_gradient_checkpointing_works_with_lora(tmp_path):
    pytest.importorskip("peft", reason="LoRA needs peft")
    net = network(tiny_bert(tmp_path / "m"), gradient_checkpointing=True, lora_rank=2)
    net.module.train()
    net.forward(net.tokens(TEXTS[:3])).pow(3).sum().backward()
    assert any(weight.grad is not None for name, weight in net.module.named_parameters() if "lora_" in name)


@pytest.mark.parametrize("name", ["gradient", "activation"])
def test_gradient_checkpointing_is_switched_on_by_the_name_that_transformers_has(name):
    class Model:
        pass

    calls = []
    setattr(Model, f"{name}_checkpointing_enable", lambda self, **settings: calls.append(settings))
    _checkpoint_activations(Model())
    assert calls == [{f"{name}_checkpointing_kwargs": {"use_reentrant": False}}]


def test_noise_takes_tokens_out_but_never_all(tmp_path):
    net = network(tiny_bert(tmp_path / "m"))
    whole, thin = net.tokens(TEXTS), net.tokens(TEXTS, noise=0.6, rng=np.random.default_rng(0))
    assert sum(map(len, thin)) < sum(map(len, whole))
    assert all(len(t) >= min(len(w), 3) for t, w in zip(thin, whole, strict=True))
