"""Groups of texts with names, and where a new text belongs: `python examples/cluster_texts.py [MODEL]`."""

import os
import sys

import gemel

TEXTS = [
    "I was charged twice for one order.",
    "You took the money two times.",
    "My card was debited two times.",
    "The screen stays black.",
    "The display shows nothing.",
    "Where is my parcel?",
    "My delivery has not arrived.",
]

model = gemel.load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2"))
found = gemel.cluster(model.encode(TEXTS), min_score=0.4, texts=TEXTS)
print(found.summary())
for cluster in found.items:
    print(f"{cluster.size} texts around: {cluster.text}")
print("a new one goes to", found.assign(model.encode(["I paid twice."])))
