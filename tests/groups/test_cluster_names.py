"""Names of clusters on labeled data sets: the texts of a class are a cluster, its name should be that of the class.

A name is right if one of its words has the stem of a word of the class name, or of a word that people would use for
the class where the data set has abbreviations or numbers instead of names.
"""

import csv
import gzip
import os
import re
from pathlib import Path

import numpy as np
import pytest

from gemel.groups.grouping import COUNT, keywords
from gemel.vectors.bm25 import STOP_WORDS

DATA = Path(os.environ.get("GEMEL_DATA", Path(__file__).parents[3] / "shared" / "data"))

NEWS = {
    "1": "world politics president iraq government minister election",
    "2": "sports game team season league player",
    "3": "business company market stocks oil prices profit",
    "4": "science technology internet software microsoft computer",
}
SNIPPETS = {
    "1": "business market trade finance",
    "2": "computers software programming internet network",
    "3": "culture arts entertainment movie music",
    "4": "education science research university theory",
    "5": "engineering engine motor electric",
    "6": "health disease medical",
    "7": "politics society government political party",
    "8": "sports football game",
}
GROUPS = {
    "comp.os.ms-windows.misc": "windows dos",
    "comp.sys.ibm.pc.hardware": "pc drive card controller",
    "comp.sys.mac.hardware": "mac apple",
    "comp.windows.x": "window server motif",
    "misc.forsale": "sale sell offer",
    "rec.autos": "car",
    "rec.motorcycles": "bike",
    "sci.crypt": "encryption key clipper",
    "sci.electronics": "circuit",
    "sci.med": "medical doctor disease",
    "sci.space": "orbit nasa",
    "soc.religion.christian": "god church bible",
    "talk.politics.guns": "firearm",
    "talk.politics.mideast": "israel armenian turkish",
    "talk.politics.misc": "government president",
    "talk.religion.misc": "bible god jesus",
    "alt.atheism": "god",
}
ENDINGS = ("ing", "ed", "es", "s", "er", "ion", "al", "ism", "ist")


def stem(word):
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending)[:6]
    return word[:6]


def words(text):
    return re.findall(r"[^\W_]+", text.lower())


@pytest.mark.parametrize(
    ("file", "label", "text", "obvious", "least"),
    [
        ("clustering/20newsgroups", "label", "text", GROUPS, 19 / 20),
        ("clustering/agnews8000", "label", "text", NEWS, 4 / 4),
        ("clustering/searchsnippets", "label", "text", SNIPPETS, 8 / 8),
        ("classification/banking77-train", "label", "text", {}, 73 / 77),
        ("argsim/ukp-aspect", "topic", "sentence1", {}, 27 / 28),
    ],
)
def test_names_are_those_of_the_classes(file, label, text, obvious, least):
    path = DATA / f"{file}.tsv.gz"
    if not path.exists():
        pytest.skip("the shared data sets are not on this machine")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))[
            :: 3 if "news" in file else 1
        ]
    classes, labels = np.unique([row[label] for row in rows], return_inverse=True)
    names = keywords([row[text] for row in rows], labels, len(classes))
    right = 0
    for name, own in zip(classes.tolist(), names, strict=True):
        assert 0 < len(own) <= COUNT, name
        shown = words(" ".join(own[:3]))
        assert not (set(shown) & STOP_WORDS) - {"up", "off", "out", "down"}
        assert all(len(word) > 1 and not word.isdigit() for word in shown)
        expected = words(f"{name} {obvious.get(name, '')}")
        right += bool(set(map(stem, shown)) & set(map(stem, expected)))
    assert right / len(classes) >= least
