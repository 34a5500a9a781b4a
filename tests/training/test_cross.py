"""Cross-encoders in training: the same numbers as inference, a rising score, and a folder that other programs read."""

import json

import numpy as np
import pytest

import gemel
from gemel.errors import InputError, ModelError
from gemel.training.options import TrainOptions
from tiny import ARCHITECTURES, tiny_bert, tiny_checkpoint
from tiny_cross import TYPED, their_logits, tiny_cross

torch = pytest.importorskip("torch", reason="training is in the train extra")
pytest.importorskip("transformers", reason="training is in the train extra")

from gemel.training.cross_encoder import CrossNetwork, cross_objective, read_start  # noqa: E402

CPU = torch.device("cpu")
LEFT = ["a man is playing a guitar", "hello", "the stock market fell sharply today", "", "a man"]
RIGHT = ["a woman is playing the flute", "the cat is sleeping on the sofa", "the rain", "a dog", "a man"]
WORDS = ["man", "woman", "cat", "dog", "guitar", "flute", "street", "sofa", "rain", "market"]
# A pair is similar when both texts are about the same thing.
PAIRS = [(f"the {a} is here", f"a {b}", a == b) for a in WORDS for b in (a, WORDS[(WORDS.index(a) + 3) % 10])]
LABELS = ("entailment", "neutral", "contradiction")


def network(folder, labels=(), **options):
    torch.manual_seed(0)
    return CrossNetwork(read_start(folder), TrainOptions(**options), CPU, labels=labels)


def train(network, objective, columns, label, steps=60):
    """Full batches of all rows, through the training interface only."""
    optimizer = torch.optim.AdamW(network.module.parameters(), lr=2e-3)
    network.module.train()
    for _ in range(steps):
        (items,) = network.items(columns)
        loss = objective((network.forward(network.tokens(items)),), torch.as_tensor(label))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


# The heads of decoders have no inner layer: they are read, not trained.
DECODERS = {"eurobert", "gemma3_text", "llama", "mistral", "qwen2", "qwen3"}
TRAINED = sorted(set(ARCHITECTURES) - DECODERS)


def test_a_cross_encoder_of_a_decoder_is_not_trained(tmp_path):
    with pytest.raises(ModelError, match="architecture 'qwen3' can be used, not trained"):
        network(tiny_cross(tmp_path / "one", "qwen3"))


@pytest.mark.parametrize("model_type", TRAINED)
@pytest.mark.parametrize("labels", [1, 3])
def test_a_cross_encoder_is_the_same_in_training_and_in_inference(tmp_path, model_type, labels):
    folder = tiny_cross(
        tmp_path / "one", model_type, labels=labels, id2label=dict(enumerate(LABELS[:labels]))
    )
    start = network(folder, LABELS if labels == 3 else ())
    model = gemel.load_cross(folder)
    with torch.no_grad():
        start.module.eval()
        result = start.forward(start.tokens(list(zip(LEFT, RIGHT, strict=True)))).numpy()
    np.testing.assert_allclose(result, model.logits(LEFT, RIGHT), atol=1e-5)
    if labels == 1:
        np.testing.assert_allclose(start.encoder().scores(LEFT, RIGHT), model.scores(LEFT, RIGHT), atol=1e-5)
    else:
        expected = model.probabilities(LEFT, RIGHT)
        np.testing.assert_allclose(start.encoder().relation(LEFT, RIGHT), expected, atol=1e-5)


@pytest.mark.parametrize("model_type", TRAINED)
def test_a_saved_model_gives_the_same_numbers_without_torch_and_in_transformers(tmp_path, model_type):
    start = network(tiny_checkpoint(tmp_path / "one", model_type), LABELS)
    label = np.arange(len(LEFT)) % 3
    train(start, cross_objective("classification", {}), (LEFT, RIGHT), label, steps=3)
    start.write(tmp_path / "two", objective=None, about={})
    model = gemel.load_cross(tmp_path / "two")
    assert model.labels == LABELS
    expected = start.encoder().relation(LEFT, RIGHT)
    np.testing.assert_allclose(model.probabilities(LEFT, RIGHT), expected, atol=1e-5)
    _name_the_special_tokens(tmp_path / "two")
    theirs = torch.as_tensor(their_logits(tmp_path / "two", LEFT, RIGHT)).softmax(1)
    np.testing.assert_allclose(theirs, expected, atol=1e-5)


def _name_the_special_tokens(folder):
    """The tiny encoders have a bare tokenizer.json; transformers wants a class for it."""
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "tokenizer_class": "PreTrainedTokenizerFast"}))


@pytest.mark.parametrize("loss", ["cross-entropy", "squared-error"])
def test_regression_raises_the_score_of_similar_pairs(tmp_path, loss):
    start = network(tiny_bert(tmp_path / "one"), dropout=0.0)
    left, right, alike = ([pair[part] for pair in PAIRS] for part in range(3))
    gold = np.array(alike, dtype=np.float32)

    def margin():
        scores = start.encoder().scores(left, right)
        return float(scores[gold == 1].mean() - scores[gold == 0].mean())

    before = margin()
    train(start, cross_objective("regression", {"loss": loss}), (left, right), gold)
    assert abs(before) < 0.2
    assert margin() > 0.6
    start.write(tmp_path / "two", objective=None, about={})
    model = gemel.load_cross(tmp_path / "two")
    assert model.checkpoint.typed
    np.testing.assert_allclose(model.scores(left, right), start.encoder().scores(left, right), atol=1e-5)


