"""Texts that say the same, whatever the words: `python examples/find_duplicates.py [MODEL]`."""

import os
import sys

import gemel

TICKETS = [
    "I was charged twice for one order.",
    "The screen stays black after the update.",
    "You took the money two times for the same purchase.",
    "Since the new version the display shows nothing.",
    "Can I get an invoice?",
]

model = gemel.load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2"))
pairs = gemel.similar_pairs(model.encode(TICKETS), k=2)
for score, left, right in zip(pairs.score, pairs.left, pairs.right, strict=True):
    print(f"{score:.3f}  {TICKETS[left]}  =  {TICKETS[right]}")
print(f"{pairs.compared} pairs compared, none missed: {pairs.complete}")
