"""A column of texts in, a column of vectors out: pandas and Polars data frames and pyarrow tables."""

from gemel.integrations.tables.table import encode_column, vectors_of

__all__ = ["encode_column", "vectors_of"]
