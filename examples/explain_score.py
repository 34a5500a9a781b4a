"""Why two texts score as they do: the pairs of words that add most. Takes a MODEL as its argument."""

import os
import sys

import numpy as np

import gemel

LEFT, RIGHT = "My parcel has not arrived.", "Where is my delivery?"

model = gemel.load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2"))
found = gemel.explain(model, LEFT, RIGHT).words()
rows, columns = found.tokens
print(f"cosine {found.score:.3f}, the sum of {found.table.size} cells: {found.table.sum():.3f}")
for at in np.argsort(-found.table, axis=None)[:5]:
    row, column = divmod(int(at), len(columns))
    print(f"{found.table[row, column]:+.3f}  {rows[row]} / {columns[column]}")
