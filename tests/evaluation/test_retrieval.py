"""Retrieval, reranking and duplicates on collections small enough to rank by hand."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from gemel.errors import InputError
from gemel.evaluation.baselines import BM25
from gemel.evaluation.data import connected
from gemel.evaluation.statistics import compare
from gemel.evaluation.task import load_task
from gemel.evaluation.tasks.retrieval import without

DATA = Path(os.environ.get("GEMEL_DATA", Path(__file__).parents[3] / "shared" / "data"))


class Letters:
    """Counts of a, b, c, d: a text's vector can be read off the text."""

    dim = 4

    def encode(self, texts):
        return np.array([[text.count(letter) for letter in "abcd"] for text in texts], dtype=np.float32)


class Prompted(Letters):
    """An encoder of queries and documents that records their texts."""

    def __init__(self):
        self.encoded = {}

    def encode_query(self, texts):
        self.encoded["query"] = list(texts)
        return self.encode(texts)

    def encode_document(self, texts):
        self.encoded["document"] = list(texts)
        return self.encode(texts)


def write_tables(folder, *, corpus=None, queries=None, qrels=None, name="toy"):
    parts = {
        "corpus": corpus or ["doc_id\ttext", "1\ta", "2\tab", "3\tb", "4\tc"],
        "queries": queries or ["query_id\ttext", "1\ta", "2\tb", "3\tc"],
        "qrels": qrels or ["query_id\tdoc_id\trelevance", "1\t2\t1", "2\t3\t1", "2\t4\t0", "3\t1\t-1"],
    }
    for role, lines in parts.items():
        with gzip.open(folder / f"{name}-{role}.tsv.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")
    return folder


def write_beir(folder):
    documents = [{"_id": "x", "title": "", "text": "a"}, {"_id": "y", "title": "a", "text": "b"}]
    documents += [{"_id": "q", "title": "", "text": "b"}]
    lines = "\n".join(json.dumps(document) for document in documents)
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(lines)
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "b"}))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ty\t1\nq\tx\t2\n")
    return folder


def task_of(name, path, **settings):
    (task,) = load_task(name, path, **{"rounds": 20, **settings})
    return task


def test_three_tables_by_hand(tmp_path):
    scores = task_of("retrieval", write_tables(tmp_path)).score(Letters())
    # Query a: 1 (a), then 2 (ab), the relevant one. Query b: 3 (b) first. Query c has none.
    assert scores.main == "ndcg@10"
    assert scores.values["ndcg@10"].value == pytest.approx(100 * (1 / np.log2(3) + 1) / 2)
    assert scores.values["mrr@10"].value == pytest.approx(75)
    assert scores.values["map@100"].value == pytest.approx(75)
    assert scores.values["recall@10"].value == 100
    assert scores.values["precision@10"].value == pytest.approx(10)
    assert (scores.items, scores.unit, scores.dataset) == (2, "queries", "toy")
    assert scores.protocol["queries_without_relevant_left_out"] == 1
    assert scores.values["ndcg@10"].low <= scores.values["ndcg@10"].value <= scores.values["ndcg@10"].high


def test_two_systems_are_compared_query_by_query(tmp_path):
    task = task_of("retrieval", write_tables(tmp_path))
    first, second = task.score(Letters()), task.score(BM25())
    assert first.protocol["data"] == second.protocol["data"]
    assert (first.protocol["metric"], second.protocol["metric"]) == ("cosine", "bm25's own")
    assert compare(first.sample, second.sample).items == 2


def test_k_cuts_the_list(tmp_path):
    scores = task_of("retrieval", write_tables(tmp_path), k=1).score(Letters())
    assert scores.values["ndcg@1"].value == 50
    assert scores.values["recall@1"].value == 50


def test_a_collection_is_found_by_folder_by_start_of_name_and_by_file(tmp_path):
    write_tables(tmp_path)
    for path in (tmp_path, tmp_path / "toy", tmp_path / "toy-corpus.tsv.gz"):
        assert task_of("retrieval", path).collection.name == "toy"


def test_several_collections_of_a_folder_are_several_tasks(tmp_path):
    write_tables(tmp_path, name="one")
    write_beir(tmp_path / "two")
    assert [task.collection.name for task in load_task("retrieval", tmp_path)] == ["one", "two"]


