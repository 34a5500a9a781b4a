"""Folders of BEIR and NanoBEIR: their layouts, several sets below one folder, and what is missing from them."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from tests.evaluation.test_retrieval import Letters, write_beir

from gemel.errors import InputError
from gemel.evaluation.evaluate import AVERAGE, evaluate
from gemel.evaluation.search_collections import read_collections

DOCUMENTS = {"_id": ["x", "y", "z"], "text": ["a", "a b", "c"]}
QUERIES = {"_id": ["1", "2"], "text": ["b", "c"]}
QRELS = {"query-id": ["1", "2"], "corpus-id": ["y", "z"]}


def write_hub(folder, name="train", *, shards=1, corpus=DOCUMENTS, queries=QUERIES, qrels=QRELS):
    """The folders of a data set on the Hub, with the files of one split; several shards of the corpus."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for part, columns in {"corpus": corpus, "queries": queries, "qrels": qrels}.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        table = arrow.table(columns)
        count = shards if part == "corpus" else 1
        for shard, rows in enumerate(np.array_split(np.arange(len(table)), count)):
            file = folder / part / f"{name}-{shard:05}-of-{count:05}.parquet"
            parquet.write_table(table.take(rows), file)
    return folder


def names_of(path: Path, split="test"):
    return [each.name for each in read_collections(path, split=split, strict=True)]


def test_a_set_of_the_hub_lists_relevant_documents_without_numbers(tmp_path):
    (collection,) = read_collections(write_hub(tmp_path / "NanoToy"), split="test", strict=True)
    assert (collection.name, collection.layout) == ("NanoToy", "hub")
    assert collection.corpus == ("a", "a b", "c")
    assert collection.queries == ("b", "c")
    assert collection.gains == ({1: 1.0}, {2: 1.0})


def test_shards_are_one_table_and_numbers_are_ids(tmp_path):
    documents = {"_id": [1, 2, 3], "title": ["one", None, "three"], "text": ["a", "a b", "c"]}
    qrels = {"query-id": ["1", "2"], "corpus-id": [2, 3], "score": [2, 1]}
    folder = write_hub(tmp_path, shards=2, corpus=documents, qrels=qrels)
    (collection,) = read_collections(folder, split="test", strict=True)
    assert collection.corpus == ("one a", "a b", "three c")
    assert collection.gains == ({1: 2.0}, {2: 1.0})


def test_one_folder_may_hold_the_files_of_several_sets(tmp_path):
    for name in ("NanoOne", "NanoTwo"):
        write_hub(tmp_path, name)
    assert names_of(tmp_path) == ["NanoOne", "NanoTwo"]
    next((tmp_path / "queries").glob("NanoTwo*")).unlink()
    with pytest.raises(InputError, match=r"queries has no NanoTwo.parquet; there is NanoOne$"):
        names_of(tmp_path)


def test_several_sets_below_a_folder_have_an_average(tmp_path):
    write_hub(tmp_path / "NanoOne")
    write_hub(tmp_path / "NanoTwo", qrels={"query-id": ["1"], "corpus-id": ["x"]})
    write_beir(tmp_path / "other")
    results = evaluate(Letters(), "retrieval", tmp_path, rounds=20)
    assert [result.dataset for result in results] == ["NanoOne", "NanoTwo", "other", AVERAGE]
    each = [result.values["ndcg@10"].value for result in results]
    assert each[3] == pytest.approx(sum(each[:3]) / 3)
    assert results[3].protocol["skip_same_id"] is True


def test_the_split_of_the_judgements_is_chosen_by_name(tmp_path):
    write_hub(tmp_path, "corpus")
    (tmp_path / "qrels" / "corpus-00000-of-00001.parquet").rename(tmp_path / "qrels" / "test.parquet")
    write_hub(tmp_path / "other", qrels={"query-id": ["1"], "corpus-id": ["z"]})
    (tmp_path / "other" / "qrels" / "train-00000-of-00001.parquet").rename(
        tmp_path / "qrels" / "dev-00000-of-00001.parquet"
    )
    assert names_of(tmp_path) == [tmp_path.name]
    (collection,) = read_collections(tmp_path, split="dev", strict=True)
    assert collection.gains == ({2: 1.0},)
    with pytest.raises(
        InputError, match=r"qrels has no train.parquet or corpus.parquet; there is dev, test. Name"
    ):
        names_of(tmp_path, "train")


def test_packed_files_of_beir_are_read(tmp_path):
    write_beir(tmp_path)
    for name in ("corpus.jsonl", "queries.jsonl"):
        with gzip.open(tmp_path / f"{name}.gz", "wb") as file:
            file.write((tmp_path / name).read_bytes())
        (tmp_path / name).unlink()
    (tmp_path / "qrels" / "test.tsv").rename(tmp_path / "qrels" / "dev.tsv")
    assert names_of(tmp_path, "dev") == [tmp_path.name]
    with pytest.raises(InputError, match=r"no qrels/test.tsv; in qrels there is dev.tsv. Name one of them"):
        names_of(tmp_path)


def test_missing_parts_are_named(tmp_path):
    with pytest.raises(InputError, match=r"no search collection at .*NanoBEIR"):
        names_of(tmp_path)
    write_beir(tmp_path / "set")
    (tmp_path / "set" / "corpus.jsonl").unlink()
    with pytest.raises(InputError, match=r"has queries.jsonl and qrels but no corpus.jsonl next to them"):
        names_of(tmp_path)
    hub = write_hub(tmp_path / "hub")
    for file in (hub / "qrels").iterdir():
        file.unlink()
    with pytest.raises(
        InputError, match=r"has corpus and queries as Parquet, but no .parquet file in qrels/"
    ):
        names_of(hub)


def test_errors_in_parquet_name_the_file_and_the_row(tmp_path):
    documents = {"_id": ["x", "y", "x"], "text": ["a", "b", "c"]}
    with pytest.raises(
        InputError, match=r"corpus:train-00001-of-00002.parquet, row 0: the id 'x' is already at"
    ):
        names_of(write_hub(tmp_path / "one", shards=2, corpus=documents))
    with pytest.raises(InputError, match=r"document 'w' at .*qrels:train-00000-of-00001.parquet, row 0"):
        names_of(write_hub(tmp_path / "two", qrels={"query-id": ["1"], "corpus-id": ["w"]}))
    folder = write_hub(tmp_path / "three", corpus={"_id": ["y", "z"], "body": ["a", "b"]})
    with pytest.raises(InputError, match=r"corpus needs a column 'text'; it has _id, body"):
        names_of(folder)


def test_shards_with_other_columns_are_refused(tmp_path):
    write_hub(tmp_path, shards=2)
    other = write_hub(tmp_path / "other", corpus={"_id": ["w"], "body": ["b"]})
    (other / "corpus" / "train-00000-of-00001.parquet").replace(
        tmp_path / "corpus" / "train-00001-of-00002.parquet"
    )
    with pytest.raises(InputError, match=r"has no column 'text', which train-00000-of-00002.parquet has"):
        names_of(tmp_path)
