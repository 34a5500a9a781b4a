"""gemel's own routes: search, pairs, clusters, explain, relation, indexes, status."""

from datetime import date

import httpx
import numpy as np
import pytest
from tests.encoder.test_classification_head import LABELS

import gemel
from gemel.index.open import open_index
from gemel.serve.options import Limits
from serve_case import app_of, live, make_services
from serve_models import light_cross, related_model
from tiny import TEXT, tiny_bert

# The tests are about other things than prompts.
pytestmark = pytest.mark.filterwarnings("ignore::gemel.PromptWarning")

WORDS = TEXT.split()
TEXTS = ["the cat is sleeping", "a dog is running in the street", "the stock market fell sharply"]
MANY = [" ".join(np.random.default_rng(seed).choice(WORDS, 6)) for seed in range(60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def model(folder):
    return gemel.load(tiny_bert(folder / "tiny", prompts={"query": "how do i "}))


@pytest.fixture(scope="module")
def server(model):
    """Its client and its index."""
    with open_index(":memory:", model) as index:
        limits = Limits(texts=600, pair_texts=1200, characters=5000)
        app = app_of(make_services(model, indexes={"notes": index}, limits=limits))
        with live(app) as address, httpx.Client(base_url=address, timeout=60) as http:
            yield http, index


@pytest.fixture
def http(server):
    return server[0]


@pytest.fixture
def index(server):
    """Empty at the start of each test, except for its columns."""
    result = server[1]
    result.delete([row.id for row in result.get(["a", "b", "c", "d"])] + MANY)
    return result


@pytest.fixture(scope="module")
def related(folder):
    """The client of a server whose model has a classification head, and the model."""
    model = related_model(folder)
    with live(app_of(make_services(model))) as address, httpx.Client(base_url=address, timeout=60) as http:
        yield http, model


def ask(http, path, method="POST", **body):
    answer = http.request(method, path, json=body or None)
    assert answer.status_code == 200, answer.text
    return answer.json()


# Search in texts


def test_search_in_texts_is_exact_search_with_the_prompts_of_both_sides(http, model):
    result = ask(http, "/search", query="the cat", texts=MANY, k=5)
    hits = gemel.search(model.encode_query(["the cat"]), model.encode_document(MANY), 5)
    assert [row["id"] for row in result["hits"]] == [str(position) for position in hits.index[0]]
    assert [row["score"] for row in result["hits"]] == pytest.approx(hits.score[0].tolist(), abs=1e-6)
    assert [row["text"] for row in result["hits"]] == [MANY[position] for position in hits.index[0]]
    assert (result["scored_by"], result["score_kind"], result["exact"]) == ("cosine", None, True)


def test_a_percentile_is_available_for_many_texts_and_not_for_few(http):
    many = ask(http, "/search", query="the cat", texts=MANY, k=60)["hits"]
    percentiles = [row["percentile"] for row in many]
    assert percentiles == sorted(percentiles, reverse=True) and 0 <= percentiles[-1] < percentiles[0] <= 100
    few = ask(http, "/search", query="the cat", texts=TEXTS)["hits"]
    assert [row["percentile"] for row in few] == [None] * 3


def test_an_offset_continues_after_the_previous_page(http):
    whole = ask(http, "/search", query="the cat", texts=MANY, k=6)["hits"]
    parts = [ask(http, "/search", query="the cat", texts=MANY, k=3, offset=n)["hits"] for n in (0, 3)]
    assert [*parts[0], *parts[1]] == whole


def test_hybrid_search_ranks_the_text_with_the_word_higher(http):
    result = ask(http, "/search", query="password", texts=[*TEXTS, "reset my password"], hybrid=True, k=4)
    assert result["scored_by"] == "fusion"
    assert result["hits"][0]["text"] == "reset my password"
    assert all(-1 <= row["cosine"] <= 1 for row in result["hits"])


def test_a_classification_head_labels_each_hit(related):
    http, model = related
    result = ask(http, "/search", query=TEXTS[0], texts=TEXTS, k=3)["hits"]
    for row in result:
        expected = model.relation([TEXTS[0]], [row["text"]])[0].tolist()
        assert row["relation"] == pytest.approx(dict(zip(LABELS, expected, strict=True)))


def test_reranking_needs_a_model_for_it(http):
    answer = http.post("/search", json={"query": "a", "texts": TEXTS, "rerank": True})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("nothing is loaded that could rerank")


def test_reranking_is_the_ranking_of_the_cross_encoder(folder, model):
    cross = light_cross(folder / "cross")
    with live(app_of(make_services(model, cross=cross))) as address, httpx.Client(base_url=address) as http:
        result = ask(http, "/search", query="the cat", texts=TEXTS, rerank=True)
    expected = cross.rank("the cat", TEXTS)
    assert [int(row["id"]) for row in result["hits"]] == expected.index.tolist()
    assert (result["scored_by"], result["score_kind"]) == ("cross", cross.score_kind)


# Pairs and clusters


def test_pairs_are_those_of_similar_pairs_with_their_meaning(http, model):
    result = ask(http, "/pairs", texts=MANY, k=7)
    vectors = model.encode(MANY)
    expected = gemel.similar_pairs(vectors, k=7)
    assert [row["left"] for row in result["pairs"]] == expected.left.tolist()
    assert [row["right"] for row in result["pairs"]] == expected.right.tolist()
    assert [row["score"] for row in result["pairs"]] == pytest.approx(expected.score.tolist(), abs=1e-6)
    assert (result["complete"], result["compared"]) == (True, 60 * 59 // 2)
    meaning = gemel.calibrate(vectors, sample=200_000)
    first = result["pairs"][0]
    assert first["percentile"] == pytest.approx(meaning.percentile(first["score"]))
    assert first["expected_false"] == pytest.approx(meaning.expected_false(first["score"]))
    assert (first["left_text"], first["right_text"]) == (MANY[first["left"]], MANY[first["right"]])


def test_pairs_by_a_score_and_by_expected_false(http, model):
    all_of = ask(http, "/pairs", texts=MANY, min_score=0.9)["pairs"]
    assert len(all_of) == len(gemel.similar_pairs(model.encode(MANY), min_score=0.9))
    floor = gemel.calibrate(model.encode(MANY), sample=200_000).threshold(5)
    few = ask(http, "/pairs", texts=MANY, expected_false=5)["pairs"]
    assert all(row["score"] >= floor - 1e-6 for row in few)


def test_pairs_between_two_sets(http):
    result = ask(http, "/pairs", texts=TEXTS, other=["the cat is sleeping"], k=1)
    assert result["pairs"][0]["left"] == 0 and result["pairs"][0]["score"] == pytest.approx(1, abs=1e-5)
    assert result["compared"] == 3


def test_an_answer_that_would_be_too_long_says_that_it_is_not_complete(http, monkeypatch):
    monkeypatch.setattr("gemel.serve.protocols.pairs.MOST", 10)
    result = ask(http, "/pairs", texts=MANY, min_score=-1)
    assert len(result["pairs"]) == 10 and not result["complete"]


def test_more_texts_than_the_batcher_accepts_keep_their_order(http, model):
    texts = [f"{text} {position % 7} {position}" for position, text in enumerate(MANY * 12)]
    result = ask(http, "/pairs", texts=texts, k=20)["pairs"]
    expected = gemel.similar_pairs(model.encode(texts), k=20)
    assert [(row["left"], row["right"]) for row in result] == list(
        zip(expected.left.tolist(), expected.right.tolist(), strict=True)
    )


def test_pairs_with_relations(related, http):
    result, model = related
    row = ask(result, "/pairs", texts=TEXTS, k=1, relation=True)["pairs"][0]
    expected = model.relation([row["left_text"]], [row["right_text"]])[0].tolist()
    assert row["relation"] == pytest.approx(dict(zip(LABELS, expected, strict=True)), abs=1e-6)
    refused = http.post("/pairs", json={"texts": TEXTS, "relation": True})
    assert (refused.status_code, refused.json()["error"]["type"]) == (404, "no_relation")


def test_clusters_have_members_titles_and_coordinates(http, model):
    texts = [*(f"the cat is sleeping {n}" for n in range(6)), *(f"stock market fell {n}" for n in range(6))]
    result = ask(http, "/clusters", texts=texts, min_score=0.95, layout="pca")
    expected = gemel.cluster(model.encode(texts), min_score=0.95, texts=texts)
    assert [row["label"] for row in result["clusters"]] == [item.id for item in expected.items] != []
    for row in result["clusters"]:
        assert row["members"] == expected.members(row["label"]).tolist()
        assert row["size"] == len(row["members"]) and row["text"] in texts and row["title"]
    assert [point["cluster"] for point in result["points"]] == expected.labels.tolist()
    assert all(0 <= point[axis] <= 1 for point in result["points"] for axis in "xy")
    assert [point["index"] for point in result["points"]] == list(range(12))


def test_clusters_by_a_score_without_a_map(http):
    result = ask(http, "/clusters", texts=TEXTS, min_score=0.99, layout="none")
    assert (result["clusters"], result["points"], result["unassigned"]) == ([], [], 3)
    assert result["method"] == "communities"


def test_slow_ways_to_cluster_take_fewer_texts(http, monkeypatch):
    monkeypatch.setattr("gemel.serve.protocols.pairs.SLOW_TEXTS", 2)
    for name, value in (("method", "hdbscan"), ("layout", "tsne")):
        answer = http.post("/clusters", json={"texts": TEXTS, name: value})
        assert answer.status_code == 413
        expected = f"{name} {value!r} takes at most 2 texts over the server, got 3"
        assert answer.json()["error"]["message"] == expected


# Why, and how


def test_an_explanation_sums_to_the_cosine(http, model):
    result = ask(http, "/explain", left=TEXTS[0], right=TEXTS[1])
    rows = model.encode(TEXTS[:2])
    assert result["score"] == pytest.approx(float(rows[0] @ rows[1]), abs=1e-5)
    for table, left, right in (
        ("table", "left_tokens", "right_tokens"),
        ("word_table", "left_words", "right_words"),
    ):
        cells = np.array(result[table])
        assert cells.sum() == pytest.approx(result["score"], abs=1e-6)
        assert cells.shape == (len(result[left]), len(result[right]))


def test_relations_come_with_their_labels(related):
    http, model = related
    result = ask(http, "/relation", left=TEXTS[:2], right=TEXTS[1:])
    assert result["labels"] == list(LABELS)
    assert np.allclose(result["probabilities"], model.relation(TEXTS[:2], TEXTS[1:]), atol=1e-6)


def test_a_model_without_a_head_is_an_error(http):
    answer = http.post("/relation", json={"left": ["a"], "right": ["b"]})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].startswith("tiny has no classification head.")


# Indexes

DOCUMENTS = [
    {"id": "a", "text": TEXTS[0], "fields": {"lang": "en", "year": 2020}},
    {"id": "b", "text": TEXTS[1], "fields": {"lang": "de", "year": 2021}},
    {"id": "c", "text": TEXTS[2], "fields": {"lang": "en", "year": 2022}},
]


def fill(http):
    return ask(http, "/indexes/notes/documents", documents=DOCUMENTS)


def test_documents_are_added_found_fetched_and_deleted(http, index):
    assert fill(http) == {"added": 3, "replaced": 0, "unchanged": 0, "encoded": 3, "truncated": 0}
    result = ask(http, "/search", query=TEXTS[1], index="notes", k=2)
    assert len(result["hits"]) == 2 and result["hits"][0]["fields"]["year"] in (2020, 2021, 2022)
    documents = ask(http, "/indexes/notes/get", ids=["b", "nobody", "a"])["documents"]
    assert [row["id"] for row in documents] == ["b", "a"]
    assert documents[0]["text"] == TEXTS[1] and documents[0]["fields"] == {"lang": "de", "year": 2021}
    assert ask(http, "/indexes/notes/documents", "DELETE", ids=["b", "nobody"]) == {"deleted": 1}
    assert ask(http, "/indexes/notes/documents", "DELETE", where="year >= 2022") == {"deleted": 1}
    assert len(index) == 1


def test_fields_are_updated(http, index):
    fill(http)
    path = "/indexes/notes/documents"
    answer = ask(http, path, "PATCH", ids=["a", "b"], fields={"lang": "fr", "year": None})
    assert answer == {"updated": 2, "unchanged": 0}
    answer = ask(http, path, "PATCH", where="lang = 'fr'", fields={"lang": "fr"})
    assert answer == {"updated": 0, "unchanged": 2}
    assert [each.fields for each in index.get(["a", "c"])] == [
        {"lang": "fr", "year": None},
        {"lang": "en", "year": 2022},
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"fields": {"year": 1}}, "give either ids or where"),
        ({"ids": ["a"], "where": "year = 1", "fields": {"year": 1}}, "give either ids or where"),
        ({"ids": ["a"]}, "the field 'fields' is missing"),
        ({"ids": ["nobody"], "fields": {"year": 1}}, "the document 'nobody' is not in the index"),
        ({"ids": ["a"], "fields": {"nothing": 1}}, "unknown field 'nothing'. Known: lang, year"),
        ({"ids": ["a"], "fields": {"year": {"a": 1}}}, "fields: the field 'year' must be a string"),
    ],
)
def test_an_update_says_what_is_wrong_with_it(http, index, body, message):
    fill(http)
    answer = http.request("PATCH", "/indexes/notes/documents", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message), answer.text


