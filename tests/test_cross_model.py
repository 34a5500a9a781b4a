"""Cross-encoders: equal to transformers, batch-invariant, without torch, errors about length and labels."""

import json
import pickle
import shutil
import sys
import warnings

import numpy as np
import pytest

import gemel
from gemel.checkpoint.architecture import ARCHITECTURES, model_types
from gemel.checkpoint.cross import read_cross, write_cross
from gemel.checkpoint.folder import read_checkpoint
from gemel.encoder.cross import longest_first
from gemel.encoder.engines import native
from gemel.encoder.tokenizer import TruncationWarning
from gemel.errors import InputError, ModelError, WorkError
from tests.project.test_without_torch import python
from tiny import tiny_bert, tiny_checkpoint
from tiny_cross import HEADED, their_logits, tiny_cross
from tiny_torch import tiny_other

LEFT = ["a man is playing a guitar", "hello", "the stock market fell sharply today", "", "a man", "x"]
RIGHT = [
    "a woman is playing the flute",
    "the cat is sleeping on the sofa in the rain",
    "",
    "",
    "a man",
    "a man",
]
LONG = "the stock market fell and rose and fell " * 6
pytest.importorskip("transformers", reason="the tiny cross-encoders are made by transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_cross(tmp_path_factory.mktemp("cross") / "tiny")


@pytest.fixture(scope="module")
def nli(tmp_path_factory):
    names = {0: "entailment", 1: "neutral", 2: "contradiction"}
    return tiny_cross(tmp_path_factory.mktemp("cross") / "nli", labels=3, id2label=names)


def change(path, **values):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **values}))


def without(path, *keys):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in content.items() if key not in keys}))


def quiet(model, left, right, **changes):
    return model.logits(left, right, on_long="truncate", **changes)


# Equal to transformers.


@pytest.mark.parametrize("model_type", HEADED)
@pytest.mark.parametrize("labels", [1, 3])
def test_logits_are_those_of_transformers(tmp_path, model_type, labels):
    folder = tiny_cross(tmp_path / "tiny", model_type, labels=labels)
    left, right = [*LEFT, LONG, LONG, "a cat"], [*RIGHT, "a cat", LONG, LONG]
    ours = quiet(gemel.load_cross(folder), left, right)
    assert ours.shape == (len(left), labels)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, their_logits(folder, left, right), atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_head_of_modernbert_follows_its_config(tmp_path, pooling, bias):
    settings = {"classifier_pooling": pooling, "classifier_bias": bias, "norm_bias": bias}
    folder = tiny_cross(tmp_path / "tiny", "modernbert", labels=2, **settings)
    ours = gemel.load_cross(folder).logits(LEFT, RIGHT)
    np.testing.assert_allclose(ours, their_logits(folder, LEFT, RIGHT), atol=1e-5)


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_every_engine_uses_token_types(folder, engine):
    if engine == "native" and not native.levels():
        pytest.skip("no kernel was compiled here")
    model = gemel.load_cross(folder, engine=engine)
    assert model.engine_name == engine
    np.testing.assert_allclose(model.logits(LEFT, RIGHT), their_logits(folder, LEFT, RIGHT), atol=1e-5)
    assert model.scores(["a man"], ["hello"]) != model.scores(["hello"], ["a man"])


