"""Whiten the vectors of a model and save the result as a new model: `python examples/whitening.py [MODEL]`."""

import os
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import gemel
from gemel.texts.whitening import Settings, save_postprocessed

model = gemel.load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2"))
texts = files("gemel.texts").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()

with tempfile.TemporaryDirectory() as folder:
    done = save_postprocessed(model, texts, Path(folder) / "white", settings=Settings(dim=16))
    print(f"before: {done.before.summary()}")
    print(f"after:  {done.after.summary()}")
    white = gemel.load(done.folder)
    for name, one in (("before", model), ("after", white)):
        left, right = one.encode(
            ["A man is playing a guitar.", "The stock market fell today."], normalize=True
        )
        print(f"{name}: two unrelated sentences score {left @ right:.2f}")