def test_lists_and_dates_are_fields_over_http(model):
    document = {"id": "y", "text": TEXTS[0], "fields": {"tags": ["new", "red"], "day": "2024-05-06"}}
    wrong = {"text": "a", "fields": {"tags": [["nested"]]}}
    with open_index(":memory:", model) as index:
        index.add(["first"], ids=["x"], fields={"tags": [["old"]], "day": [date(2020, 1, 1)]})
        app = app_of(make_services(model, indexes={"notes": index}))
        with live(app) as address, httpx.Client(base_url=address, timeout=60) as client:
            ask(client, "/indexes/notes/documents", documents=[document])
            for where in ("tags contains 'red' and day > '2023-01-01'", {"tags": {"contains": "red"}}):
                result = ask(client, "/search", query="first", index="notes", k=2, where=where)["hits"]
                assert [(row["id"], row["fields"]) for row in result] == [("y", document["fields"])]
            answer = client.post("/indexes/notes/documents", json={"documents": [wrong]})
    assert answer.status_code == 400 and "'tags' must be a string" in answer.text


def test_an_index_answers_as_it_does_without_a_server(http, index):
    fill(http)
    for options in ({}, {"where": {"lang": "en"}}, {"hybrid": True}, {"offset": 1}, {"exact": True}):
        result = ask(http, "/indexes/notes/search", query="the cat is", k=2, **options)
        expected = index.search("the cat is", 2, **options)
        for row, hit in zip(result["hits"], expected, strict=True):
            meaning = {"percentile": row["percentile"], "relation": None}
            assert row == {**hit.row(), **meaning}
        assert result["scored_by"] == expected.scored_by