def test_a_bert_whose_tokenizer_gives_no_types_gets_none(tmp_path):
    folder = tiny_cross(tmp_path / "tiny", "bert", typed=False)
    model = gemel.load_cross(folder)
    assert not model.checkpoint.typed
    np.testing.assert_allclose(model.logits(LEFT, RIGHT), their_logits(folder, LEFT, RIGHT), atol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "tokenizer", "version", "typed"),
    [
        ("bert", {}, "4.40.0", True),
        ("bert", {"tokenizer_class": "BertTokenizer"}, "5.1.0", True),
        ("bert", {"tokenizer_class": "TokenizersBackend"}, "5.1.0", False),
        ("bert", {"model_input_names": ["input_ids", "attention_mask"]}, "4.40.0", False),
        ("electra", {"tokenizer_class": "ElectraTokenizer"}, "4.40.0", True),
        ("albert", {"tokenizer_class": "AlbertTokenizer"}, "4.40.0", True),
        ("albert", {"tokenizer_class": "AlbertTokenizer"}, "5.1.0", False),
        ("albert", {"tokenizer_class": "BertTokenizer"}, "5.1.0", True),
        ("albert", {"tokenizer_class": "BertTokenizerFast"}, "5.1.0", True),
        ("bert", {"tokenizer_class": "XLMRobertaTokenizer"}, "4.40.0", False),
        ("bert", {"tokenizer_class": "PreTrainedTokenizerFast"}, "4.40.0", True),
        ("bert", {"tokenizer_class": "PreTrainedTokenizerFast"}, "5.1.0", False),
        ("roberta", {}, "4.40.0", False),
        ("distilbert", {"model_input_names": ["input_ids", "token_type_ids"]}, "4.40.0", False),
    ],
)
def test_which_networks_get_token_types(tmp_path, model_type, tokenizer, version, typed):
    folder = tiny_cross(tmp_path / "tiny", model_type)
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    change(folder / "config.json", transformers_version=version)
    assert read_cross(folder).typed is typed


def test_an_albert_with_the_tokenizer_of_bert_gets_its_types(tmp_path):
    folder = tiny_cross(tmp_path / "tiny", "albert")
    settings = {"tokenizer_class": "BertTokenizer", "model_max_length": 48, "strip_accents": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = their_logits(folder, LEFT, RIGHT)
    np.testing.assert_allclose(gemel.load_cross(folder).logits(LEFT, RIGHT), theirs, atol=1e-5)


def test_pairs_are_cut_as_the_tokenizers_library_cuts_them():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = Whitespace()
    for room in (2, 3, 7, 10):
        tokenizer.enable_truncation(room, strategy="longest_first")
        for left in range(13):
            for right in range(13):
                if left + right > room:
                    owners = tokenizer.encode("a " * left, "a " * right).sequence_ids
                    assert longest_first(left, right, room) == (owners.count(0), owners.count(1))


@pytest.mark.parametrize("max_length", [9, 16, 30, 48])
def test_long_pairs_are_cut_as_transformers_cuts_them(folder, max_length):
    texts = [LONG, "a cat", "a man is playing a guitar on the street and the rain fell"]
    left, right = [a for a in texts for _ in texts], texts * len(texts)
    ours = quiet(gemel.load_cross(folder), left, right, max_length=max_length)
    np.testing.assert_allclose(ours, their_logits(folder, left, right, max_length), atol=1e-5)


# Batch invariance.


@pytest.mark.parametrize("model_type", HEADED)
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_pair_has_the_same_bits_alone_and_in_any_batch(tmp_path, model_type, precision):
    model = gemel.load_cross(tiny_cross(tmp_path / "tiny", model_type, labels=3), precision=precision)
    left, right = LEFT * 3 + ["b"], RIGHT * 2 + LEFT + ["c"]
    together = model.probabilities(left, right)
    alone = np.concatenate([model.probabilities([a], [b]) for a, b in zip(left, right, strict=True)])
    np.testing.assert_array_equal(together, alone)
    order = np.random.default_rng(0).permutation(len(left))
    shuffled = model.probabilities(
        [left[i] for i in order], [right[i] for i in order], threads=1, memory="1MB"
    )
    np.testing.assert_array_equal(shuffled, together[order])


def test_scores_have_the_same_bits_alone_and_in_any_batch(folder):
    model = gemel.load_cross(folder)
    left, right = [a for a in LEFT for _ in RIGHT], RIGHT * len(LEFT)
    together = model.scores(left, right)
    assert together.shape == (len(left),)
    alone = np.concatenate([model.scores([a], [b], threads=2) for a, b in zip(left, right, strict=True)])
    np.testing.assert_array_equal(together, alone)


def test_a_repeated_pair_is_computed_once(folder, capsys, monkeypatch):
    monkeypatch.setattr("gemel.terminal.is_live", lambda: True)
    model = gemel.load_cross(folder)
    scores = model.scores(["a man", "hello", "a man"], ["hello", "a man", "hello"], progress=True)
    assert scores[0] == scores[2] != scores[1]
    assert "2 of 2 pairs" in capsys.readouterr().err


def test_no_pairs_give_no_scores(folder, nli):
    assert gemel.load_cross(folder).scores([], []).shape == (0,)
    assert gemel.load_cross(nli).probabilities([], []).shape == (0, 3)
    assert len(gemel.load_cross(folder).rank("hello", [])) == 0


# Scores, probabilities, ranks.


def test_one_output_is_a_sigmoid_unless_the_checkpoint_says_identity(tmp_path):
    folder = tiny_cross(tmp_path / "tiny")
    logits = gemel.load_cross(folder).logits(LEFT, RIGHT)[:, 0]
    expected = 1 / (1 + np.exp(-logits.astype(np.float64)))
    np.testing.assert_allclose(gemel.load_cross(folder).scores(LEFT, RIGHT), expected, atol=1e-6)
    identity, sigmoid = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"
    change(folder / "config.json", sbert_ce_default_activation_function=identity)
    np.testing.assert_array_equal(gemel.load_cross(folder).scores(LEFT, RIGHT), logits)
    change(folder / "config.json", sentence_transformers={"activation_fn": sigmoid})
    np.testing.assert_allclose(gemel.load_cross(folder).scores(LEFT, RIGHT), expected, atol=1e-6)
    newest = folder / "config_sentence_transformers.json"
    newest.write_text(json.dumps({"model_type": "CrossEncoder", "activation_fn": identity}))
    np.testing.assert_array_equal(gemel.load_cross(folder).scores(LEFT, RIGHT), logits)


def test_a_model_says_what_its_scores_are_and_gives_probabilities_anyway(tmp_path):
    folder = tiny_cross(tmp_path / "tiny")
    model = gemel.load_cross(folder)
    assert (model.score_kind, model.rank("a", RIGHT).kind) == ("probability", "probability")
    probabilities = model.probabilities(LEFT, RIGHT)
    np.testing.assert_array_equal(probabilities[:, 0], model.scores(LEFT, RIGHT))
    change(
        folder / "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"}
    )
    model = gemel.load_cross(folder)
    assert (model.score_kind, model.rank("a", RIGHT).kind) == ("logit", "logit")
    assert "one logit" in repr(model)
    np.testing.assert_array_equal(model.probabilities(LEFT, RIGHT), probabilities)


