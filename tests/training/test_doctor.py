"""The doctor: each rule on a small data set made for it, and no findings where nothing is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest

from gemel.training.data import open_all, open_examples
from gemel.training.doctor import examine
from gemel.training.objectives.base import Needs

CLASS = Needs(texts=("left", "right"), label="class")
SCORE = Needs(texts=("left", "right"), label="score")
BINARY = Needs(texts=("left", "right"), label="binary")
GROUP = Needs(texts=("text",), label="group")
VECTOR = Needs(texts=("text",), label="vector")
RANKING = Needs(texts=("anchor", "positive"), more="negative", distinct=True)
TRIPLET = Needs(texts=("anchor", "positive", "negative"), more="negative")
SHARED = Path(__file__).parents[3] / "shared" / "data"
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def rows(names, *values):
    return [dict(zip(names.split(), row, strict=True)) for row in values]


def pairs(*values):
    return rows("left right label", *values)


def diagnose(data, needs, *, score_range=None, **settings):
    return examine(
        open_examples(data, needs, score_range=score_range), needs, **{"batch_size": 4, **settings}
    )


def findings(data, needs, **settings):
    """Level and text of each finding."""
    return {finding.what: finding for finding in diagnose(data, needs, **settings).findings}


def one(result, start):
    (finding,) = [finding for what, finding in result.items() if what.startswith(start)]
    return finding


def sound(count=40):
    """Scored pairs with nothing wrong: the score is the share of common words."""
    random = np.random.default_rng(0)
    made = []
    for row in range(count):
        common = row % 6
        left, right = random.permutation(WORDS)[:5], [f"word{row}x{i}" for i in range(5)]
        made.append(
            (
                " ".join(left) + f" a{row}",
                " ".join([*left[:common], *right[common:]]) + f" b{row}",
                common / 5,
            )
        )
    return made


def test_sound_data_has_no_findings():
    diagnosis = diagnose(pairs(*sound()), SCORE)
    assert diagnosis.findings == ()
    assert diagnosis.summary() == ["data: 40 rows, no findings"]
    assert (diagnosis.rows, diagnosis.sample) == (40, 40)


def test_a_diagnosis_can_be_written_as_json():
    diagnosis = diagnose(pairs(*sound(), ("x y", "x y", 0), ("", "b", 0.5)), SCORE)
    content = json.loads(json.dumps(diagnosis.to_json()))
    assert [finding["level"] for finding in content["findings"]] == ["warning", "warning"]
    assert content["findings"][0]["examples"] == ["x y | x y | 0"]
    assert diagnosis.summary()[1] == (
        "warning: same text on both sides, but a low label (1 row, 2.4 %). "
        "Equal texts are as similar as can be: fix the label"
    )


# Repeated rows


def test_duplicates_are_counted_without_the_first():
    finding = one(findings(pairs(*sound(98), *[("a", "b", 0.4)] * 3), SCORE), "repeats of an earlier row")
    assert (finding.level, finding.count) == ("note", 2)
    assert finding.examples == ("a | b | 0.4",) * 2
    assert one(findings(pairs(*sound(10), *sound(10)), SCORE), "repeats").level == "warning"


def test_the_same_pair_with_another_label_is_a_conflict():
    data = pairs(
        ("a", "b", "neutral"), ("a", "b", "entailment"), ("a", "c", "neutral"), ("d", "e", "contradiction")
    )
    finding = one(findings(data, CLASS), "same texts as another row, another label")
    assert (finding.level, finding.count) == ("warning", 2)
    assert finding.examples == ("a | b | neutral", "a | b | entailment")


def test_scores_that_are_near_are_no_conflict():
    near, far = [("a", "b", 0.5), ("a", "b", 0.6)], [("a", "b", 0.2), ("a", "b", 0.9)]
    assert not any("another label" in what for what in findings(pairs(*sound(), *near), SCORE))
    assert one(findings(pairs(*sound(), *far), SCORE), "same texts as another row, another label").count == 2


def test_exchanged_texts_with_another_label_are_wrong_for_scores_and_possible_for_nli():
    finding = one(
        findings(pairs(("a", "b", 1), ("b", "a", 0), ("c", "d", 1)), BINARY),
        "same texts as another row the other",
    )
    assert (finding.level, finding.count) == ("warning", 2)
    data = pairs(("a", "b", "entailment"), ("b", "a", "neutral"), ("c", "d", "contradiction"))
    assert one(findings(data, CLASS), "same texts as another row the other").level == "note"
    agreed = pairs(("a", "b", 1), ("b", "a", 1), ("c", "d", 0))
    assert not any("other way" in what for what in findings(agreed, BINARY))


# Equal texts


def test_equal_texts_that_are_not_entailed_are_wrong():
    data = pairs(("a", "a", "contradiction"), ("b", "b", "entailment"), ("c", "d", "neutral"))
    result = findings(data, CLASS)
    assert one(result, "same text on both sides, not labeled entailment").examples == (
        "a | a | contradiction",
    )
    assert result["same text on both sides"].level == "note"


def test_equal_texts_with_the_lowest_scores_say_that_the_scale_is_reversed():
    data = pairs(
        *[(text, other, 1 - score) for text, other, score in sound()],
        *[(f"t{i}", f"t{i}", 0) for i in range(4)],
    )
    finding = one(
        findings(data, SCORE), "the scale is reversed: of 4 pairs of equal texts, 4 have a low label"
    )
    assert finding.level == "error"
    right = pairs(*sound(), *[(f"t{i}", f"t{i}", 1) for i in range(4)])
    assert {finding.level for finding in findings(right, SCORE).values()} == {"note"}


def test_reversed_binary_labels_are_an_error():
    data = pairs(*[(f"t{i}", f"t{i}", 0) for i in range(3)], ("a", "b", 1))
    assert one(findings(data, BINARY), "the scale is reversed").level == "error"


def test_a_positive_that_is_the_anchor_teaches_nothing():
    data = rows("anchor positive", ("a", "a"), ("b", "c"), ("d", "e"), ("f", "g"))
    finding = one(findings(data, RANKING), "same text as anchor and positive")
    assert (finding.level, finding.count, finding.share) == ("note", 1, 0.25)
    assert (
        one(findings(rows("anchor positive", ("a", "a"), ("b", "b")), RANKING), "same text").level
        == "warning"
    )


def test_a_negative_that_is_the_positive_or_the_anchor_is_wrong():
    data = rows(
        "anchor positive negative", ("a", "b", "b"), ("c", "d", "c"), ("e", "f", "g"), ("h", "i", "j")
    )
    result = findings(data, TRIPLET)
    assert one(result, "same text as positive and negative (text column 3)").level == "warning"
    assert one(result, "same text as anchor and negative (text column 3)").count == 1
    most = rows("anchor positive negative", ("a", "b", "b"), ("c", "d", "d"), ("e", "f", "g"))
    assert one(findings(most, TRIPLET), "same text as positive and negative").level == "error"


# Checks by word overlap


def test_scores_that_fall_with_common_words_give_a_warning():
    data = pairs(*[(text, other, 1 - score) for text, other, score in sound()])
    finding = one(findings(data, SCORE), "labels fall as the two texts share more words (correlation -")
    assert (finding.level, "reversed" in finding.advice) == ("warning", True)
    few = pairs(*[(text, other, 1 - score) for text, other, score in sound(12)])
    assert not any("share more words" in what for what in findings(few, SCORE))


def test_swapped_positives_and_negatives_give_a_warning():
    triplets = [
        (f"the cat sat on mat {i}", f"the cat sat on a mat {i}", f"stocks fell again {i}x") for i in range(40)
    ]
    assert not findings(rows("anchor positive negative", *triplets), TRIPLET)
    swapped = findings(rows("anchor negative positive", *triplets), TRIPLET)
    finding = one(swapped, "in 100.0 % of 40 rows that differ, the negative shares more words")
    assert (finding.level, "swapped?" in finding.advice) == ("warning", True)


def test_swapped_premises_and_hypotheses_give_a_warning():
    labels = ["entailment", "neutral", "contradiction"]
    data = [
        (f"a man number {i} sleeps on a bench in the park", f"man {i} rests", labels[i % 3])
        for i in range(45)
    ]
    assert [*findings(pairs(*data), CLASS)] == [
        "labels: entailment 33.3 %, neutral 33.3 %, contradiction 33.3 %"
    ]
    swapped = findings(pairs(*[(right, left, label) for left, right, label in data]), CLASS)
    assert one(swapped, "in 100.0 % of 45 rows the hypothesis is longer").level == "warning"


# Labels


@pytest.mark.parametrize(("needs", "value"), [(CLASS, "neutral"), (SCORE, 0.5), (BINARY, 1)])
def test_one_label_for_all_rows_is_an_error(needs, value):
    result = findings(pairs(*[(f"a{i}", f"b{i}", value) for i in range(5)]), needs)
    finding = one(result, f"all rows have the same label ({value})")
    assert (finding.level, finding.count) == ("error", 5)


def test_one_vector_for_all_rows_is_an_error():
    data = [{"text": f"t{i}", "vector": [1.0, 2.0]} for i in range(3)]
    assert one(findings(data, VECTOR), "all rows have the same label (one vector)").level == "error"


def test_scores_outside_of_the_declared_scale_are_an_error():
    finding = one(
        findings(pairs(("a", "b", 0), ("c", "d", 4), ("e", "f", 7)), SCORE, score_range=(0, 5)),
        "scores outside",
    )
    assert (finding.level, finding.count) == ("error", 1)
    assert "0..5" in finding.what
    signed = pairs(("a", "b", -1), ("c", "d", 1), ("e", "f", 0.5))
    assert not findings(signed, SCORE)


def test_the_share_of_each_class_is_reported():
    labels = ["entailment", "neutral"]
    even = findings(pairs(*[(f"a{i}", f"b{i}", labels[i % 2]) for i in range(10)]), CLASS)
    assert one(even, "labels: entailment 50.0 %, neutral 50.0 %").level == "note"
    uneven = findings(pairs(*[(f"a{i}", f"b{i}", int(i > 0)) for i in range(50)]), BINARY)
    assert one(uneven, "labels: 0 2.0 %, 1 98.0 %").level == "warning"


def test_texts_alone_in_their_group_have_no_positive():
    def level(groups):
        result = findings([{"text": f"t{i}", "label": group} for i, group in enumerate(groups)], GROUP)
        return next(
            (finding.level for what, finding in result.items() if "alone in their group" in what), None
        )

    assert [level(groups) for groups in ("abcd", "aabcd", "aabbc", "aabb")] == [
        "error",
        "warning",
        "note",
        None,
    ]


# Batches


def test_rows_with_a_common_text_are_put_into_different_batches():
    data = rows("anchor positive", ("a", "b"), ("a", "c"), *[(f"x{i}", f"y{i}") for i in range(8)])
    finding = one(
        findings(data, RANKING, batch_size=4), "a text in common with another row; in random batches of 4"
    )
    # two rows of ten, each with one other among nine that meets it in 3 of 9 draws: (1 - (8/9)^3) * 0.2
    assert "6.0 % of the rows would meet a false negative" in finding.what
    assert (finding.level, finding.count) == ("note", 2)
    labeled = pairs(("a", "b", 1), ("a", "c", 0), ("d", "e", 1))
    assert not any("in common" in what for what in findings(labeled, BINARY))


def test_texts_that_differ_in_case_only_may_share_a_batch():
    data = rows("anchor positive", ("A dog", "b"), ("a  dog", "c"), *[(f"x{i}", f"y{i}") for i in range(8)])
    finding = one(findings(data, RANKING), "a text in common with another row except for case or white space")
    assert (finding.level, finding.count) == ("warning", 2)


def test_a_text_in_more_rows_than_batches_is_a_warning():
    data = rows(
        "anchor positive negative", *[(f"a{i}", f"b{i}", "same" if i < 5 else f"c{i}") for i in range(16)]
    )
    finding = one(
        findings(data, RANKING, batch_size=4), "one text in common, but an epoch has about 4 batches of 4"
    )
    assert finding.count == 5


# Texts


def test_empty_texts_are_found():
    finding = one(findings(pairs(*sound(), ("", "b", 0.2), ("c", " \t", 0.4)), SCORE), "empty text")
    assert (finding.level, finding.count) == ("warning", 2)


class Words:
    """A tokenizer of words with two special tokens."""

    special = "[]"

    def content(self, texts):
        return [text.split() for text in texts]


def test_the_share_of_truncated_rows_is_reported_with_the_limit():
    data = rows("anchor positive", *[("w " * (i + 1) + f"{i}", f"p{i}") for i in range(20)])
    result = findings(data, RANKING, tokenizer=Words(), max_length=20)
    finding = one(
        result, "of 20 sampled rows, some have a text over 20 tokens, which is truncated; the longest has 23"
    )
    assert (finding.level, finding.count, finding.share) == ("warning", 3, 0.15)
    assert not findings(data, RANKING, tokenizer=Words(), max_length=23)


# Leakage


def test_evaluation_pairs_are_found_in_either_order_case_and_spacing():
    evaluation = [("Word one", "other  text"), ("x", "y"), ("p", "q"), ("x", "z")]
    data = pairs(*sound(), ("Other text ", "word ONE", 0.5))
    finding = one(
        findings(data, SCORE, evaluation_texts=evaluation),
        "evaluation pairs among the training data: 1 of 4 (25.0 %)",
    )
    assert (finding.level, finding.count) == ("warning", 1)
    assert finding.examples == ("Other text  | word ONE | 0.5",)


def test_most_evaluation_pairs_in_training_is_an_error():
    data = pairs(*sound())
    evaluation = [(left, right) for left, right, _ in sound()]
    assert one(findings(data, SCORE, evaluation_texts=evaluation), "evaluation pairs").level == "error"
    assert not findings(data, SCORE, evaluation_texts=iter([("not", "there")]))


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data")
def test_published_data_is_accepted():
    for file, needs in (("sts/stsb-train", SCORE), ("nli/snli-triplets", TRIPLET), ("nli/cad-train", CLASS)):
        for examples in open_all(SHARED / f"{file}.tsv.gz", needs):
            diagnosis = examine(examples, needs, batch_size=16)
            assert not diagnosis.errors
            assert len(diagnosis.findings) <= 4


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data")
def test_swapped_columns_of_published_triplets_are_noticed():
    swap = {"positive": "negative", "negative": "positive"}
    (examples,) = open_all(SHARED / "nli" / "snli-triplets.tsv.gz", TRIPLET, columns=swap)
    assert any("swapped?" in finding.advice for finding in examine(examples, TRIPLET, batch_size=16).findings)
