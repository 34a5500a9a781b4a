"""A model as a function of DuckDB, in a real DuckDB."""

import numpy as np
import pytest
from tests.project.test_docs_blocks import small_model  # noqa: F401 - a fixture

import gemel
from gemel.errors import InputError
from gemel.integrations.duckdb import register
from gemel.integrations.tables import encode_column, vectors_of
from integration_pages import run_blocks
from tiny import tiny_bert

TEXTS = ["a cat", "hello world", "the rain"]


class Lengths:
    """An encoder that records its texts."""

    dim = 2

    def __init__(self):
        self.calls = []

    def encode(self, texts):
        self.calls.append(texts)
        return np.array([[len(text), 1] for text in texts], np.float32).reshape(-1, 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("model")))


@pytest.fixture
def connection():
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    with duckdb.connect(config={"threads": 1}) as opened:
        opened.execute("CREATE TABLE notes (id INTEGER, body VARCHAR)")
        opened.executemany("INSERT INTO notes VALUES (?, ?)", list(enumerate([*TEXTS, None])))
        yield opened


def test_a_column_is_encoded_and_nulls_stay_null(connection, model):
    register(connection, model)
    rows = connection.execute("SELECT embed(body), typeof(embed(body)) FROM notes ORDER BY id").fetchall()
    assert np.array([row[0] for row in rows[:3]], np.float32).tolist() == model.encode(TEXTS).tolist()
    assert rows[3][0] is None
    assert rows[0][1] == f"FLOAT[{model.dim}]"


def test_search_in_sql_ranks_as_gemel_does(connection, model):
    register(connection, model)
    connection.execute(
        "CREATE TABLE kept AS SELECT *, embed(body) AS vector FROM notes WHERE body IS NOT NULL"
    )
    result = connection.execute(
        "SELECT id, array_cosine_similarity(vector, embed('a dog')) AS score FROM kept ORDER BY score DESC"
    ).fetchall()
    hits = gemel.search(model.encode(["a dog"]), model.encode(TEXTS), k=3)
    assert [row[0] for row in result] == hits.index[0].tolist()
    assert [row[1] for row in result] == pytest.approx(hits.score[0].tolist(), abs=1e-6)


def test_rows_come_in_blocks_and_a_text_of_the_query_is_encoded_once(connection):
    encoder = Lengths()
    register(connection, encoder, "size")
    rows = connection.execute("SELECT size('n' || (range % 3000)) FROM range(5000)").fetchall()
    assert len(rows) == 5000
    assert rows[1234][0] == (5, 1)
    assert len(encoder.calls) <= 5
    encoder.calls.clear()
    connection.execute("SELECT array_distance(size(body), size('query')) FROM notes").fetchall()
    assert [call for call in encoder.calls if "query" in call] == [["query"]]


def test_several_functions_with_options_can_be_registered(connection, model):
    register(connection, model, "short", dim=8)
    register(connection, model, "prompted", prompt="how ")
    short, prompted = connection.execute("SELECT short('a cat'), prompted('a cat')").fetchone()
    assert np.float32(short).tolist() == model.encode(["a cat"], dim=8)[0].tolist()
    assert np.float32(prompted).tolist() == model.encode(["a cat"], prompt="how ")[0].tolist()


def test_columns_of_encode_column_are_arrays_in_duckdb_and_come_back(connection, model, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    table = encode_column(pa.table({"body": TEXTS}), "body", model=model)
    parquet.write_table(table, tmp_path / "notes.parquet")
    kind = f"FLOAT[{model.dim}]"
    assert connection.sql('SELECT typeof(vector) FROM "table"').fetchall()[0] == (kind,)
    # In Parquet the size of a list is known to Arrow only; a cast brings it back.
    relation = connection.sql(f"SELECT body, vector::{kind} AS vector FROM '{tmp_path}/notes.parquet'")
    assert str(relation.types[1]) == kind
    assert (vectors_of(relation.to_arrow_table()) == model.encode(TEXTS)).all()
    with pytest.raises(InputError, match="to_arrow_table"):
        vectors_of(relation)


def test_an_object_that_is_not_a_connection_is_refused(model):
    with pytest.raises(InputError, match=r"connection is one of duckdb.connect\(\), got a str"):
        register("notes.db", model)


def test_the_blocks_of_the_page_run(tmp_path, small_model):  # noqa: F811 - the fixture
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    run_blocks("tables.md", "duckdb", tmp_path, small_model)