def test_a_sigmoid_of_a_large_number_gives_no_warning(folder):
    from gemel.cross_model import sigmoid

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = sigmoid(np.array([-1000, -20, 0, 20, 1000], np.float32))
    np.testing.assert_allclose(result, [0, 2.0611537e-09, 0.5, 1, 1], rtol=1e-6)


def test_labels_have_names_and_probabilities_that_add_up(nli):
    model = gemel.load_cross(nli)
    assert model.labels == ("entailment", "neutral", "contradiction")
    result = model.probabilities(LEFT, RIGHT)
    assert result.shape == (len(LEFT), 3)
    np.testing.assert_allclose(result.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(result.argmax(axis=1), model.logits(LEFT, RIGHT).argmax(axis=1))


def test_the_task_nli_scores_a_cross_encoder(nli, tmp_path):
    model = gemel.load_cross(nli)
    best = [model.labels[position] for position in model.probabilities(LEFT[:3], RIGHT[:3]).argmax(axis=1)]
    rows = zip(LEFT[:2], RIGHT[:2], best[:2], strict=True)
    lines = ["premise\thypothesis\tlabel", *("\t".join(row) for row in rows)]
    (tmp_path / "nli.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (scores,) = gemel.evaluate(model, task="nli", data=tmp_path / "nli.tsv", rounds=0)
    assert scores.values["accuracy"].value == 100


def test_labels_that_do_not_exclude_each_other_have_a_probability_each(tmp_path):
    folder = tiny_cross(tmp_path / "tiny", labels=3, problem_type="multi_label_classification")
    model = gemel.load_cross(folder)
    expected = 1 / (1 + np.exp(-model.logits(LEFT, RIGHT)))
    np.testing.assert_allclose(model.probabilities(LEFT, RIGHT), expected, atol=1e-6)


def test_rank_gives_the_best_documents_first(folder):
    model = gemel.load_cross(folder)
    documents = [*RIGHT, "a man"]
    scores = model.scores(["hello"] * len(documents), documents)
    result = model.rank("hello", documents)
    np.testing.assert_array_equal(result.score, np.sort(scores)[::-1])
    np.testing.assert_array_equal(scores[result.index], result.score)
    same = [position for position in result.index if documents[position] == "a man"]
    assert same == [4, 5, 6]
    assert model.rank("hello", documents, k=2).index.tolist() == result.index[:2].tolist()
    assert len(model.rank("hello", documents, k=100)) == len(documents)


def test_a_call_for_the_other_kind_of_model_names_the_right_one(folder, nli):
    with pytest.raises(InputError, match=r"one output.*Use scores"):
        gemel.load_cross(folder).relation(LEFT, RIGHT)
    for ask in (lambda model: model.scores(LEFT, RIGHT), lambda model: model.rank("a", RIGHT)):
        with pytest.raises(InputError, match=r"entailment, neutral, contradiction.*Use probabilities"):
            ask(gemel.load_cross(nli))


# Length.


def test_a_long_pair_is_reported_refused_or_cut(folder):
    model = gemel.load_cross(folder)
    assert model.max_length == 48
    with pytest.warns(TruncationWarning, match="2 of 3 pairs are longer than 48 tokens"):
        warned = model.scores([LONG, "a", LONG], ["a", "b", "a"])
    with pytest.raises(InputError, match=r"pair 1 has \d+ tokens, the model reads 48"):
        model.scores(["a", LONG], ["b", "a"], on_long="error")
    np.testing.assert_array_equal(model.scores([LONG], ["a"], on_long="truncate"), warned[:1])
    with pytest.raises(InputError, match="max_length 4 leaves no room"):
        model.scores(["a man"], ["a man"], max_length=4)


def test_a_longer_max_length_goes_up_to_the_positions_of_the_network(folder):
    model = gemel.load_cross(folder)
    more = quiet(model, [LONG], [LONG], max_length=1000)
    np.testing.assert_allclose(more, their_logits(folder, [LONG], [LONG], 64), atol=1e-5)


# What is refused.


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ("a man", ["a"], "left must be a list of texts, got one string"),
        (["a"], "a man", "right must be a list of texts, got one string"),
        (["a"], ["a", "b"], "left has 1 texts, right has 2"),
        (["a", None], ["a", "b"], r"left\[1\] is None"),
        (["a"], ["\ud800"], r"right\[0\] has half a character"),
    ],
)
def test_bad_texts_are_named(folder, left, right, message):
    with pytest.raises(InputError, match=message):
        gemel.load_cross(folder).scores(left, right)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"on_long": "chunk"}, "one of warn, error, truncate"),
        ({"normalize": True}, "unknown option 'normalize'"),
        ({"threads": 0}, "threads must be"),
        ({"memory": "much"}, "memory must be"),
        ({"precision": "int4"}, "precision must be"),
    ],
)
def test_bad_options_are_refused(folder, changes, message):
    with pytest.raises(InputError, match=message):
        gemel.load_cross(folder).scores(["a"], ["b"], **changes)


