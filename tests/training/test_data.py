"""Training data: columns by role, labels of every kind, bad rows, NLI files as rows for ranking, texts on disk."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from gemel.errors import InputError
from gemel.training.data.read import open_all, open_examples
from gemel.training.objectives.base import Needs

CLASS = Needs(texts=("left", "right"), label="class")
SCORE = Needs(texts=("left", "right"), label="score")
BINARY = Needs(texts=("left", "right"), label="binary")
GROUP = Needs(texts=("text",), label="group")
VECTOR = Needs(texts=("text",), label="vector", more="translation")
MARGIN = Needs(texts=("anchor", "positive", "negative"), label="margin")
RANKING = Needs(texts=("anchor", "positive"), more="negative", distinct=True)
TRIPLET = Needs(texts=("anchor", "positive", "negative"), more="negative")
TEXT = Needs(texts=("text",))
SHARED = Path(__file__).parents[3] / "shared" / "data"

NLI = [
    ("A man sleeps.", "A person rests.", "entailment"),
    ("A man sleeps.", "A man runs.", "contradiction"),
    ("A man sleeps.", "A man dreams.", "neutral"),
    ("A dog barks.", "An animal is loud.", "entailment"),
]


def tsv(folder, header, rows, name="data.tsv"):
    path = folder / name
    text = "\n".join("\t".join(map(str, row)) for row in [header, *rows]) + "\n"
    opened = gzip.open if name.endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.write(text)
    return path


def pairs(scores):
    return [{"sentence1": f"a{i}", "sentence2": f"b{i}", "score": score} for i, score in enumerate(scores)]


def everything(examples):
    return examples.batch(np.arange(len(examples)))


class FakeDataset:
    """What is used of datasets.Dataset."""

    class Feature:
        def __init__(self, names):
            self.names = names

    def __init__(self, rows, names=None, named=True):
        self.rows = rows
        self.column_names = list(rows[0]) if named else None
        self.features = {"label": self.Feature(names)} if names else None

    def __iter__(self):
        return iter(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


# Formats


@pytest.mark.parametrize("name", ["data.tsv", "data.tsv.gz", "data.csv", "data.jsonl", "data.parquet"])
def test_every_format_gives_the_same_examples(tmp_path, name):
    rows = [("She said \u201cno\u201d\u2028twice", "b 1", 0.5), ("\u00e4 \U0001f600", "b2", 1)]
    path = tmp_path / name
    if ".tsv" in name:
        tsv(tmp_path, ("sentence1", "sentence2", "score"), rows, name)
    elif name == "data.csv":
        path.write_text(
            "sentence1,sentence2,score\n" + "\n".join(f'"{a}",{b},{s}' for a, b, s in rows), "utf-8"
        )
    elif name == "data.jsonl":
        lines = [json.dumps(dict(zip(("sentence1", "sentence2", "score"), row, strict=True))) for row in rows]
        path.write_text("\n\n".join(lines), "utf-8")
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = list(zip(*rows, strict=True))
        pq.write_table(
            pa.table({"sentence1": columns[0], "sentence2": columns[1], "score": columns[2]}), path
        )
    result = open_examples(path, SCORE)
    batch = everything(result)
    assert batch.columns == ([row[0] for row in rows], [row[1] for row in rows])
    assert batch.label.tolist() == [0.5, 1.0]
    assert result.lengths.tolist() == [len(a) + len(b) for a, b, _ in rows]
    assert (result.name, result.roles) == ("data", ("left", "right"))


def test_quotes_in_tsv_are_text(tmp_path):
    path = tsv(tmp_path, ("left", "right", "score"), [('"open', 'a "b" c', 1)])
    assert everything(open_examples(path, SCORE)).columns == (['"open'], ['a "b" c'])


def test_a_text_file_has_one_text_per_line(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("one\ntwo\n")
    assert everything(open_examples(path, TEXT)).columns == (["one", "two"],)


def test_lists_dicts_and_datasets_give_the_same_examples():
    rows = pairs([0.1, 0.9])
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    prints = {
        open_examples(data, SCORE).fingerprint()
        for data in (rows, columns, FakeDataset(rows), FakeDataset(rows, named=False))
    }
    assert len(prints) == 1


def test_a_dataset_names_the_classes_of_its_numbers():
    rows = [{"premise": "a", "hypothesis": f"b{i}", "label": i} for i in (2, 0, 1)]
    result = open_examples(FakeDataset(rows, ["entailment", "neutral", "contradiction"]), CLASS)
    assert result.classes == ("entailment", "neutral", "contradiction")
    assert everything(result).label.tolist() == [2, 0, 1]


def test_no_gold_label_in_a_dataset_is_a_bad_row():
    rows = [{"premise": "a", "hypothesis": f"b{i}", "label": i} for i in (-1, 0, 1)]
    data = FakeDataset(rows, ["entailment", "neutral", "contradiction"])
    with pytest.raises(InputError, match=r"dataset:row 0: no gold label \(-1"):
        open_examples(data, CLASS)
    assert open_examples(data, CLASS, skip_bad=True).skipped == 1


def test_a_split_must_be_chosen():
    with pytest.raises(InputError, match=r"splits train, dev. Give one of them: data\['train'\]"):
        open_examples({"train": FakeDataset(pairs([1])), "dev": FakeDataset(pairs([1]))}, SCORE)


def test_several_files_are_one_data_set(tmp_path):
    one = tsv(tmp_path, ("premise", "hypothesis", "label"), NLI[:2], "one.tsv")
    two = tsv(tmp_path, ("label", "sentence1", "sentence2"), [("neutral", "x", "y")], "two.tsv")
    result = open_examples([one, two], CLASS)
    assert everything(result).columns[1] == ["A person rests.", "A man runs.", "y"]
    assert everything(result).label.tolist() == [0, 2, 1]
    assert result.name == "one and 1 more"


# Columns


@pytest.mark.parametrize(
    ("columns", "needs", "used"),
    [
        ("premise hypothesis label", CLASS, "premise hypothesis label"),
        ("Text_A Text_B gold_label", CLASS, "Text_A Text_B gold_label"),
        ("id sentence1 sentence2 score entailment", CLASS, "sentence1 sentence2 entailment"),
        ("id sentence1 sentence2 score entailment", SCORE, "sentence1 sentence2 score"),
        ("label question1 question2", BINARY, "question1 question2 label"),
        ("anchor positive negative", RANKING, "anchor positive negative"),
        (
            "anchor positive negative2 negative1 negative10",
            RANKING,
            "anchor positive negative1 negative2 negative10",
        ),
        ("anchor positive negative1 negative2", TRIPLET, "anchor positive negative1 negative2"),
        ("query pos neg", RANKING, "query pos neg"),
        ("query document", RANKING, "query document"),
        ("sentence1 sentence2", RANKING, "sentence1 sentence2"),
        ("de en fr", RANKING, "en de"),
        ("image caption1 caption2 caption3", RANKING, "caption1 caption2"),
        ("en de cs vector", VECTOR, "en de cs vector"),
        ("label sentence", GROUP, "sentence label"),
        ("whatever", TEXT, "whatever"),
        ("query positive negative score", MARGIN, "query positive negative score"),
    ],
)
def test_roles_are_recognized_by_common_column_names(columns, needs, used):
    special = {"vector": [0.5, 1.0]}
    numbers = {"label", "score", "gold_label", "entailment"}
    row = {name: special.get(name, 1 if name in numbers else f"text of {name}") for name in columns.split()}
    result = open_examples([row], needs)
    *texts, last = used.split()
    expected = texts if needs.label else [*texts, last]
    assert [column[0] for column in everything(result).columns] == [f"text of {name}" for name in expected]
    assert (everything(result).label is None) == (needs.label is None)


def test_columns_can_be_given_by_role():
    row = {"a": "x", "b": "y", "c": "z", "d": "w", "gold": 1}
    result = open_examples(
        [row], RANKING, columns={"anchor": "a", "positive": "b", "negative1": "c", "negative2": "d"}
    )
    assert everything(result).columns == (["x"], ["y"], ["z"], ["w"])
    result = open_examples([row], BINARY, columns={"left": "d", "right": "a", "label": "gold"})
    assert everything(result).columns == (["w"], ["x"])


def test_a_column_or_role_that_is_not_there_is_refused():
    with pytest.raises(
        InputError, match=r"no column 'x' for left. Columns: 'sentence1', 'sentence2', 'score'"
    ):
        open_examples(pairs([1]), SCORE, columns={"left": "x"})
    with pytest.raises(
        InputError, match=r"unknown role 'lefft' for the column 'sentence1'. Known: left, right"
    ):
        open_examples(pairs([1]), SCORE, columns={"lefft": "sentence1"})


def test_missing_columns_name_the_objectives_that_fit():
    with pytest.raises(
        InputError,
        match=r"objective 'regression' needs columns left, right, score; the data has anchor, positive "
        r"\(missing: left, right, score\)\. These objectives fit your columns: in-batch-ranking\.",
    ):
        open_examples([{"anchor": "a", "positive": "b"}], SCORE, objective="regression")


def test_ranking_on_scores_is_refused_with_what_fits():
    with pytest.raises(
        InputError, match=r"pairs that belong together.*fit your columns: angle, cosent, regression\."
    ):
        open_examples(pairs([0.3, 0.9]), RANKING)
    given = open_examples(
        pairs([0.3, 0.9]), RANKING, columns={"anchor": "sentence1", "positive": "sentence2"}
    )
    assert len(given) == 2


def test_lists_of_positives_make_rows_and_lists_of_negatives_columns():
    data = [
        {"query": "q", "pos": ["p1", "p2"], "neg": ["n1", "n2"]},
        {"query": "r", "pos": ["s"], "neg": ["m", "l", "k"]},
    ]
    result = open_examples(data, RANKING)
    assert result.roles == ("anchor", "positive", "negative", "negative")
    assert everything(result).columns == (
        ["q", "q", "r"],
        ["p1", "p2", "s"],
        ["n1", "n1", "m"],
        ["n2", "n2", "l"],
    )
    with pytest.raises(InputError, match="data:row 1: 1 texts in 'negative', but the first row has 2"):
        open_examples([data[0], {"query": "r", "pos": "s", "neg": ["m"]}], RANKING)


# Labels


def test_nli_labels_are_recognized_in_any_case_and_have_their_usual_order():
    rows = [
        {"left": "a", "right": "b", "label": name} for name in ("CONTRADICTION", "Neutral ", "entailment")
    ]
    result = open_examples(rows, CLASS)
    assert result.classes == ("entailment", "neutral", "contradiction")
    assert everything(result).label.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [(["b", "a", "C"], ("C", "a", "b")), ([10, 9, 2], ("2", "9", "10")), ([True, False], ("0", "1"))],
)
def test_other_classes_are_sorted(labels, classes):
    rows = [{"left": "a", "right": "b", "label": label} for label in labels]
    assert open_examples(rows, CLASS).classes == classes


def test_given_labels_fix_the_order_and_refuse_others():
    rows = [{"left": "a", "right": "b", "label": label} for label in ("Yes", "no")]
    result = open_examples(rows, CLASS, labels=["no", "maybe", "yes"])
    assert (result.classes, everything(result).label.tolist()) == (("no", "maybe", "yes"), [2, 0])
    with pytest.raises(InputError, match="the label 'no' is not one of yes, maybe"):
        open_examples(rows, CLASS, labels=["yes", "maybe"])


def test_several_data_sets_share_one_order_of_classes():
    one = [{"left": "a", "right": "b", "label": label} for label in ("zebra", "ant")]
    two = {"left": ["c"], "right": ["d"], "label": ["bee"]}
    result = open_all([FakeDataset(one), two], CLASS)
    assert [part.classes for part in result] == [("ant", "bee", "zebra")] * 2
    assert [everything(part).label.tolist() for part in result] == [[2, 0], [1]]


@pytest.mark.parametrize(
    ("scores", "scale", "expected"),
    [
        ([0, 0.5, 1], "0..1", [0, 0.5, 1]),
        ([-1, 0, 0.5], "-1..1", [-1, 0, 0.5]),
        ([0, 2.5, 5], "0..5", [0, 0.5, 1]),
        ([1, 3, 5], "1..5", [0, 0.5, 1]),
    ],
)
def test_the_scale_of_scores_is_detected_and_reported(scores, scale, expected):
    result = open_examples(pairs(scores), SCORE)
    assert everything(result).label.tolist() == expected
    assert f"on a scale of {scale} (detected" in result.notes[-1]


def test_a_declared_scale_is_used():
    result = open_examples(pairs([50, 100]), SCORE, score_range=(0, 100))
    assert everything(result).label.tolist() == [0.5, 1.0]
    assert "(as declared), rescaled to 0..1" in result.notes[-1]


def test_an_unusual_scale_must_be_declared():
    with pytest.raises(InputError, match=r"scores go from 3 to 97, .* Declare it with score_range"):
        open_examples(pairs([3, 97]), SCORE)
    with pytest.raises(InputError, match="score_range goes from low to high, got 5, 0"):
        open_examples(pairs([3, 97]), SCORE, score_range=(5, 0))


@pytest.mark.parametrize("value", ["x", "", None, float("nan"), "inf"])
def test_a_score_that_is_no_number_is_a_bad_row(value):
    with pytest.raises(InputError, match=r"data:row 1: the score .* is not a (finite )?number"):
        open_examples(pairs([1, value]), SCORE)


def test_binary_labels_are_zero_and_one_in_many_spellings():
    values = [1, "0", True, "false", 1.0, "Yes"]
    rows = [{"left": "a", "right": "b", "label": value} for value in values]
    assert everything(open_examples(rows, BINARY)).label.tolist() == [1, 0, 1, 0, 1, 1]
    with pytest.raises(InputError, match="row 0: the label must be 0 or 1, got 2"):
        open_examples([{"left": "a", "right": "b", "label": 2}], BINARY)


def test_groups_are_numbered_as_they_come():
    rows = [{"text": f"t{i}", "label": label} for i, label in enumerate(["x", "y", "x", 7])]
    result = open_examples(rows, GROUP)
    assert (everything(result).label.tolist(), result.classes) == ([0, 1, 0, 2], ())


def test_margins_are_left_as_they_are():
    row = {"anchor": "a", "positive": "b", "negative": "c", "margin": "-7.5"}
    label = everything(open_examples([row], MARGIN)).label
    assert (label.tolist(), label.dtype) == ([-7.5], np.float32)


def test_vectors_are_rows_of_float32():
    rows = [{"text": f"t{i}", "vector": [i, 0.5]} for i in range(3)]
    label = open_examples(rows, VECTOR).batch(np.array([2, 0])).label
    assert (label.tolist(), label.dtype) == ([[2, 0.5], [0, 0.5]], np.float32)
    for wrong, reason in (
        ([1], "has 1 numbers, earlier ones have 2"),
        ("0.1 0.2", "not a list"),
        ([1, np.nan], "finite"),
    ):
        with pytest.raises(InputError, match=f"row 3: the vector .*{reason}"):
            open_examples([*rows, {"text": "x", "vector": wrong}], VECTOR)


# Bad rows


def test_bad_rows_are_named_by_file_and_line_or_counted(tmp_path):
    rows = [*NLI, ("a", "b", "-"), ("only two", "fields"), ("a", "b", ""), *[("x", "y", "-")] * 5]
    path = tsv(tmp_path, ("premise", "hypothesis", "label"), rows)
    with pytest.raises(
        InputError, match=r"data\.tsv:6: no gold label \('-'\)\. Fix the row, or .*--skip-bad"
    ):
        open_examples(path, CLASS)
    result = open_examples(path, CLASS, skip_bad=True)
    assert (len(result), result.skipped, len(result.bad)) == (4, 8, 5)
    assert result.bad[1] == f"{path}:7: 2 fields, but the first line names 3 columns"


def test_texts_must_be_strings_of_whole_characters():
    for text, reason in ((None, "got null"), (3, "got a number"), ("\ud800", "half a character")):
        with pytest.raises(InputError, match=f"data:row 1: .*{reason}"):
            open_examples([{"text": "fine"}, {"text": text}], TEXT)


def test_data_without_a_usable_row_is_refused(tmp_path):
    path = tsv(tmp_path, ("premise", "hypothesis", "label"), [("a", "b", "-")])
    with pytest.raises(InputError, match=r"no usable row \(1 bad rows; the first bad one: .*:2: no gold"):
        open_examples(path, CLASS, skip_bad=True)
    with pytest.raises(InputError, match="no usable row"):
        open_examples({"left": [], "right": [], "label": []}, CLASS)


def test_damaged_files_are_input_errors(tmp_path):
    path = tsv(tmp_path, ("left", "right", "score"), [("a" * 999, "b", 1)] * 999, "cut.tsv.gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="gzip data is damaged or cut off"):
        open_examples(path, SCORE)
    with pytest.raises(InputError, match="no file at"):
        open_examples(tmp_path / "none.tsv", SCORE)
    with pytest.raises(InputError, match=r"training data must be a file.* got int"):
        open_examples(7, SCORE)
    (tmp_path / "empty.tsv").write_text("")
    with pytest.raises(InputError, match="empty"):
        open_examples(tmp_path / "empty.tsv", SCORE)


# Ranking rows from labeled pairs


def test_nli_files_become_ranking_rows_with_and_without_a_negative(tmp_path):
    path = tsv(tmp_path, ("premise", "hypothesis", "label"), NLI)
    both, alone = open_all(path, RANKING)
    assert both.roles == ("anchor", "positive", "negative")
    assert everything(both).columns == (["A man sleeps."], ["A person rests."], ["A man runs."])
    assert alone.roles == ("anchor", "positive")
    assert everything(alone).columns == (["A dog barks."], ["An animal is loud."])
    assert both.notes[-1] == "1 rows with a negative from 4 labeled pairs"
    assert both.fingerprint() != alone.fingerprint()
    assert both.lengths.tolist() == [sum(map(len, NLI[0][:2])) + len(NLI[1][1])]


def test_nli_files_become_triplets_where_there_is_a_contradiction(tmp_path):
    path = tsv(tmp_path, ("premise", "hypothesis", "label"), NLI)
    (result,) = open_all(path, TRIPLET)
    assert everything(result).columns == (["A man sleeps."], ["A person rests."], ["A man runs."])


def test_contradictions_are_assigned_in_turn():
    rows = [("p", f"e{i}", "entailment") for i in range(3)] + [
        ("p", f"c{i}", "contradiction") for i in range(2)
    ]
    data = [
        dict(zip(("premise", "hypothesis", "label"), row, strict=True))
        for row in [*rows, ("q", "n", "neutral")]
    ]
    (result,) = open_all(data, RANKING)
    assert everything(result).columns == (["p"] * 3, ["e0", "e1", "e2"], ["c0", "c1", "c0"])


def test_duplicate_questions_become_ranking_rows():
    data = {"question1": ["a", "a", "b"], "question2": ["x", "y", "z"], "label": ["1", "0", "0"]}
    (result,) = open_all(data, RANKING)
    assert everything(result).columns == (["a"], ["x"], ["y"])


def test_labeled_pairs_without_a_positive_are_refused():
    data = {"premise": ["a"], "hypothesis": ["b"], "label": ["neutral"]}
    with pytest.raises(InputError, match="no row for anchor, positive in 1 labeled pairs"):
        open_all(data, RANKING)


# Storage


def test_the_fingerprint_follows_texts_labels_and_order():
    base = pairs([0, 0.5, 1])
    other_text = [*base[:2], {**base[2], "sentence1": "a3"}]
    moved = [{**base[0], "sentence1": "a", "sentence2": "0b0"}, *base[1:]]
    other_label = [*base[:2], {**base[2], "score": 0.9}]
    prints = [
        open_examples(data, SCORE).fingerprint()
        for data in (base, other_text, moved, other_label, base[::-1])
    ]
    assert len(set(prints)) == 5
    assert open_examples(pairs([0, 0.5, 1]), SCORE).fingerprint() == prints[0]


def test_rows_come_in_the_requested_order():
    result = open_examples(pairs(np.linspace(0, 1, 3000)), SCORE)
    rows = np.random.default_rng(0).permutation(3000)[:50]
    batch = result.batch(rows)
    assert batch.columns[0] == [f"a{row}" for row in rows]
    assert batch.columns[1] == [f"b{row}" for row in rows]
    assert np.allclose(batch.label, rows / 2999)


def test_equal_texts_have_equal_hashes():
    result = open_examples(
        [{"left": "x", "right": "y", "score": 1}, {"left": "y", "right": "x", "score": 0}], SCORE
    )
    assert result.hashes[0].tolist() == result.hashes[1, ::-1].tolist()
    assert len(set(result.hashes.ravel().tolist())) == 2


def test_texts_are_not_kept_in_memory(tmp_path):
    import tracemalloc

    path = tsv(tmp_path, ("left", "right", "score"), [("x" * 3000, f"{i}" * 600, 1) for i in range(4000)])
    tracemalloc.start()
    result = open_examples(path, SCORE)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.lengths.sum() > 18e6
    assert most < 12e6


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data")
def test_the_snli_subset_is_read_as_its_table_says():
    result = open_examples(SHARED / "nli" / "snli-dev.tsv.gz", CLASS, skip_bad=True)
    assert result.classes == ("entailment", "neutral", "contradiction")
    assert np.bincount(result.labels).min() > 3000


# Rows by position, and tables


@pytest.mark.parametrize(
    ("rows", "needs", "roles"),
    [
        ([("a", "b"), ("c", "d")], RANKING, ("anchor", "positive")),
        ([["a", "b", "n", "m"]], RANKING, ("anchor", "positive", "negative", "negative")),
        ((("a", "b", "c"),), TRIPLET, ("anchor", "positive", "negative")),
        ([("a", "b", "yes"), ("a", "c", "no")], CLASS, ("left", "right")),
        ([("a", "b", 0.2), ("a", "c", 0.4)], SCORE, ("left", "right")),
        ([("a",), ("b",)], TEXT, ("text",)),
    ],
)
def test_tuples_have_the_roles_of_the_objective(rows, needs, roles):
    [examples] = open_all(rows, needs)
    assert examples.roles == roles
    assert len(examples) == len(rows)
    assert (examples.labels is None) == (needs.label is None)


def test_tuples_with_a_number_are_labeled_pairs_for_ranking():
    [examples] = open_all([("a", "b", 1), ("a", "c", 0), ("d", "e", 0.0)], RANKING)
    assert examples.roles == ("anchor", "positive", "negative")


@pytest.mark.parametrize(
    ("rows", "needs", "message"),
    [
        ([("a", "b")], TRIPLET, "a row has 2 values, but the objective needs 3: anchor, positive, negative"),
        ([("a", "b"), ("c",)], RANKING, "data:row 1: 1 values, but the first row has 2"),
        ([("a", "b"), None], RANKING, "data:row 1: null, but the first row has 2"),
        ([], RANKING, "no rows"),
    ],
)
def test_tuples_of_another_form_are_explained(rows, needs, message):
    with pytest.raises(InputError, match=message):
        open_all(rows, needs)


def test_a_data_frame_is_a_table():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"id": [7, 8], "sentence1": ["a", "b"], "sentence2": ["b", "c"], "score": [1, 5]}
    )
    [examples] = open_all(frame, SCORE)
    assert examples.roles == ("left", "right")
    assert examples.labels.tolist() == [0, 1]
    [same] = open_all(pytest.importorskip("pyarrow").Table.from_pandas(frame), SCORE)
    assert same.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("columns", "texts"),
    [
        (["id", "text", "vector"], ["text"]),
        (["no", "text", "vector"], ["text"]),
        (["id", "en", "de", "vector"], ["en", "de"]),
        (["en", "id", "vector"], ["en", "id"]),
        (["text", "de", "vector"], ["text", "de"]),
    ],
)
def test_the_number_of_a_row_is_no_language(columns, texts):
    values = {name: [[1.0, 2.0]] if name == "vector" else [f"{name} text"] for name in columns}
    [examples] = open_all(values, VECTOR)
    assert [examples.texts.pick(column)[0] for column in examples.cells.T] == [
        f"{name} text" for name in texts
    ]
