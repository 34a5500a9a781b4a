"""Write the result tables into the pages of docs, each between its two markers.

python benchmarks/pages.py --write    update the pages
python benchmarks/pages.py --check    exit 1 if a page is out of date
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from table import grid
from trainers import difference

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
SETS = ("stsb-dev", "stsb-test", *(f"sts{year}-test" for year in range(12, 17)), "sickr-test")


def recipes(results: dict[str, Any]) -> str:
    """One row per recipe with its scores, then the commands."""
    result = results["recipes"]
    rows = [
        ["Spearman, points", "before", *(name.removesuffix("-test") for name in SETS), "texts", "minutes"]
    ]
    for name, each in result.items():
        scores = [f"{each['sts'][one]['spearman']:.2f}" if one in each["sts"] else "–" for one in SETS]
        before = "–" if each["untrained"] is None else f"{each['untrained']:.2f}"
        rows.append([name, before, *scores, f"{each['texts']:,}", f"{each['seconds'] / 60:.0f}"])
    notes = (
        "`before` is the score on the development set of STSb before training. The minutes were measured on one core "
        "that was also used by other work, so they are only indicative; a resumed run counts from where it resumed. "
        "STSb contains pairs of STS12 to STS16: after training on it (`regression`, `cross`) those columns are not a "
        "fair test."
    )
    commands = "\n".join(each["command"] for each in result.values())
    return f"{grid(rows)}\n\n{notes}\n\n```sh\n{commands}\n```"


def speed(results: dict[str, Any]) -> str:
    """One row per setting: the rates of both libraries, their ratio, quality and memory."""
    rows = [
        [
            "pairs/s",
            "gemel",
            "sentence-transformers",
            "ratio",
            "STSb-dev gemel",
            "STSb-dev ST",
            "peak MB gemel",
            "peak MB ST",
        ]
    ]
    for each in results["settings"]:
        rate, quality, peak = each["pairs_per_second"], each["stsb_dev"], each["peak_mb"]
        rows.append(
            [
                f"{each['model']}, batch {each['batch']} (best of {each['rounds']})",
                f"{rate['gemel']:.1f}",
                f"{rate['st']:.1f}",
                f"{each['ratio']:.2f}",
                f"{quality['gemel']:.2f}",
                f"{quality['st']:.2f}",
                f"{peak['gemel']:,.0f}",
                f"{peak['st']:,.0f}",
            ]
        )
    machine = results["machine"]
    head = (
        f"{machine['processor']}, {results['threads']} threads; the target is a ratio of {results['target']}."
    )
    return f"{head}\n\n{grid(rows)}"


SIDES = {
    "gemel": "gemel",
    "sentence-transformers": "sentence-transformers",
    "grouped": "gemel, grouped by length",
    "peer-steps": "gemel, steps as in sentence-transformers",
}


def trainers(results: dict[str, Any]) -> str:
    """One row per setting and trainer, then the differences over the same seeds."""
    head = ["setting", "trainer", "seeds", "STSb-dev, mean and 95 % interval", "effective rank"]
    rows = [[*head, "mean cosine", "pairs per CPU second"]]
    notes = []
    for cell in results["cells"].values():
        setting = f"{cell['steps']} × {cell['batch']} pairs, {cell['learning_rate']:g}"
        setting += "" if cell["dropout"] is None else ", no dropout"
        for side, name in SIDES.items():
            measured = cell["summary"]["sides"].get(side)
            if measured is None:
                continue
            spread = [
                _mean(measured[each], digits) for each, digits in (("effective_rank", 1), ("mean_cosine", 3))
            ]
            speed = _mean(measured["pairs_per_cpu_second"], 1)
            seeds = str(measured["stsb_dev"]["n"])
            rows.append([setting, name, seeds, _interval(measured["stsb_dev"]), *spread, speed])
        for sides, one in cell["summary"]["differences"].items():
            if one["n"] > 1:
                notes.append(f"- {setting}: {_difference_note(sides, one, cell)}")
        if shares := cell.get("largest_label_share"):
            notes.append(
                f"- {setting}: the most frequent label has {shares['gemel']:.1%} of a batch on average, "
                f"{shares['grouped']:.1%} of one that is grouped by length"
            )
        if "origin" in cell:
            notes.append(f"- {setting}: {cell['origin']}")
    versions = results["versions"]
    text = (
        f"{results['model']}, classification on NLI, {results['machine']['processor']}, one thread, "
        f"sentence-transformers {versions['sentence-transformers']}, torch {versions['torch']}."
    )
    parts = [text, grid(rows), "Differences are over the same seeds.\n\n" + "\n".join(notes)]
    if "curves" in results:
        parts.append(_curves(results["curves"]))
    if "dropout" in results:
        parts.append(_dropout(results["dropout"]))
    return "\n\n".join(parts)


def _difference_note(sides: str, one: dict[str, Any], cell: dict[str, Any]) -> str:
    """Of the scores; over the seeds that were added later, alone; and of the training loss, where it was recorded."""
    left, right = sides.split(" - ")
    note = f"{SIDES[left]} minus {SIDES[right]}: {_interval(one)}, {one['n']} seeds"
    first = cell.get("added_seeds_from")
    if first is not None:
        added = difference(cell["runs"], left, right, "stsb_dev", first)
        note += f"; the {added['n']} added ones alone: {_interval(added)}" if added["n"] > 1 else ""
    loss = one.get("last_loss", {"n": 0})
    if loss["n"] > 1:
        ends = f"{loss['mean']:.4f} [{loss['low']:.4f}, {loss['high']:.4f}]"
        note += f"; training loss: {ends}, {loss['n']} seeds"
    return note


def _curves(losses: dict[str, list[float]]) -> str:
    """Until when two runs from the same start have the same losses."""
    apart = [abs(one - two) for one, two in zip(*losses.values(), strict=True)]
    first = next((step for step, each in enumerate(apart, 1) if each > 1e-6), len(apart) + 1)
    return (
        "Without dropout, with the same head, order and options, the losses of both trainers differ by at most "
        f"{max(apart[: first - 1]):.0e} in the first {first - 1} steps; by step {len(apart)} the difference has grown "
        f"to {apart[-1]:.0e}."
    )


def _dropout(measured: dict[str, Any]) -> str:
    """Both sides under many masks, from the same weights and rows."""
    rows = [["one batch under dropout", "gemel", "sentence-transformers", "difference of the means, 95 %"]]
    for name, each in measured.items():
        sides = [f"{each[side]['mean']:.4f} ± {each[side]['deviation']:.4f}" for side in list(SIDES)[:2]]
        low, high = each["difference"]
        rows.append([name, *sides, f"[{low:+.4f}, {high:+.4f}]"])
    draws = next(iter(measured.values()))["gemel"]["n"]
    return f"Mean ± standard deviation over {draws} dropout masks:\n\n{grid(rows)}"


def _mean(result: dict[str, Any], digits: int) -> str:
    return f"{result['mean']:.{digits}f}" if result["n"] else "–"


def _interval(result: dict[str, Any]) -> str:
    if "low" not in result:
        return f"{result['mean']:.2f}"
    return f"{result['mean']:.2f} [{result['low']:.2f}, {result['high']:.2f}]"


def pairs(results: dict[str, Any]) -> str:
    """One row per case: the best time of each system."""
    cases = results["cases"].values()
    names = list(dict.fromkeys(name for case in cases for name in case["systems"]))
    titles = {name: case["systems"][name]["title"] for case in cases for name in case["systems"]}
    rows = [["seconds", *(titles[name] for name in names)]]
    for case in cases:
        result = case["systems"]
        rounds = max(len(each["seconds"]) for each in result.values())
        best = [f"{min(result[name]['seconds']):.2f}" if name in result else "–" for name in names]
        rows.append([f"{case['title']} (best of {rounds})", *best])
    return f"{results['machine']['processor']}, {results['threads']} threads, 384 dimensions.\n\n{grid(rows)}"


def postprocess(results: dict[str, Any]) -> str:
    """One row per method: Spearman with its interval on each set."""
    sets = list(next(iter(results["methods"].values())))
    rows = [["Spearman, points", *sets]]
    for name, result in results["methods"].items():
        cells = [f"{one['spearman']:.2f} [{one['low']:.1f}, {one['high']:.1f}]" for one in result.values()]
        rows.append([name, *cells])
    return grid(rows)


def index(results: dict[str, Any]) -> str:
    """One table per size, one row per system."""
    head = [
        "", "build s", "MB", "peak MB", "open s", "p50 ms", "p95 ms", "recall@10", "1 % filter ms", "recall",
        "50 % filter ms", "recall", "queries/s at 0.95", "at 0.99", "add 1,000 ms", "delete 1,000 ms",
    ]  # fmt: skip
    parts = [f"{results['machine']['processor']}, {results['threads']} threads, k = 10."]
    for size in results["sizes"]:
        rows = [head, *(_index_row(each) for each in size["systems"].values())]
        parts.append(f"{size['title']}:\n\n{grid(rows)}")
        text = size["systems"].get("gemel", {}).get("sentence")
        if text:
            parts.append(f"From the text of a query to the answer of gemel: p50 {text['p50_ms']:.1f} ms.")
    if "note" in results:
        parts.append(results["note"])
    return "\n\n".join(parts)


def index_recall(results: dict[str, Any]) -> str:
    """One row per kind of query: recall by setting. Times are left out: the machine was busy."""
    rows = [["recall@10 of queries", "as texts", "as vectors", "as texts, `recall=0.99`", "as vectors"]]
    for kind, settings in results["kinds"].items():
        result = [settings[name] for name in ("default", "recall=0.99")]
        cells = [f"{each[by]:.3f}" for each in result for by in ("recall_by_text", "recall_by_vector")]
        rows.append([kind, *cells])
    claimed = "; ".join(f"{recall:.3f} for questions {kind}" for kind, recall in results["claimed"].items())
    return f"{results['title']}:\n\n{grid(rows)}\n\n`stats` reports for a search without `recall`: {claimed}."


def _index_row(each: dict[str, Any]) -> list[str]:
    if "failed" in each:
        return [each["title"], each["failed"], *[""] * 14]
    build, single, change = each["build"], each["single"], each["change"]
    row = [each["title"], f"{build['seconds']:.1f}", f"{build['mb']:,.0f}", f"{build['peak_mb']:,.0f}"]
    row += [f"{each['open']['seconds']:.2f}", f"{single['p50_ms']:.2f}", f"{single['p95_ms']:.2f}"]
    row.append(f"{single['recall']:.3f}")
    for part in (each["one_percent"], each["half"]):
        row += ["–", "–"] if "failed" in part else [f"{part['p50_ms']:.2f}", f"{part['recall']:.3f}"]
    for floor in (0.95, 0.99):
        rates = [point["per_second"] for point in each["curve"] if point["recall"] >= floor]
        row.append(f"{max(rates):,.0f}" if rates else "–")
    deleted = change.get("delete_ms")
    return [*row, f"{change['add_ms']:,.0f}", "–" if deleted is None else f"{deleted:,.0f}"]


def few_shot(results: dict[str, Any]) -> str:
    """One row per model, data set and number of examples: accuracy and minutes of each side, then the differences."""
    sides = {"head": "head alone", "tuned": "tuned", "setfit": "SetFit"}
    differences = {"tuned - head": "tuned minus head", "tuned - setfit": "tuned minus SetFit"}
    minutes = ("tuned", "setfit")
    head = ["model", "data", "examples", "draws", *sides.values(), *differences.values()]
    rows = [[*head, *(f"minutes, {sides[side]}" for side in minutes)]]
    for each in sorted(results["rows"], key=lambda row: (row["model"], row["data"], row["examples"])):
        draws = max(side["accuracy"]["n"] for side in each["sides"].values())
        # A side whose draws are not all there yet has a mean over other examples.
        there = {name: side for name, side in each["sides"].items() if side["accuracy"]["n"] == draws}
        compared = [
            _plus(each["differences"][name]) if there.keys() >= {*name.split(" - ")} else "–"
            for name in differences
        ]
        rows.append(
            [
                *(each["model"], each["data"], str(each["examples"]), str(draws)),
                *(_mean(there[side]["accuracy"], 1) if side in there else "–" for side in sides),
                *compared,
                *(f"{there[side]['minutes']:.1f}" if side in there else "–" for side in minutes),
            ]
        )
    text = (
        f"{results['machine']['processor']}, one thread, shared with other work; minutes are processor time of `fit`. "
        f"Accuracy in % on at most {results['tested']:,} test texts, mean over draws of the examples; differences are "
        "over the same draws, with the 95 % interval of Student's t."
    )
    return f"{text}\n\n{grid(rows)}"


def _plus(one: dict[str, Any]) -> str:
    """A difference with its sign."""
    names = ("mean", "low", "high") if one.get("n", 0) > 1 else ("mean",)
    return _bounds([one.get(name) for name in names], "+")


def adapt(results: dict[str, Any]) -> str:
    """One row per training: what it changed in the domain, beside it and on sentences of every day."""
    sets = {"Vaswani": "in the domain", "Cranfield": "neighboring domain", "STSb": "sentences (STSb)"}
    rows = [["start", "objective", "rate", "texts", "minutes", *sets.values()]]
    order = ("start", "method", "learning_rate", "texts")
    for row in sorted(results["rows"], key=lambda row: [row[name] for name in order]):
        cells = [f"{row[name]['before']:.1f}, {_bounds(row[name]['difference'], '+')}" for name in sets]
        numbers = [row["learning_rate"], f"{row['texts']:,}", f"{row['minutes']:.0f}"]
        rows.append([row["start"], row["method"], *numbers, *cells])
    text = (
        f"{results['machine']['processor']}, one thread, shared with other work; minutes are processor time. nDCG@10 × "
        "100 of search in Vaswani (the domain) and Cranfield, Spearman × 100 on STSb-dev: the start model, then the "
        "change with its 95 % interval by a paired bootstrap. One training per row; the interval does not cover the "
        "variance between trainings."
    )
    return f"{text}\n\n{grid(rows)}"


def serve(results: dict[str, Any]) -> str:
    """One row per server, then the effect of misbehaving clients and kills on gemel."""
    rows = [
        [
            "",
            "one client p50 ms",
            "64 clients, requests/s",
            "p50 ms",
            "p99 ms",
            "8 clients, 32 texts each, texts/s",
            "single query alongside large requests, p95 ms",
        ]
    ]
    titles = {"st-fastapi": "sentence-transformers behind FastAPI", "infinity": "infinity-emb"}
    for name, each in results["systems"].items():
        many, mixed = each["64_clients"], each["single_beside_large"]
        groups = each.get("8_clients_of_32", {}).get("texts_per_second")
        rows.append(
            [
                titles.get(name, name),
                f"{each['one_client']['p50_ms']:.1f}",
                f"{many['per_second']:.0f}",
                f"{many['p50_ms']:.0f}",
                f"{many['p99_ms']:.0f}",
                "–" if groups is None else f"{groups:.0f}",
                f"{mixed['p95_ms']:.0f}",
            ]
        )
    ours, ratios = results["systems"]["gemel"], results["ratios"]
    bad, killed = ours["bad_clients"], ours["killed"]
    memory = bad["memory_mb"]
    notes = (
        f"{results['machine']['processor']}, {results['threads']} cores shared with the clients. Offline, the encoder "
        f"computes {results['offline_per_second']:.0f} texts/s, so the server reaches "
        f"{ratios['throughput_of_offline']:.0%} of it (the goal is 80 %). A single query alongside requests of 1,000 "
        f"texts takes {ratios['mixed_p95_ratio']:.1f} times its unloaded p95 (the goal is 3). In "
        f"{bad['minutes']:.0f} min with misbehaving clients, {bad['good']['right']:,} valid requests were answered, "
        f"{ratios['wrong_answers']} of them wrong; memory went from {memory['before']} to at most "
        f"{memory['peak']} MB. Killed {killed['kills']} times under load, it was ready again after "
        f"{max(killed['seconds_until_ready']):.1f} s at most, and clients that retry lost nothing."
    )
    return f"{grid(rows)}\n\n{notes}"


def scale(results: dict[str, Any]) -> str:
    """The overhead of Ray, of a killed process, and of an index in a bucket."""
    result, count = results["results"], results["count"]
    rows = [["", "one process, s", "on Ray, s", "overhead"]]
    for name, label in (
        ("encode", f"encode {count:,} texts"),
        ("pairs", f"best 10,000 pairs of {count:,} vectors"),
    ):
        each = result[name]
        rows.append(
            [label, f"{min(each['alone']):.1f}", f"{min(each['ray']):.1f}", f"{each['overhead']:+.1%}"]
        )
    kills = [["killed after a third", "seconds", "lost", "repeated tasks"]]
    for name, each in result["kills"].items():
        lost = f"{each['lost']:.1f}" if "lost" in each else "–"
        kills.append([name, f"{each['seconds']:.1f}", lost, str(each["retries"])])
    store = result["s3"]
    locations = [["ms", "search p50", "p99", "write one", "open and first search"]]
    keys = ("search_p50_ms", "search_p99_ms", "write_one_p50_ms", "open_and_first_search_ms")
    locations += [[name, *(f"{store[name][key]:.1f}" for key in keys)] for name in ("folder", "s3")]
    return "\n\n".join(
        (
            f"{results['machine']['processor']}, two cores in total: a running cluster compared with one process "
            f"with two threads, best of {len(result['encode']['alone'])}. With a cluster started for the command, "
            f"encoding took {result['encode']['with_its_own_cluster']:.1f} s.",
            grid(rows),
            'Two nodes of one core each; "lost" is the additional time compared with the run without a kill, negative '
            "where it is below the noise of the machine. A killed node takes its core with it: if one core does half "
            f"the work of two, that alone costs {result['kills']['node']['lost_with_its_core']:.0f} s.",
            grid(kills),
            f"An index of {store['rows']:,} rows, one query at a time; the processes of the store run "
            "on the same machine.",
            grid(locations),
        )
    )


CHECKPOINTS = {
    "albert": "paraphrase-albert-small-v2",
    "bert": "all-MiniLM-L6/L12-v2, bge-small/base/large-en-v1.5, e5-*-v2, gte-small/base/large, mxbai-embed-large-v1, "
    "snowflake-arctic-embed-xs/s/m/l, LaBSE, multi-qa-MiniLM, ms-marco-MiniLM rerankers, jina-embeddings-v2 (ALiBi)",
    "camembert": "sentence-camembert-base/large",
    "deberta-v2": "mxbai-rerank-*-v1, nli-deberta-v3-*, deberta-v2-xlarge/xxlarge and their classifiers",
    "distilbert": "distiluse-base-multilingual-cased-v2, msmarco-distilbert-*, multi-qa-distilbert-cos-v1",
    "electra": "ms-marco-electra-base",
    "embedding_gemma2_text": "embeddinggemma-2 (saved as `embedding_gemma2`), for texts",
    "eurobert": "EuroBERT-210m/610m/2.1B fine-tunes, jina-embeddings-v5-text-nano (saved as `jina_embeddings_v5`)",
    "gemma3_text": "embeddinggemma-300m",
    "gte": "gte-multilingual-base and gte-base/large-en-v1.5 (saved as `new`), snowflake-arctic-embed-m-v2.0",
    "jina_embeddings_v3": "jina-embeddings-v3",
    "llama": "fine-tunes of Llama 3 for embeddings",
    "mistral": "e5-mistral-7b-instruct, SFR-Embedding-Mistral, Linq-Embed-Mistral",
    "modernbert": "modernbert-embed-base, gte-modernbert-base, gte-reranker-modernbert-base",
    "mpnet": "all-mpnet-base-v2, multi-qa-mpnet-base-*, paraphrase-mpnet-base-v2",
    "nomic_bert": "nomic-embed-text-v1/v1.5",
    "qwen2": "gte-Qwen2-1.5B/7B-instruct, mxbai-rerank-*-v2",
    "qwen3": "Qwen3-Embedding-0.6B/4B/8B, Qwen3-Reranker-0.6B/4B/8B, jina-embeddings-v5-text-small (saved as "
    "`jina_embeddings_v5`)",
    "roberta": "all-distilroberta-v1, all-roberta-large-v1, stsb-roberta cross-encoders",
    "t5": "sentence-t5-base/large/xl, gtr-t5-base/large/xl",
    "umt5": "fine-tunes of umt5-small/base/xl for embeddings",
    "xlm-roberta": "multilingual-e5-small/base/large, bge-m3 (its [three outputs](sparse.md#bge-m3)), "
    "paraphrase-xlm-r-multilingual, bge-reranker-*",
}
"""Well-known checkpoints of each architecture, by name; their weights were not run here (no model hub)."""


def architectures(results: dict[str, Any]) -> str:
    """One row per architecture: the checkpoints that it reads, then parity and speed of each engine."""
    names = [
        f"{engine} {precision}" for precision in ("float32", "int8") for engine in ("native", "onnxruntime")
    ]
    rows = [["`model_type`", *names, "same bits in any batch"]]
    for kind, row in results["architectures"].items():
        cells = [_engine_cell(row.get(name)) for name in names]
        invariant = "yes" if all(each["invariant"] for each in row.values()) else "no"
        rows.append([f"`{kind}`", *cells, invariant])
    packages = results["packages"]
    head = (
        f"{results['machine']['processor']}, {results['threads']} threads, transformers {packages['transformers']}, "
        f"torch {packages['torch']}. float32: the largest difference of a hidden state from transformers, on tiny "
        "random weights; int8: the smallest cosine to them. × is the speed relative to torch, on random weights 384 "
        "wide with 6 layers and 64 texts of 32 tokens, so without padding on either side."
    )
    known = "\n".join(f"- `{kind}`: {names}" for kind, names in CHECKPOINTS.items())
    note = (
        "Well-known checkpoints, by their architecture; their published weights were not run for this table:"
    )
    return f"{head}\n\n{grid(rows)}\n\n{note}\n\n{known}"


def decoder(results: dict[str, Any]) -> str:
    """One row per system: rates on both sets, their ratio to sentence-transformers, and the peak of memory."""
    base = results["systems"]["st-torch"]["rates"]
    rows = [["texts/s", "short sentences", "×", "256 tokens", "×", "peak MB"]]
    for each in results["systems"].values():
        cells = []
        for name in ("stsb-test", "long"):
            rate = each.get("rates", {}).get(name, {}).get("texts_per_second")
            ratio = None if rate is None else rate / base[name]["texts_per_second"]
            cells += ["–", "–"] if rate is None else [f"{rate:.1f}", f"{ratio:.2f}"]
        if each.get("rates"):
            rows.append([each["title"], *cells, f"{each['peak_mb']:,.0f}"])
    texts = results["texts"]
    head = (
        f"{results['machine']['processor']}, {results['threads']} threads, {texts['stsb-test']['texts']} sentences of "
        f"STSb and {texts['long']['texts']} documents of 256 tokens, best of {texts['stsb-test']['rounds']}."
    )
    return f"{head}\n\n{grid(rows)}"


COSTS = {
    "ms_per_query": "ms per query",
    "ms_per_document": "ms per document",
    "bytes_per_document": "bytes per document",
}


def kinds(results: dict[str, Any]) -> str:
    """One table per collection: the searches down, quality and cost across."""
    models, late = results["models"], results["late_form"]
    named = ", ".join(f"{kind}: {name}" for kind, name in models.items())
    parts = [
        f"{results['machine']['processor']}, {results['threads']} threads; {named}; words: BM25. Vectors of tokens are "
        f"stored as {late}, a reranker sorts {results['candidates']} documents, and hybrids fuse ranks. Brackets are "
        "95 % bootstrap intervals; the difference in nDCG@10 is to the first row, over the same queries."
    ]
    head = ["", "nDCG@10", "MRR@10", "recall@100", "difference", *COSTS.values()]
    for dataset in dict.fromkeys(row["dataset"] for row in results["rows"]):
        rows = [head]
        for row in results["rows"]:
            if row["dataset"] == dataset:
                numbers = [_bounds(row.get(name)) for name in ("ndcg@10", "mrr@10", "recall@100")]
                costs = [_cost(row.get(name)) for name in COSTS]
                rows.append([row["search"], *numbers, _bounds(row.get("difference"), "+"), *costs])
        size = results["sets"].get(dataset)
        title = (
            f"{dataset}, {size['queries']:,} queries, {size['documents']:,} documents" if size else dataset
        )
        parts.append(f"{title}:\n\n{grid(rows)}")
    return "\n\n".join(parts)


def late_chunking(results: dict[str, Any]) -> str:
    """One row per collection and length of passages."""
    rows = [["", "documents", "tokens of a passage", "whole", "plain", "late", "late minus plain"]]
    for name, each in results["results"].items():
        for tokens, row in each["passages"].items():
            compared = [100 * row["late_minus_plain"][key] for key in ("difference", "low", "high")]
            scores = [f"{100 * value:.1f}" for value in (each["whole"], row["plain"], row["late"])]
            rows.append([name, f"{each['documents']:,}", tokens, *scores, _bounds(compared, "+")])
    head = (
        f"nDCG@10 with {results['model']}, which reads {results['max_length']} tokens. `whole` is one vector per "
        "document; brackets are 95 % intervals of the paired bootstrap over queries."
    )
    return f"{head}\n\n{grid(rows)}"


def margin_mse(results: dict[str, Any]) -> str:
    """One row per model, then the difference of the two students."""
    every = dict(results["results"])
    compared = every.pop("margin-mse - in-batch-ranking")
    rows = [["", "MAP"]]
    rows += [[name, _bounds([row["value"], row["low"], row["high"]])] for name, row in every.items()]
    difference = _bounds([100 * compared[key] for key in ("difference", "low", "high")], "+")
    return f"{grid(rows)}\n\nmargin-mse minus in-batch-ranking: {difference}."


def retrieval_models(results: dict[str, Any]) -> str:
    """One row per model: nDCG@10 on each collection."""
    every = results["ndcg@10"]
    names = list(every["start"])
    rows = [["", *names], *([model, *(f"{row[name]:.1f}" for name in names)] for model, row in every.items())]
    return f"nDCG@10 after {results['steps']} steps; `start` is the sentence encoder:\n\n{grid(rows)}"


def late_search(results: dict[str, Any]) -> str:
    """Reranking of both sets of candidates, then search."""
    head = (
        f"{results['machine']['processor']}, {results['threads']} threads, {results['passages']:,} passages of "
        f"{results['tokens_per_passage']:.0f} token vectors on average."
    )
    rows = [
        [
            "rerank 100 documents",
            *(f"{name}: p50, ms" for name in results["rerank"]),
            "times as fast as torch",
        ]
    ]
    for title in next(iter(results["rerank"].values())):
        each = [measured[title] for measured in results["rerank"].values()]
        if all("p50_ms" in row for row in each):
            times = " and ".join(f"{row['times_as_fast']:.1f}" for row in each)
            rows.append([title, *(f"{row['p50_ms']:.2f}" for row in each), times])
    found = [["search", "p50, ms", "p95, ms", "recall@10", "peak, MB", "on disk, MB", "build, s"]]
    for title, row in results["search"].items():
        if "chosen" in row:
            best, build = row["chosen"], row["build"]
            numbers = [f"{best['p50_ms']:.1f}", f"{best['p95_ms']:.1f}", f"{best['recall']:.3f}"]
            found.append(
                [
                    title,
                    *numbers,
                    f"{best['peak_mb']:,.0f}",
                    f"{build['mb']:,.0f}",
                    f"{build['seconds']:,.0f}",
                ]
            )
    return f"{head}\n\n{grid(rows)}\n\n{grid(found)}"


def _bounds(values: list[float | None] | None, sign: str = "") -> str:
    if not values or values[0] is None:
        return "–"
    shown = [format(value, f"{sign}.1f") for value in values if value is not None]
    return shown[0] if len(shown) < 3 else f"{shown[0]} [{shown[1]}, {shown[2]}]"


def _cost(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _engine_cell(each: dict[str, Any] | None) -> str:
    if each is None:
        return "–"
    quality = f"{each['difference']:.0e}" if "difference" in each else f"{each['cosine']:.4f}"
    # A row that was added between two runs has no speed yet.
    return f"{quality}, {each['times_torch']:.1f} ×" if "times_torch" in each else quality


BLOCKS: dict[str, tuple[str, str, Callable[[dict[str, Any]], str]]] = {
    "architectures": ("reference/models.md", "architectures.json", architectures),
    "decoder": ("reference/models.md", "encode-qwen3-0.6b.json", decoder),
    "wide": ("reference/speed.md", "encode-bert-base.json", decoder),
    "recipes": ("reference/training.md", "recipes.json", recipes),
    "train": ("reference/training.md", "train.json", speed),
    "trainers": ("reference/training.md", "trainers.json", trainers),
    "pairs": ("reference/pairs.md", "pairs.json", pairs),
    "index": ("reference/semantic-index.md", "index.json", index),
    "index_recall": ("reference/semantic-index.md", "index_recall.json", index_recall),
    "scale": ("how-to/run-on-a-cluster.md", "scale.json", scale),
    "serve": ("how-to/serve.md", "serve.json", serve),
    "postprocess": ("reference/postprocess.md", "postprocess.json", postprocess),
    "few_shot": ("how-to/train-with-few-labels.md", "few_shot.json", few_shot),
    "adapt": ("how-to/train-with-few-labels.md", "adapt.json", adapt),
    "kinds": ("explanation/which-kind-of-search.md", "kinds.json", kinds),
    "retrieval_models": ("explanation/which-kind-of-search.md", "retrieval_models.json", retrieval_models),
    "late_search": ("reference/late-interaction.md", "late-search.json", late_search),
    "late_search_20000": ("reference/late-interaction.md", "late-search-20000.json", late_search),
    "late_chunking": ("reference/semantic-index.md", "late-chunking.json", late_chunking),
    "margin_mse": ("how-to/mine-hard-negatives.md", "margin_mse.json", margin_mse),
}


def put(page: str, name: str, block: str) -> str:
    """The page with the block between its markers."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = page.partition(start)
    _, result, after = rest.partition(end)
    if not result:
        raise SystemExit(f"no markers {start} and {end}")
    return f"{before}{start}\n{block}\n{end}{after}"


def _block(path: Path, render: Callable[[dict[str, Any]], str]) -> str:
    """The table of a results file, or a line that says what makes it."""
    if not path.is_file():
        return f"*Not measured yet: `python benchmarks/{path.stem}.py` writes the results.*"
    return render(json.loads(path.read_text(encoding="utf-8")))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    for name, (file, source, render) in BLOCKS.items():
        page, path = DOCS / file, HERE / "results" / source
        text = page.read_text(encoding="utf-8")
        fresh = put(text, name, _block(path, render))
        if options.write:
            page.write_text(fresh, encoding="utf-8")
        elif fresh != text:
            stale.append(file)
    if options.check and stale:
        print(f"stale: {', '.join(stale)}. Run: python benchmarks/pages.py --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
