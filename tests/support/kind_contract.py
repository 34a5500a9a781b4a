"""What an index with several kinds of vectors must do on every store. Derive from `KindContract` with a `location`."""

import csv
import functools
import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

import gemel
from gemel.errors import InputError, ModelError
from gemel.index.kinds import fault_of
from gemel.vectors.bm25 import RRF_K
from tiny import tiny_bert
from tiny_late import tiny_late
from tiny_sparse import tiny_sparse

TEXTS = [
    "a man is playing a guitar",
    "oil prices rise again",
    "the price of oil falls",
    "two dogs run in the park",
    "a woman plays the piano",
    "a dog sleeps on the mat",
    "the man and the dog run",
    "no",
]
IDS = list("abcdefgh")
QUERIES = ["man with a guitar", "oil", "the dog"]


@cache
def models():
    """(dense, sparse, late), loaded once; the folders stay until the tests end."""
    folder = Path(mkdtemp(prefix="gemel-kinds-"))
    return (
        gemel.load(tiny_bert(folder / "dense")),
        gemel.load_sparse(tiny_sparse(folder / "sparse")),
        gemel.load_late(tiny_late(folder / "late"), document_length=30),  # the checkpoint says 20
    )


@cache
def other_models():
    folder = Path(mkdtemp(prefix="gemel-kinds-"))
    return (
        gemel.load(tiny_bert(folder / "dense", seed=7)),
        gemel.load_sparse(tiny_sparse(folder / "sparse", pooling="sum")),
        gemel.load_late(tiny_late(folder / "late", seed=7)),
    )


def forget_models():
    """Delete the folders."""
    for cached in (models, other_models):
        if cached.cache_info().currsize:
            shutil.rmtree(cached()[0].checkpoint.folder.parent, ignore_errors=True)
            cached.cache_clear()


def ranking(mode, query, texts, ids):
    """[(score, id)] by the model itself, best first."""
    dense, sparse, late = models()
    if mode == "dense":
        scores = dense.encode_query([query]) @ dense.encode_document(texts).T
        scores = scores[0]
    elif mode == "sparse":
        scores = sparse.encode_query([query]).similarity(sparse.encode_document(texts))[0]
    else:
        scores = gemel.maxsim(late.encode_query([query]).of(0), late.encode_document(texts, output="float16"))
    return sorted(zip((-scores).tolist(), ids, strict=True))


def found(answer):
    return [hit.id for hit in answer]


