"""An index on disk: add, search with a condition, update, delete. `python examples/keep_an_index.py [MODEL]`"""

import os
import sys
import tempfile

import gemel

NOTES = ["Oil prices rose again.", "The team won the final.", "Crude is cheaper this week."]

model = gemel.load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2"))
with tempfile.TemporaryDirectory() as folder:
    with gemel.open_index(f"{folder}/notes", model=model) as index:
        index.add(NOTES, ids=["a", "b", "c"], fields={"year": [2021, 2019, 2022]})
    with gemel.open_index(f"{folder}/notes", model=model) as index:  # later, in another program
        for hit in index.search("fuel costs", k=2, where="year >= 2020"):
            print(f"{hit.score:.3f}  {hit.id}  {hit.text}")
        print(index.upsert(["Oil prices fell."], ids=["a"], fields={"year": [2023]}).summary())
        index.delete(["b"])
        print(len(index), "notes are left")
