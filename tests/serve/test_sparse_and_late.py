"""A server with a sparse encoder and a model for late interaction: their routes, reranking, search and explanations."""

import httpx
import numpy as np
import pytest

import gemel
from gemel.index.open import open_index
from gemel.serve.options import Limits, ServeOptions
from gemel.serve.run import load_services
from gemel.vectors.sparse import SparseVectors
from serve_case import app_of, live, make_services
from serve_models import light_cross
from tiny import tiny_bert
from tiny_late import tiny_late
from tiny_sparse import tiny_sparse

TEXTS = ["the cat is sleeping", "a dog is running in the street", "the stock market fell sharply"]
QUERY = "is the dog sleeping"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def model(folder):
    return gemel.load(tiny_bert(folder / "tiny"))


@pytest.fixture(scope="module")
def sparse(folder):
    return gemel.load_sparse(tiny_sparse(folder / "splade"))


@pytest.fixture(scope="module")
def late(folder):
    return gemel.load_late(tiny_late(folder / "colbert"))


@pytest.fixture(scope="module")
def address(model, sparse, late):
    services = make_services(model, sparse=sparse, late=late, limits=Limits(texts=20))
    with live(app_of(services)) as result:
        yield result


@pytest.fixture(scope="module")
def plain(model):
    """Without further models."""
    with live(app_of(make_services(model))) as result:
        yield result


