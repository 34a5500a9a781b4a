"""The parts of the page: the tables of the paper next to ours, from the results alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gemel.training.watch import NARROW
from reproduction import paper, rates
from reproduction.collapse import HEAD_RATE, HIGH, MIDDLE
from reproduction.differences import over_seeds
from reproduction.plan import CONCATS, POOLINGS
from reproduction.stored_results import Content, Line, lines_of

NONE = "–"


def grid(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in body)
    rows = [list(head), ["---"] * len(head), *escaped]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def sets_table(content: Content, theirs: dict[str, tuple[float, ...]], names: Sequence[str]) -> str:
    """Tables 1 and 5: ours with the interval of the average, the paper's in the line below."""
    lines = lines_of(content)
    names = [name for name in names if all(name in line.entries[0]["scores"] for line in lines.values())]
    whole = dict(zip(paper.STS if "sts12" in names else paper.SENTEVAL, range(8), strict=True))
    body = []
    for label, line in lines.items():
        body.append(
            [label, *(line.cell(name) if name == "average" else f"{line.mean(name):.2f}" for name in names)]
        )
        if label in theirs:
            paper_cells = [f"{theirs[label][whole[name]]:.2f}" for name in names]
            if len(names) < len(whole):
                paper_cells[-1] = NONE  # the paper's average is over more sets
            body.append(["· the paper", *paper_cells])
    return grid(["", *names], body)


def table1(content: Content) -> str:
    return sets_table(content, paper.TABLE1, paper.STS)


def table5(content: Content) -> str:
    return sets_table(content, paper.TABLE5, paper.SENTEVAL)


def table2(content: Content) -> str:
    body = [
        [label, line.cell(), str(len(line.entries)), paper.TABLE2.get(label, NONE)]
        for label, line in lines_of(content).items()
    ]
    return grid(["", "STSb test, Spearman", "seeds", "the paper"], body)


def table3(content: Content) -> str:
    fixed, trained = [], []
    for label, line in lines_of(content).items():
        theirs = paper.TABLE3.get(label, NONE)
        suite = line.entries[0]["suite"]
        if suite == "arguments":
            cells = [_both(line, f"ukp-aspect/{name}") for name in ("cosine", "10-fold", "cross-topic")]
            fixed.append([label, *cells, theirs])
        elif suite == "arguments-cosine":
            fixed.append([label, _both(line), NONE, NONE, theirs])
        else:
            trained.append([label, _both(line), line.cell(), str(len(line.entries)), theirs])
    text = "Pearson / Spearman × 100.\n\n"
    text += grid(["fixed", "cosine", "ridge, 10 folds", "ridge, cross-topic", "the paper (AFS)"], fixed)
    if trained:
        head = [
            "each fold by the others",
            "left-out fold",
            "Spearman ± deviation",
            "folds",
            "the paper (AFS)",
        ]
        text += "\n" + grid(head, trained)
    return text


def _both(line: Line, dataset: str = "") -> str:
    return f"{line.mean(dataset, 'pearson'):.2f} / {line.mean(dataset):.2f}"


def table6(content: Content) -> str:
    lines = lines_of(content)
    forms = [f"({form})" for form in CONCATS]
    body = [
        [f"`{form}`", lines[form].cell(), str(len(lines[form].entries)), f"{paper.TABLE6[form]:.2f}"]
        for form in forms
        if form in lines
    ]
    text = grid(["what the head sees (NLI, mean)", "STSb dev, Spearman", "seeds", "the paper"], body)
    body = []
    for pooling in POOLINGS:
        cells = []
        for data in ("NLI", "STSb"):
            label = f"{data}, {pooling}"
            cells += [lines[label].cell() if label in lines else NONE, f"{paper.TABLE6[label]:.2f}"]
        if cells[0] != NONE or cells[2] != NONE:
            body.append([pooling, *cells])
    if body:
        text += "\n" + grid(["pooling", "NLI", "the paper", "STSb", "the paper"], body)
    return text


def curve(content: Content) -> str:
    body = []
    for label, line in lines_of(content).items():
        ranks = line.entries[0].get("effective_rank")
        spread = f"{ranks[0]:.1f} → {ranks[1]:.1f}" if ranks else NONE
        body.append([label, line.cell("average"), f"{line.mean('stsb'):.2f}", spread])
    return grid(["", "STS average", "STSb", "effective rank, before → after"], body)


def rate_table(content: Content) -> str:
    body = []
    for kind, name in rates.KINDS.items():
        measured = rates.scores(kind, content)
        best = rates.choose(kind, "", content)
        cells = [
            NONE
            if rate not in measured
            else f"**{measured[rate]:.2f}**"
            if rate == best
            else f"{measured[rate]:.2f}"
            for rate in rates.CANDIDATES
        ]
        body.append([name, *cells])
    return grid(["Spearman on the development part", *rates.CANDIDATES], body)


MEASURES = {
    "unseen": "Spearman × 100, pairs of unseen sentences",
    "retrieval": "nDCG@10 × 100",
    "clustering": "V-measure × 100",
}