class KindContract:
    """Derive, and give a fixture `location`: where an index may be created."""

    @pytest.fixture
    def index(self, location):
        dense, sparse, late = models()
        index = gemel.open_index(location, dense, sparse=sparse, late=late, fields={"n": "int"})
        index.add(TEXTS, ids=IDS, fields={"n": range(len(IDS))})
        yield index
        index.close()

    def test_each_mode_ranks_as_its_model_does(self, index):
        for mode in ("dense", "sparse", "late"):
            for query in QUERIES:
                answer = index.search(query, 8, mode=mode)
                right = ranking(mode, query, TEXTS, IDS)
                np.testing.assert_allclose([hit.score for hit in answer], [-s for s, _ in right], atol=1e-5)
                assert sorted(found(answer)) == IDS
                assert answer.exact and answer.scored_by == {"dense": "cosine"}.get(mode, mode)
                assert all((hit.cosine is not None) == (mode == "dense") for hit in answer)
        assert found(index.search("oil", 8, mode="words")) == ["b", "c"]
        assert index.search("oil", mode="words").scored_by == "words"
        assert index.kinds == ("dense", "sparse", "late") and index.mode == "hybrid"

    def test_hybrid_search_fuses_all_rankings_by_their_weights(self, index):
        def fused(query, weights):
            total = dict.fromkeys(IDS, 0.0)
            for mode, weight in weights.items():
                for rank, hit in enumerate(index.search(query, 8, mode=mode), 1):
                    total[hit.id] += weight / (RRF_K + rank)
            return sorted(((-score, id_) for id_, score in total.items() if score))

        for query in QUERIES:
            right = fused(query, {"dense": 1, "sparse": 1, "late": 1})
            for answer in (index.search(query, 8), index.search(query, 8, hybrid=True)):
                assert answer.scored_by == "fusion"
                assert [(-hit.score, hit.id) for hit in answer] == [pytest.approx(each) for each in right]
                assert all(hit.cosine is not None for hit in answer)
            answer = index.search(query, 8, weights={"dense": 0, "words": 0.5, "late": 3})
            right = fused(query, {"sparse": 1, "late": 3, "words": 0.5})
            assert found(answer) == [id_ for _, id_ in right]
            assert all(hit.cosine is None for hit in answer)

    def test_changes_reach_every_mode(self, index, location):
        index.delete(["b"])
        index.upsert(["a cat on a mat", "oil and gas"], ids=["d", "new"], fields={"n": [3, 30]})
        index.update(["e"], fields={"n": 40})
        texts = dict(zip(IDS, TEXTS, strict=True)) | {"d": "a cat on a mat", "new": "oil and gas"}
        del texts["b"]
        some = {id_: text for id_, text in texts.items() if id_ in ("e", "new")}
        for mode in ("dense", "sparse", "late"):
            right = [id_ for _, id_ in ranking(mode, "the oil", list(texts.values()), list(texts))]
            assert set(found(index.search("the oil", 3, mode=mode))) == set(right[:3])
            answer = index.search("the oil", 9, mode=mode, where="n >= 30")
            assert found(answer) == [
                id_ for _, id_ in ranking(mode, "the oil", list(some.values()), list(some))
            ]
        assert index.verify().ok, index.verify().lines()

    def test_unchanged_passages_are_not_encoded_again(self, index, monkeypatch):
        encoded = []
        for kind, lazy in index._state.kinds.items():
            encoder, plain = lazy.get(), lazy.get().encode_passages

            def spy(texts, kind=kind, plain=plain):
                encoded.extend((kind, text) for text in texts)
                return plain(texts)

            monkeypatch.setattr(encoder, "encode_passages", spy)
        assert index.upsert(TEXTS, ids=IDS, fields={"n": range(len(IDS))}).unchanged == len(IDS)
        done = index.upsert([TEXTS[0], "another text"], ids=["a", "b"], fields={"n": [99, 1]})
        assert (done.replaced, done.encoded) == (2, 1)
        assert sorted(encoded) == [("late", "another text"), ("sparse", "another text")]

    def test_a_long_text_is_stored_as_passages_that_every_model_reads_whole(self, index):
        _, sparse, late = models()
        text = " ".join(
            f"the {word} is playing on the mat." for word in ["dog", "man", "woman", "guitar"] * 8
        )
        index.add([text], ids=["long"])
        parts = next(index.documents(where={"id": "long"})).passages
        assert parts > 1
        rows = index._state.table.get(["long"])
        assert "".join(rows.text) == text
        assert all(
            passages == [each] for passages, each in zip(late.passages(rows.text), rows.text, strict=True)
        )
        assert all(
            passages == [each] for passages, each in zip(sparse.passages(rows.text), rows.text, strict=True)
        )
        for mode in ("sparse", "late"):
            hit = index.search("woman", 1, mode=mode, where={"id": "long"})[0]
            scores = [ranking(mode, "woman", [each], ["x"])[0][0] for each in rows.text]
            assert hit.part == int(np.argmin(scores)) and hit.text == rows.text[hit.part]

    def test_an_index_needs_no_dense_model(self, location):
        _, sparse, late = models()
        with gemel.open_index(location, sparse=sparse, late=late, passage_tokens=28) as index:
            index.add(TEXTS, ids=IDS)
            assert (index.dim, index.model, index.mode) == (0, None, "hybrid")
            for mode in ("sparse", "late"):
                right = [id_ for _, id_ in ranking(mode, "the dog", TEXTS, IDS)]
                assert found(index.search("the dog", 8, mode=mode))[:3] == right[:3]
            assert found(index.search("oil", mode="words")) == ["b", "c"]
            assert index.search("oil").scored_by == "fusion"
            assert index.search("oil")[0].cosine is None
            assert index.verify().ok, index.verify().lines()
            with pytest.raises(
                InputError, match=r"has no dense vectors\. It can be searched by: sparse, late"
            ):
                index.search("oil", mode="dense")
            with pytest.raises(InputError, match="no dense vectors"):
                index.search(np.ones(4))
            with pytest.raises(InputError, match="no dense vectors"):
                index.more_like(["a"])
            with pytest.raises(InputError, match="no dense vectors"):
                index.add(["x"], vectors=[[1.0, 2.0]])
            with pytest.raises(InputError, match="diversity compares dense vectors"):
                index.search("oil", diversity=0.5)
            assert found(index.search("oil prices", 2, rerank=late)) == found(
                index.search("oil prices", 2, mode="late")
            )

    def test_a_late_model_reranks_by_the_stored_vectors(self, index, monkeypatch):
        *_, late = models()
        right = {id_: -score for score, id_ in ranking("late", "the dog", TEXTS, IDS)}
        monkeypatch.setattr(type(late), "encode_document", lambda *_, **__: pytest.fail("encoded again"))
        answer = index.search("the dog", 4, mode="dense", rerank=late, candidates=8)
        assert answer.scored_by == "late"
        assert {hit.id: hit.score for hit in answer} == pytest.approx(
            {id_: right[id_] for id_ in found(answer)}, abs=1e-5
        )
        assert found(answer) == found(index.search("the dog", 4, mode="late"))

    def test_another_late_model_reranks_by_the_texts(self, index):
        other = other_models()[2]
        answer = index.search("the dog", 8, mode="words", rerank=other)
        scores = other.scores(["the dog"] * len(answer), [hit.text for hit in answer])
        np.testing.assert_allclose([hit.score for hit in answer], scores, atol=1e-5)

    def test_a_hit_is_explained_by_words_and_tokens(self, index):
        _, sparse, late = models()
        why = index.explain("the dog", "f", mode="late")
        assert (why.id, why.part, why.text) == ("f", 0, TEXTS[5])
        assert why.sparse.score == pytest.approx(sparse.explain("the dog", TEXTS[5]).score)
        assert why.late == late.explain("the dog", TEXTS[5])
        assert why.cosine == pytest.approx(
            index.search("the dog", 1, mode="dense", where={"id": "f"})[0].score
        )
        with pytest.raises(InputError, match="'none' is not in the index"):
            index.explain("the dog", "none")

    def test_wrong_requests_say_what_the_index_has(self, index):
        for call, message in [
            (
                lambda: index.search("a", mode="fuzzy"),
                "'fuzzy' is unknown. It can be searched by: dense, sparse",
            ),
            (lambda: index.search("a", mode="dense", weights={"dense": 2}), "weights are for mode='hybrid'"),
            (
                lambda: index.search("a", weights={"bm25": 2}),
                "names 'bm25'. The index has: dense, sparse, late",
            ),
            (lambda: index.search("a", weights={"dense": -1}), "a number of at least 0"),
            (
                lambda: index.search("a", weights=dict.fromkeys(["dense", "sparse", "late"], 0)),
                "all weights are 0",
            ),
            (lambda: index.search("a", mode="late", hybrid=True), "Give one of the two"),
            (lambda: index.search(np.ones(32), mode="sparse"), "needs the words of the query"),
        ]:
            with pytest.raises(InputError, match=message):
                call()

    def test_an_index_opens_with_its_own_models_only(self, index, location):
        dense, sparse, late = models()
        before = [(hit.id, hit.score) for hit in index.search("the dog")]
        again = gemel.open_index(location, sparse=sparse.checkpoint.document.checkpoint.folder, late=late)
        assert [(hit.id, hit.score) for hit in again.search("the dog")] == before
        assert again.kind_model("late") is late and again.kind_model("sparse").name == sparse.name
        again.close()
        alone = gemel.open_index(location, create=False, read_only=True)
        assert [(hit.id, hit.score) for hit in alone.search("the dog")] == before
        alone.close()
        _, other_sparse, other_late = other_models()
        for given, message in [
            ({"sparse": other_sparse}, "sparse vectors of the index .* opened with 'sparse': weights"),
            ({"late": other_late.checkpoint.encoder.folder}, "late vectors of the index .* weights"),
            ({"mode": "dense"}, "mode is 'dense', but the index .* is searched by 'hybrid'"),
            ({"late_form": "int8"}, "late_form is 'int8', but the index .* has float16"),
        ]:
            with pytest.raises((ModelError, InputError), match=message):
                gemel.open_index(location, dense, **given)
        with pytest.raises(InputError, match="sparse= takes a sparse encoder"):
            gemel.open_index(location, dense, sparse=dense)

    def test_files_of_a_model_are_hashed_once(self, index, location, monkeypatch):
        _, sparse, late = models()
        for model in (sparse, late):
            refuse = property(lambda self: pytest.fail("hashed again"))
            monkeypatch.setattr(type(model), "weights_hash", functools.cached_property(refuse.fget))
            type(model).weights_hash.__set_name__(type(model), "weights_hash")
        with gemel.open_index(location, create=False) as again:
            assert len(again.search("the dog", mode="sparse")) == 8
            assert len(again.search("the dog", mode="late")) == 8

    def test_kinds_can_be_added_replaced_and_removed(self, location):
        dense, sparse, late = models()
        _, other_sparse, _ = other_models()
        index = gemel.open_index(location, dense)
        index.add(TEXTS, ids=IDS)
        given = gemel.normalize(np.ones((1, 32), np.float32))
        index.add(["a given vector"], ids=["v"], vectors=given)
        done = index.migrate(sparse=sparse)
        assert done.encoded == 9 and "dense → dense + sparse sparse" in done.summary()
        assert index.kinds == ("dense", "sparse") and index.mode == "hybrid"
        np.testing.assert_array_equal(index.get(["v"], vectors=True)[0].vectors, given)
        assert index.verify().ok, index.verify().lines()
        with pytest.raises(InputError, match="no late vectors"):
            index.search("oil", mode="late")
        index.migrate(late=late, late_form="int8")
        assert index.stats().kinds["late"]["form"] == "int8"
        right = [id_ for _, id_ in ranking("late", "oil", TEXTS, IDS)]
        assert found(index.search("oil", 1, mode="late", where={"id": {"!=": "v"}})) == right[:1]
        assert index.migrate(late=late).encoded == 0
        index.migrate(late_form="float16")
        assert index.stats().kinds["late"]["form"] == "float16"
        assert index.migrate(sparse=other_sparse).encoded == 9
        assert index.kind_model("sparse") is other_sparse
        assert index.migrate(sparse=False).encoded == 0
        assert index.kinds == ("dense", "late") and index.verify().ok
        index.delete(["v"])
        kept = index._state.table.get(["a"], kinds=True).kinds["late"]
        assert index.migrate(other_models()[0]).encoded == 8
        assert index._state.table.get(["a"], kinds=True).kinds["late"] == kept
        assert index.verify().ok, index.verify().lines()
        index.rebuild_words()
        assert found(index.search("oil", mode="words")) == ["b", "c"]
        index.close()

    def test_vectors_of_tokens_are_stored_in_two_bits(self, index, location):
        before = index.stats().kinds["late"]["bytes"]
        right = {mode: found(index.search("the dog", 8, mode=mode)) for mode in ("sparse", "late")}
        index.migrate(late_form="2bit")
        about = index.stats().kinds["late"]
        assert about["form"] == "2bit" and about["bytes"] < before
        assert index.verify().ok, index.verify().lines()
        index.add(["a man and a woman"], ids=["new"])
        assert index.search("a man and a woman", 1, mode="late")[0].id == "new"
        index.delete(["new"])
        with gemel.open_index(location, create=False) as again:
            assert found(again.search("the dog", 8, mode="sparse")) == right["sparse"]
            assert set(found(again.search("the dog", 4, mode="late"))) & set(right["late"][:2])
        assert index.migrate(late_form="2bit").encoded == 0
        index.migrate(late_form="float16")
        assert found(index.search("the dog", 8, mode="late")) == right["late"]
        with pytest.raises(InputError, match="needs centroids of stored documents"):
            gemel.open_index(":memory:", late=models()[2], late_form="2bit")

    def test_a_dense_model_can_be_added(self, location):
        dense, sparse, _ = models()
        with gemel.open_index(location, sparse=sparse, mode="words") as index:
            index.add(TEXTS, ids=IDS)
            assert index.mode == "words" and found(index.search("oil")) == ["b", "c"]
            assert index.migrate(dense).encoded == 8
            assert index.mode == "words" and index.kinds == ("dense", "sparse")
            assert found(index.search("oil", 8, mode="dense")) == [
                id_ for _, id_ in ranking("dense", "oil", TEXTS, IDS)
            ]
            with pytest.raises(InputError, match="needs a model"):
                index.migrate(passage_tokens=8)

    def test_groups_are_limited_in_every_mode(self, index):
        index.add_fields({"topic": "text"})
        topics = dict(zip(IDS, ["music", "oil", "oil", "dog", "music", "dog", "dog", None], strict=True))
        index.update(IDS, fields=[{"topic": topics[id_]} for id_ in IDS])
        for mode in ("dense", "sparse", "late", "hybrid"):
            every = found(index.search("the dog", 8, mode=mode))
            best = [id_ for n, id_ in enumerate(every) if topics[id_] not in [topics[x] for x in every[:n]]]
            if mode != "hybrid":  # each ranking is limited before they are fused
                assert found(index.search("the dog", 8, mode=mode, group_by="topic")) == best
            limited = found(index.search("the dog", 8, mode=mode, group_by="topic", per_group=2))
            assert len(limited) == 7
            assert sum(topics[id_] == "dog" for id_ in limited) == 2

    def test_a_snapshot_and_a_removed_field_keep_all_kinds(self, index, tmp_path):
        pytest.importorskip("lance", reason="the extra 'index' is not installed")
        before = index._state.table.get(IDS, kinds=True).kinds
        assert index.remove_field("n") == 8
        assert index._state.table.get(IDS, kinds=True).kinds == before
        assert index.verify().ok
        index.snapshot(tmp_path / "copy")
        with gemel.open_index(tmp_path / "copy", create=False) as copy:
            assert copy._state.table.get(IDS, kinds=True).kinds == before
            assert copy.mode == index.mode
            for mode in ("dense", "sparse", "late", "hybrid"):
                one, two = (each.search("oil", mode=mode) for each in (index, copy))
                assert [(hit.id, hit.score) for hit in one] == [(hit.id, hit.score) for hit in two]

    def test_stored_vectors_of_every_kind_are_returned(self, index):
        dense, sparse, late = models()
        (one,) = index.get(["a"], vectors=True)
        np.testing.assert_allclose(one.vectors, dense.encode_document(TEXTS[:1]), atol=1e-5)
        right = sparse.encode_document(TEXTS[:1]).row(0)
        np.testing.assert_array_equal(one.sparse[0][0], right[0])
        np.testing.assert_allclose(one.sparse[0][1], right[1], atol=1e-5)
        np.testing.assert_allclose(one.late.of(0), late.encode_document(TEXTS[:1]).of(0), atol=1e-3)
        named = gemel.SparseVectors.of(one.sparse, index.kind_model("sparse").vocabulary)
        assert named.tokens(0)[0][0] == sparse.encode_document(TEXTS[:1]).tokens(0)[0][0]
        (some,) = index.get(["b"], vectors="sparse")
        assert some.vectors is None and some.late is None and len(some.sparse) == some.passages == 1
        for each in index.documents(vectors=["dense", "late"]):
            assert each.sparse is None and len(each.late) == len(each.vectors) == each.passages
        plain = next(index.documents())
        assert plain.vectors is plain.sparse is plain.late is None
        index.migrate(late=False)
        with pytest.raises(InputError, match=r"no late vectors\. It has: dense, sparse"):
            index.export("never.jsonl", vectors="late")
        with pytest.raises(InputError, match="vectors is True, False or kinds"):
            index.get(["a"], vectors=3)

    @pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
    def test_an_export_has_vectors_of_every_kind(self, index, tmp_path, ending):
        index.add([""], ids=["empty"])
        file = tmp_path / f"all.{ending}"
        assert index.export(file, vectors=True) == 9
        if ending == "parquet":
            rows = pytest.importorskip("pyarrow.parquet").read_table(file).to_pylist()
        elif ending == "jsonl":
            rows = [json.loads(line) for line in file.read_text().splitlines()]
        else:
            columns = ("vectors", "sparse_vectors", "late_vectors")
            with file.open(newline="") as lines:
                rows = [
                    row | {name: json.loads(row[name]) for name in columns} for row in csv.DictReader(lines)
                ]
        stored = {each.id: each for each in index.documents(vectors=True)}
        assert [row["id"] for row in rows] == list(stored)
        for row in rows:
            own = stored[row["id"]]
            np.testing.assert_array_equal(np.float32(row["vectors"]), own.vectors)
            assert [each["indices"] for each in row["sparse_vectors"]] == [
                each[0].tolist() for each in own.sparse
            ]
            assert [each["values"] for each in row["sparse_vectors"]] == [
                each[1].tolist() for each in own.sparse
            ]
            assert row["late_vectors"] == [own.late.of(part).tolist() for part in range(own.passages)]
        index.export(file, vectors=["sparse"])
        head = file.read_bytes()
        assert b"sparse_vectors" in head and b"late_vectors" not in head

    def test_damaged_values_are_noticed(self, index):
        rows = index._state.table.get(IDS, kinds=True)
        late = index._state.header.kinds["late"]
        assert fault_of("late", rows.kinds["late"][0][:-1], late)
        assert fault_of("sparse", rows.kinds["sparse"][0][::-1], index._state.header.kinds["sparse"])
        wrong = {"sparse": rows.kinds["sparse"], "late": [*rows.kinds["late"][1:], rows.kinds["late"][0]]}
        index._state.table.write(
            type(rows)(rows.id, rows.part, rows.text, rows.digest, rows.vector, rows.fields, wrong),
            replace=True,
        )
        checks = {check.name: check.ok for check in index.verify().checks}
        assert not checks["late vectors"] and checks["sparse vectors"] and checks["late canaries"]