def test_a_plain_search_goes_through_the_batcher_and_gives_the_same_bits(model):
    with open_index(":memory:", model, dim=8) as index:
        index.add(TEXTS)
        services = make_services(model, indexes={"notes": index})
        with live(app_of(services)) as address, httpx.Client(base_url=address, timeout=60) as http:
            result = ask(http, "/search", query="hello world", index="notes")
            assert services.counters.texts.total == 1
            assert [row["score"] for row in result["hits"]] == [
                hit.score for hit in index.search("hello world")
            ]


def test_a_percentile_in_an_index_is_that_of_its_own_passages(http, index, model):
    index.add(MANY, ids=MANY)
    result = ask(http, "/search", query="the cat", index="notes", k=60)["hits"]
    percentiles = [row["percentile"] for row in result]
    assert percentiles == sorted(percentiles, reverse=True) and 0 <= percentiles[-1] < percentiles[0] <= 100
    index.delete(MANY)


def test_vectors_added_over_http_equal_those_added_locally(http, index, model):
    fill(http)
    with open_index(":memory:", model) as other:
        other.add(TEXTS, ids=["a", "b", "c"])
        query = model.encode_query(["hello world"])[0]
        here = {hit.id: hit.cosine for hit in other.search(query)}
        assert {hit.id: hit.cosine for hit in index.search(query)} == here


