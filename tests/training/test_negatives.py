"""Hard negatives: the rules hold for every pair, nothing depends on blocks, and training reads what is written."""

import csv
import json

import numpy as np
import pytest

import gemel
from gemel.cli.main import main
from gemel.errors import InputError
from gemel.training.data.read import open_all, open_examples
from gemel.training.objectives.base import OBJECTIVES
from tiny import TEXT, tiny_bert


class TableEncoder:
    """Vectors from a table: the texts are its keys."""

    def __init__(self, table):
        self.table = {text: np.asarray(vector, np.float32) for text, vector in table.items()}
        self.dim = len(next(iter(self.table.values())))
        self.encoded = []

    def encode(self, texts):
        self.encoded += texts
        return np.array([self.table[text] for text in texts])


def at(cosine):
    """A unit vector with this cosine to the query (1, 0)."""
    return (cosine, np.sqrt(1 - cosine**2))


SCORES = [0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4]
CORPUS = [f"text {score}" for score in SCORES]
LINE = TableEncoder({"query": (1, 0), "best": at(0.9), **{f"text {each}": at(each) for each in SCORES}})
NO_LIMIT = {"ratio": None}


def mined(k=3, pairs=(("query", "text 0.9"),), corpus=CORPUS, encoder=LINE, **rules):
    return gemel.mine_negatives(encoder, list(pairs), corpus, k, **{**NO_LIMIT, **rules})


def texts(result, pair=0):
    return [result.corpus[position] for position in result.index[pair].tolist() if position >= 0]


def random_case(count=300, queries=40, seed=0):
    rng = np.random.default_rng(seed)
    names = [f"d{number}" for number in range(count)]
    asked = [f"q{number}" for number in range(queries)]
    encoder = TableEncoder({name: rng.normal(size=8) for name in [*names, *asked]})
    pairs = [(asked[number % queries], names[(7 * number) % count]) for number in range(2 * queries)]
    return encoder, pairs, names


# Which texts become negatives


def test_the_nearest_texts_that_are_not_the_positive_are_the_negatives():
    result = mined()
    assert texts(result) == ["text 0.95", "text 0.85", "text 0.8"]
    assert result.positive_score[0] == pytest.approx(0.9)
    assert result.score[0] == pytest.approx([0.95, 0.85, 0.8])
    assert (result.considered, result.dropped) == (7, {"known": 1})


def test_ranks_are_counted_without_the_positives():
    assert texts(mined(skip=1)) == ["text 0.85", "text 0.8", "text 0.7"]
    assert texts(mined(k=2, skip=2, candidates=2)) == ["text 0.8", "text 0.7"]
    assert texts(mined(k=3, skip=6, candidates=3)) == ["text 0.4"]
    assert texts(mined(skip=50)) == []


def test_a_margin_keeps_negatives_below_the_positive():
    result = mined(margin=0.15)
    assert texts(result) == ["text 0.7", "text 0.6", "text 0.5"]
    assert result.dropped == {"known": 1, "margin": 3}


def test_a_ratio_keeps_negatives_below_a_share_of_the_positive():
    assert texts(mined(ratio=0.9)) == ["text 0.8", "text 0.7", "text 0.6"]
    assert texts(mined(ratio=1.0))[0] == "text 0.85"
    assert texts(gemel.mine_negatives(LINE, [("query", "text 0.9")], CORPUS, 1)) == ["text 0.85"]  # 0.95


def test_a_ratio_of_a_negative_score_is_below_it_too():
    encoder = TableEncoder({"q": at(1.0), "p": at(-0.5), "near": at(-0.49), "far": at(-0.6)})
    assert texts(mined(1, [("q", "p")], ["near", "far"], encoder, ratio=0.9)) == ["far"]


def test_a_maximum_score_is_a_limit_for_all_pairs():
    result = mined(max_score=0.65, margin=0.01)
    assert texts(result) == ["text 0.6", "text 0.5", "text 0.4"]
    assert result.dropped == {"known": 1, "margin": 1, "max_score": 3}


def test_no_positive_and_no_equal_text_is_ever_a_negative():
    corpus = ["QUERY", "Text  0.9", *CORPUS]
    encoder = TableEncoder({**LINE.table, "QUERY": at(1.0), "Text  0.9": at(0.9)})
    pairs = [("query", "text 0.9"), ("query", "text 0.8")]
    result = mined(8, pairs, corpus, encoder)
    for pair in (0, 1):
        assert texts(result, pair) == [each for each in CORPUS if each not in ("text 0.9", "text 0.8")]


def test_a_pair_belongs_together_both_ways():
    pairs = [("query", "text 0.9"), ("text 0.95", "query")]
    corpus = ["query", *CORPUS]
    result = mined(3, pairs, corpus)
    assert texts(result, 0) == ["text 0.85", "text 0.8", "text 0.7"]
    assert "query" not in texts(result, 1)


