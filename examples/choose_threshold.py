"""Choose a threshold without labels, from the scores of random pairs: `python examples/choose_threshold.py [MODEL]`."""

import os
import sys
from importlib.resources import files

import gemel

model = gemel.load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2"))
texts = files("gemel.texts").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()
vectors = model.encode(texts)

calibration = gemel.calibrate(vectors)
threshold = calibration.threshold(expected_false=1)
pairs = gemel.similar_pairs(vectors, min_score=threshold)
print(
    f"one random pair of {len(texts)} texts is expected above {threshold:.3f}; {len(pairs.score)} pairs are above it"
)
print(f"for a million such texts, {calibration.expected_false(threshold, n=1_000_000):,.0f} are expected")
for score, left, right in list(zip(pairs.score, pairs.left, pairs.right, strict=True))[-3:]:
    print(f"{score:.3f}  {texts[left]}  =  {texts[right]}")
