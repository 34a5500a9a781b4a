"""Encode sample sentences, find similar pairs, answer two searches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import perf_counter

import click

from gemel.cli import flags
from gemel.cli.output import cell, echo

QUERIES = ("How do I get my money back?", "The program keeps crashing on my phone.")

PAIRS, HITS = 10, 3


@dataclass(frozen=True)
class Pair:
    score: float
    left: str
    right: str


@dataclass(frozen=True)
class DemoHit:
    query: str
    score: float
    text: str


@dataclass(frozen=True)
class Facts:
    """The results of the demo, in the order in which they are shown. Times are in seconds."""

    model: str
    engine: str
    dim: int
    texts: int
    tokens: int
    texts_per_second: float
    seconds: dict[str, float]
    pairs: list[Pair]
    hits: list[DemoHit]


@click.command(
    epilog="\b\nExamples:\n  gemel demo\n  gemel demo --json\n  gemel demo --model path/to/a/folder"
)
@flags.model_option
@flags.json_option()
def command(model: str, as_json: bool) -> None:
    """Encode sample sentences, show the most similar pairs and answer two searches."""
    import sys

    facts = run(model)
    if as_json:
        import json

        click.echo(json.dumps(asdict(facts)))
    elif sys.stdout.isatty():
        _show(facts)
    else:
        echo("\n".join(_lines(facts)))


def sentences() -> list[str]:
    """A few hundred short sample texts on everyday topics, with paraphrases."""
    from importlib.resources import files

    return files("gemel.texts").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()


def run(model: str) -> Facts:
    """Load, encode, compare, search."""
    from gemel.model import load
    from gemel.vectors.pairs import similar_pairs
    from gemel.vectors.search import search

    texts = sentences()
    clock = _Clock()
    loaded = load(model)
    clock.lap("load")
    report = loaded.encode_report(texts)
    clock.lap("encode")
    pairs = similar_pairs(report.vectors, k=PAIRS)
    clock.lap("pairs")
    hits = search(loaded.encode(list(QUERIES)), report.vectors, k=HITS)
    clock.lap("search")
    return Facts(
        model=model,
        engine=loaded.engine_name,
        dim=loaded.dim,
        texts=len(texts),
        tokens=int(report.kept.sum()),
        texts_per_second=round(len(texts) / clock.seconds["encode"], 1),
        seconds=clock.seconds,
        pairs=[
            Pair(round(float(score), 3), texts[left], texts[right])
            for score, left, right in zip(pairs.score, pairs.left, pairs.right, strict=True)
        ],
        hits=[
            DemoHit(query, round(float(score), 3), texts[index])
            for query, row, scores in zip(QUERIES, hits.index, hits.score, strict=True)
            for index, score in zip(row, scores, strict=True)
        ],
    )


class _Clock:
    """Seconds since the last lap, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = perf_counter()

    def lap(self, name: str) -> None:
        now = perf_counter()
        self.seconds[name] = round(now - self._since, 4)
        self._since = now


def _head(facts: Facts) -> str:
    return (
        f"{facts.texts} sentences ({facts.tokens:,} tokens) -> {facts.texts} x {facts.dim} numbers "
        f"with {facts.model} on {facts.engine}: {facts.texts_per_second:,.0f} sentences/s"
    )


def _times(facts: Facts) -> str:
    return ", ".join(f"{name} {seconds * 1000:,.1f} ms" for name, seconds in facts.seconds.items())


def _lines(facts: Facts) -> list[str]:
    lines = [_head(facts), "", "The most similar pairs:"]
    lines += [f"  {pair.score:.3f}  {pair.left}  =  {pair.right}" for pair in facts.pairs]
    for query in QUERIES:
        lines += ["", f"Search: {query}"]
        lines += [f"  {hit.score:.3f}  {hit.text}" for hit in facts.hits if hit.query == query]
    return [*lines, "", f"Time: {_times(facts)}"]


def _show(facts: Facts) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"\n{_head(facts)}\n", style="bold", markup=False)
    table = Table(
        "score", "one", "other", title="The most similar pairs", title_justify="left", box=SIMPLE_HEAD
    )
    for pair in facts.pairs:
        table.add_row(f"{pair.score:.3f}", cell(pair.left), cell(pair.right))
    console.print(table)
    for query in QUERIES:
        answers = Table(
            "score", "sentence", title=cell(f"Search: {query}"), title_justify="left", box=SIMPLE_HEAD
        )
        for hit in facts.hits:
            if hit.query == query:
                answers.add_row(f"{hit.score:.3f}", cell(hit.text))
        console.print(answers)
    console.print(f"\nTime: {_times(facts)}", style="dim")
