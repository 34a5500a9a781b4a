"""Encode a text that is longer than the model's maximum length: `python examples/long_documents.py [MODEL]`."""

import os
import sys
import warnings

import numpy as np

import gemel

REPORT = "The pump stops after an hour. " * 200 + "In the end it was a loose cable."

model = gemel.load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2"))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    report = model.encode_report([REPORT])
print("warning:", caught[0].message if caught else "none")
print(f"kept {report.kept[0]} of {report.tokens[0]} tokens")

whole = model.encode([REPORT], on_long="chunk")
print(f"cosine of the truncated and the whole text: {np.sum(report.vectors * whole):.3f}")