def test_classification_learns_the_labels(tmp_path):
    start = network(tiny_bert(tmp_path / "one"), ("same", "other"), dropout=0.0)
    left, right, alike = ([pair[part] for pair in PAIRS] for part in range(3))
    gold = np.array([0 if same else 1 for same in alike])
    train(start, cross_objective("classification", {}), (left, right), gold)
    assert (start.encoder().relation(left, right).argmax(1) == gold).mean() > 0.9


def test_training_starts_from_a_cross_encoder_with_its_labels_in_another_order(tmp_path):
    theirs = {0: "contradiction", 1: "Entailment", 2: "neutral"}
    folder = tiny_cross(tmp_path / "one", labels=3, id2label=theirs)
    result = network(folder, LABELS).encoder().relation(LEFT, RIGHT)
    expected = gemel.load_cross(folder).probabilities(LEFT, RIGHT)[:, [1, 2, 0]]
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_other_labels_get_a_new_last_layer(tmp_path):
    folder = tiny_cross(tmp_path / "one", labels=3)
    start = network(folder, ("same", "other"))
    assert start.encoder().relation(LEFT, RIGHT).shape == (len(LEFT), 2)
    inner = start.head.module["inner"].weight.detach().numpy()
    np.testing.assert_array_equal(
        inner, gemel.load_cross(folder).checkpoint.encoder.weights["bert.pooler.dense.weight"]
    )


def test_a_plain_encoder_keeps_its_pooler(tmp_path):
    start = network(tiny_checkpoint(tmp_path / "one", "bert"))
    pooler = start.body.module.pooler.dense.weight.detach().numpy()
    np.testing.assert_array_equal(start.head.module["inner"].weight.detach().numpy(), pooler)


def test_a_pair_may_be_twice_as_long_as_a_text_within_its_positions(tmp_path):
    assert read_start(tiny_bert(tmp_path / "one", max_length=24)).max_length == 48
    assert read_start(tiny_bert(tmp_path / "two", max_length=100)).max_length == 128
    assert read_start(tiny_cross(tmp_path / "three", max_length=40)).max_length == 40
    short = network(tmp_path / "one", max_length=10)
    assert max(map(len, short.tokens([("the cat is sleeping", "a man is playing a guitar")]))) == 10
    short.write(tmp_path / "four", objective=None, about={})
    assert gemel.load_cross(tmp_path / "four").max_length == 10
    with pytest.raises(InputError, match="max_length must be at most 128"):
        network(tmp_path / "one", max_length=1000)


def test_a_model_of_another_kind_is_refused(tmp_path):
    folder = tiny_bert(tmp_path / "one")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    with pytest.raises(ModelError, match="'gpt2', which cannot be a cross-encoder"):
        read_start(folder)


def test_frozen_layers_and_dropout_are_those_requested(tmp_path):
    start = network(tiny_bert(tmp_path / "one"), freeze_layers=1, dropout=0.3)
    assert start.head.module["dropout"].p == 0.3
    assert not start.body.module.embeddings.word_embeddings.weight.requires_grad
    assert start.head.module["last"].weight.requires_grad


def test_the_objectives_are_named_and_checked():
    assert cross_objective("regression", {"loss": None}).loss == "cross-entropy"
    for name, settings, message in [
        ("triplet", {}, "cannot be trained with objective 'triplet'"),
        ("regression", {"margin": 1}, "has no setting 'margin'"),
        ("regression", {"loss": "hinge"}, "loss must be one of"),
    ]:
        with pytest.raises(InputError, match=message):
            cross_objective(name, settings)
    with pytest.raises(InputError, match="two or more different labels"):
        cross_objective("classification", {}).weights(1, 1)
    with pytest.raises(InputError, match="below 0"):
        cross_objective("regression", {})((torch.zeros(2, 1),), torch.tensor([0.5, -0.5]))


def test_losses_by_hand():
    logits, half = torch.zeros(2, 1), torch.full((2,), 0.5)
    assert float(cross_objective("regression", {})((logits,), half)) == pytest.approx(np.log(2))
    squared = cross_objective("regression", {"loss": "squared-error"})
    assert float(squared((logits,), torch.tensor([1.0, 0.5]))) == pytest.approx(0.125)
    three = cross_objective("classification", {})((torch.zeros(2, 3),), torch.tensor([0, 2]))
    assert float(three) == pytest.approx(np.log(3))


def test_the_scorer_refuses_what_it_cannot_do(tmp_path):
    scorer = network(tiny_bert(tmp_path / "one"), LABELS).encoder()
    with pytest.raises(InputError, match="makes no vectors"):
        scorer.encode(["a"])
    with pytest.raises(InputError, match="no single score"):
        scorer.scores(["a"], ["b"])


def test_the_tokenizer_gives_token_types_if_the_network_has_them(tmp_path):
    for model_type in ("bert", "roberta"):
        start = network(tiny_cross(tmp_path / model_type, model_type))
        ids = start.tokens([("a man", "a cat")])[0]
        assert (start.vocabulary, ids.max() >= 212) == ((424, True) if model_type in TYPED else (212, False))
