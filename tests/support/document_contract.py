"""What an index does with stored documents, on every store: a test module derives from `DocumentContract`.

class TestDocuments(DocumentContract):
    @pytest.fixture
    def location(self, tmp_path):
        return tmp_path / "notes"      # what `open_index` takes
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, islice

import numpy as np
import pytest

import gemel
from gemel.errors import InputError
from gemel.index import backup
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

    # Listed.

    def test_an_index_is_listed_at_its_location(self, index, location):
        if str(location) == ":memory:":
            with pytest.raises(InputError, match="belongs to the process that made it"):
                gemel.list_indexes(location)
            return
        rows = gemel.list_indexes(str(location).partition("#")[0])
        (row,) = [each for each in rows if each.location == index.location]
        stats = index.stats()
        assert (row.model, row.dim, row.documents, row.passages) == (stats.model, index.dim, 5, 5)
        assert row.bytes == stats.bytes > 0
        assert row.problem is None
        assert gemel.list_indexes(location) == [row]

    # Snapshots.

    def test_a_snapshot_is_an_index_that_answers_the_same(self, index, model, tmp_path):
        pytest.importorskip("lance", reason="the extra 'index' is not installed")
        index.add([". ".join(TEXTS * 12)], ids=["long"], fields={"year": [5]})
        index.add(["given"], ids=["g"], vectors=np.eye(1, index.dim))
        index.delete(["d"])
        done = index.snapshot(tmp_path / "backup" / "one")
        assert (done.documents, done.passages) == (len(index), index.count().passages)
        assert done.bytes > 0
        before = list(index.documents(vectors=True))
        queries = ["a man", "two dogs", "market woman"]
        answers = [
            [(hit.id, hit.score, hit.part, hit.text, hit.fields) for hit in index.search(each, 9, **how)]
            for each in queries
            for how in ({}, {"hybrid": True}, {"where": "year > 2001"})
        ]
        stats = index.stats()
        index.upsert(["changed"], ids=["a"])
        index.remove_field("tags")
        # Read, and restored to a folder and to this kind of store.
        gemel.restore_index(tmp_path / "backup" / "one", tmp_path / "again")
        for place in (tmp_path / "backup" / "one", tmp_path / "again"):
            with gemel.open_index(place, model, create=False) as copy:
                assert list(copy.documents(vectors=True)) == before
                for one, other in zip(copy.documents(vectors=True), before, strict=True):
                    assert np.array_equal(one.vectors, other.vectors)
                assert answers == [
                    [
                        (hit.id, hit.score, hit.part, hit.text, hit.fields)
                        for hit in copy.search(each, 9, **how)
                    ]
                    for each in queries
                    for how in ({}, {"hybrid": True}, {"where": "year > 2001"})
                ]
                assert copy.stats().fingerprint == stats.fingerprint
                assert copy.fields == {"year": "int", "tags": "texts"}
                assert copy.upsert([TEXTS[4]], ids=["a"], fields={"year": [2005], "tags": [["y", "y"]]}) == (
                    WriteResult(0, 0, 1, 0)
                )
                copy.add(["more"], ids=["more"])  # it may be written to
                copy.delete(["g"])
                assert copy.verify().ok
        assert [path.name for path in (tmp_path / "backup").iterdir()] == ["one"]

    def test_a_snapshot_is_of_one_moment_while_others_write(self, index, tmp_path, monkeypatch):
        pytest.importorskip("lance", reason="the extra 'index' is not installed")
        monkeypatch.setattr(backup, "_BLOCK", 3)
        names, done = [f"n{n}" for n in range(12)], threading.Event()
        vectors = np.eye(12, index.dim)
        index.add(names, ids=names, vectors=vectors, fields={"year": [0] * 12})

        def write():
            for number in range(1, 1000):
                if done.is_set():
                    return
                index.upsert(names, ids=names, vectors=vectors, fields={"year": [number] * 12})

        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(write)
            try:
                for number in range(3):
                    index.snapshot(tmp_path / f"s{number}")
            finally:
                done.set()
            writing.result()
        for number in range(3):
            with gemel.open_index(tmp_path / f"s{number}", create=False) as copy:
                (year,) = copy.facets("year", where="id like 'n%'")
                assert copy.count("id like 'n%'").documents == 12
                assert year is not None

    def test_a_restore_that_was_stopped_can_be_repeated(self, index, location, model, tmp_path, monkeypatch):
        pytest.importorskip("lance", reason="the extra 'index' is not installed")
        from gemel.index.memory import MemoryStore

        index.snapshot(tmp_path / "one")
        target = MemoryStore() if str(location) == ":memory:" else f"{location}-2"
        monkeypatch.setattr(backup, "_BLOCK", 2)
        write = backup._write

        def stopped(copy, blocks):
            write(copy, islice(blocks, 1))
            raise KeyboardInterrupt

        monkeypatch.setattr(backup, "_write", stopped)
        if "://" in str(location) or str(location) == ":memory:":  # a folder is copied file by file
            with pytest.raises(KeyboardInterrupt):
                gemel.restore_index(tmp_path / "one", target)
            with gemel.open_index(target, model) as empty:
                assert len(empty) == 0
        monkeypatch.undo()
        if "://" in str(location):
            monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
        assert gemel.restore_index(tmp_path / "one", target).documents == 5

    def test_a_snapshot_overwrites_nothing(self, index, tmp_path):
        pytest.importorskip("lance", reason="the extra 'index' is not installed")
        (tmp_path / "taken").mkdir()
        (tmp_path / "taken" / "file").write_text("mine")
        for folder in (tmp_path / "taken", tmp_path / "taken" / "file"):
            with pytest.raises(InputError, match="is there already, and nothing is overwritten"):
                index.snapshot(folder)
        index.snapshot(tmp_path / "one")
        with pytest.raises(InputError, match="is there already, and nothing is overwritten"):
            index.snapshot(tmp_path / "one")
        with pytest.raises(InputError, match="written to a folder, not to s3://bucket/x"):
            index.snapshot("s3://bucket/x")

    def test_an_index_is_restored_from_a_snapshot(self, index, location, model, tmp_path):
        pytest.importorskip("lance", reason="the extra 'index' is not installed")
        index.snapshot(tmp_path / "one")
        with pytest.raises(InputError, match="there is no index at"):
            gemel.restore_index(tmp_path / "nowhere", tmp_path / "new")
        if str(location) == ":memory:":
            from gemel.index.memory import MemoryStore

            target = MemoryStore()
            gemel.restore_index(tmp_path / "one", target)
        else:
            target = str(location) + "-2"
            done = gemel.restore_index(tmp_path / "one", target)
            assert done.documents == 5
            with pytest.raises(InputError, match="already, and nothing is overwritten"):
                gemel.restore_index(tmp_path / "one", target)
        with gemel.open_index(target, model, create=False) as copy:
            assert list(copy.documents(vectors=True)) == list(index.documents(vectors=True))
            assert list(copy.search("a man")) == list(index.search("a man"))
            assert copy.stats().fingerprint == index.stats().fingerprint
            assert copy.upsert(TEXTS, ids=list("edcba"), fields=FIELDS) == WriteResult(0, 0, 5, 0)

    # Groups.

    @pytest.fixture
    def authors(self, index):
        """300 documents more: most of one author, some of none."""
        rng = np.random.default_rng(3)
        names = ["most" if n % 3 else None if n % 5 == 0 else f"a{n % 36}" for n in range(300)]
        index.add_fields({"author": "text"})
        index.add(
            [f"{TEXTS[n % 5]} {n}" for n in range(300)],
            ids=[f"n{n:03}" for n in range(300)],
            vectors=rng.normal(size=(300, index.dim)),
            fields={"author": names},
        )
        return index

    @staticmethod
    def limited(hits, per_group):
        """What a search by groups should find, from a ranking of all documents."""
        kept, counts = [], {}
        for hit in hits:
            author = hit.fields["author"]
            counts[author] = counts.get(author, 0) + 1
            if author is None or counts[author] <= per_group:
                kept.append(hit)
        return kept

    @pytest.mark.parametrize("per_group", [1, 3])
    def test_a_search_by_groups_finds_the_best_of_each_value(self, authors, per_group):
        queries = np.random.default_rng(4).normal(size=(3, authors.dim))
        given = {"group_by": "author", "per_group": per_group}
        for query in queries:
            everything = self.limited(authors.search(query, 400, exact=True), per_group)
            answer = authors.search(query, 30, **given)
            assert list(answer) == everything[:30]
            pages = [
                hit for start in range(0, 30, 7) for hit in authors.search(query, 7, offset=start, **given)
            ]
            assert pages[:30] == everything[:30]
            assert list(authors.search(query, 400, **given)) == everything
            condition = "author is not null and id > 'n1'"
            there = self.limited(authors.search(query, 400, where=condition, exact=True), per_group)
            assert list(authors.search(query, 20, where=condition, **given)) == there[:20]
            least = everything[5].score
            assert list(authors.search(query, 30, min_score=least, **given)) == everything[:6]
        assert [list(each) for each in authors.search_many(queries, 5, **given)] == [
            list(authors.search(query, 5, **given)) for query in queries
        ]

    def test_groups_work_with_words_a_second_model_and_examples(self, authors):
        class Cross:
            def scores(self, left, right, options):
                return np.array([sum(map(ord, text)) % 101 for text in right], dtype=np.float32)

        answer = authors.search("a man sings 7", 12, hybrid=True, group_by="author")
        assert len(answer) == 12
        assert list(answer) == self.limited(answer, 1)
        first = authors.search("a man sings 7", 5, hybrid=True, group_by="author")
        second = authors.search("a man sings 7", 7, offset=5, hybrid=True, group_by="author")
        assert ids([*first, *second]) == ids(answer)
        ranked = authors.search("a man sings 7", 12, rerank=Cross(), group_by="author")
        assert list(ranked) == self.limited(ranked, 1)
        assert len(ranked) == 12
        assert ranked.scored_by == "cross"
        like = authors.more_like(["n001"], 3, group_by="author")
        everything = authors.more_like(["n001"], 400, exact=True)
        assert list(like) == self.limited(everything, 1)[:3]

    def test_groups_need_a_field_of_one_value(self, index):
        with pytest.raises(InputError, match="unknown field 'yaer'"):
            index.search("a", group_by="yaer")
        with pytest.raises(InputError, match="'tags' holds lists"):
            index.search("a", group_by="tags")
        with pytest.raises(InputError, match="per_group must be"):
            index.search("a", group_by="year", per_group=0)

    # A field less.

    def test_a_removed_field_is_gone_and_its_documents_are_as_if_added_without_it(self, index, vectors):
        index.add([". ".join(TEXTS * 12)], ids=["long"], fields={"year": [5]})
        index.add(["given"], ids=["g"], vectors=np.eye(1, index.dim), fields={"year": [1]})
        before = {each.id: each for each in index.documents(vectors=True)}
        having = index.count("year is not null").documents
        assert index.remove_field("year") == having > 2
        assert dict(index.fields) == {"tags": "texts"}
        for each in index.documents(vectors=True):
            assert each.fields == {"tags": before[each.id].fields["tags"]}
            assert each.text == before[each.id].text
            assert np.array_equal(each.vectors, before[each.id].vectors)
        again = index.upsert(
            [TEXTS[4], ". ".join(TEXTS * 12)], ids=["a", "long"], fields=[{"tags": ["y", "y"]}, {}]
        )
        assert again == WriteResult(0, 0, 2, 0)
        given = index.upsert(["given"], ids=["g"], vectors=np.eye(1, index.dim))
        assert given == WriteResult(0, 0, 1, 0)
        assert {hit.id for hit in index.search("a man", k=20)} == set(before)
        index.delete(["g"])
        assert index.verify().ok

    def test_a_field_that_is_not_there_cannot_be_removed(self, index):
        with pytest.raises(InputError, match=r"unknown field 'yaer'\. Did you mean 'year'"):
            index.remove_field("yaer")
        with pytest.raises(InputError, match="unknown field 'id'"):
            index.remove_field("id")

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

        def slow(self, wanted, **options):
            rows = get(self, wanted, **options)
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
