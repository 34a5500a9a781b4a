"""Columns of texts to columns of vectors: one contract for pandas, Polars and Arrow, through Parquet and back."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.project.test_docs_blocks import small_model  # noqa: F401 - a fixture

import gemel
from gemel.errors import InputError, WorkError
from gemel.integrations.tables import encode_column, vectors_of
from integration_pages import run_blocks
from tiny import tiny_bert

TEXTS = ["a cat", None, "hello world", "a cat", "the rain", None]
FULL = ["a cat", "hello world", "the rain"]
KINDS = ["pyarrow", "pandas", "polars"]


class Lengths:
    """An encoder that records its texts."""

    dim = 2

    def __init__(self):
        self.encoded = []

    def encode(self, texts):
        self.encoded += texts
        return np.array([[len(text), 1] for text in texts], np.float32).reshape(-1, 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("model")))


@pytest.fixture(params=KINDS)
def kind(request):
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    return request.param


def made(kind, columns):
    if kind == "pyarrow":
        import pyarrow

        return pyarrow.table(columns)
    package = __import__(kind)
    return package.DataFrame(columns)


def write_and_read(kind, table, path, **settings):
    if kind == "pyarrow":
        from pyarrow import parquet

        parquet.write_table(table, path, **settings)
        return parquet.read_table(path)
    if kind == "pandas":
        import pandas

        table.to_parquet(path)
        return pandas.read_parquet(path)
    import polars

    table.write_parquet(path)
    return polars.read_parquet(path)


def cells(kind, table, column="vector"):
    """Lists of floats, and None."""
    if kind == "pyarrow":
        return table.column(column).to_pylist()
    values = table[column].to_list()
    return [value if value is None else list(map(float, value)) for value in values]


def names(table):
    return list(getattr(table, "column_names", None) or table.columns)


# The contract.


def test_the_same_kind_of_table_comes_back_with_one_more_column(kind, model):
    table = made(kind, {"id": list(range(6)), "body": TEXTS})
    result = encode_column(table, "body", model=model)
    assert type(result) is type(table)
    assert names(result) == ["id", "body", "vector"]
    assert names(table) == ["id", "body"]
    expected = iter(model.encode([text for text in TEXTS if text is not None]).tolist())
    assert cells(kind, result) == [None if text is None else next(expected) for text in TEXTS]


def test_vectors_survive_a_parquet_file(kind, model, tmp_path):
    full = encode_column(made(kind, {"body": FULL}), "body", model=model)
    again = write_and_read(kind, full, tmp_path / "b.parquet")
    assert (vectors_of(again) == model.encode(FULL)).all()
    assert vectors_of(again).dtype == np.float32


def test_nulls_survive_a_parquet_file(kind, model, tmp_path):
    import pyarrow

    if kind == "pyarrow" and int(pyarrow.__version__.split(".")[0]) < 26:
        pytest.skip("pyarrow before 26 cannot write or read a null among lists of fixed size")
    table = encode_column(made(kind, {"body": TEXTS}), "body", model=model)
    again = write_and_read(kind, table, tmp_path / "a.parquet")
    assert cells(kind, again) == cells(kind, table)
    if kind != "pandas":
        assert again.schema == table.schema


@pytest.mark.parametrize("reader", KINDS)
def test_a_file_of_one_package_is_read_by_the_others(kind, reader, model, tmp_path):
    pytest.importorskip(reader, reason=f"{reader} is not installed")
    full = encode_column(made(kind, {"body": FULL}), "body", model=model)
    write_and_read(kind, full, tmp_path / "a.parquet")
    package = __import__(reader)
    if reader == "pyarrow":
        from pyarrow import parquet

        again = parquet.read_table(tmp_path / "a.parquet")
    else:
        again = package.read_parquet(tmp_path / "a.parquet")
    assert (vectors_of(again, "vector") == model.encode(FULL)).all()


def test_the_array_is_a_view_of_the_table(kind, model):
    table = encode_column(made(kind, {"body": FULL}), "body", model=model)
    first, second = vectors_of(table), vectors_of(table)
    assert first.shape == (3, model.dim)
    assert np.shares_memory(first, second)


def test_each_distinct_text_is_encoded_once_and_nulls_never(kind):
    encoder = Lengths()
    result = encode_column(made(kind, {"body": TEXTS}), "body", model=encoder, to="size")
    assert encoder.encoded == ["a cat", "hello world", "the rain"]
    assert cells(kind, result, "size") == [[5, 1], None, [11, 1], [5, 1], [8, 1], None]


def test_repeated_texts_make_an_array_of_all_rows(kind, model):
    texts = ["a cat", "a cat", "hello world"]
    result = vectors_of(encode_column(made(kind, {"body": texts}), "body", model=model))
    assert (result == model.encode(texts)).all()


def test_a_table_without_rows_and_a_column_of_nulls_stay_what_they_are(kind, model):
    none = encode_column(made(kind, {"body": ["a cat"]})[:0], "body", model=model)
    assert names(none) == ["body", "vector"]
    assert len(vectors_of(none)) == 0
    nulls = made(kind, {"body": ["a cat", None, None]})[1:]
    assert cells(kind, encode_column(nulls, "body", model=model)) == [None, None]


def test_options_of_encoding_are_taken_by_name(kind, model, capsys, monkeypatch):
    monkeypatch.setattr("gemel.terminal.is_live", lambda: True)
    table = made(kind, {"body": FULL})
    result = encode_column(table, "body", model=model, dim=8, prompt="the ", progress=True)
    assert (vectors_of(result) == model.encode(FULL, dim=8, prompt="the ")).all()
    assert "3 of 3 texts" in capsys.readouterr().err


def test_a_null_vector_is_refused_with_its_row(kind, model):
    table = encode_column(made(kind, {"body": TEXTS}), "body", model=model)
    with pytest.raises(InputError, match=r"row 1 of column 'vector' is null. Drop the rows"):
        vectors_of(table)


def test_lists_of_one_length_are_vectors_and_others_are_not(kind):
    table = made(kind, {"a": [[1.0, 2.0], [3.0, 4.0]], "b": [[1.0], [1.0, 2.0]], "c": ["x", "y"]})
    result = vectors_of(table, "a")
    assert result.tolist() == [[1, 2], [3, 4]]
    assert result.dtype == np.float32
    with pytest.raises(InputError, match="row 1 of column 'b' holds 2 numbers, row 0 holds 1"):
        vectors_of(table, "b")
    with pytest.raises(InputError, match=r"not (a vector|vectors)"):
        vectors_of(table, "c")


def test_unsupported_requests_are_refused(kind, model):
    table = made(kind, {"body": FULL, "number": [1, 2, 3]})
    with pytest.raises(InputError, match=r"no column 'text'. Its columns: body, number"):
        encode_column(table, "text", model=model)
    with pytest.raises(InputError, match="has a column 'number' already"):
        encode_column(table, "body", model=model, to="number")
    with pytest.raises(InputError, match=r"number\[0\] is .* not a string"):
        encode_column(table, "number", model=model)
    with pytest.raises(InputError, match="unknown option 'batch' of encode"):
        encode_column(table, "body", model=model, batch=8)
    with pytest.raises(InputError, match="float32 here, got output='int8'"):
        encode_column(table, "body", model=model, output="int8")
    with pytest.raises(InputError, match=r"model must be a loaded model, got 'minilm'. Write gemel.load"):
        encode_column(table, "body", model="minilm")
    with pytest.raises(InputError, match="options are for a gemel model, got a Lengths: leave dim out"):
        encode_column(table, "body", model=Lengths(), dim=1)


# Each package by itself.


def test_arrow_gets_a_fixed_size_list_and_keeps_its_metadata(model):
    import pyarrow as pa

    table = pa.table({"body": pa.array(["a cat", "a cat"], pa.large_string())}).replace_schema_metadata(
        {"a": "b"}
    )
    result = encode_column(table, "body", model=model)
    assert result.schema.field("vector").type == pa.list_(pa.float32(), model.dim)
    assert result.schema.metadata == {b"a": b"b"}


def test_arrow_columns_of_several_chunks_and_of_categories_are_read(model, tmp_path):
    import pyarrow as pa

    parts = [pa.table({"body": pa.array(part).dictionary_encode()}) for part in (FULL[:1], FULL[1:])]
    table = encode_column(pa.concat_tables(parts, promote_options="permissive"), "body", model=model)
    again = write_and_read("pyarrow", table, tmp_path / "a.parquet", row_group_size=1)
    assert (vectors_of(again) == model.encode(FULL)).all()
    assert (vectors_of(pa.concat_tables([table, again])) == model.encode([*FULL, *FULL])).all()
    assert (vectors_of(table.slice(1)) == model.encode(FULL[1:])).all()


def test_a_vector_with_a_null_inside_is_refused():
    import pyarrow as pa

    table = pa.table({"vector": pa.array([[1.0, 2.0], [3.0, None]], pa.list_(pa.float32(), 2))})
    with pytest.raises(InputError, match="the vector in row 1 of column 'vector' holds a null"):
        vectors_of(table)
    polars = pytest.importorskip("polars", reason="polars is not installed")
    with pytest.raises(InputError, match="the vector in row 1 of column 'vector' holds a null"):
        vectors_of(polars.from_arrow(table))


def test_polars_gets_an_array(model):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    frame = pl.DataFrame({"body": pl.Series(FULL, dtype=pl.Categorical)})
    result = encode_column(frame, "body", model=model)
    assert result.schema["vector"] == pl.Array(pl.Float32, model.dim)
    assert (vectors_of(pl.concat([result, result])) == model.encode([*FULL, *FULL])).all()
    with pytest.raises(InputError, match=r"got a polars.LazyFrame. Write table.collect\(\) first"):
        encode_column(frame.lazy(), "body", model=model)


def test_pandas_keeps_its_index_and_takes_every_kind_of_text(model):
    import pandas as pd

    frame = pd.DataFrame({"body": ["a cat", pd.NA, np.nan, "the rain"]}, index=[7, 7, 8, 9])
    for dtype in ("object", "string", "category"):
        result = encode_column(frame.astype({"body": dtype}), "body", model=model)
        assert list(result.index) == [7, 7, 8, 9]
        assert list(result["vector"].isna()) == [False, True, True, False]
        assert (vectors_of(result.dropna()) == model.encode(["a cat", "the rain"])).all()


def test_pandas_reads_columns_that_arrow_backs(model, tmp_path):
    import pandas as pd

    table = encode_column(made("pyarrow", {"body": FULL}), "body", model=model)
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    assert (vectors_of(frame) == model.encode(FULL)).all()
    assert np.shares_memory(vectors_of(frame), vectors_of(table))


def test_pandas_rows_in_another_order_are_copied_in_that_order(model):
    frame = encode_column(made("pandas", {"body": FULL}), "body", model=model)
    assert (vectors_of(frame[::-1]) == model.encode(FULL[::-1])).all()
    assert (vectors_of(frame.iloc[1:]) == model.encode(FULL[1:])).all()


def test_other_things_are_no_tables(model):
    import pyarrow as pa

    with pytest.raises(InputError, match=r"must be a pyarrow.Table, .* got a builtins.dict"):
        encode_column({"body": FULL}, "body", model=model)
    with pytest.raises(InputError, match="from_batches"):
        encode_column(pa.table({"body": FULL}).to_batches()[0], "body", model=model)


def test_an_encoder_with_wrong_output_is_named():
    class Short(Lengths):
        dim = 3

    with pytest.raises(WorkError, match=r"the encoder gave \(3, 2\) for 3 texts; expected \(3, 3\)"):
        encode_column(made("pyarrow", {"body": FULL}), "body", model=Short())


ALONE = """
import sys
from gemel.integrations.tables import encode_column, vectors_of
assert not {"pandas", "polars", "pyarrow"} & set(sys.modules)
class Ones:
    dim = 1
    def encode(self, texts):
        import numpy
        return numpy.ones((len(texts), 1), "float32")
"""


@pytest.mark.parametrize(
    ("package", "table", "others"),
    [
        ("pyarrow", "pyarrow.table", {"polars"}),  # pyarrow itself looks for pandas
        ("pandas", "pandas.DataFrame", {"polars"}),  # and pandas for pyarrow
        ("polars", "polars.DataFrame", {"pandas", "pyarrow"}),
    ],
)
def test_only_the_package_of_the_table_is_imported(package, table, others):
    pytest.importorskip(package, reason=f"{package} is not installed")
    code = f"""{ALONE}
import {package}
vectors_of(encode_column({table}({{"a": ["b", "b"]}}), "a", model=Ones()))
assert not {others} & set(sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_the_blocks_of_the_page_run(tmp_path, small_model):  # noqa: F811 - the fixture
    pytest.importorskip("polars", reason="polars is not installed")
    run_blocks("tables.md", "polars", tmp_path, small_model)
