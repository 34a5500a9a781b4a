"""A threshold without labels: what do random pairs of these texts reach? Takes a MODEL as its argument."""

import os
import sys
from importlib.resources import files

import gemel

model = gemel.load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2"))
texts = files("gemel.texts").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()
vectors = model.encode(texts)

found = gemel.calibrate(vectors)
cut = found.threshold(expected_false=1)
pairs = gemel.similar_pairs(vectors, min_score=cut)
print(f"one random pair of {len(texts)} texts is expected at {cut:.3f}; {len(pairs.score)} pairs are there")
print(f"among a million such texts it would be {found.expected_false(cut, n=1_000_000):,.0f}")
for score, left, right in list(zip(pairs.score, pairs.left, pairs.right, strict=True))[-3:]:
    print(f"{score:.3f}  {texts[left]}  =  {texts[right]}")