def test_rank_checks_what_it_is_given(folder):
    model = gemel.load_cross(folder)
    with pytest.raises(InputError, match="k must be"):
        model.rank("a", ["b"], k=0)
    with pytest.raises(InputError, match="one query"):
        model.rank(["a"], ["b"])
    with pytest.raises(InputError, match="documents must be a list"):
        model.rank("a", "b")


def test_each_kind_of_model_has_its_own_loader(folder, tmp_path):
    with pytest.raises(ModelError, match=r"cross-encoder.*gemel\.load_cross"):
        gemel.load(folder)
    with pytest.raises(ModelError, match=r"sentence encoder.*gemel\.load\("):
        gemel.load_cross(tiny_bert(tmp_path / "bi"))


def test_the_torch_engine_runs_a_supported_head_too(folder):
    model = gemel.load_cross(folder, engine="torch")
    assert model.engine_name == "torch"
    np.testing.assert_allclose(model.logits(LEFT, RIGHT), their_logits(folder, LEFT, RIGHT), atol=1e-5)
    with pytest.raises(ModelError, match="float32 only"):
        gemel.load_cross(folder, engine="torch", precision="int8")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "reformer"}, "'reformer', which draws random numbers"),
        ({"id2label": {"0": "a", "1": "b"}}, r"has shape \(1, 32\), config.json asks for \(2, 32\)"),
        ({"id2label": {"1": "a"}}, "must name the outputs"),
        ({"id2label": {}}, "must name the outputs"),
        ({"sentence_transformers": {"activation_fn": "my.code.Sigmoid"}}, "no code of a checkpoint runs"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}, "activation 'torch.nn.Tanh'"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Softmax"}}, "softmax over its one output"),
    ],
)
def test_a_config_that_would_be_misread_is_refused(tmp_path, values, message):
    folder = tiny_cross(tmp_path / "tiny")
    change(folder / "config.json", **values)
    with pytest.raises(ModelError, match=message):
        gemel.load_cross(folder)


