"""A text longer than the model reads: see the loss, then avoid it. Takes a MODEL as its argument."""

import os
import sys
import warnings

import numpy as np

import gemel

REPORT = "The pump stops after an hour. " * 200 + "In the end it was a loose cable."

model = gemel.load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2"))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    report = model.encode_report([REPORT])
print("told:", told[0].message if told else "nothing")
print(f"kept {report.kept[0]} of {report.tokens[0]} tokens")

whole = model.encode([REPORT], on_long="chunk")
print(f"cosine of the cut and the whole: {np.sum(report.vectors * whole):.3f}")
