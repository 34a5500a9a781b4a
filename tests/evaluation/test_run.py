"""Encoders through a task: names, averages, comparison of two models, and settings of tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.evaluation.test_sts import PAIRS, Angles, Constant, table

import gemel
from gemel.checkpoint.head import ClassificationHead
from gemel.checkpoint.write import write_checkpoint
from gemel.errors import InputError
from gemel.evaluation.evaluate import (
    average,
    compare_models,
    compare_with,
    evaluate,
    open_encoder,
    score_tasks,
)
from gemel.evaluation.task import TASKS, Bootstrap, load_task
from gemel.options import EncodeOptions
from tiny import tiny_bert

# The tests are about other things than prompts.
pytestmark = pytest.mark.filterwarnings("ignore::gemel.PromptWarning")


class Noise:
    """Returns random vectors."""

    dim = 8

    def encode(self, texts):
        return np.random.default_rng(0).normal(size=(len(texts), 8)).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    for name in ("stsa", "stsb"):
        angles = random.integers(1, 90, 40)
        rows = [(0, int(angle), round(90 - angle + random.normal(0, 10), 1)) for angle in angles]
        table(tmp_path / f"{name}.tsv", rows)
    return tmp_path


def test_every_data_set_and_then_the_average(folder):
    results = evaluate(Angles(), task="sts", data=folder, rounds=50)
    assert [result.dataset for result in results] == ["stsa", "stsb", "average"]
    assert {result.model for result in results} == {"angles"}
    one, two, mean = (result.values["spearman"] for result in results)
    assert mean.value == pytest.approx((one.value + two.value) / 2)
    assert mean.low < mean.value < mean.high
    assert results[2].items == 80
    assert results[2].protocol["datasets"] == ["stsa", "stsb"]
    assert results[2].protocol["rounds"] == 50


def test_one_data_set_has_no_average(folder):
    assert len(evaluate(Angles(), task="sts", data=folder / "stsa.tsv", rounds=0)) == 1


def test_an_encoder_without_a_name_goes_by_its_class(folder):
    [result] = evaluate(Noise(), task="sts", data=folder / "stsa.tsv", rounds=0)
    assert result.model == "Noise"
    [named] = score_tasks(load_task("sts", folder / "stsa.tsv", rounds=0), Noise(), name="mine")
    assert named.model == "mine"


def test_an_average_over_something_undefined_is_undefined(folder, tmp_path):
    table(folder / "stsc.tsv", PAIRS[:1])
    mean = evaluate(Angles(), task="sts", data=folder, rounds=10)[-1].values["spearman"]
    assert mean.value is None
    assert "stsc" in mean.note


def test_two_models_are_compared_in_points(folder):
    bad = evaluate(Noise(), task="sts", data=folder, rounds=0)
    good = evaluate(Angles(), task="sts", data=folder, rounds=0)
    for one, two in zip(bad, good, strict=True):
        actual = compare_models(one, two, rounds=200)
        assert actual.difference == pytest.approx(two.values["spearman"].value - one.values["spearman"].value)
        assert actual.sure
        assert actual.p_value < 0.05
    named = compare_with(bad, good[-1], rounds=50)
    assert [(each.first, each.second, each.dataset, each.better) for each in named] == [
        ("Noise", "angles", "average", "angles")
    ]


def test_different_data_are_not_compared(folder):
    one, two, mean = evaluate(Angles(), task="sts", data=folder, rounds=0)
    with pytest.raises(InputError, match="dataset is stsa and stsb"):
        compare_models(one, two)
    with pytest.raises(InputError, match="items is 40 and 80"):
        compare_models(one, replace(mean, dataset="stsa"))
    with pytest.raises(InputError, match=r"only be compared on the same data, but .* differs"):
        compare_models(one, replace(two, dataset="stsa"))
    with pytest.raises(InputError, match="have no items"):
        compare_models(one, replace(one, sample=None))


def test_undefined_metrics_are_left_out_of_comparisons(folder):
    fine = evaluate(Angles(), task="sts", data=folder / "stsa.tsv", rounds=0)
    [flat] = evaluate(Constant(), task="sts", data=folder / "stsa.tsv", rounds=0)
    assert compare_with(fine, flat) == []


class OneItem:
    items = 1

    def number(self, rows):
        return 0.5


def test_averages_of_single_items_are_not_compared(folder):
    """Every bootstrap draw is the same, so that any difference would look significant."""
    results = [
        replace(result, sample=OneItem()) for result in evaluate(Angles(), task="sts", data=folder)[:2]
    ]
    mean = average(results)
    assert mean.sample.items == 2
    assert compare_with([mean], replace(mean, model="other")) == []


def test_an_average_without_items_has_values_only(folder):
    results = [replace(result, sample=None) for result in evaluate(Angles(), task="sts", data=folder)[:2]]
    mean = average(results)
    assert mean.sample is None
    assert mean.values["spearman"].low is None


def test_an_unknown_task_is_refused_with_those_that_exist(folder):
    with pytest.raises(InputError, match=r"unknown task 'st'. Did you mean 'sts'\? Known: .*triplets"):
        evaluate(Angles(), task="st", data=folder)


def test_an_unknown_setting_of_a_task_is_refused(folder):
    with pytest.raises(InputError, match=r"task 'sts' has no setting 'k'. It has metric, rounds, seed"):
        evaluate(Angles(), task="sts", data=folder, k=3)


def test_a_setting_of_none_is_the_task_s_default(folder):
    [task, _] = load_task("sts", folder, metric=None, rounds=None, seed=7)
    assert (task.metrics, task.bootstrap) == (("cosine",), Bootstrap(1000, 7))


def test_every_file_of_the_tasks_is_a_task_of_its_name():
    for name in TASKS:
        assert TASKS[name].__module__ == f"gemel.evaluation.tasks.{name.replace('-', '_')}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("models") / "tiny", prompts={"query": "how do i "})


TEXTS = [
    ("a man", "a woman", 3),
    ("a cat", "the stock market", 1),
    ("a dog", "a cat", 4),
    ("rain", "rain", 5),
]


def test_the_public_function_takes_a_folder_and_says_how_it_encoded(model, tmp_path):
    path = table(tmp_path / "a.tsv", TEXTS)
    [plain] = gemel.evaluate(model, task="sts", data=path, rounds=10)
    assert plain.model == "tiny"
    assert "encoding" not in plain.protocol
    [cut] = gemel.evaluate(
        str(model), task="sts", data=path, rounds=10, pooling="cls", options=EncodeOptions(dim=8, threads=1)
    )
    assert cut.protocol["encoding"] == {"pooling": "cls", "dim": 8}
    assert (
        cut.values["spearman"] != plain.values["spearman"] or cut.values["pearson"] != plain.values["pearson"]
    )


def test_the_public_function_takes_anything_with_an_encode(tmp_path):
    [scores] = gemel.evaluate(Angles(), task="sts", data=table(tmp_path / "a.tsv", PAIRS), rounds=0)
    assert scores.values["spearman"].value == pytest.approx(80)


def test_a_baseline_goes_by_what_was_typed(model, tmp_path):
    path = table(tmp_path / "a.tsv", TEXTS)
    names = [
        gemel.evaluate(name, task="sts", data=path, rounds=0)[0].model
        for name in ("tfidf", f"cls-bert:{model}")
    ]
    assert names == ["tfidf", f"cls-bert:{model}"]


def test_a_ranker_without_vectors_is_refused_by_tasks_that_compare(tmp_path):
    with pytest.raises(InputError, match="'sts' compares vectors, but bm25 only ranks"):
        gemel.evaluate("bm25", task="sts", data=table(tmp_path / "a.tsv", TEXTS))


def test_options_reach_all_three_ways_to_encode(model):
    encoder = open_encoder(model, options=EncodeOptions(dim=8, prompt="how "))
    plain = gemel.load(model)
    expected = plain.encode(["a man"], dim=8, prompt="how ")
    assert encoder.dim == 8
    for encode in (encoder.encode, encoder.encode_query, encoder.encode_document):
        assert np.array_equal(encode(["a man"]), expected)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (Constant(), {"pooling": "cls"}, "given by name or folder"),
        ("tfidf", {"pooling": "cls"}, "takes no encoding options"),
        ("tiny", {"options": EncodeOptions(output="binary")}, "is bits"),
    ],
)
def test_options_that_do_not_apply_are_refused(name, settings, message):
    with pytest.raises(InputError, match=message):
        open_encoder(name, **settings)


NLI = [("a man", "a cat", "b"), ("rain", "a dog", "a"), ("the market", "a woman", "b"), ("a", "man", "c")]


@pytest.fixture(scope="module")
def headed(model, tmp_path_factory):
    """The same model with a classification head that takes |u - v| of its vectors to three labels."""
    plain = gemel.load(model)
    weight = np.random.default_rng(0).normal(size=(3, plain.dim)).astype(np.float32)
    head = ClassificationHead("|u-v|", weight, None, ("c", "a", "b"))
    return write_checkpoint(plain.checkpoint, tmp_path_factory.mktemp("headed") / "m", relation=head)


def test_the_kept_head_of_a_model_is_scored_with_and_without_options(headed, tmp_path):
    path = table(tmp_path / "a.tsv", NLI, "premise\thypothesis\tlabel")
    left, right, gold = zip(*NLI, strict=True)
    for options in ({}, {"max_length": 3, "on_long": "truncate"}, {"prompt": "how "}):
        [scores] = gemel.evaluate(headed, task="nli", data=path, rounds=0, options=EncodeOptions(**options))
        chances = gemel.load(headed).relation(left, right, **options)
        right_ones = [
            ("c", "a", "b")[row.argmax()] == label for row, label in zip(chances, gold, strict=True)
        ]
        assert scores.values["accuracy"].value == 100 * np.mean(right_ones)
        assert scores.protocol.get("encoding", {}) == options


def test_an_option_that_a_head_cannot_follow_is_refused(headed, tmp_path):
    path = table(tmp_path / "a.tsv", NLI, "premise\thypothesis\tlabel")
    with pytest.raises(InputError, match="relation takes no dim"):
        gemel.evaluate(headed, task="nli", data=path, options=EncodeOptions(dim=8))


def test_a_model_without_a_head_is_refused_with_options_too(model, tmp_path):
    path = table(tmp_path / "a.tsv", NLI, "premise\thypothesis\tlabel")
    for pooling in (None, "cls"):
        with pytest.raises(InputError, match="tiny has none"):
            gemel.evaluate(model, task="nli", data=path, pooling=pooling)


def test_the_protocol_has_the_fingerprint_of_what_encoded(model, tmp_path):
    path = table(tmp_path / "a.tsv", TEXTS)
    [plain] = gemel.evaluate(model, task="sts", data=path, rounds=0)
    assert plain.protocol["fingerprint"] == gemel.load(model).fingerprint.to_json()
    [cut] = gemel.evaluate(model, task="sts", data=path, rounds=0, options=EncodeOptions(dim=8))
    assert cut.protocol["fingerprint"]["dim"] == 8
    [other] = gemel.evaluate("tfidf", task="sts", data=path, rounds=0)
    assert "fingerprint" not in other.protocol