def test_a_config_without_labels_has_two_as_transformers_has_it(tmp_path):
    folder = tiny_cross(tmp_path / "tiny", labels=2)
    without(folder / "config.json", "id2label", "label2id")
    assert gemel.load_cross(folder).labels == ("LABEL_0", "LABEL_1")


def test_a_checkpoint_without_its_head_is_refused(tmp_path):
    from safetensors.numpy import load_file, save_file

    folder = tiny_cross(tmp_path / "tiny")
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "classifier" not in k}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"'classifier\.weight' is missing"):
        gemel.load_cross(folder)


def test_the_layout_of_newer_sentence_transformers_is_read(tmp_path, folder):
    expected = gemel.load_cross(folder).scores(LEFT, RIGHT)
    newer = tiny_cross(tmp_path / "tiny")
    module = {
        "idx": 0,
        "name": "0",
        "path": "",
        "type": "sentence_transformers.base.modules.transformer.Transformer",
    }
    (newer / "modules.json").write_text(json.dumps([module]))
    settings = newer / "config_sentence_transformers.json"
    settings.write_text(
        json.dumps({"model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None})
    )
    (newer / "sentence_bert_config.json").write_text(
        json.dumps({"transformer_task": "sequence-classification"})
    )
    np.testing.assert_array_equal(gemel.load_cross(newer).scores(LEFT, RIGHT), expected)
    change(settings, prompts={"query": "find: "}, default_prompt_name="query")
    with pytest.raises(ModelError, match="prompt 'query'"):
        gemel.load_cross(newer)
    change(settings, default_prompt_name=None)
    score = {
        **module,
        "idx": 1,
        "path": "1",
        "type": "sentence_transformers.cross_encoder.modules.LogitScore",
    }
    (newer / "modules.json").write_text(json.dumps([module, score]))
    with pytest.raises(ModelError, match="module LogitScore, but is not a language model"):
        gemel.load_cross(newer)


def test_every_architecture_has_a_head_that_is_tested():
    assert [kind for kind in model_types() if ARCHITECTURES[kind].head is not None] == HEADED


# Architectures whose head gemel does not know: torch runs them.


def tiny_megatron(folder, **settings):
    tiny_other(folder, "megatron-bert", auto="AutoModelForSequenceClassification", num_labels=1, **settings)
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 48, **MARK_NAMES}
    typed = settings.get("type_vocab_size", 2) > 1
    names = ["input_ids", *(["token_type_ids"] if typed else []), "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps({**tokenizer, "model_input_names": names}))
    return folder


MARK_NAMES = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


@pytest.mark.parametrize("types", [1, 2])
def test_another_architecture_is_run_by_torch(tmp_path, types):
    folder = tiny_megatron(tmp_path / "tiny", type_vocab_size=types)
    model = gemel.load_cross(folder)
    assert (model.engine_name, model.max_length, model.checkpoint.typed) == ("torch", 48, types == 2)
    left, right = [*LEFT, LONG, LONG], [*RIGHT, "a cat", LONG]
    together = quiet(model, left, right)
    np.testing.assert_allclose(together, their_logits(folder, left, right), atol=1e-5)
    alone = np.concatenate([quiet(model, [a], [b]) for a, b in zip(left, right, strict=True)])
    np.testing.assert_array_equal(alone, together)
    assert model.rank("a man", RIGHT, k=2).score.shape == (2,)


def test_a_model_of_another_architecture_can_be_saved(tmp_path):
    model = gemel.load_cross(tiny_megatron(tmp_path / "one", type_vocab_size=2))
    again = gemel.load_cross(model.save(tmp_path / "two"))
    np.testing.assert_array_equal(again.scores(LEFT, RIGHT), model.scores(LEFT, RIGHT))
    assert again.weights_hash != "" and again.labels == model.labels


@pytest.mark.parametrize("gone", ["classifier", "pooler", "layer.1."])
def test_another_architecture_needs_all_its_weights(tmp_path, gone):
    from safetensors.numpy import load_file, save_file

    folder = tiny_megatron(tmp_path / "tiny")
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if gone not in name}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"{gone}.*missing from the checkpoint"):
        gemel.load_cross(folder)