def test_a_document_that_is_there_is_an_error_replaced_or_skipped(http, index):
    fill(http)
    again = {"documents": [{**DOCUMENTS[0], "text": "hello world"}]}
    refused = http.post("/indexes/notes/documents", json=again)
    assert refused.status_code == 400 and "'a'" in refused.json()["error"]["message"]
    assert ask(http, "/indexes/notes/documents", **again, existing="skip")["unchanged"] == 1
    assert ask(http, "/indexes/notes/documents", **again, existing="replace")["replaced"] == 1
    assert index.get(["a"])[0].text == "hello world"


def test_ids_are_made_of_the_texts_where_none_are_given(http, index):
    assert ask(http, "/indexes/notes/documents", documents=[{"text": "to be named"}])["added"] == 1
    (hit,) = ask(http, "/search", query="to be named", index="notes", k=1)["hits"]
    assert ask(http, "/indexes/notes/documents", "DELETE", ids=[hit["id"]]) == {"deleted": 1}


def test_an_index_reports_its_content_and_not_its_location(http, index):
    fill(http)
    (row,) = ask(http, "/indexes", "GET")["indexes"]
    assert (row["name"], row["documents"], row["model"], row["dim"]) == ("notes", 3, "tiny", 32)
    assert row["fields"] == {"lang": "text", "year": "int"}
    result = ask(http, "/indexes/notes", "GET")
    assert (
        result["layout"]
        and "place" not in result
        and "location" not in result
        and row.items() <= result.items()
    )


