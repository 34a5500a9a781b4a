"""Cluster texts, and assign a new text to a cluster: `python examples/cluster_texts.py [MODEL]`."""

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
clusters = gemel.cluster(model.encode(TEXTS), min_score=0.4, texts=TEXTS)
print(clusters.summary())
for cluster in clusters.items:
    print(f"{cluster.size} texts around: {cluster.text}")
print("cluster of a new text:", clusters.assign(model.encode(["I paid twice."])))