def test_another_architecture_is_not_run_by_an_engine_that_cannot(tmp_path):
    folder = tiny_megatron(tmp_path / "tiny")
    with pytest.raises(InputError, match=r"engine 'native' cannot run tiny.*Use engine='torch'"):
        gemel.load_cross(folder, engine="native")


def test_another_architecture_without_torch_names_the_extra(tmp_path, monkeypatch):
    folder = tiny_megatron(tmp_path / "tiny")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match=r"With torch it may run: pip install 'gemel\[train\]'"):
        gemel.load_cross(folder)


def test_no_cross_encoder_is_trained_from_an_unknown_architecture(tmp_path):
    from gemel.training.cross_encoder import read_start

    with pytest.raises(ModelError, match="'megatron-bert', which cannot be a cross-encoder"):
        read_start(tiny_megatron(tmp_path / "tiny"))


def test_no_cross_encoder_is_trained_from_a_t5(tmp_path):
    from gemel.training.cross_encoder import read_start

    with pytest.raises(ModelError, match="'t5', which cannot be a cross-encoder"):
        read_start(tiny_checkpoint(tmp_path / "tiny", "t5"))


# Writing.


@pytest.mark.parametrize("model_type", HEADED)
def test_a_saved_model_is_read_by_gemel_and_by_transformers(tmp_path, model_type):
    model = gemel.load_cross(tiny_cross(tmp_path / "one", model_type, labels=3))
    again = gemel.load_cross(model.save(tmp_path / "two"))
    np.testing.assert_array_equal(again.probabilities(LEFT, RIGHT), model.probabilities(LEFT, RIGHT))
    assert (again.labels, again.max_length) == (model.labels, model.max_length)
    np.testing.assert_allclose(
        their_logits(tmp_path / "two", LEFT, RIGHT), model.logits(LEFT, RIGHT), atol=1e-5
    )


@pytest.mark.parametrize("activation", ["identity", "sigmoid"])
def test_the_activation_is_kept(tmp_path, activation):
    source = read_cross(tiny_cross(tmp_path / "one"))
    parts = {"source": source.encoder, "weights": source.encoder.weights, "labels": ["score"]}
    write_cross(tmp_path / "two", **parts, activation=activation, max_length=20)
    model = gemel.load_cross(tmp_path / "two")
    assert model.checkpoint.activation == activation
    assert (model.labels, model.max_length) == (("score",), 20)


