"""What an index does with stored documents, on every store: a test module derives from `DocumentContract`.

class TestDocuments(DocumentContract):
    @pytest.fixture
    def location(self, tmp_path):
        return tmp_path / "notes"      # what `open_index` takes
"""

import json
from itertools import combinations

import numpy as np
import pytest

import gemel
from gemel.errors import InputError
from gemel.index.ingest import WriteResult
from gemel.options import EncodeOptions
from tiny import tiny_bert

TEXTS = ["a man plays a guitar", "two dogs run", "the market fell", "a woman sings", "a man sings"]
FIELDS = {"year": [2001, 2002, 2003, None, 2005], "tags": [["x"], [], ["x", "y"], None, ["y", "y"]]}


def ids(documents):
    return [each.id for each in documents]


class DocumentContract:
    """Derive, and give a fixture `location`."""

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory):
        return tiny_bert(tmp_path_factory.mktemp("models") / "model")

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, folder):
        return gemel.load(folder)

    @pytest.fixture
    def index(self, location, model):
        with gemel.open_index(location, model, options=EncodeOptions(threads=1), durable=False) as made:
            made.add(TEXTS, ids=list("edcba"), fields=FIELDS)
            yield made

    @pytest.fixture
    def vectors(self, index):
        return {each.id: each.vectors[0] for each in index.documents(vectors=True)}

    # Reading and exporting.

    def test_documents_come_by_ascending_id(self, index):
        assert ids(index.documents()) == list("abcde")
        assert ids(index.documents("year >= 2003")) == ["a", "c"]
        assert ids(index.get(where={"tags": {"contains": "x"}})) == ["c", "e"]
        assert index.get(["e"])[0] == next(index.documents(after="d"))

    def test_pages_by_cursor_are_the_whole(self, index):
        pages, after = [], None
        while page := list(index.documents(after=after, limit=2)):
            pages.append(ids(page))
            after = page[-1].id
        assert pages == [["a", "b"], ["c", "d"], ["e"]]
        assert list(index.documents(limit=0)) == []

    def test_a_document_comes_with_its_vectors_on_request(self, index, model):
        long = ". ".join(TEXTS * 12)
        index.add([long], ids=["long"], fields={"year": [1]})
        (document,) = index.get(["long"], vectors=True)
        assert document.vectors.shape == (document.passages, index.dim)
        assert document.passages > 1
        (short,) = index.get(where="id = 'e'", vectors=True)
        assert np.allclose(short.vectors, model.encode([TEXTS[0]], threads=1), atol=1e-6)
        assert index.get(["e"])[0].vectors is None

    def test_what_documents_cannot_be_asked_for(self, index):
        with pytest.raises(InputError, match="one of the two"):
            index.get()
        with pytest.raises(InputError, match="one of the two"):
            index.get(["a"], where="year = 2001")
        with pytest.raises(InputError, match="limit must be"):
            index.documents(limit=-1)
        with pytest.raises(InputError, match="unknown field 'yaer'"):
            index.documents("yaer = 1")

    @pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet"])
    def test_an_export_is_an_index_again(self, index, folder, tmp_path, ending, monkeypatch, capsys):
        pytest.importorskip("lance", reason="the extra 'index' is not installed")
        from gemel.cli.main import main

        file = tmp_path / f"docs.{ending}"
        assert index.export(file) == 5
        monkeypatch.setenv("GEMEL_THREADS", "1")
        assert main(["index", "build", str(tmp_path / "again"), str(file), "-m", str(folder)]) == 0
        capsys.readouterr()
        with gemel.open_index(tmp_path / "again", create=False, read_only=True) as again:
            assert list(again.documents()) == list(index.documents())

    def test_an_export_has_the_vectors_of_all_passages_and_leaves_nothing_if_it_fails(
        self, index, tmp_path, monkeypatch
    ):
        index.export(tmp_path / "some.jsonl", where="year < 2003", vectors=True)
        rows = [json.loads(line) for line in (tmp_path / "some.jsonl").read_text().splitlines()]
        assert [row["id"] for row in rows] == ["d", "e"]
        assert np.array_equal(np.float32(rows[0]["vectors"]), index.get(["d"], vectors=True)[0].vectors)
        before = sorted(tmp_path.iterdir())

        def stopped(*_, **__):
            yield index.get(["a"])[0]
            raise KeyboardInterrupt

        monkeypatch.setattr(type(index), "documents", stopped)
        with pytest.raises(KeyboardInterrupt):
            index.export(tmp_path / "docs.jsonl")
        assert sorted(tmp_path.iterdir()) == before
        with pytest.raises(InputError, match="Known endings"):
            index.export(tmp_path / "docs.doc")

    # Search by examples, least scores, diversity.

    def test_more_like_a_document_is_its_neighbors_without_itself(self, index, vectors):
        expected = [hit.id for hit in index.search(vectors["e"], k=5) if hit.id != "e"]
        found = index.more_like(["e"])
        assert ids(found) == expected
        assert found.scored_by == "cosine"
        assert found[0].score == pytest.approx(float(vectors["e"] @ vectors[found[0].id]), abs=1e-5)
        assert ids(index.more_like(["e"], 2)) + ids(index.more_like(["e"], 2, offset=2)) == expected
        assert ids(index.more_like(["e"], where="year > 2001")) == [
            each for each in expected if each in ("d", "c", "a")
        ]

    def test_examples_are_averaged_and_counterexamples_subtracted(self, index, vectors, model):
        texts = model.encode(["a man", "dogs"], threads=1)
        query = np.mean([vectors["e"], vectors["a"], texts[0]], axis=0) - np.mean(
            [vectors["d"], texts[1]], axis=0
        )
        found = index.more_like(["e", "a"], texts=["a man"], unlike=["d"], unlike_texts=["dogs"])
        expected = {each: float(vectors[each] @ query / np.linalg.norm(query)) for each in "bc"}
        assert ids(found) == sorted(expected, key=lambda each: -expected[each])
        for hit in found:
            assert hit.score == pytest.approx(expected[hit.id], abs=1e-5)

    def test_a_long_document_as_example_is_the_mean_of_its_passages(self, index, vectors):
        index.add([". ".join(TEXTS * 12)], ids=["long"])
        (long,) = index.get(["long"], vectors=True)
        mean = long.vectors.mean(axis=0)
        assert long.passages > 1
        best = index.more_like(["long"], 1)[0]
        scores = {each: float(vector @ mean / np.linalg.norm(mean)) for each, vector in vectors.items()}
        assert best.score == pytest.approx(max(scores.values()), abs=1e-5)

    def test_examples_that_say_nothing_are_refused(self, index):
        with pytest.raises(InputError, match="no example"):
            index.more_like(unlike=["a"])
        with pytest.raises(InputError, match="'zz' is not in the index"):
            index.more_like(["a", "zz"])
        with pytest.raises(InputError, match="both sides"):
            index.more_like(["a", "b"], unlike=["b"])
        with pytest.raises(InputError, match="cancel one another out"):
            index.more_like(texts=["a man"], unlike_texts=["a man"])

    def test_hits_below_the_least_score_are_left_out(self, index):
        whole = index.search("a man sings", k=5)
        least = whole[2].score
        assert ids(index.search("a man sings", k=5, min_score=least)) == ids(whole)[:3]
        fused = index.search("a man sings", k=5, hybrid=True)
        some = index.search("a man sings", k=5, hybrid=True, min_score=fused[1].score)
        assert ids(some) == ids(fused)[:2]
        assert len(index.search("a man sings", min_score=2)) == 0
        with pytest.raises(InputError, match="min_score"):
            index.search("a man", min_score=float("nan"))

    def test_diversity_trades_similarity_to_the_query_for_distance_between_hits(self, index, vectors):
        def closest(hits):
            return max(float(vectors[a.id] @ vectors[b.id]) for a, b in combinations(hits, 2))

        plain = index.search("a man sings", k=3)
        assert ids(index.search("a man sings", k=3, diversity=0)) == ids(plain)
        assert ids(index.search("a man sings", k=3, diversity=1e-9)) == ids(plain)
        diverse = index.search("a man sings", k=3, diversity=0.9)
        assert diverse[0] == plain[0]
        assert closest(diverse) <= closest(plain)
        rest = vectors.keys() - {diverse[0].id}
        assert diverse[1].id == min(
            rest,
            key=lambda each: (
                0.9 * float(vectors[each] @ vectors[diverse[0].id])
                - 0.1 * next(hit.score for hit in index.search("a man sings") if hit.id == each)
            ),
        )
        first, second = (index.search("a man sings", k=2, offset=offset, diversity=0.9) for offset in (0, 2))
        assert ids(first) + ids(second) == ids(index.search("a man sings", k=4, diversity=0.9))
        for options in ({"hybrid": True}, {"where": "year > 2001"}):
            assert len(set(ids(index.search("a man sings", k=3, diversity=0.5, **options)))) == 3
        with pytest.raises(InputError, match="diversity"):
            index.search("a man", diversity=2)

    # Facets.

    def test_facets_are_the_values_of_a_field_most_frequent_first(self, index):
        assert list(index.facets("tags").items()) == [("x", 2), ("y", 2), (None, 1)]
        assert index.facets("tags", where="year >= 2003") == {"y": 2, "x": 1}
        assert list(index.facets("year", limit=2)) == [2001, 2002]
        with pytest.raises(InputError, match="unknown field 'yaer'"):
            index.facets("yaer")

    # Changed fields.

    def test_changed_fields_leave_texts_and_vectors_as_they_are(self, index, vectors):
        assert index.update(["a", "b"], fields={"year": 1999}) == WriteResult(0, 2, 0, 0)
        assert [each.fields["year"] for each in index.get(["a", "b", "c"])] == [1999, 1999, 2003]
        assert index.get(["a"])[0].fields["tags"] == ["y", "y"]
        assert ids(index.get(where="year = 1999")) == ["a", "b"]
        for each in index.documents(vectors=True):
            assert np.array_equal(each.vectors[0], vectors[each.id])
            assert each.text == TEXTS["edcba".index(each.id)]
        assert index.update(["a", "c"], fields=[{"year": 1999}, {"tags": None}]).replaced == 1
        assert index.get(["c"])[0].fields == {"year": 2003, "tags": None}

    def test_fields_are_changed_by_a_condition_in_blocks(self, index):
        done = index.update(where="year is not null", fields={"year": None, "tags": ["z"]}, block=2)
        assert (done.replaced, done.encoded) == (4, 0)
        assert index.facets("tags") == {"z": 4, None: 1}
        assert index.count("year is null").documents == 5
        assert index.update(where="year = 7", fields={"year": 8}) == WriteResult(0, 0, 0, 0)

    def test_a_document_with_changed_fields_is_the_one_that_would_be_added(self, index):
        """So nothing is encoded or written again, and a migration knows whose vectors it has."""
        index.add([". ".join(TEXTS * 12)], ids=["long"])
        index.add(["given"], ids=["g"], vectors=np.eye(1, index.dim), fields={"year": [1]})
        index.update(["a", "long", "g"], fields={"year": 7})
        again = index.upsert(
            [TEXTS[4], ". ".join(TEXTS * 12)],
            ids=["a", "long"],
            fields=[{"year": 7, "tags": ["y", "y"]}, {"year": 7}],
        )
        assert again == WriteResult(0, 0, 2, 0)
        given = index.upsert(["given"], ids=["g"], vectors=np.eye(1, index.dim), fields={"year": [7]})
        assert given == WriteResult(0, 0, 1, 0)
        index.delete(["g"])
        assert index.verify().ok

    def test_a_text_that_changes_meanwhile_is_not_lost(self, index, monkeypatch):
        table = type(index._state.table)
        get, other = table.get, ["another text"]

        def slow(self, wanted):
            rows = get(self, wanted)
            if other:
                index.upsert([other.pop()], ids=["a"], fields={"year": [1]})
            return rows

        monkeypatch.setattr(table, "get", slow)
        assert index.update(["a"], fields={"tags": ["new"]}).replaced == 1
        (document,) = index.get(["a"])
        assert (document.text, document.fields) == ("another text", {"year": 1, "tags": ["new"]})

    def test_a_change_that_cannot_be_made_changes_nothing(self, index):
        before = list(index.documents())
        for match, given in (
            ("'zz' is not in the index", {"ids": ["a", "zz"], "fields": {"year": 1}}),
            ("unknown field 'yaer'", {"ids": ["a"], "fields": {"yaer": 1}}),
            ("the field is int", {"ids": ["a"], "fields": {"year": "x"}}),
            ("one of the two", {"fields": {"year": 1}}),
            ("2 entries but fields has 1", {"ids": ["a", "b"], "fields": [{"year": 1}]}),
            ("no ids were given", {"where": "year = 2001", "fields": [{"year": 1}]}),
            ("comes twice", {"ids": ["a", "a"], "fields": {"year": 1}}),
        ):
            with pytest.raises(InputError, match=match):
                index.update(**given)
        assert list(index.documents()) == before
