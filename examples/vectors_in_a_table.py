"""Store vectors as a column of an Arrow table in a Parquet file: `python examples/vectors_in_a_table.py [MODEL]`."""

import os
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

import gemel
from gemel.integrations.tables import encode_column, vectors_of

TICKETS = ["My parcel has not arrived.", "The app crashes at start.", None, "My parcel has not arrived."]

model = gemel.load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2"))
table = encode_column(pa.table({"id": [1, 2, 3, 4], "body": TICKETS}), "body", model=model)
with tempfile.TemporaryDirectory() as folder:
    pq.write_table(table, f"{folder}/tickets.parquet")
    kept = pq.read_table(f"{folder}/tickets.parquet").drop_null()  # later, in another program
    print(kept.schema.field("vector").type)
    hits = gemel.search(model.encode(["where is my delivery"]), vectors_of(kept), k=2)
    for row, score in zip(hits.index[0], hits.score[0], strict=True):
        print(f"{score:.3f}  {kept['id'][int(row)]}  {kept['body'][int(row)]}")