def test_lower_case_of_the_source_goes_into_the_tokenizer(tmp_path):
    source = read_cross(tiny_cross(tmp_path / "one"))
    bare = json.loads((tmp_path / "one" / "tokenizer.json").read_text())
    bare["normalizer"] = None
    (tmp_path / "one" / "tokenizer.json").write_text(json.dumps(bare))
    (tmp_path / "one" / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    model = gemel.load_cross(tmp_path / "one")
    assert model.checkpoint.encoder.lowercase
    again = gemel.load_cross(model.save(tmp_path / "two"))
    assert not again.checkpoint.encoder.lowercase
    np.testing.assert_array_equal(again.scores(["A Man"], ["HELLO"]), model.scores(["a man"], ["hello"]))
    assert source.labels == again.labels


def test_a_folder_is_overwritten_only_on_request_and_atomically(tmp_path, monkeypatch):
    model = gemel.load_cross(tiny_cross(tmp_path / "one"))
    model.save(tmp_path / "two")
    with pytest.raises(InputError, match="exists and is not empty"):
        model.save(tmp_path / "two")
    from gemel.checkpoint import cross

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cross, "_write_tokenizer", full)
    with pytest.raises(WorkError, match="No space left on device"):
        model.save(tmp_path / "two", overwrite=True)
    assert gemel.load_cross(tmp_path / "two").labels == model.labels
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_a_plain_encoder_without_a_head_is_not_saved_as_an_unknown_class(tmp_path):
    source = read_checkpoint(tiny_bert(tmp_path / "one"))
    with pytest.raises(ModelError, match="'gpt2' cannot be saved"):
        write_cross(
            tmp_path / "two",
            source=source,
            weights={},
            labels=["a"],
            activation="sigmoid",
            config={"model_type": "gpt2"},
        )


def test_the_hash_names_what_computes(tmp_path):
    model = gemel.load_cross(tiny_cross(tmp_path / "one"))
    same = gemel.load_cross(tiny_cross(tmp_path / "two"))
    other = gemel.load_cross(tiny_cross(tmp_path / "three", seed=1))
    assert model.weights_hash == same.weights_hash != other.weights_hash
    change(tmp_path / "two" / "config.json", sentence_transformers={"activation_fn": "torch.nn.Identity"})
    assert gemel.load_cross(tmp_path / "two").weights_hash != model.weights_hash


def test_it_works_without_torch(folder, nli):
    code = """
    import gemel
    model = gemel.load_cross(sys.argv[1])
    assert model.scores(["a man", "hello"], ["a woman", "world"]).shape == (2,)
    print(model.rank("a man", ["a woman", "hello"], k=1).index.shape, model)
    print(gemel.load_cross(sys.argv[2]).probabilities(["a man"], ["a woman"]).shape)
    """
    assert python(code, str(folder), str(nli)).split("\n")[-2] == "(1, 3)"


def test_a_pickled_cross_encoder_is_a_path_and_gives_the_same_bits(folder):
    model = gemel.load_cross(folder, precision="int8")
    again = pickle.loads(pickle.dumps(model))
    assert (again.name, again.precision, again.labels) == (model.name, "int8", model.labels)
    assert np.array_equal(again.scores(LEFT, RIGHT), model.scores(LEFT, RIGHT))


def test_a_pickled_cross_encoder_whose_folder_changed_is_refused(tmp_path):
    content = pickle.dumps(gemel.load_cross(tiny_cross(tmp_path / "m")))
    shutil.rmtree(tmp_path / "m")
    tiny_cross(tmp_path / "m", seed=1)
    with pytest.raises(ModelError, match="differs from the one in"):
        pickle.loads(content)


def test_a_cross_encoder_can_be_made_from_a_folder_and_takes_no_new_attributes(folder):
    model = gemel.CrossModel(folder)
    assert np.array_equal(model.scores(LEFT, RIGHT), gemel.load_cross(folder).scores(LEFT, RIGHT))
    with pytest.raises(AttributeError, match="takes no attribute 'max_length'"):
        model.max_length = 12
    with pytest.raises(AttributeError, match=r"scores\(left, right\), with two lists"):
        model.predict  # noqa: B018 - the access is the test
