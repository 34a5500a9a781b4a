"""Semantic search in a few lines: `python examples/search_texts.py [MODEL]`."""

import os
import sys

import gemel

CORPUS = [
    "The invoice shows the wrong amount.",
    "How do I change my password?",
    "My parcel has not arrived.",
    "The app crashes when I open it.",
]
QUERIES = ["where is my delivery", "I cannot log in"]

model = gemel.load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2"))
for query, hits in zip(QUERIES, gemel.search_texts(model, QUERIES, CORPUS, k=2), strict=True):
    print(query)
    for hit in hits:
        print(f"  {hit.score:.3f}  {hit.text}")
