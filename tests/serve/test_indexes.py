"""Routes below /indexes that read, group, count and copy, on an index with three kinds of vectors."""

from datetime import date

import httpx
import numpy as np
import pytest

import gemel
from gemel.index.open import open_index
from gemel.serve.options import Limits
from gemel.serve.protocols import indexes, search
from kind_contract import IDS, TEXTS, forget_models, models
from serve_case import app_of, live, make_services

pytestmark = pytest.mark.filterwarnings("ignore::gemel.PromptWarning")

TOPICS = ["music", "oil", "oil", "dog", "music", "dog", "dog", None]
DAYS = [date(2020, 1, 1)] * 3 + [date(2024, 5, 6)] * 5


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The client, the index and the folder of snapshots."""
    dense, sparse, late = models()
    folder = tmp_path_factory.mktemp("secret-place") / "snapshots"
    with open_index(":memory:", dense, sparse=sparse, late=late) as index:
        index.add(TEXTS, ids=IDS, fields={"topic": TOPICS, "day": DAYS, "n": range(8)})
        limits = Limits(texts=20, characters=500)
        services = make_services(dense, indexes={"notes": index}, limits=limits, snapshots=folder)
        with live(app_of(services)) as address, httpx.Client(base_url=address, timeout=60) as http:
            yield http, index, folder
    forget_models()


@pytest.fixture
def http(server):
    return server[0]


@pytest.fixture
def index(server):
    return server[1]


def ask(http, what, **body):
    answer = http.post(f"/indexes/notes/{what}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(http, what, **body):
    answer = http.post(f"/indexes/notes/{what}", json=body)
    assert set(answer.json()["error"]) >= {"message", "type"}
    return answer.status_code, answer.json()["error"]["message"]


def ids(rows):
    return [row["id"] for row in rows]


@pytest.mark.parametrize(
    "options",
    [
        {"group_by": "topic"},
        {"group_by": "topic", "per_group": 2, "mode": "dense"},
        {"min_score": 0.1, "mode": "dense"},
        {"min_score": 1e9},
        {"diversity": 0.7, "mode": "dense"},
        {"diversity": 0.7, "candidates": 12, "mode": "sparse"},
        {"recall": 0.99, "mode": "late"},
        {"group_by": "topic", "where": {"n": {">": 1}}, "offset": 1, "k": 2},
    ],
)
def test_a_search_takes_the_options_of_the_library(http, index, options):
    answer = ask(http, "search", query="the dog", **options)
    right = index.search("the dog", **options)
    assert [(row["id"], row["score"]) for row in answer["hits"]] == [(hit.id, hit.score) for hit in right]
    body = {"query": "the dog", "index": "notes", **options}
    assert ids(http.post("/search", json=body).json()["hits"]) == ids(answer["hits"])


def test_documents_are_found_by_examples(http, index):
    given = {"ids": ["f"], "texts": ["a dog"], "unlike": ["b"], "unlike_texts": ["oil"]}
    answer = ask(http, "more_like", **given, k=3, where="n > 0")
    right = index.more_like(k=3, where="n > 0", **given)
    assert [(row["id"], row["score"]) for row in answer["hits"]] == [(hit.id, hit.score) for hit in right]
    assert (answer["mode"], answer["scored_by"]) == ("dense", "cosine")
    assert not {"f", "b"} & set(ids(answer["hits"]))
    assert ids(ask(http, "more_like", ids=["f"], group_by="topic")["hits"]) == [
        hit.id for hit in index.more_like(["f"], group_by="topic")
    ]
    assert refusal(http, "more_like", unlike=["a"]) == (
        400,
        "no example to search with. Give the id of a document, or a text",
    )
    assert refusal(http, "more_like", ids=["nobody"])[0] == 400
    assert refusal(http, "more_like", ids=["a"] * 21) == (
        413,
        "ids has 21 texts; one request takes at most 20. Send several",
    )
    assert refusal(http, "more_like", texts=["a" * 501])[0] == 413


def test_pages_are_the_whole(http, index, monkeypatch):
    def pages(**options):
        after, found = None, []
        while True:
            page = ask(http, "list", after=after, **options)
            found.append(ids(page["documents"]))
            after = page["next"]
            if after is None:
                return found

    assert pages(limit=3) == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]
    assert pages(limit=4) == [["a", "b", "c", "d"], ["e", "f", "g", "h"]]
    assert pages(where="topic = 'dog'", limit=2) == [["d", "f"], ["g"]]
    assert pages(where="n > 100") == [[]]
    document = ask(http, "list", limit=1)["documents"][0]
    assert document == {
        "id": "a",
        "text": TEXTS[0],
        "fields": {"topic": "music", "day": "2020-01-01", "n": 0},
        "passages": 1,
    }
    monkeypatch.setattr(indexes, "_MOST_CHARACTERS", 60)
    assert pages(limit=8) == [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]]


def test_stored_vectors_are_returned_on_request(http, index, monkeypatch):
    (row,) = ask(http, "get", ids=["b"], vectors=["dense", "sparse", "late"])["documents"]
    (own,) = index.get(["b"], vectors=True)
    assert np.array_equal(np.float32(row["vectors"]), own.vectors)
    assert row["sparse_vectors"][0]["indices"] == own.sparse[0][0].tolist()
    assert np.array_equal(np.float32(row["sparse_vectors"][0]["values"]), own.sparse[0][1])
    assert np.array_equal(np.float32(row["late_vectors"][0]), own.late.of(0))
    listed = ask(http, "list", vectors=["sparse"])["documents"]
    assert len(listed) == 8 and all("sparse_vectors" in each and "vectors" not in each for each in listed)
    assert ids(ask(http, "get", ids=["c", "nobody", "a"], vectors=["dense"])["documents"]) == ["c", "a"]
    monkeypatch.setattr(indexes, "_MOST_NUMBERS", 2 * index.dim)
    assert ids(ask(http, "list", vectors=["dense"])["documents"]) == ["a", "b"]
    assert refusal(http, "get", ids=["a", "b", "c"], vectors=["dense"])[0] == 413
    assert refusal(http, "list", vectors=["late"])[0] == 413


def test_documents_are_counted(http):
    assert ask(http, "count") == {"documents": 8, "passages": 8}
    assert ask(http, "count", where={"topic": "dog"}) == {"documents": 3, "passages": 3}
    rows = ask(http, "facets", field="topic")["values"]
    assert [(row["value"], row["documents"]) for row in rows] == [
        ("dog", 3),
        ("music", 2),
        ("oil", 2),
        (None, 1),
    ]
    rows = ask(http, "facets", field="day", where="n > 0", limit=1)["values"]
    assert rows == [{"value": "2024-05-06", "documents": 5}]


def test_snapshots_are_made_and_listed_in_the_folder_of_the_operator(server):
    http, index, folder = server
    pytest.importorskip("lance", reason="the extra 'index' is not installed")
    assert http.get("/indexes/notes/snapshots").json() == {"snapshots": []}
    made = ask(http, "snapshots", name="monday")
    assert (made["name"], made["documents"], made["passages"]) == ("monday", 8, 8)
    by_time = ask(http, "snapshots")["name"]
    listed = http.get("/indexes/notes/snapshots").json()["snapshots"]
    assert [row["name"] for row in listed] == sorted(["monday", by_time])
    assert all(row["documents"] == 8 and row["problem"] is None and row["bytes"] for row in listed)
    with gemel.open_index(folder / "notes" / "monday", create=False) as copy:
        for mode in ("dense", "sparse", "late"):
            assert list(copy.search("the dog", mode=mode)) == list(index.search("the dog", mode=mode))
    assert refusal(http, "snapshots", name="monday") == (
        400,
        "there is a snapshot 'monday' of notes already. Choose another name",
    )
    for name in ("..", "../other", ".hidden", "a/b", "a" * 65, ""):
        assert refusal(http, "snapshots", name=name)[0] == 400
    assert sorted(path.name for path in folder.parent.rglob("rows-*.lance")) == ["rows-1.lance"] * 2
    (folder / "notes" / "monday" / "index.json").write_text("{}")
    answer = http.get("/indexes/notes/snapshots")
    assert "secret-place" not in answer.text


def test_there_are_so_many_snapshots_at_most(server, monkeypatch):
    http, _, _ = server
    pytest.importorskip("lance", reason="the extra 'index' is not installed")
    monkeypatch.setattr(indexes, "_MOST_SNAPSHOTS", 0)
    status, message = refusal(http, "snapshots")
    assert status == 400 and message.startswith("there are 0 snapshots of notes already")


def test_a_server_without_a_folder_for_snapshots_makes_none():
    dense, *_ = models()
    with open_index(":memory:", dense) as index:
        app = app_of(make_services(dense, indexes={"notes": index}))
        with live(app) as address, httpx.Client(base_url=address, timeout=60) as http:
            assert refusal(http, "snapshots") == (
                404,
                "no snapshots are made here. Start the server with --snapshots FOLDER",
            )
            assert http.get("/indexes/notes/snapshots").status_code == 404


@pytest.mark.parametrize(
    ("what", "body", "message"),
    [
        ("search", {"query": "a", "group_by": "nothing"}, "unknown field 'nothing'"),
        ("search", {"query": "a", "per_group": 0}, "per_group: must be greater than or equal to 1"),
        ("search", {"query": "a", "diversity": 2}, "diversity: must be less than or equal to 1"),
        ("search", {"query": "a", "diversity": 0.5, "offset": 1000}, "diversity compares all candidates"),
        ("search", {"query": "a", "recall": 0}, "recall: must be greater than 0"),
        ("search", {"query": "a", "candidates": 3}, "candidates must be at least k + offset = 10"),
        ("more_like", {}, "no example to search with"),
        ("list", {"limit": 1001}, "limit: must be less than or equal to 1000"),
        ("list", {"vectors": ["tall"]}, "vectors"),
        ("list", {"where": "nothing = 1"}, "unknown field 'nothing'"),
        ("count", {"were": "n > 1"}, "unknown field 'were'. Did you mean 'where'?"),
        ("facets", {}, "the field 'field' is missing"),
        ("facets", {"field": "nothing"}, "unknown field 'nothing'"),
        ("facets", {"field": "n", "limit": 0}, "limit: must be greater than or equal to 1"),
    ],
)
def test_wrong_requests_get_one_sentence(http, what, body, message):
    status, text = refusal(http, what, **body)
    assert status == 400 and message in text


def test_options_of_an_index_are_refused_for_texts(http):
    for option in (
        {"group_by": "topic"},
        {"min_score": 0.5},
        {"diversity": 0.5},
        {"recall": 0.9},
        {"candidates": 20},
    ):
        answer = http.post("/search", json={"query": "a", "texts": ["a"], **option})
        assert answer.status_code == 400
        assert (
            answer.json()["error"]["message"]
            == f"{next(iter(option))} is for searches of an index, not of texts"
        )


def test_the_limit_of_diverse_results_is_that_of_the_message(http, monkeypatch):
    monkeypatch.setattr(search, "_MOST_DIVERSE", 20)
    assert refusal(http, "search", query="a", diversity=0.1, candidates=21)[0] == 400
    assert ask(http, "search", query="a", diversity=0.1, candidates=20)["hits"]