def collapse(content: Content) -> str:
    """One line per setting: the last evaluation, over seeds, and when the rule of the warning first applies."""
    settings: dict[str, list[Content]] = {}
    for row in content["rows"]:
        settings.setdefault(row["label"], []).append(row)
    body = []
    for label, rows in settings.items():
        last = [row["steps"][-1] for row in rows]
        cells = [_over(last, "score"), _over(last, "effective_rank"), _over(last, "mean_cosine")]
        warned = [step for row in rows if (step := _narrow_from(row["steps"])) is not None]
        steps = ", ".join(map(str, warned))
        when = f"{len(warned)} of {len(rows)}, at step {steps}" if warned else f"0 of {len(rows)}"
        body.append([label, str(len(rows)), *cells, when])
    start = content["rows"][0]["steps"][0]
    text = (
        f"Before training: STS {start['score']:.2f}, effective rank {start['effective_rank']:.1f}, "
        f"mean cosine {start['mean_cosine']:.2f}. After {content['rows'][0]['steps'][-1]['step']} steps:\n\n"
    )
    head = ["objective, (head), rate", "seeds", "STS, development part", "effective rank", "mean cosine"]
    return text + grid([*head, "below a quarter of the rank"], body) + "\n" + _repaired(settings)


def _narrow_from(steps: Sequence[Content]) -> int | None:
    """The first evaluation at which `gemel train` warns of few directions."""
    limit = NARROW * steps[0]["effective_rank"]
    return next((each["step"] for each in steps if each["effective_rank"] < limit), None)


def _over(last: Sequence[Content], name: str) -> str:
    values = [each[name] for each in last]
    digits = 1 if name == "effective_rank" else 2
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


def _repaired(settings: dict[str, list[Content]]) -> str:
    """The advice of the warning and the fix, minus the run without them, seed by seed."""
    body = []
    low, high = f"classification, {MIDDLE}", f"classification, {HIGH}"
    both = f"{low}, head {HEAD_RATE}"
    advice = {
        f"{high}: at {MIDDLE} instead": (low, high),
        f"{high}: at {MIDDLE}, head at {HEAD_RATE} instead": (both, high),
    }
    changes = {name: pair for name, pair in advice.items() if settings.keys() >= {*pair}}
    for label in settings:
        plain, _, head = label.rpartition(", head ")
        if plain:
            changes[f"{plain}: head at {head}"] = (label, plain)
    for name, (after, plain) in changes.items():
        before = {row["seed"]: row["steps"][-1] for row in settings[plain]}
        pairs = [(row["steps"][-1], before[row["seed"]]) for row in settings[after] if row["seed"] in before]
        cells = []
        for number in ("score", "effective_rank"):
            measured = over_seeds([new[number] - old[number] for new, old in pairs])
            ends = "" if measured["low"] is None else f" [{measured['low']:+.2f}, {measured['high']:+.2f}]"
            cells.append(f"{measured['difference']:+.2f}{ends}")
        body.append([name, str(len(pairs)), *cells])
    return grid(["with the change minus without it", "seeds", "STS", "effective rank"], body) if body else ""


def front(content: Content) -> str:
    """Sentences per second of the teacher and its students."""
    speeds = {row["model"]: row["per_second"] for row in content["rows"]}
    body = [
        [label, f"{speed:,.0f}", f"× {speed / speeds['teacher']:,.2f}"] for label, speed in speeds.items()
    ]
    return grid(["model", "sentences per second", "against the teacher"], body)


def student(content: Content) -> str:
    """STS, retrieval, clustering: one line per model, one column per data set."""
    grids = []
    for suite in dict.fromkeys(entry["suite"] for entry in content["rows"]):
        rows = [entry for entry in content["rows"] if entry["suite"] == suite]
        names = list(rows[0]["scores"])
        head = [MEASURES.get(suite, "Spearman × 100"), *names]
        lines = lines_of({"rows": rows}).values()
        grids.append(grid(head, [[line.label, *(line.cell(name) for name in names)] for line in lines]))
    return "\n".join(grids)


def table7(content: Content) -> str:
    labels = {"glove": "averaged word vectors", "padded": "padded batches in input order", "gemel": "gemel"}
    labels["sorted"] = "padded batches, sorted by length"
    body = [
        [row["model"], labels[row["system"]], f"{row['sentences']:,}", f"{row['per_second']:,.0f}",
         f"{paper.TABLE7[row['system']]:,}" if row["system"] in paper.TABLE7 else NONE]
        for row in content["rows"]
    ]  # fmt: skip
    return grid(["encoder", "method", "sentences", "per second", "the paper (base, another processor)"], body)


def headline(content: Content) -> str:
    body = []
    for row in content["rows"]:
        cross = NONE
        if "cross_seconds" in row:
            hours = min(row["cross_seconds"]) * row["pairs"] / row["cross_sample"] / 3600
            cross = f"{hours:,.1f} h (from {row['cross_sample']:,} pairs)"
        body.append([row["model"], f"{row['sentences']:,}", f"{min(row['bi_seconds']):.1f} s", cross])
    return grid(["encoder", "sentences", "bi-encoder, measured", "cross-encoder, extrapolated"], body)


PARTS = {
    "rates": ("Learning rates", rate_table),
    "1": ("Table 1: STS without STS training", table1),
    "curve": ("How many pairs, which learning rate", curve),
    "collapse": ("Why classification loses directions", collapse),
    "2": ("Table 2: trained for STSb", table2),
    "3": ("Table 3: argument similarity", table3),
    "5": ("Table 5: SentEval", table5),
    "6": ("Table 6: what matters", table6),
    "7": ("Table 7: speed", table7),
    "headline": ("The headline: the most similar pair", headline),
    "student": ("Beyond the paper: students", student),
    "front": ("The students: quality and speed", front),
}
