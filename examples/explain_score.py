"""Show which pairs of words contribute most to a cosine: `python examples/explain_score.py [MODEL]`."""

import os
import sys

import numpy as np

import gemel

LEFT, RIGHT = "My parcel has not arrived.", "Where is my delivery?"

model = gemel.load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2"))
explanation = gemel.explain(model, LEFT, RIGHT).words()
rows, columns = explanation.tokens
print(
    f"cosine {explanation.score:.3f}, the sum of {explanation.table.size} cells: {explanation.table.sum():.3f}"
)
for at in np.argsort(-explanation.table, axis=None)[:5]:
    row, column = divmod(int(at), len(columns))
    print(f"{explanation.table[row, column]:+.3f}  {rows[row]} / {columns[column]}")