def test_equal_texts_of_the_corpus_are_one_candidate():
    assert texts(mined(corpus=[*CORPUS, *CORPUS])) == ["text 0.95", "text 0.85", "text 0.8"]


def test_blank_texts_are_no_negatives():
    encoder = TableEncoder({**LINE.table, "": at(0.99), "  ": at(0.98)})
    assert texts(mined(1, corpus=["", "  ", *CORPUS], encoder=encoder)) == ["text 0.95"]
    assert texts(mined(1, corpus=[""], encoder=encoder)) == []


def test_each_positive_has_its_own_limit():
    result = mined(1, [("query", "text 0.9"), ("query", "text 0.6")], margin=0.04)
    assert [texts(result, 0), texts(result, 1)] == [["text 0.85"], ["text 0.5"]]


def test_a_positive_outside_of_the_corpus_is_encoded():
    assert texts(mined(1, [("query", "best")], ratio=0.95)) == ["text 0.85"]


def test_the_rules_hold_for_random_vectors():
    encoder, pairs, corpus = random_case()
    result = gemel.mine_negatives(encoder, pairs, corpus, 4, skip=3, candidates=30, margin=0.1)
    vectors = {text: vector / np.linalg.norm(vector) for text, vector in encoder.table.items()}
    for pair, (query, positive) in enumerate(pairs):
        known = {other for asked, other in pairs if asked == query}
        order = sorted(
            (name for name in corpus if name not in known), key=lambda x: -vectors[query] @ vectors[x]
        )
        limit = vectors[query] @ vectors[positive]
        limit = min(limit - 0.1, limit - 0.05 * abs(limit))
        expected = [name for name in order[3:33] if vectors[query] @ vectors[name] <= limit][:4]
        assert texts(result, pair) == expected


# What may not matter


@pytest.mark.parametrize("sampling", ["hardest", "random"])
def test_the_size_of_a_block_does_not_change_the_answer(sampling):
    encoder, pairs, corpus = random_case()
    one = gemel.mine_negatives(encoder, pairs, corpus, sampling=sampling)
    other = gemel.mine_negatives(encoder, pairs, corpus, sampling=sampling, search_memory=20_000, threads=1)
    np.testing.assert_array_equal(one.index, other.index)
    np.testing.assert_array_equal(one.score, other.score)
    assert one.to_json() == other.to_json()


def test_vectors_of_the_corpus_are_not_computed_again():
    encoder, pairs, corpus = random_case()
    vectors = encoder.encode(corpus)
    expected = gemel.mine_negatives(encoder, pairs, corpus)
    encoder.encoded.clear()
    given = gemel.mine_negatives(encoder, pairs, corpus, vectors=vectors)
    np.testing.assert_array_equal(given.index, expected.index)
    assert set(encoder.encoded) == {query for query, _ in pairs}


def test_ties_go_to_the_first_text_of_the_corpus():
    encoder = TableEncoder({"q": (1, 0), "p": at(0.9), **{name: at(0.5) for name in "dcba"}})
    assert texts(mined(2, [("q", "p")], list("dcba"), encoder)) == ["d", "c"]


def test_a_seed_chooses_among_the_candidates():
    encoder, pairs, corpus = random_case()
    rules = {"candidates": 20, "ratio": None}

    def sampled(seed):
        return gemel.mine_negatives(encoder, pairs, corpus, 3, sampling="random", seed=seed, **rules).index

    window = gemel.mine_negatives(encoder, pairs, corpus, 20, **rules).index
    np.testing.assert_array_equal(sampled(1), sampled(1))
    assert (sampled(1) != sampled(2)).any()
    for chosen, allowed in zip(sampled(1).tolist(), window.tolist(), strict=True):
        assert chosen == [position for position in allowed if position in chosen]  # nearest first, each once


# A cross-encoder


class Judge:
    """Scores by a table of texts; remembers how many pairs it saw."""

    def __init__(self, scores):
        self.table, self.seen = scores, []

    def scores(self, left, right, options=None):
        self.seen += zip(left, right, strict=True)
        return np.array([self.table.get(text, 0.0) for text in right], np.float32)


def test_a_cross_encoder_drops_false_negatives_and_scores_no_more_than_needed():
    judge = Judge({"text 0.9": 0.8, "text 0.95": 0.9, "text 0.8": 0.75})
    result = mined(2, rerank=judge)
    assert texts(result) == ["text 0.85", "text 0.8"]
    assert result.dropped == {"known": 1, "rerank": 1}
    assert len(set(judge.seen)) == 4  # the positive and three candidates
    assert texts(mined(2, rerank=judge, rerank_margin=0.1)) == ["text 0.85", "text 0.7"]
    assert texts(mined(2, rerank=Judge({"text 0.9": -1.0}))) == []


