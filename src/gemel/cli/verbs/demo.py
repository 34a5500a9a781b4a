"""Encode sample sentences, find similar pairs, answer two searches."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import click

from gemel.cli import flags
from gemel.cli.output import echo, echo_json

QUERIES = ("How do I get my money back?", "The program keeps crashing on my phone.")

PAIRS, HITS = 10, 3

LIMITS = """\
A cosine tells that two texts are about the same thing, not that they say the
same: a number, a negation, or who does what to whom hardly changes it. The
marks (!) come from simple checks of the words, which miss some pairs and can be
wrong. A cross-encoder or an NLI model reads both texts together and tells more."""

NEXT = """\
Next, with a file of yours (.txt with one text per line, .csv or .jsonl):
  gemel pairs FILE -k 20              the most similar pairs
  gemel cluster FILE -o clusters/     groups, their names, and a map
  gemel search FILE "your question"   the best answers in it"""


@click.command(
    epilog="\b\nExamples:\n  gemel demo\n  gemel demo --json\n  gemel demo --model path/to/a/folder"
)
@flags.model_option
@flags.task_option()
@flags.json_option()
def command(model: str, task: str | None, as_json: bool) -> None:
    """Encode sample sentences, show the most similar pairs and answer two searches."""
    facts = run(model, task)
    if as_json:
        echo_json(facts)
    else:
        echo("\n".join(_lines(facts)))


def sentences() -> list[str]:
    """A few hundred short sample texts on everyday topics, with paraphrases."""
    from importlib.resources import files

    return files("gemel.texts").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()


def run(model: str, task: str | None = None) -> dict[str, Any]:
    """Load, encode, compare, search: the results as JSON values, times in seconds."""
    from gemel.model import load
    from gemel.texts.explanation import differences
    from gemel.vectors.pairs import similar_pairs
    from gemel.vectors.search import search

    texts = sentences()
    times = [perf_counter()]
    loaded = load(model, task=task)
    times.append(perf_counter())
    report = loaded.encode_report(texts)
    times.append(perf_counter())
    pairs = similar_pairs(report.vectors, k=PAIRS)
    times.append(perf_counter())
    hits = search(loaded.encode(list(QUERIES)), report.vectors, k=HITS)
    times.append(perf_counter())
    steps = zip(("load", "encode", "pairs", "search"), times, times[1:], strict=False)
    return {
        "model": model,
        "engine": loaded.engine_name,
        "dim": loaded.dim,
        "texts": len(texts),
        "tokens": int(report.kept.sum()),
        "texts_per_second": round(len(texts) / (times[2] - times[1]), 1),
        "seconds": {name: round(end - begin, 4) for name, begin, end in steps},
        "pairs": [
            {
                "score": round(float(score), 3),
                "left": texts[left],
                "right": texts[right],
                "differences": list(differences(texts[left], texts[right])),
            }
            for score, left, right in zip(pairs.score, pairs.left, pairs.right, strict=True)
        ],
        "hits": [
            {"query": query, "score": round(float(score), 3), "text": texts[index]}
            for query, row, scores in zip(QUERIES, hits.index, hits.score, strict=True)
            for index, score in zip(row, scores, strict=True)
        ],
    }


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    yield f"{facts['texts']} sentences ({facts['tokens']:,} tokens) -> {facts['texts']} x {facts['dim']} numbers"
    yield f"with {facts['model']} on {facts['engine']}: {facts['texts_per_second']:,.0f} sentences/s"
    yield "\nThe most similar pairs:"
    for pair in facts["pairs"]:
        yield f"  {pair['score']:.3f}  {pair['left']}"
        yield f"         {pair['right']}"
        if pair["differences"]:
            yield f"         ! set apart by: {', '.join(pair['differences'])}"
    yield f"\n{LIMITS}"
    for query in QUERIES:
        yield f"\nSearch: {query}"
        for hit in facts["hits"]:
            if hit["query"] == query:
                yield f"  {hit['score']:.3f}  {hit['text']}"
    times = (f"{name} {seconds * 1000:,.1f} ms" for name, seconds in facts["seconds"].items())
    yield f"\nTime: {', '.join(times)}"
    yield f"\n{NEXT}"
