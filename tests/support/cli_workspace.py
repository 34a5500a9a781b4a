"""A folder with every file that the examples of `--help` name, and tiny models under the names that they use."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tiny import tiny_bert
from tiny_late import tiny_late
from tiny_sparse import tiny_sparse

MODEL = "all-MiniLM-L6-v2"
TEXTS = [
    f"{who} {what} {where}"
    for who in ("a man", "the cat", "a woman", "the dog")
    for what in ("is playing a guitar", "was sleeping on the sofa", "is running", "fell")
    for where in ("today", "in the rain", "on the street")
]
ROWS = [
    {
        "id": str(number + 1),
        "number": f"t{number}",
        "title": f"{text.split()[1]} {number}",
        "body": text,
        "text": text,
        "lang": "en" if number % 2 else "de",
        "year": 2012 + number % 12,
    }
    for number, text in enumerate(TEXTS)
]
PAIRS = [
    {"sentence1": one, "sentence2": other, "score": number % 6, "label": number % 2}
    for number, (one, other) in enumerate(pairwise(TEXTS))
]


def make_workspace(folder: Path) -> Path:
    """Files and models in `folder`; the cache is the folder "cache" in it."""
    tiny_bert(folder / "cache" / "models" / MODEL, layers=1, width=384, heads=12)
    tiny_bert(folder / "my-model", layers=1, width=384, heads=12, seed=1)
    tiny_bert(folder / "path" / "to" / "a" / "folder")
    _cross(folder / "my-reranker")
    tiny_sparse(folder / "splade")
    tiny_late(folder / "colbert")
    for name in ("texts.txt", "questions.txt", "answers.txt", "lines.txt"):
        (folder / name).write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    _table(folder / "tickets.csv", ROWS, ("number", "title", "body"))
    _table(folder / "articles.csv", ROWS, ("id", "body", "lang", "year"))
    _table(folder / "new.csv", ROWS[:4], ("body",))
    _table(folder / "news.tsv.gz", ROWS, ("id", "text"))
    _table(folder / "pairs.tsv", PAIRS, ("sentence1", "sentence2", "score"))
    _table(folder / "pairs.tsv.gz", PAIRS, ("sentence1", "sentence2"))
    _table(folder / "qqp-test.tsv.gz", PAIRS, ("sentence1", "sentence2", "label"))
    equal = [{"sentence1": text, "sentence2": text, "label": 1} for text in TEXTS]
    _table(folder / "labeled.tsv", [*PAIRS, *equal], ("sentence1", "sentence2", "label"))
    close = [{"query": text, "positive": f"{text} again"} for text in TEXTS[:6]]
    _table(folder / "train.tsv", close, ("query", "positive"))
    (folder / "reports").mkdir()
    (folder / "reports" / "guide.md").write_text("# Guide\n\nA man is playing.\n", encoding="utf-8")
    (folder / "reports" / "plan.txt").write_text("The dog runs.\n", encoding="utf-8")
    (folder / "sts").mkdir()
    _table(folder / "sts" / "sts-test.tsv", PAIRS, ("sentence1", "sentence2", "score"))
    _beir(folder / "nanobeir" / "notes")
    for name in ("docs.jsonl", "tickets.jsonl"):
        lines = [json.dumps({key: row[key] for key in ("text", "lang", "year")}) for row in ROWS]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "LICENSE").write_text("Do as you like.\n", encoding="utf-8")
    return folder


def _beir(folder: Path) -> None:
    """A search collection in the layout of BEIR: each title is a query for its text."""
    (folder / "qrels").mkdir(parents=True)
    for name, key in (("corpus", "text"), ("queries", "title")):
        lines = [json.dumps({"_id": f"{name}{row['id']}", "text": row[key]}) for row in ROWS]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    judged = [
        {"query-id": f"queries{row['id']}", "corpus-id": f"corpus{row['id']}", "score": 1} for row in ROWS
    ]
    _table(folder / "qrels" / "test.tsv", judged, ("query-id", "corpus-id", "score"))


def _cross(folder: Path) -> None:
    """A cross-encoder as transformers saves one, with random weights."""
    inner = tiny_bert(folder / "inner")
    random = np.random.default_rng(0)
    weights = {f"bert.{name}": weight for name, weight in load_file(inner / "model.safetensors").items()}
    shapes = {"bert.pooler.dense": (32, 32), "classifier": (1, 32)}
    for name, shape in shapes.items():
        weights[f"{name}.weight"] = random.normal(0, 0.2, shape).astype(np.float32)
        weights[f"{name}.bias"] = np.zeros(shape[0], np.float32)
    save_file(weights, folder / "model.safetensors")
    config = json.loads((inner / "config.json").read_text())
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "score"}}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(inner / "tokenizer.json", folder)
    shutil.rmtree(inner)


def _table(path: Path, rows: Sequence[Mapping[str, object]], columns: tuple[str, ...]) -> None:
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        writer = csv.writer(file, delimiter="," if ".csv" in path.name else "\t", lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([row[name] for name in columns] for row in rows)