def test_a_beir_folder_is_graded_and_leaves_out_the_query_itself(tmp_path):
    scores = task_of("retrieval", write_beir(tmp_path / "set")).score(Letters())
    # The document q is the query; then y (gain 1, "a b"), x (gain 2).
    best = 2 + 1 / np.log2(3)
    assert scores.values["ndcg@10"].value == pytest.approx(100 * (1 + 2 / np.log2(3)) / best)
    assert scores.protocol["skip_same_id"] is True
    binary = task_of("retrieval", tmp_path / "set", gain="binary", skip_same_id=False).score(Letters())
    assert binary.values["mrr@10"].value == 50
    assert binary.values["ndcg@10"].value == pytest.approx(
        100 * (1 / np.log2(3) + 1 / np.log2(4)) / (1 + 1 / np.log2(3))
    )


def test_codes_in_tables_are_not_gains_unless_requested(tmp_path):
    qrels = ["query_id\tdoc_id\trelevance", "1\t1\t1", "1\t4\t3"]
    tables = write_tables(tmp_path, qrels=qrels)
    codes = task_of("retrieval", tables).score(Letters())
    gains = task_of("retrieval", tables, gain="graded").score(Letters())
    assert codes.values["ndcg@10"].value > gains.values["ndcg@10"].value
    assert codes.protocol["gain"].startswith("binary")


def test_queries_and_documents_use_the_encoders_own_methods(tmp_path):
    encoder = Prompted()
    task_of("retrieval", write_tables(tmp_path)).score(encoder)
    assert encoder.encoded == {"query": ["a", "b"], "document": ["a", "ab", "b", "c"]}


def test_a_title_is_read_once(tmp_path):
    corpus = ["doc_id\ttitle\ttext", "1\ta\ta long", "2\tb\tmore", "3\tc\t", "4\t\td"]
    task = task_of("retrieval", write_tables(tmp_path, corpus=corpus))
    assert task.collection.corpus == ("a long", "b more", "c", "d")