def test_a_cross_encoder_that_cannot_score_is_refused_before_the_corpus_is_encoded():
    class Labels:
        def scores(self, left, right, options=None):
            raise InputError("it has three outputs")

    encoder = TableEncoder(LINE.table)
    with pytest.raises(InputError, match="three outputs"):
        mined(encoder=encoder, rerank=Labels())
    assert encoder.encoded == []


def test_random_negatives_are_judged_too():
    judge = Judge({"text 0.9": 0.5, "text 0.95": 0.9, "text 0.7": 0.9})
    result = mined(7, rerank=judge, sampling="random")
    assert texts(result) == [each for each in CORPUS if each not in ("text 0.95", "text 0.9", "text 0.7")]


# What goes in


def test_positives_may_be_ids_or_positions(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"query": "query", "positive": 1}\n{"query": "query", "positive": [3, "4"]}\n')
    result = gemel.mine_negatives(LINE, file, CORPUS, 8, ratio=None, positive_ids=True)
    assert result.positives == ["text 0.9", "text 0.8", "text 0.7"]
    assert not {"text 0.9", "text 0.8", "text 0.7"} & set(texts(result))
    ids = [f"doc{number}" for number in range(len(CORPUS))]
    assert mined(pairs=[("query", "doc2")], ids=ids, positive_ids=True).positives == ["text 0.85"]
    with pytest.raises(InputError, match=r"1 positive not in the corpus, the first: 'doc99'"):
        mined(pairs=[("query", "doc99")], ids=ids, positive_ids=True)


def test_labeled_pairs_give_their_positives():
    rows = [
        {"sentence1": "query", "sentence2": "text 0.9", "label": 1},
        {"sentence1": "query", "sentence2": "text 0.5", "label": 0},
    ]
    assert mined(pairs=rows).positives == ["text 0.9"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": 0}, "k must be a whole number of at least 1"),
        ({"candidates": 2}, "candidates must be at least k=3"),
        ({"skip": -1}, "skip must be"),
        ({"ratio": -0.5}, "ratio must be a share"),
        ({"margin": float("nan")}, "margin must be a finite number"),
        ({"sampling": "soft"}, "sampling"),
        ({"corpus": []}, "corpus is empty"),
        ({"pairs": [{"text": "query"}]}, "no column for anchor and positive. Columns: 'text'"),
        ({"vectors": np.eye(2)}, "vectors must be one row for each of the 8 texts"),
        ({"output": "binary"}, "for storing"),
        ({"encoder": "all-MiniLM-L6-v2"}, "Use gemel.load"),
    ],
)
def test_what_cannot_be_is_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        mined(**wrong)


# What comes out


def test_rows_have_the_columns_that_training_reads():
    result = mined(2)
    negatives = texts(result)
    assert list(result.rows()) == [
        {"anchor": "query", "positive": "text 0.9", "negative": text} for text in negatives
    ]
    first, second = negatives
    assert list(result.rows("tuples")) == [
        {"anchor": "query", "positive": "text 0.9", "negative_1": first, "negative_2": second}
    ]
    assert [tuple(row.values()) for row in result.rows("pairs")] == [
        ("query", "text 0.9", 1),
        ("query", first, 0),
        ("query", second, 0),
    ]
    scored = next(iter(result.rows("tuples", scores=True)))
    assert scored["negative_cosine_2"] == pytest.approx(0.85)


@pytest.mark.parametrize(
    ("format", "objective", "roles"),
    [
        ("triplets", "triplet", ("anchor", "positive", "negative")),
        ("tuples", "in-batch-ranking", ("anchor", "positive", "negative", "negative")),
        ("pairs", "contrastive", ("left", "right")),
    ],
)
@pytest.mark.parametrize("scores", [False, True])
def test_every_format_is_read_by_its_objective(format, objective, roles, scores):
    rows = list(mined(2).rows(format, scores=scores))
    examples = open_examples(rows, OBJECTIVES[objective]().needs)
    assert examples.roles == roles
    assert len(examples) == len(rows)


def test_tuples_are_of_pairs_that_have_all_negatives():
    result = mined(2, [("query", "text 0.9"), ("query", "text 0.5")], margin=0.04)
    assert result.counts.tolist() == [2, 1]
    assert len(list(result.rows("tuples"))) == 1
    assert len(list(result.rows())) == 3


def test_the_summary_says_what_the_rules_did():
    result = mined(2, [("query", "text 0.9"), ("query", "text 0.5"), ("query", "text 0.4")], margin=0.04)
    lines = result.summary().splitlines()
    assert lines[0] == "3 pairs, 2 negatives: 1 have all 2, 2 none"
    assert lines[1].startswith("15 candidates; dropped: margin 11; not candidates: 9 positives")
    assert lines[2].startswith("deciles of positives: 0.400 ")
    assert lines[3].endswith(" 0.850")
    content = json.loads(json.dumps(result.to_json()))
    assert content["pairs_by_negatives"] == {"2": 1, "0": 2}
    assert len(content["deciles"]["negatives"]) == 11
    assert "positive" in result._repr_html_()


