"""Searches of every kind side by side, on a collection small enough to rank by hand, and with tiny models."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.evaluation.test_retrieval import Letters, write_tables

import gemel
from gemel.errors import InputError
from gemel.evaluation.evaluate import evaluate, open_encoder
from gemel.evaluation.search_comparison import compare_retrieval, fusion_name, stored_bytes
from gemel.evaluation.task import load_task, nearest, search_protocol
from gemel.vectors.bm25 import BM25Index, fuse
from gemel.vectors.maxsim import join_texts
from gemel.vectors.search import Hits
from gemel.vectors.sparse import SparseVectors
from tiny import SPECIAL_TOKENS, tiny_bert
from tiny_late import tiny_late
from tiny_sparse import tiny_sparse

CORPUS = [
    "doc_id\ttext",
    "1\tthe cat sleeping",
    "2\ta dog running in the rain",
    "3\tstock market fell",
    "4\train",
]
QUERIES = ["query_id\ttext", "1\tcat", "2\train today", "3\tmarket"]
QRELS = ["query_id\tdoc_id\trelevance", "1\t1\t1", "2\t2\t1", "2\t4\t1", "3\t3\t1"]
VOCABULARY = ("a", "b", "c", "d")


class Words(Letters):
    """Gives the counts of `Letters` as weights of words."""

    vocabulary = VOCABULARY
    name = "words"

    def encode_query(self, texts):
        rows = [(np.flatnonzero(row).astype(np.int32), row[row > 0]) for row in self.encode(texts)]
        return SparseVectors.of(rows, VOCABULARY)

    encode_document = encode_query


class Reversed:
    """A cross-encoder that likes long documents."""

    name = "reversed"

    def __init__(self):
        self.pairs = []

    def scores(self, queries, documents, options=None):
        self.pairs += zip(queries, documents, strict=True)
        return np.array([len(text) for text in documents], np.float32)


def cross_encoder(folder):
    """A BertForSequenceClassification of random numbers, made without torch."""
    tiny_bert(folder)
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    weights = {f"bert.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    random = np.random.default_rng(3)
    shapes = {"bert.pooler.dense.weight": (32, 32), "bert.pooler.dense.bias": (32,)}
    shapes |= {"classifier.weight": (1, 32), "classifier.bias": (1,)}
    weights |= {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL_TOKENS, strict=True)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 48, **dict(names)}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "dense": tiny_bert(folder / "dense"),
        "sparse": tiny_sparse(folder / "sparse"),
        "late": tiny_late(folder / "late"),
        "cross": cross_encoder(folder / "cross"),
    }


@pytest.fixture
def data(tmp_path):
    return write_tables(tmp_path, corpus=CORPUS, queries=QUERIES, qrels=QRELS)


def test_every_kind_is_a_row_with_costs(folders, data):
    systems = [*(folders[kind] for kind in ("dense", "sparse", "late")), "bm25"]
    result = compare_retrieval(systems, data, hybrid=True, rerank=folders["cross"], candidates=3, rounds=20)
    hybrid = "dense + sparse + late + bm25"
    first = ["dense", "sparse", "late", "bm25", hybrid]
    names = [each.model for each in result.results]
    assert names == [*first, *(f"reranked {name}" for name in first)]
    for each in result.results:
        assert {"ms_per_query", "ms_per_document", "bytes_per_document"} == set(each.costs)
        for name in ("ndcg@10", "mrr@10", "recall@100"):
            assert each.values[name].low <= each.values[name].value <= each.values[name].high
    costs = {each.model: each.costs for each in result.results}
    assert costs["dense"]["bytes_per_document"] == 4 * 32
    parts = [costs[name]["bytes_per_document"] for name in first[:4]]
    assert costs[hybrid]["bytes_per_document"] == pytest.approx(sum(parts))
    assert costs["reranked dense"]["ms_per_query"] > costs["dense"]["ms_per_query"]
    assert [(each.first, each.second) for each in result.comparisons] == [
        ("dense", name) for name in names[1:]
    ]


def test_the_numbers_are_those_of_evaluate(folders, data):
    result = compare_retrieval([folders["dense"], folders["sparse"], "bm25"], data, rounds=5)
    for each, model in zip(result.results, (folders["dense"], folders["sparse"], "bm25"), strict=True):
        (alone,) = evaluate(model, "retrieval", data, rounds=5)
        assert each.values == alone.values
        assert alone.costs == {}


def test_a_late_model_is_ranked_by_maxsim(folders, data):
    model = gemel.load_late(folders["late"])
    (task,) = load_task("retrieval", data, rounds=5)
    expected = [model.rank(query, list(task.collection.corpus)).index for query in task.collection.queries]
    queries, documents = (
        model.encode_query(task.collection.queries),
        model.encode_document(task.collection.corpus),
    )
    assert nearest(queries, documents, 4).index.tolist() == [each.tolist() for each in expected]
    assert task.score(model).protocol["metric"] == "MaxSim of the vectors of tokens"


def test_sparse_weights_leave_out_documents_without_a_shared_word():
    words = Words()
    hits = nearest(words.encode_query(["a", "d"]), words.encode_document(["b", "ab", "aab"]), 3)
    assert hits.index.tolist() == [[2, 1, -1], [-1, -1, -1]]
    assert hits.score.tolist() == [[2, 1, 0], [0, 0, 0]]
    assert search_protocol(words, "cosine")["metric"] == "dot product of the weights of words"
    assert nearest(words.encode_query([]), words.encode_document(["b"]), 3).index.shape == (0, 3)


def test_a_document_without_tokens_is_not_found_by_late_interaction():
    one = np.eye(2, dtype=np.float32)
    documents = join_texts([one[:1], one[:0], one], "xyz", 2)
    assert nearest(join_texts([one[1:]], "q", 2), documents, 3).index.tolist() == [[2, 0, -1]]


def test_sparse_encoders_take_part_in_reranking(folders, tmp_path):
    path = tmp_path / "questions.tsv"
    path.write_text("question\tanswer\tlabel\na\taab\t1\na\tb\t0\nb\tab\t1\nb\tbb\t0\n")
    (result,) = evaluate(Words(), "reranking", path, rounds=5)
    assert result.values["map"].value == pytest.approx(75)  # "bb" has b twice
    (late,) = evaluate(folders["late"], "reranking", path, rounds=5)
    assert late.protocol["metric"] == "MaxSim of the vectors of tokens"


def test_weights_of_a_hybrid_change_its_order():
    left = Hits(np.array([[0, 1]]), np.zeros((1, 2), np.float32))
    right = Hits(np.array([[1, 0]]), np.zeros((1, 2), np.float32))
    assert fuse([left, right], 2).index.tolist() == [[0, 1]]
    assert fuse([left, right], 2, weights=[1, 2]).index.tolist() == [[1, 0]]
    assert fuse([left, right], 2, weights=[0, 1]).score.tolist() == [
        [pytest.approx(1 / 61), pytest.approx(1 / 62)]
    ]
    for weights in ([1], [1, -1], [1, float("nan")]):
        with pytest.raises(
            InputError, match="weights must be one number of at least 0 for each of 2 rankings"
        ):
            fuse([left, right], 2, weights=weights)


def test_hybrids_are_named_by_their_systems_and_weights(data):
    systems = {"one": Letters(), "two": "bm25", "three": Words()}
    hybrids = [{"one": 1, "two": 0.5}, {"two": 1, "three": 1}]
    result = compare_retrieval(systems, data, hybrid=hybrids, rounds=5)
    assert [each.model for each in result.results[3:]] == ["one + 0.5 × two", "two + three"]
    assert result.results[3].protocol["weights"] == {"one": 1, "two": 0.5}
    assert fusion_name({"a": 2, "b": 2}) == "a + b"


def test_a_reranker_sees_a_pair_once_and_leaves_the_rest_behind(tmp_path):
    corpus = ["doc_id\ttext", "1\ta", "2\ta a b", "3\ta b b b", "4\ta c c c c"]
    data = write_tables(
        tmp_path,
        corpus=corpus,
        queries=["query_id\ttext", "1\ta"],
        qrels=["query_id\tdoc_id\trelevance", "1\t4\t1"],
    )
    reranker = Reversed()
    systems = {"letters": Letters(), "again": Letters()}
    result = compare_retrieval(systems, data, rerank=reranker, candidates=3, rounds=0)
    assert sorted(reranker.pairs) == [("a", "a"), ("a", "a a b"), ("a", "a b b b")]
    plain, _, reranked, _ = (each.values["mrr@10"].value for each in result.results)
    assert plain == reranked == pytest.approx(25)  # the fourth is no candidate and stays the fourth
    wide = compare_retrieval(systems, data, rerank=Reversed(), candidates=9, rounds=0)
    assert wide.results[2].values["mrr@10"].value == 100
    assert wide.results[2].protocol["reranked_by"] == "reversed"


def test_a_late_model_reranks_too(folders, data):
    result = compare_retrieval(["bm25"], data, rerank=folders["late"], rounds=0)
    assert result.results[1].protocol["reranked_by"] == "late"


def test_several_sets_have_averages_of_numbers_and_costs(tmp_path):
    write_tables(tmp_path, name="one")
    write_tables(tmp_path, name="two", qrels=["query_id\tdoc_id\trelevance", "1\t2\t1", "2\t1\t1"])
    result = compare_retrieval([Letters(), "bm25"], tmp_path, rounds=20)
    assert [(each.dataset, each.model) for each in result.results] == [
        (dataset, model) for dataset in ("one", "two", "average") for model in ("Letters", "bm25")
    ]
    first, second, mean = result.results[0], result.results[2], result.results[4]
    assert mean.costs["ms_per_query"] == pytest.approx(
        (first.costs["ms_per_query"] + second.costs["ms_per_query"]) / 2
    )
    assert [each.dataset for each in result.comparisons] == ["one", "two", "average"]


def test_the_form_of_token_vectors_changes_their_bytes(folders, data):
    sizes = [
        compare_retrieval([folders["late"]], data, late_form=form, rounds=0)
        .results[0]
        .costs["bytes_per_document"]
        for form in ("float32", "float16", "int8")
    ]
    assert sizes == sorted(sizes, reverse=True)
    model = gemel.load_late(folders["late"])
    vectors = model.encode_document(["the cat"], output="int8")
    assert stored_bytes(vectors) == vectors.vectors.nbytes + vectors.offsets.nbytes + vectors.scales.nbytes
    index = BM25Index(["a", "a b"])
    assert stored_bytes(vars(index)) > 0


def test_rows_and_json_and_the_report_have_everything(folders, data, tmp_path):
    result = compare_retrieval([folders["dense"], "bm25"], data, hybrid=True, rounds=20)
    rows = list(result.rows())
    assert [row["system"] for row in rows] == ["dense", "bm25", "dense + bm25"]
    assert "difference" not in rows[0]
    assert result.results[0].protocol["fingerprint"] == gemel.load(folders["dense"]).fingerprint.to_json()
    assert {"difference", "difference-low", "difference-high", "sure", "ndcg@10-low", "ms_per_query"} <= set(
        rows[1]
    )
    content = json.loads(json.dumps(result.to_json()))
    assert content["results"][0]["costs"]["bytes_per_document"] == 128
    assert "<td>bm25</td>" in result._repr_html_()
    written = result.write_report(tmp_path / "report")
    for path in written[1:]:
        text = path.read_text(encoding="utf-8")
        for words in ("Quality and cost", "ms per query", "bytes per document", "dense + bm25", "recall@100"):
            assert words in text


def test_a_system_without_documents_of_its_own_has_no_cost_of_them(data):
    class Ranker:
        name = "ranker"

        def rank(self, queries, corpus, k):
            return Hits(np.zeros((len(queries), 1), np.int64), np.ones((len(queries), 1), np.float32))

    result = compare_retrieval([Ranker(), "bm25"], data, hybrid=True, rounds=0)
    assert set(result.results[0].costs) == set(result.results[2].costs) == {"ms_per_query"}


def test_wrong_requests_are_refused_before_anything_is_encoded(folders, data):
    with pytest.raises(InputError, match="no system to compare"):
        compare_retrieval([], data)
    with pytest.raises(InputError, match="a hybrid fuses at least two systems, got bm25"):
        compare_retrieval(["bm25"], data, hybrid=True)
    with pytest.raises(InputError, match=r"hybrid names 'splade', which is no system. There are bm25"):
        compare_retrieval(["bm25"], data, hybrid=[{"bm25": 1, "splade": 1}])
    with pytest.raises(InputError, match=r"cross is a cross-encoder.*rerank"):
        compare_retrieval([folders["cross"]], data)
    with pytest.raises(InputError, match="systems must be a list"):
        compare_retrieval("bm25", data)
    with pytest.raises(InputError, match="candidates"):
        compare_retrieval(["bm25"], data, candidates=0)
    with pytest.raises(InputError, match="late_form must be one of float32"):
        compare_retrieval(["bm25"], data, late_form="float8")
    with pytest.raises(InputError, match="'depth'"):
        compare_retrieval(["bm25"], data, depth=3)


def test_models_of_every_kind_are_opened_by_their_folder(folders):
    kinds = {kind: type(open_encoder(folder)).__name__ for kind, folder in folders.items()}
    assert kinds == {"dense": "Model", "sparse": "SparseModel", "late": "LateModel", "cross": "CrossModel"}
    assert type(open_encoder(f"sparse:{folders['sparse']}")).__name__ == "SparseModel"
    assert type(open_encoder(f"late:{folders['late']}")).__name__ == "LateModel"
    with pytest.raises(InputError, match="is a sparse encoder, which takes no encoding options"):
        open_encoder(folders["sparse"], pooling="cls")
    with pytest.raises(InputError, match=r"the baseline 'late' needs a model. Write late:PATH"):
        open_encoder("late:")


def test_tasks_that_compare_dense_vectors_say_what_a_model_is(folders, tmp_path):
    path = tmp_path / "sts.tsv"
    path.write_text("sentence1\tsentence2\tscore\na\tb\t1\nb\tb\t2\n")
    with pytest.raises(InputError, match="compares dense vectors, but sparse is a sparse encoder"):
        evaluate(folders["sparse"], "sts", path)
    path = tmp_path / "pairs.tsv"
    path.write_text("en\tde\na\tb\nc\td\n")
    with pytest.raises(InputError, match="is a model for late interaction"):
        evaluate(folders["late"], "translation", path)