def test_unknown_ids_are_refused_or_counted(tmp_path):
    qrels = ["query_id\tdoc_id\trelevance", "1\t2\t1", "9\t2\t1", "1\t77\t1"]
    tables = write_tables(tmp_path, qrels=qrels)
    with pytest.raises(InputError, match=r"query '9' at .*:3; document '77' at .*:4.*strict=False"):
        load_task("retrieval", tables)
    scores = task_of("retrieval", tables, strict=False).score(Letters())
    assert scores.protocol["judgements_of_unknown_ids_left_out"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": ["doc_id\ttext", "1\ta", "1\tb"]}, "the id '1' is already at"),
        ({"corpus": ["name\ttext", "1\ta"]}, "needs a column '_id' or 'doc_id'; it has name, text"),
        ({"qrels": ["query_id\tdoc_id\trelevance", "1\t2\tyes"]}, ":2: 'yes' is not a number"),
        ({"qrels": ["query_id\tdoc_id\trelevance", "1\t2\t1", "1\t2\t0"]}, "judged twice, as 1 and 0"),
        ({"qrels": ["query_id\tdoc_id\trelevance", "1\t2\t0"]}, "names no relevant document"),
    ],
)
def test_bad_collections_are_refused_with_the_reason(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        load_task("retrieval", write_tables(tmp_path, **changes))


def test_missing_parts_of_a_collection_are_named(tmp_path):
    with pytest.raises(InputError, match="no search collection at"):
        load_task("retrieval", tmp_path)
    write_tables(tmp_path)
    (tmp_path / "toy-queries.tsv.gz").unlink()
    with pytest.raises(InputError, match="has no toy-queries table"):
        load_task("retrieval", tmp_path)
    with pytest.raises(InputError, match=r"no qrels/dev.tsv; in qrels there is test.tsv"):
        load_task("retrieval", write_beir(tmp_path / "set"), split="dev")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "cosin"}, "Did you mean 'cosine'"),
        ({"k": 0}, "k must be"),
        ({"gain": "x"}, "gain must be one of graded, binary"),
        ({"rounds": -1}, "rounds must be"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_encoded(tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        load_task("retrieval", write_tables(tmp_path), **settings)


def test_documents_after_the_query_itself_move_up():
    index = np.array([[5, 1, 2], [0, 7, 3], [4, 6, -1]])
    assert without(index, np.array([1, 0, -1])).tolist() == [[5, 2, -1], [7, 3, -1], [4, 6, -1]]


def write_questions(folder, rows, header="question_id\tlabel\tquestion\tanswer_sentence"):
    path = folder / "answers-test.tsv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_reranking_by_hand(tmp_path):
    rows = ["1\t0\ta\taab", "1\t1\ta\ta", "2\t0\tb\tb", "2\t1\tb\tab", "2\t1\tb\tc", "3\t0\tc\ta"]
    scores = task_of("reranking", write_questions(tmp_path, rows)).score(Letters())
    # Question 1: the right one first. 2: b (wrong), ab, c: (1/2 + 2/3) / 2. Question 3 has no right answer.
    assert scores.values["map"].value == pytest.approx(100 * (1 + (1 / 2 + 2 / 3) / 2) / 2)
    assert scores.values["mrr"].value == pytest.approx(75)
    assert scores.values["precision@1"].value == 50
    assert scores.protocol["questions_without_right_answer_left_out"] == 1


def test_a_retriever_reranks_too(tmp_path):
    rows = [
        "1\t0\tred fox\tblue sky",
        "1\t1\tred fox\tthe fox is red",
        "2\t1\tsky\tblue sky",
        "2\t0\tsky\tsea",
    ]
    scores = task_of("reranking", write_questions(tmp_path, rows)).score(BM25())
    assert scores.values["map"].value == 100


def test_reranking_groups_by_text_where_there_is_no_id(tmp_path):
    path = write_questions(tmp_path, ["1\ta\ta", "0\ta\tb", "1\tb\tb"], "label\tquery\tcandidate")
    assert task_of("reranking", path).score(Letters()).items == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1\t0\ta\tb"], "no question with a right answer"),
        (["1\tno\ta\tb"], ":2: 'no' is not a number"),
        (["1\t1\ta\tb", "1\t0\tc\tb"], ":3: question '1' has another text at"),
    ],
)
def test_bad_questions_are_refused(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        load_task("reranking", write_questions(tmp_path, rows))


def test_missing_columns_are_named_with_those_that_exist(tmp_path):
    path = write_questions(tmp_path, ["1\ta"], "label\tquestion")
    with pytest.raises(InputError, match="it has label, question"):
        load_task("reranking", path)
    with pytest.raises(InputError, match=r"no table in .* has the columns 'question' or 'query', "):
        load_task("reranking", tmp_path)


BUGS = "bug_id\ttitle\tdescription\tdup_of_id\tdup_title\tdup_description"


def write_bugs(folder, *rows):
    path = folder / "bugs.tsv"
    path.write_text("\n".join([BUGS, *rows]) + "\n")
    return path


def test_duplicates_by_hand(tmp_path):
    path = write_bugs(tmp_path, "1\ta\ta\t2\ta\tb", "3\ta\tabb\t2\ta\tb", "4\tc\tc\t5\td\tc")
    task = task_of("duplicates", path)
    assert task.reports.groups == ((0, 1, 2), (3, 4))
    scores = task.score(Letters())
    # Queries: 1 (aa), 3 (aabb), 4 (cc) among aa, ab, aabb, cc, dc. 1: ab and aabb are the nearest and its whole group.
    assert scores.items == 3
    assert scores.values["map@100"].value == pytest.approx(100)
    assert scores.values["recall@1"].value == pytest.approx(100 * (1 / 2 + 1 / 2 + 1) / 3)
    assert scores.values["hit@1"].value == 100


def test_question_pairs_are_duplicates_too(tmp_path):
    path = tmp_path / "questions.tsv"
    path.write_text("label\tquestion1\tquestion2\n1\ta\taab\n1\taab\tab\n0\tc\tcd\n")
    task = task_of("duplicates", path)
    assert task.reports.groups == ((0, 1, 2),)
    assert task.score(Letters()).items == 3
    assert len(task.reports.texts) == 5


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1\ta\ta\t1\ta\ta"], ":2: bug '1' is marked as a duplicate of itself"),
        (["1\ta\ta\t2\tb\tb", "3\tc\tc\t2\tx\tb"], ":3: bug '2' has another text"),
    ],
)
def test_bad_bugs_are_refused(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        load_task("duplicates", write_bugs(tmp_path, *rows))


def test_chains_of_pairs_are_one_group():
    assert connected(6, [(4, 1), (1, 0), (5, 3)]) == [[0, 1, 4], [2], [3, 5]]


@pytest.mark.skipif(not (DATA / "retrieval").is_dir(), reason="the shared data sets are not on this machine")
def test_bm25_on_cranfield_ranks_as_published_systems_do():
    scores = task_of("retrieval", DATA / "retrieval" / "cranfield", rounds=0).score(BM25())
    assert scores.items == 225
    assert scores.values["map@100"].value > 25
