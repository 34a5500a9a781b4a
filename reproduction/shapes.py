"""Encoders for timing: the start model, the published one, and random weights of BERT-base's shape, as the paper's."""

from __future__ import annotations

import csv
import gzip
import shutil
from dataclasses import dataclass
from pathlib import Path

from reproduction.parts import START, TEACHER, Folders

BASE = "bert-base's shape"
"""Speed does not depend on the weights, so they are random."""


@dataclass(frozen=True)
class Shape:
    """A folder with a checkpoint, and on how many sentences it is timed."""

    name: str
    folder: str
    share: float
    """Of the sentences that the smallest encoder gets."""


def shapes(folders: Folders) -> list[Shape]:
    from gemel.checkpoint.sources import find_model

    return [
        Shape(START, str(Path(folders.weights) / START), 1.0),
        Shape(TEACHER, str(find_model(TEACHER)), 0.5),
        Shape(BASE, str(base_shape(folders)), 0.1),
    ]


def base_shape(folders: Folders, *, cross: bool = False) -> Path:
    """12 layers of 768 with the start model's tokenizer; made once."""
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    out = Path(folders.work) / ("base-cross" if cross else "base-bi-encoder")
    if not (out / "model.safetensors").exists():
        config = BertConfig(num_labels=1)
        network = BertForSequenceClassification(config) if cross else BertModel(config)
        network.save_pretrained(str(out))
        _copy_tokenizer(Path(folders.weights) / START, out)
    return out


def start_cross(folders: Folders) -> Path:
    """The start model as a cross-encoder with a new head."""
    from transformers import BertForSequenceClassification, logging

    out = Path(folders.work) / "start-cross"
    if not (out / "model.safetensors").exists():
        start = Path(folders.weights) / START
        logging.set_verbosity_error()  # a new head is intended
        network = BertForSequenceClassification.from_pretrained(str(start), num_labels=1)
        network.save_pretrained(str(out))
        _copy_tokenizer(start, out)
    return out


def _copy_tokenizer(start: Path, out: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        if (start / name).exists():
            shutil.copy(start / name, out / name)


def sentences(folders: Folders, count: int) -> list[str]:
    """The first distinct sentences of STSb, in the order of its files."""
    result: dict[str, None] = {}
    for part in ("train", "dev", "test"):
        path = Path(folders.data) / "sts" / f"stsb-{part}.tsv.gz"
        with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE):
                result |= dict.fromkeys((row["sentence1"], row["sentence2"]))
    return list(result)[:count]
