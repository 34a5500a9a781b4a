"""Find texts that mean the same in different words: `python examples/find_duplicates.py [MODEL]`."""

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
pairs = gemel.find_pairs(model, TICKETS, k=2)
for row in pairs.rows():
    print(f"{row['score']:.3f}  {row['left_text']}  =  {row['right_text']}")
print(pairs.summary())
