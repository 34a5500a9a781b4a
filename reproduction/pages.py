"""The parts of the page: the tables of the paper next to ours, from the results alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reproduction import paper, rates
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


def student(content: Content) -> str:
    """STS, then retrieval: one line per model, one column per data set."""
    grids = []
    for suite in dict.fromkeys(entry["suite"] for entry in content["rows"]):
        rows = [entry for entry in content["rows"] if entry["suite"] == suite]
        names = list(rows[0]["scores"])
        head = ["nDCG@10 × 100" if suite == "retrieval" else "Spearman × 100", *names]
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
    "2": ("Table 2: trained for STSb", table2),
    "3": ("Table 3: argument similarity", table3),
    "5": ("Table 5: SentEval", table5),
    "6": ("Table 6: what matters", table6),
    "7": ("Table 7: speed", table7),
    "headline": ("The headline: the most similar pair", headline),
    "student": ("Beyond the paper: a student", student),
}
