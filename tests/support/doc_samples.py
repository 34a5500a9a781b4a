"""What pages of the docs assume: small files, folders and Python names, made when a page names them."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tiny import tiny_bert, tiny_tokenizer
from tiny_late import tiny_late
from tiny_m3 import tiny_m3
from tiny_sparse import tiny_sparse

MODEL = "all-MiniLM-L6-v2"
SENTENCES = files("gemel.texts").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()[:120]
BUGS = (
    "pasting images from a web page hangs the program",
    "application freezes when a picture is pasted from the browser",
    "print preview shows blank pages",
    "blank pages in the print preview",
    "cannot open files with a password",
    "spell checker ignores the second language",
    "password protected documents do not open",
    "the window does not remember its size",
)
LABELS = ("entailment", "neutral", "contradiction")


def give(names: list[str], folder: Path) -> dict[str, Any]:
    """Make the files among `names` in `folder`; the others become names that Python blocks start with."""
    given: dict[str, Any] = {"__name__": "__main__"}
    for name in names:
        if name in FILES:
            FILES[name](folder / name)
        else:
            given[name] = NAMES[name]()
    return given


def _rows() -> Iterator[dict[str, Any]]:
    for number, text in enumerate(SENTENCES):
        subject = " ".join(text.split()[:3])
        yield {
            "id": f"a{number}",
            "ticket": f"t{number}",
            "number": number,
            "title": subject,
            "body": text,
            "year": 2018 + number % 8,
            "lang": "en" if number % 3 else "de",
        }


def _text(lines: list[str]) -> Callable[[Path], object]:
    return lambda path: _write(path, "".join(f"{line}\n" for line in lines))


def _table(rows: Callable[[], Iterator[dict[str, Any]]]) -> Callable[[Path], None]:
    """A .csv or .tsv, packed if its name says so."""

    def make(path: Path) -> None:
        made = list(rows())
        path.parent.mkdir(parents=True, exist_ok=True)
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "wt", encoding="utf-8", newline="") as file:
            between = "\t" if ".tsv" in path.name else ","
            writer = csv.DictWriter(file, list(made[0]), delimiter=between)
            writer.writeheader()
            writer.writerows(made)

    return make


def _write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def _labeled() -> Iterator[dict[str, Any]]:
    for number, (left, right) in enumerate(_neighbors()):
        yield {"sentence1": left, "sentence2": right, "label": LABELS[number % 3]}


def _scored() -> Iterator[dict[str, Any]]:
    for number, (left, right) in enumerate(_neighbors()):
        yield {"sentence1": left, "sentence2": right, "score": number % 6}


def _neighbors() -> Iterator[tuple[str, str]]:
    yield from zip(SENTENCES[:60], SENTENCES[60:], strict=True)


def _bugs() -> Iterator[dict[str, Any]]:
    for number, title in enumerate([*BUGS, *SENTENCES[:60]]):
        yield {
            "bug_id": number,
            "title": title,
            "description": f"{title}. It happens every time.",
            "dup_of_id": 0 if number == 1 else "",
        }


def _known() -> Iterator[dict[str, Any]]:
    """Reports and those that they repeat."""
    titles = [*BUGS, *SENTENCES[:60]]
    for number in range(0, len(titles), 2):
        sides = {"": titles[number], "dup_": titles[number + 1]}
        row: dict[str, Any] = {"bug_id": number, "dup_of_id": number + 1}
        for side, title in sides.items():
            row |= {f"{side}title": title, f"{side}description": f"{title}. It happens every time."}
        yield row


def _judged() -> Iterator[dict[str, Any]]:
    for number, (left, right) in enumerate(_neighbors()):
        yield {"sentence1": left, "sentence2": left if number % 2 else right, "label": number % 2}


def _translations() -> Iterator[dict[str, Any]]:
    for text in SENTENCES[:96]:
        yield {"en": text, "de": " ".join(word[::-1] for word in text.split())}


def _jsonl(path: Path) -> None:
    rows = [{"text": row["body"], "lang": row["lang"], "id": row["id"]} for row in _rows()]
    _write(path, "".join(json.dumps(row) + "\n" for row in rows))


def _documents(folder: Path) -> None:
    """Six texts of three paragraphs."""
    for number in range(6):
        starts = range(number * 20, number * 20 + 18, 6)
        paragraphs = [" ".join(SENTENCES[at : at + 6]) for at in starts]
        _write(folder / f"page-{number}.txt", "\n\n".join(paragraphs))


def _reports(folder: Path) -> None:
    """Two sections and a page."""
    _write(
        folder / "repairs.md", "# Repairs\n\n## Costs\n\nThe owner pays.\n\n## Time\n\nWithin two weeks.\n"
    )
    _write(folder / "page.html", "<title>A page</title><h1>Tenants</h1><p>They report damage.</p>")


def _cross(labels: int) -> Callable[[Path], None]:
    """A cross-encoder of random numbers, made of the tiny encoder."""

    def make(path: Path) -> None:
        tiny_bert(path)
        random = np.random.default_rng(0)
        weights = {f"bert.{name}": value for name, value in load_file(path / "model.safetensors").items()}
        for name, rows in (("bert.pooler.dense", 32), ("classifier", labels)):
            weights[f"{name}.weight"] = random.normal(0, 0.2, (rows, 32)).astype(np.float32)
            weights[f"{name}.bias"] = np.zeros(rows, dtype=np.float32)
        config = json.loads((path / "config.json").read_text())
        names = {str(at): LABELS[at] for at in range(labels)}
        config |= {"architectures": ["BertForSequenceClassification"], "id2label": names}
        shutil.rmtree(path)
        path.mkdir()
        save_file(weights, path / "model.safetensors")
        _write(path / "config.json", json.dumps(config))
        tiny_tokenizer(path / "tokenizer.json")

    return make


def _sparse(layout: str) -> Callable[[Path], Any]:
    def make(path: Path) -> None:
        tiny_sparse(path, layout)

    return make


def _glove(path: Path) -> None:
    words = sorted({word.strip(".,?").lower() for text in SENTENCES for word in text.split()})
    rows = [" ".join(f"{(at * 7 + n) % 11 / 10 - 0.5:.1f}" for n in range(50)) for at in range(len(words))]
    _write(path, "".join(f"{word} {row}\n" for word, row in zip(words, rows, strict=True)))


def _retrieval(folder: Path) -> None:
    corpus = [{"doc_id": row["id"], "text": row["body"], "title": ""} for row in _rows()]
    queries = [{"query_id": f"q{at}", "text": SENTENCES[at]} for at in range(9)]
    right = [{"query_id": f"q{at}", "doc_id": f"a{at}", "relevance": 1} for at in range(9)]
    for name, rows in (("corpus", corpus), ("queries", queries), ("qrels", right)):
        _table(partial(iter, rows))(folder / f"faq-{name}.tsv")


def _model() -> Any:
    import gemel

    return gemel.load(MODEL)


def _pickled(path: Path) -> None:
    """A tiny model with its weights as a pickle, where torch is there."""
    if not os.environ.get("GEMEL_SLOW_DOCS"):
        return
    import torch
    from safetensors.torch import load_file

    tiny_bert(path)
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


def _small(path: Path) -> None:
    tiny_bert(path)


FILES: dict[str, Callable[[Path], Any]] = {
    "texts.txt": _text(SENTENCES),
    "questions.txt": _text(SENTENCES[:40]),
    "answers.txt": _text(SENTENCES[40:80]),
    "tickets.csv": _table(_rows),
    "new-tickets.csv": _table(lambda: (row for row in _rows() if row["number"] < 30)),
    "articles.csv": _table(_rows),
    "news.tsv.gz": _table(lambda: ({"text": row["body"]} for row in _rows())),
    "docs.jsonl": _jsonl,
    "documents": _documents,
    "reports": _reports,
    "bugs.csv": _table(_bugs),
    "openoffice-duplicate-bugs.tsv.gz": _table(_bugs),
    "known-duplicates.tsv": _table(_known),
    "labeled-pairs.tsv": _table(_judged),
    "train.tsv": _table(lambda: ({"anchor": left, "positive": right} for left, right in _neighbors())),
    "dev.tsv": _table(lambda: ({**row, "sentence2": SENTENCES[-1 - at]} for at, row in enumerate(_scored()))),
    "pairs.tsv": _table(_scored),
    "pairs.tsv.gz": _table(_labeled),
    "snli.tsv.gz": _table(_labeled),
    "sts": lambda path: _table(_scored)(path / "stsb-test.tsv"),
    "retrieval": _retrieval,
    "en-de.tsv": _table(_translations),
    "glove.6B.50d.txt": _glove,
    "bert": _small,
    "my-model": lambda path: tiny_bert(path, width=384, heads=12),
    "my-model/training/metrics.jsonl": _text(['{"kind": "step", "step": 1, "loss": 0.5}']),
    "old-model": _pickled,
    "multilingual": _small,
    "FacebookAI/xlm-roberta-base": _small,
    "google-bert/bert-base-uncased": _small,
    "my-colbert": tiny_late,
    "BAAI/bge-m3": tiny_m3,
    "my-reranker": _cross(1),
    "naver/splade-v3": _sparse("splade"),
    "my-inference-free-model": _sparse("router"),
    "my-nli-model": _cross(3),
    "cross-encoder/ms-marco-MiniLM-L6-v2": _cross(1),
}
NAMES: dict[str, Callable[[], Any]] = {
    "gemel": lambda: __import__("gemel"),
    "model": _model,
    "texts": lambda: list(SENTENCES),
    "vectors": lambda: _model().encode(SENTENCES),
    "queries": lambda: _model().encode(SENTENCES[:9]),
    "corpus": lambda: _model().encode(SENTENCES),
    "questions": lambda: _model().encode(SENTENCES[:40]),
    "answers": lambda: _model().encode(SENTENCES[40:]),
}