def test_the_location_of_an_index_is_in_no_error(tmp_path, model):
    location = tmp_path / "secret-place"
    open_index(location, model).close()
    with open_index(location, model, read_only=True) as index:
        app = app_of(make_services(model, indexes={"notes": index}))
        with live(app) as address:
            answer = httpx.post(f"{address}/indexes/notes/documents", json={"documents": DOCUMENTS})
    assert answer.status_code == 400
    assert "secret-place" not in answer.text and "the index notes" in answer.json()["error"]["message"]


def test_status_has_live_figures(http):
    assert ask(http, "/status", "GET")["model"] == "tiny"


# Bad input


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/search", {"qery": "a", "texts": ["a"]}, 400, "unknown field 'qery'. Did you mean 'query'?"),
        ("/search", {"query": "a"}, 400, "give either index, the name of one, or texts"),
        (
            "/search",
            {"query": "a", "texts": ["a"], "where": "x = 1"},
            400,
            "where filters by the fields of an",
        ),
        ("/search", {"query": "a", "texts": []}, 400, "texts is empty"),
        ("/search", {"query": "a", "texts": ["a"] * 601}, 413, "texts has 601 texts"),
        ("/search", {"query": "a", "texts": ["a", 3]}, 400, "texts[1]: must be a string"),
        ("/search", {"query": "a" * 5001, "texts": ["a"]}, 413, "query[0] has 5,001 characters"),
        (
            "/search",
            {"query": "a", "index": "../notes"},
            404,
            "no index '../notes' is open here. Open: notes",
        ),
        ("/search", {"query": "a", "index": "notes", "k": 0}, 400, "k: must be greater than or equal to 1"),
        ("/search", {"query": "a", "index": "notes", "where": "no_field = 1"}, 400, ""),
        ("/search", {"query": "a", "index": "notes", "where": "lang ="}, 400, ""),
        ("/pairs", {"texts": ["a"]}, 400, "texts has one text"),
        ("/pairs", {"texts": ["a"] * 1201}, 413, "texts has 1,201 texts"),
        ("/pairs", {"texts": ["a"] * 700, "other": ["a"] * 700}, 413, "texts and other have 1,400 texts"),
        (
            "/pairs",
            {"texts": ["a", "b"], "expected_false": 1},
            400,
            "expected_false needs at least 1,000 pairs",
        ),
        ("/pairs", {"texts": ["a", "b"], "min_score": 2}, 400, "min_score: must be less than or equal to 1"),
        ("/clusters", {"texts": ["a"], "k": 1, "min_score": 0.5}, 400, "k-means takes k, not min_score"),
        ("/clusters", {"texts": ["a"], "method": "guess"}, 400, "method: must be 'communities'"),
        ("/clusters", {"texts": ["a"] * 1100, "k": 1900}, 413, "k may be at most 1,818 for 1,100 texts"),
        ("/explain", {"left": "a"}, 400, "the field 'right' is missing. Required: left, right"),
        ("/relation", {"left": "a", "right": ["b"]}, 400, "left: must be a list"),
        ("/indexes/other/search", {"query": "a"}, 404, "no index 'other' is open here"),
        ("/indexes/notes/documents", {"documents": []}, 400, "documents is empty"),
        ("/indexes/notes/documents", {"documents": [{"id": "x"}]}, 400, "documents[0].text: Field required"),
        (
            "/indexes/notes/documents",
            {"documents": [{"id": "x", "text": "a"}, {"text": "b"}]},
            400,
            "1 of 2 documents have an id: give one to all, or to none",
        ),
        ("/indexes/notes/documents", {"documents": [{"id": "x", "text": "a"}] * 2}, 400, ""),
        ("/indexes/notes/get", {"ids": []}, 400, "ids is empty"),
    ],
)
def test_bad_input_gets_one_sentence(http, index, path, body, status, message):
    answer = http.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) - {"help"} == {"message", "type"}
    assert answer.json()["error"]["message"].startswith(message)
    assert "Traceback" not in answer.text and "/src/" not in answer.text


def test_a_delete_says_what_to_delete(http):
    for body in ({}, {"ids": ["a"], "where": "year = 1"}):
        answer = http.request("DELETE", "/indexes/notes/documents", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "give either ids or where"