def ask(address, path, **body):
    answer = httpx.post(f"{address}{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(address, path, **body):
    answer = httpx.post(f"{address}{path}", json=body)
    error = answer.json()["error"]
    return answer.status_code, error if isinstance(error, str) else error["message"]


def rows_of(vectors: SparseVectors):
    return [
        list(zip(*(part.tolist() for part in vectors.row(at)), strict=True)) for at in range(len(vectors))
    ]


# Sparse vectors


def test_sparse_vectors_are_those_of_the_model_in_the_form_of_tei(address, sparse):
    answer = ask(address, "/embed_sparse", inputs=TEXTS)
    assert all(list(each) == ["index", "value"] for row in answer for each in row)
    found = [[(each["index"], np.float32(each["value"])) for each in row] for row in answer]
    assert found == rows_of(sparse.encode(TEXTS))
    assert ask(address, "/embed_sparse", inputs=TEXTS[0]) == answer[:1]


def test_token_ids_stand_for_texts_of_the_sparse_encoder(address, sparse):
    ids = sparse.tokenizer.content([TEXTS[0]])[0].tolist()
    assert ask(address, "/embed_sparse", inputs=[ids]) == ask(address, "/embed_sparse", inputs=[TEXTS[0]])
    status, message = refusal(address, "/embed_sparse", inputs=[[10**6]])
    assert status == 400 and "splade knows ids from 0 to" in message


def test_long_texts_are_truncated_unless_the_client_refuses_it(address, sparse):
    long = "hello world " * 40
    cut = ask(address, "/embed_sparse", inputs=long, truncate=True)[0]
    assert len(cut) == len(sparse.encode([long], on_long="truncate").row(0)[0])
    ends = f"{long} guitar"
    left = ask(address, "/embed_sparse", inputs=ends, truncation_direction="Left")[0]
    right = ask(address, "/embed_sparse", inputs=ends)[0]
    assert right == cut != left
    status, message = refusal(address, "/embed_sparse", inputs=long, truncate=False)
    assert status == 400 and "the model reads 32" in message


def test_limits_and_prompts_are_checked_as_for_dense_vectors(address, plain):
    assert refusal(address, "/embed_sparse", inputs=["a"] * 21)[0] == 413
    assert refusal(address, "/embed_sparse", inputs=[])[1] == "inputs is empty: give at least one text"
    status, message = refusal(address, "/embed_sparse", inputs="a", prompt_name="passage")
    assert status == 400 and message.startswith("unknown prompt 'passage'")
    assert refusal(plain, "/embed_sparse", inputs="a") == (
        424,
        "tiny gives no sparse vectors. Start the server with --sparse, or use /embed",
    )


def test_a_full_queue_refuses_sparse_texts_too(model, sparse):
    services = make_services(model, sparse=sparse, limits=Limits(tokens=30))
    with live(app_of(services)) as address:
        status, message = refusal(address, "/v1/sparse", input=["hello world " * 30])
        assert (status, message) == (413, "the request has 62 tokens, at most 30 are taken")


def test_the_own_route_names_the_words_heaviest_first(address, sparse):
    answer = ask(address, "/v1/sparse", model="splade", input=TEXTS, input_type="document", max_active_dims=3)
    assert (answer["model"], answer["dimensions"]) == ("splade", sparse.dim)
    expected = sparse.encode_document(TEXTS)
    for at, row in enumerate(answer["data"]):
        assert list(zip(row["tokens"], map(np.float32, row["values"]), strict=True)) == [
            (token, np.float32(weight)) for token, weight in expected.tokens(at)[:3]
        ]
        assert [sparse.vocabulary[column] for column in row["indices"]] == row["tokens"]
    assert answer["usage"]["prompt_tokens"] == sum(len(ids) + 2 for ids in sparse.tokenizer.content(TEXTS))


def test_queries_and_documents_may_have_modules_of_their_own(model, tmp_path):
    router = gemel.load_sparse(tiny_sparse(tmp_path / "router", "router"))
    with live(app_of(make_services(model, sparse=router))) as address:
        for side, encode in (("query", router.encode_query), ("document", router.encode_document)):
            by_prompt = ask(address, "/embed_sparse", inputs=TEXTS, prompt_name=side)
            assert [
                [(each["index"], np.float32(each["value"])) for each in row] for row in by_prompt
            ] == rows_of(encode(TEXTS))
            by_type = ask(address, "/v1/sparse", input=TEXTS, input_type=side)["data"]
            assert [row["tokens"] for row in by_type] == [
                [token for token, _ in encode(TEXTS).tokens(at)] for at in range(3)
            ]
        status, message = refusal(address, "/v1/sparse", input=TEXTS)
        assert status == 400 and message.endswith("different modules. Give input_type: query or document")
        status, message = refusal(address, "/embed_sparse", inputs=TEXTS)
        assert status == 400 and message.endswith("or prompt_name='query' or 'document'")
        assert httpx.get(f"{address}/health").json()["ready"]


def test_a_name_of_another_kind_of_model_says_where_it_belongs(address, plain):
    status, message = refusal(address, "/v1/embeddings", model="splade", input="a")
    assert status == 404 and "use it with /v1/sparse" in message
    status, message = refusal(address, "/v1/embeddings", model="colbert", input="a")
    assert status == 404 and "use it with a route for reranking" in message
    assert refusal(address, "/v1/sparse", model="tiny", input="a") == (
        404,
        "the sparse encoder 'tiny' is not loaded here. Loaded: splade",
    )
    assert refusal(plain, "/v1/sparse", input="a")[1].startswith("no sparse encoder is loaded")


def test_the_server_says_what_it_has_loaded(address, sparse, late):
    kinds = httpx.get(f"{address}/info").json()["model_type"]
    assert kinds["sparse"] == {"model_id": "splade", "dimensions": sparse.dim, "max_input_length": 32}
    assert kinds["late_interaction"]["model_id"] == "colbert"
    assert kinds["late_interaction"]["max_query_length"] == late.query_length == 12
    names = [each["id"] for each in httpx.get(f"{address}/v1/models").json()["data"]]
    assert names == ["tiny", "splade", "colbert"]
    assert httpx.get(f"{address}/v1/models/splade").json()["id"] == "splade"
    status = httpx.get(f"{address}/status").json()
    assert (status["sparse_model"], status["late_model"]) == ("splade", "colbert")


def test_the_options_of_the_command_load_them(folder, model, sparse, late):
    options = ServeOptions(sparse=str(folder / "splade"), late=str(folder / "colbert"))
    services = load_services([str(folder / "tiny")], options)
    assert services.sparse is not None and services.sparse.model.weights_hash == sparse.weights_hash
    assert services.late is not None and services.late.dim == late.dim


# Late interaction reranks


def test_late_interaction_reranks_where_there_is_no_cross_encoder(address, late):
    expected = late.scores([QUERY] * 3, TEXTS)
    order = np.argsort(-expected, kind="stable").tolist()
    raw = ask(address, "/rerank", query=QUERY, texts=TEXTS, raw_scores=True)
    assert [row["index"] for row in raw] == order
    assert [np.float32(row["score"]) for row in raw] == expected[order].tolist()
    bounded = (1 + expected[order] / len(late.encode_query([QUERY]).tokens)) / 2
    for path, rows in (
        ("/rerank", ask(address, "/rerank", query=QUERY, texts=TEXTS)),
        ("/v1/rerank", ask(address, "/v1/rerank", query=QUERY, documents=TEXTS)["results"]),
        ("/v2/rerank", ask(address, "/v2/rerank", query=QUERY, documents=TEXTS)["results"]),
    ):
        assert [row["index"] for row in rows] == order, path
        found = [row.get("relevance_score", row.get("score")) for row in rows]
        assert found == pytest.approx(bounded.tolist(), abs=1e-6), path
        assert all(0 <= each <= 1 for each in found)
    answer = ask(address, "/v1/rerank", query=QUERY, documents=TEXTS)
    assert (answer["model"], answer["meta"]["score_kind"]) == ("colbert", "maxsim")
    scores = ask(address, "/v1/score", text_1=QUERY, text_2=TEXTS)
    assert [np.float32(row["score"]) for row in scores["data"]] == expected.tolist()


def test_a_cross_encoder_goes_first_unless_the_client_names_the_other(model, late, tmp_path):
    cross = light_cross(tmp_path / "cross")
    by_cross, by_late = (each.rank(QUERY, TEXTS).index.tolist() for each in (cross, late))
    with live(app_of(make_services(model, cross=cross, late=late))) as address:
        for name, expected in (("cross", by_cross), ("colbert", by_late)):
            for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
                answer = ask(address, path, model=name, query=QUERY, documents=TEXTS)
                assert [row["index"] for row in answer["results"]] == expected
            rows = ask(address, "/rerank", model=name, query=QUERY, texts=TEXTS)
            assert [row["index"] for row in rows] == expected
        assert ask(address, "/v1/rerank", query=QUERY, documents=TEXTS)["model"] == "cross"
        found = ask(address, "/search", query=QUERY, texts=TEXTS, rerank=True)
        assert (found["scored_by"], found["score_kind"]) == ("cross", cross.score_kind)


def test_long_documents_are_refused_by_late_interaction_where_the_client_says_so(address):
    long = ["hello world " * 20]
    ask(address, "/rerank", query=QUERY, texts=long)
    status, message = refusal(address, "/rerank", query=QUERY, texts=long, truncate=False)
    assert status == 400 and "tokens" in message


# Search


def hits(answer):
    return [int(hit["id"]) for hit in answer["hits"]]


def test_texts_are_searched_in_every_mode(address, sparse, late):
    def search(**body):
        return ask(address, "/search", query=QUERY, texts=TEXTS, **body)

    by_weights = sparse.encode_query([QUERY]).similarity(sparse.encode_document(TEXTS))[0]
    answer = search(mode="sparse")
    assert (answer["mode"], answer["scored_by"]) == ("sparse", "sparse")
    assert hits(answer) == np.argsort(-by_weights, kind="stable").tolist()
    assert [np.float32(hit["score"]) for hit in answer["hits"]] == sorted(by_weights.tolist(), reverse=True)
    assert answer["hits"][0]["cosine"] is None and answer["hits"][0]["percentile"] is None

    answer = search(mode="late", k=2)
    assert answer["scored_by"] == "late"
    assert hits(answer) == late.rank(QUERY, TEXTS, 2).index.tolist()

    answer = ask(address, "/search", query="dog, cat", texts=TEXTS, mode="words")
    assert answer["scored_by"] == "words"
    assert hits(answer) == [0, 1]  # the third text has neither word
    assert ask(address, "/search", query="zebra", texts=TEXTS, mode="words", rerank=True)["hits"] == []


def test_unknown_modes_are_refused_with_those_that_there_are(address, plain):
    status, message = refusal(address, "/search", query="a", texts=TEXTS, mode="meaning")
    assert status == 400 and message == "mode: must be 'dense', 'sparse', 'late', 'words' or 'hybrid'"
    status, message = refusal(plain, "/search", query="a", texts=TEXTS, mode="late")
    assert (status, message) == (
        400,
        "nothing is loaded for searches by 'late'. Start the server with --late; texts can be searched by: dense, "
        "words, hybrid",
    )
    status, message = refusal(plain, "/search", query="a", texts=TEXTS, mode="hybrid", weights={"sparse": 1})
    assert status == 400 and "'sparse'" in message
    status, message = refusal(address, "/search", query="a", texts=TEXTS, mode="dense", weights={"dense": 1})
    assert status == 400 and message.startswith("weights are for mode 'hybrid'")
    status, message = refusal(address, "/search", query="a", texts=TEXTS, hybrid=True, mode="late")
    assert status == 400 and message.startswith("hybrid is true, but mode is 'late'")
    zeros = {"dense": 0, "late": 0, "sparse": 0}
    status, message = refusal(address, "/search", query="a", texts=TEXTS, mode="hybrid", weights=zeros)
    assert status == 400 and message.startswith("all weights are 0")


def test_hybrid_search_fuses_what_the_weights_say(address):
    def search(**body):
        return hits(ask(address, "/search", query=QUERY, texts=TEXTS, **body))

    alone = {"dense": 0, "sparse": 0, "late": 0, "words": 0}
    for kind in alone:
        weights = {**alone, kind: 2.5}
        assert search(mode="hybrid", weights=weights) == search(mode=kind)
    answer = ask(address, "/search", query=QUERY, texts=TEXTS, weights={"dense": 1, "words": 1})
    assert (answer["mode"], answer["scored_by"]) == ("hybrid", "fusion")
    assert answer["hits"][0]["cosine"] is not None


# Indexes


@pytest.fixture(scope="module")
def notes(folder, model, sparse, late):
    """The folder of an index with every kind of vectors."""
    location = folder / "notes"
    with open_index(location, model, sparse=sparse, late=late, late_form="int8") as index:
        index.add(TEXTS, ids=["a", "b", "c"])
    return location


@pytest.fixture(scope="module")
def indexed(folder, notes, model, sparse, late):
    with open_index(folder / "plain", model, stemming=None) as other:
        other.add(TEXTS, ids=["a", "b", "c"])
        with open_index(notes, model, sparse=sparse, late=late) as index:
            services = make_services(model, late=late, indexes={"notes": index, "plain": other})
            with live(app_of(services)) as address:
                yield address


@pytest.mark.parametrize("mode", ["dense", "sparse", "late", "words", "hybrid"])
def test_an_index_is_searched_in_each_of_its_modes(indexed, notes, model, sparse, late, mode):
    answer = ask(indexed, "/indexes/notes/search", query=QUERY, mode=mode)
    with open_index(notes, model, sparse=sparse, late=late) as index:
        expected = index.search(QUERY, mode=mode)
    assert (answer["mode"], answer["scored_by"]) == (mode, expected.scored_by)
    assert [(hit["id"], np.float32(hit["score"])) for hit in answer["hits"]] == [
        (hit.id, np.float32(hit.score)) for hit in expected
    ]
    assert [hit["cosine"] is None for hit in answer["hits"]] == [hit.cosine is None for hit in expected]
    assert ask(indexed, "/search", index="notes", query=QUERY, mode=mode)["hits"] == answer["hits"]


def test_an_index_has_its_own_mode_and_takes_weights(indexed):
    rows = {each["name"]: each for each in httpx.get(f"{indexed}/indexes").json()["indexes"]}
    assert rows["notes"]["modes"] == ["dense", "sparse", "late", "words", "hybrid"]
    assert (rows["notes"]["mode"], rows["plain"]["mode"]) == ("hybrid", "dense")
    assert rows["plain"]["modes"] == ["dense", "words", "hybrid"]
    details = httpx.get(f"{indexed}/indexes/notes").json()
    assert (details["kinds"]["sparse"]["model"], details["kinds"]["late"]["form"]) == ("splade", "int8")
    assert ask(indexed, "/indexes/notes/search", query=QUERY)["mode"] == "hybrid"
    assert ask(indexed, "/indexes/plain/search", query=QUERY)["mode"] == "dense"
    alone = {"dense": 0, "late": 0, "words": 0}
    weighted = ask(indexed, "/indexes/notes/search", query=QUERY, weights=alone)
    assert (weighted["mode"], weighted["scored_by"]) == ("hybrid", "fusion")
    by_weights = ask(indexed, "/indexes/notes/search", query=QUERY, mode="sparse")
    assert [hit["id"] for hit in weighted["hits"]] == [hit["id"] for hit in by_weights["hits"]]


def test_a_mode_that_the_index_lacks_is_refused_with_those_it_has(indexed):
    for path, body in (("/indexes/plain/search", {}), ("/search", {"index": "plain"})):
        assert refusal(indexed, path, query="a", mode="late", **body) == (
            400,
            "the index has no late vectors. It can be searched by: dense, words, hybrid",
        )
        status, message = refusal(indexed, path, query="a", weights={"sparse": 1}, **body)
        assert status == 400 and "The index has: dense, words" in message
    status, message = refusal(indexed, "/explain", left="a", right="b", mode="sparse", index="plain")
    assert status == 400 and message.startswith("the index has no sparse vectors")
    assert refusal(indexed, "/explain", left="a", right="b", index="none")[0] == 404


def test_an_index_is_reranked_by_late_interaction(indexed, late):
    answer = ask(indexed, "/indexes/plain/search", query=QUERY, rerank=True)
    assert (answer["scored_by"], answer["score_kind"]) == ("late", "maxsim")
    expected = late.rank(QUERY, TEXTS)
    assert [hit["text"] for hit in answer["hits"]] == [TEXTS[at] for at in expected.index]


def test_a_search_of_an_index_is_explained_by_its_models(indexed, sparse, late):
    by_weights = ask(indexed, "/explain", left=QUERY, right=TEXTS[0], mode="sparse", index="notes")
    assert by_weights["score"] == sparse.explain(QUERY, TEXTS[0]).score
    assert refusal(indexed, "/explain", left="a", right="b", mode="sparse")[0] == 404  # not loaded beside it
    by_tokens = ask(indexed, "/explain", left=QUERY, right=TEXTS[0], mode="late", index="notes")
    assert by_tokens["score"] == late.explain(QUERY, TEXTS[0]).score
    cosine = ask(indexed, "/explain", left=QUERY, right=TEXTS[0], index="notes")
    assert sum(map(sum, cosine["table"])) == pytest.approx(cosine["score"], abs=1e-6)


def test_an_index_shares_the_models_of_the_server_or_loads_its_own(folder, notes):
    models, where = [str(folder / "tiny")], {"index": (str(notes),)}
    services = load_services(models, ServeOptions(late=str(folder / "colbert"), **where))
    index = services.indexes["notes"]
    assert index.kind_model("late") is services.late
    assert index.kind_model("sparse").name == "splade"
    index.close()
    other = gemel.load_late(tiny_late(folder / "other", seed=9))
    services = load_services(models, ServeOptions(late=str(folder / "other"), **where))
    assert services.late is not None and services.late.weights_hash == other.weights_hash
    assert services.indexes["notes"].kind_model("late").weights_hash != other.weights_hash
    services.indexes["notes"].close()


def test_an_index_without_dense_vectors_is_served(folder, sparse):
    with open_index(folder / "words", sparse=sparse) as index:
        index.add(TEXTS, ids=["a", "b", "c"])
    services = load_services([str(folder / "tiny")], ServeOptions(index=(str(folder / "words"),)))
    with live(app_of(services)) as address:
        answer = ask(address, "/indexes/words/search", query=QUERY)
        assert (answer["mode"], answer["scored_by"]) == ("sparse", "sparse")
        assert {hit["percentile"] for hit in answer["hits"]} == {None}
        status, message = refusal(address, "/indexes/words/search", query=QUERY, mode="dense")
        assert status == 400 and message.startswith("the index has no dense vectors")


# Explanations


def test_weights_of_words_explain_a_match(address, sparse):
    answer = ask(address, "/explain", left=QUERY, right=TEXTS[0], mode="sparse")
    expected = sparse.explain(QUERY, TEXTS[0])
    assert answer["score"] == expected.score
    assert sum(each["adds"] for each in answer["matches"]) == pytest.approx(answer["score"], abs=1e-5)
    assert [each["left"] for each in answer["matches"]] == [match.token for match in expected.matches]
    for each in answer["matches"]:
        assert all(TEXTS[0][start:stop] == each["right"].removeprefix("##") for start, stop in each["spans"])
    assert answer["missing"] == [token for token, _ in expected.missing]


def test_token_pairs_explain_a_match(address, late):
    answer = ask(address, "/explain", left=QUERY, right=TEXTS[1], mode="late")
    assert answer["score"] == late.explain(QUERY, TEXTS[1]).score
    assert len(answer["matches"]) == 12
    adds = [each["adds"] for each in answer["matches"]]
    assert adds == sorted(adds, reverse=True)
    assert sum(adds) == pytest.approx(answer["score"], abs=1e-5)
    for each in answer["matches"]:
        assert all(TEXTS[1][start:stop] == each["right"].removeprefix("##") for start, stop in each["spans"])


def test_shared_words_explain_a_match(plain):
    answer = ask(
        plain, "/explain", left="Über the DOG, 東京", right="The dog: über dogs in 東京都. the", mode="words"
    )
    assert [(each["left"], each["spans"]) for each in answer["matches"]] == [
        ("über", [[9, 13]]),
        ("the", [[0, 3], [27, 30]]),
        ("dog", [[4, 7]]),
        ("東京", [[22, 24]]),
    ]
    assert (answer["score"], answer["missing"]) == (4, [])
    assert ask(plain, "/explain", left="a guitar", right="a man", mode="words")["missing"] == ["guitar"]


def test_an_explanation_needs_the_model_of_its_mode(plain):
    assert refusal(plain, "/explain", left="a", right="b", mode="sparse")[0] == 404
    status, message = refusal(plain, "/explain", left="a", right="b", mode="late")
    assert (status, message) == (
        404,
        "no model for late interaction is loaded. Start the server with --late",
    )
    status, message = refusal(plain, "/explain", left="a", right="b", mode="hybrid")
    assert status == 400 and message == "mode: must be 'dense', 'sparse', 'late' or 'words'"