# As a user starts it


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("negatives")
    tiny_bert(folder / "model")
    rng = np.random.default_rng(3)
    words = TEXT.split()
    corpus = [" ".join(rng.choice(words, size=6)) for _ in range(60)]
    (folder / "corpus.txt").write_text("\n".join(corpus) + "\n", encoding="utf-8")
    with (folder / "pairs.tsv").open("w", encoding="utf-8", newline="") as file:
        rows = [[text.rsplit(" ", 1)[0], text] for text in corpus[:20]]
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows([["query", "positive"], *rows])
    return folder


COMMAND = ["negatives", "corpus.txt", "--queries", "pairs.tsv", "--model", "model", "--no-progress"]


def run(capsys, *words, expect=0):
    code = main([*COMMAND, *words])
    shown = capsys.readouterr()
    assert code == expect, shown.err
    return shown


def test_the_command_writes_what_the_function_returns(workspace, capsys, monkeypatch):
    monkeypatch.chdir(workspace)
    shown = run(capsys, "-k", "2", "--no-ratio", "--skip", "3", "--scores", "-o", "out.jsonl", "--json")
    rows = [json.loads(line) for line in (workspace / "out.jsonl").read_text().splitlines()]
    corpus = (workspace / "corpus.txt").read_text().splitlines()
    model = gemel.load("model")
    result = gemel.mine_negatives(model, "pairs.tsv", corpus, 2, skip=3, ratio=None)
    assert rows == list(result.rows(scores=True))
    content = json.loads(shown.out)
    assert (content["rows"], content["pairs"], content["negatives"]) == (40, 20, 40)
    before = (workspace / "out.jsonl").read_bytes()
    shown = run(capsys, "-k", "2", "--no-ratio", "--skip", "3", "--scores", "-o", "out.jsonl")
    assert (workspace / "out.jsonl").read_bytes() == before
    assert shown.out == ""
    assert "20 pairs, 40 negatives: 20 have all 2" in shown.err


def test_a_folder_of_vectors_is_a_corpus(workspace, capsys, monkeypatch):
    monkeypatch.chdir(workspace)
    assert main(["encode", "corpus.txt", "--model", "model", "--keep-texts", "-o", "vectors"]) == 0
    run(capsys, "--no-ratio", "-o", "file.tsv")
    COMMAND[1] = "vectors"
    try:
        run(capsys, "--no-ratio", "-o", "folder.tsv")
        tiny_bert(workspace / "other", seed=5)
        err = run(capsys, "--no-ratio", "-o", "folder.tsv", "--model", "other", expect=2).err
        assert "vectors has the vectors of another model" in err
    finally:
        COMMAND[1] = "corpus.txt"
    assert (workspace / "file.tsv").read_bytes() == (workspace / "folder.tsv").read_bytes()


def test_nothing_to_write_is_an_error_that_says_why(workspace, capsys, monkeypatch):
    monkeypatch.chdir(workspace)
    err = run(capsys, "--max-score", "-1", "-o", "none.tsv", expect=2).err
    assert "no pair of pairs.tsv has 1 negative that the rules allow" in err
    assert "max_score" in err or "max-score" in err
    assert not (workspace / "none.tsv").exists()


@pytest.mark.parametrize(
    ("format", "objective"),
    [("triplets", "triplet"), ("tuples", "in-batch-ranking"), ("pairs", "contrastive")],
)
@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl"])
def test_training_reads_every_file(workspace, capsys, monkeypatch, format, objective, ending):
    monkeypatch.chdir(workspace)
    out = f"{format}.{ending}"
    run(capsys, "-k", "2", "--no-ratio", "--format", format, "-o", out)
    datasets = open_all(out, OBJECTIVES[objective]().needs)
    assert sum(map(len, datasets)) == {"triplets": 40, "tuples": 20, "pairs": 60}[format]


def test_a_model_is_trained_on_mined_tuples(workspace, capsys, monkeypatch):
    pytest.importorskip("torch", reason="training needs torch")
    pytest.importorskip("accelerate", reason="training needs accelerate")
    monkeypatch.chdir(workspace)
    run(capsys, "-k", "2", "--no-ratio", "--format", "tuples", "-o", "train.tsv")
    words = (
        "train train.tsv --model model --objective in-batch-ranking --batch-size 8 --max-steps 2 -o trained"
    )
    assert main(words.split()) == 0
    assert gemel.load(workspace / "trained").encode(["a man"]).shape == (1, 32)
