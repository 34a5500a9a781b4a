"""What each table consists of, at a scale: the models that are made and what they are measured on."""

from __future__ import annotations

from collections.abc import Callable

from reproduction import rates
from reproduction.parts import DEVELOPMENT, NLI, START, TEACHER, Made, Row, Rows, Suite
from reproduction.rates import rate_of
from reproduction.scales import Scale

STSB_DEV = Suite("stsb-dev", "sts", (Rows(("sts/stsb-dev",)),))
STSB_TEST = Suite("stsb-test", "sts", (Rows(("sts/stsb-test",)),))
ARGUMENTS = "argsim/ukp-aspect"
ALL_PAIRS = 173_135
"""Of the NLI files together."""
STUDENT_FILES = (
    *NLI,
    *("nli/scitail-subset", "captions/flickr30k-en-train", "paraphrase/qqp-train-subset"),
    *("paraphrase/mrpc-train", "sts/stsb-train", "sts/sickr-train", "argsim/ukp-aspect"),
    *("retrieval/cranfield-corpus", "retrieval/cranfield-queries"),
    *("retrieval/vaswani-corpus", "retrieval/vaswani-queries"),
    *("retrieval/openoffice-duplicate-bugs", "retrieval/wikiqa-train"),
    *("clustering/20newsgroups", "clustering/agnews8000", "clustering/searchsnippets"),
    *("classification/banking77-train", "senteval/mr", "senteval/cr", "senteval/subj", "senteval/trec-train"),
)
"""English texts of all kinds and lengths, without labels; those of the two retrieval and clustering tasks, too."""

UNTRAINED = Made(START, source="start")
GLOVE = Made("glove", source="glove")
TFIDF = Made("tfidf", source="tfidf")
PUBLISHED = Made(TEACHER, source=TEACHER)

CONCATS = ("u,v", "|u-v|", "u*v", "|u-v|,u*v", "u,v,u*v", "u,v,|u-v|", "u,v,|u-v|,u*v")
POOLINGS = ("mean", "max", "cls")
FOLDS = {"pairs": "folds", "topics": "cross-topic"}
RECIPE = (
    "--objective",
    "classification",
    "--batch-size",
    "32",
    "--learning-rate",
    rate_of("classification", before="1e-4"),
    "--eval-steps",
    "600",
)
RANKING_RATE = rate_of("ranking", before="2e-4")
RANKING = ("--objective", "in-batch-ranking", "--batch-size", "64")
TRIPLET = ("--objective", "triplet", "--batch-size", "32", "--learning-rate", "1e-4")
COSENT = ("--objective", "cosent", "--batch-size", "32", "--learning-rate", "1e-4")
WATCHED = ("--eval-data", "{dev}")
RATE = rate_of("classification", before="2e-4")
SHORT = ("--objective", "classification", "--batch-size", "32")
"""Runs on few pairs; the model of the last step is used."""
REGRESSION_RATE = rate_of("regression", before="1e-4")
CROSS_RATE = rate_of("cross-regression", before="1e-4")
CROSS_NLI_RATE = rate_of("cross-classification", before="2e-4")
STSB_PART = Suite("stsb-part", "sts", (DEVELOPMENT,))
"""What learning rates are chosen on; see rates.py."""


def sts(scale: Scale) -> Suite:
    return Suite(f"sts{len(scale.sts)}", "sts", tuple(Rows((f"sts/{name}-test",)) for name in scale.sts))


def slug(text: str) -> str:
    return text.replace("|u-v|", "d").replace("u*v", "m").replace(",", "")


def trained(name: str, rows: Rows, *flags: str, start: Made = UNTRAINED, seed: int = 0) -> Made:
    return Made(name, verb="train", start=start, rows=rows, flags=flags, seed=seed)


def _after(start: Made) -> str:
    """A part of a model's name: what it was trained on before."""
    return "" if start is UNTRAINED else f"-after-{start.name}"


def nli(scale: Scale) -> Made:
    """The paper's model: classification on all NLI pairs."""
    count = scale.nli_pairs
    return trained(f"nli-{count or 'all'}", Rows(NLI, count), *RECIPE, *WATCHED)


def short_nli(count: int, seed: int, concat: str = "u,v,|u-v|", pooling: str = "mean") -> Made:
    """A run of the ablations."""
    flags = (*SHORT, "--learning-rate", RATE, "--concat", concat, "--pooling", pooling)
    return trained(f"nli-{count}-{slug(concat)}-{pooling}-s{seed}", Rows(NLI, count, seed), *flags, seed=seed)


def cross_nli(count: int, rate: str = CROSS_NLI_RATE, name: str = "", seed: int = 0) -> Made:
    flags = ("--kind", "cross-encoder", "--objective", "classification", "--batch-size", "16")
    name = name or f"cross-nli-{count}"
    return trained(name, Rows(NLI, count, seed), *flags, "--learning-rate", rate, seed=seed)


def _regression(scale: Scale, rate: str, *, cross: bool = False) -> list[str]:
    flags = ["--objective", "regression", "--batch-size", "16", "--learning-rate", rate]
    return [*flags, "--epochs", str(scale.stsb_epochs), *(["--kind", "cross-encoder"] if cross else [])]


def stsb(scale: Scale, seed: int, *, start: Made = UNTRAINED, cross: bool = False, pooling: str = "") -> Made:
    """Regression on STSb; the last step's model is taken."""
    flags = _regression(scale, CROSS_RATE if cross else REGRESSION_RATE, cross=cross)
    flags += ["--pooling", pooling] if pooling else []
    kind = "cross" if cross else pooling or "mean"
    rows = Rows(("sts/stsb-train",), scale.stsb_pairs, seed)
    name = f"stsb-{scale.stsb_pairs or 'all'}x{scale.stsb_epochs}-{kind}{_after(start)}-s{seed}"
    return trained(name, rows, *flags, start=start, seed=seed)


def spread_out(method: str) -> Made:
    """The untrained encoder after whitening or a flow, fitted on NLI texts without labels."""
    texts = Rows(NLI, 20_000, shape="texts")
    return Made(method, verb="postprocess", start=UNTRAINED, rows=texts, flags=("--method", method))


def ranking(count: int | None, *flags: str) -> Made:
    """Watched on the development part where flags say so; then it is another model of another name."""
    name = f"ranking-{count or 'all'}{'' if flags or count is None else '-last'}"
    return trained(name, Rows(NLI, count), *RANKING, "--learning-rate", RANKING_RATE, *flags)


def watched_ranking(scale: Scale) -> Made:
    return ranking(scale.nli_pairs, "--eval-steps", "100", *WATCHED)


def table1(scale: Scale) -> list[Row]:
    triplets = Rows(("nli/snli-triplets",), scale.triplets)
    graded = Rows(NLI, scale.cosent_pairs, shape="graded")
    models = {
        "Avg. GloVe": GLOVE,
        "untrained, mean": UNTRAINED,
        "NLI, classification": nli(scale),
        "NLI, triplets": trained(f"triplet-{scale.triplets or 'all'}", triplets, *TRIPLET, *WATCHED),
        "NLI, in-batch ranking": watched_ranking(scale),
        "all-MiniLM-L6-v2": PUBLISHED,
        "untrained, whitening": spread_out("whitening"),
        "untrained, flow": spread_out("flow"),
        "NLI, CoSENT": trained(f"cosent-{scale.cosent_pairs or 'all'}", graded, *COSENT),
    }
    rows = [Row(label, model, sts(scale)) for label, model in models.items()]
    rows.insert(2, Row("untrained, CLS", UNTRAINED, sts(scale), pooling="cls"))
    # Extra: is CLS better than the mean because of its information or because of a direction that all vectors share?
    rows += [
        Row(
            f"untrained, {pooling}, centered",
            UNTRAINED,
            sts(scale),
            pooling=pooling.lower(),
            after="centering",
        )
        for pooling in ("mean", "CLS")
    ]
    return rows


def curve(scale: Scale) -> list[Row]:
    """STS over the number of NLI pairs; and the extra experiment on the learning rate of classification."""
    counts = [*scale.curve]
    rows = [Row(f"{count:,} pairs", short_nli(count, 0), sts(scale)) for count in counts]
    rate_pairs = counts[min(1, len(counts) - 1)]
    rows += [_at_rate(scale, rate_pairs, rate) for rate in scale.rates]
    rows += [_at_rate(scale, count, scale.rates[0]) for count in counts[2:]]
    rows += [Row(f"ranking, {count:,} pairs", ranking(count), sts(scale)) for count in counts[1:]]
    most = f"{scale.nli_pairs or ALL_PAIRS:,} pairs"
    rows.append(Row(most, nli(scale), sts(scale)))
    return [*rows, Row(f"ranking, {most}", watched_ranking(scale), sts(scale))]


def _at_rate(scale: Scale, count: int, rate: str) -> Row:
    flags = [*SHORT, "--learning-rate", rate, "--concat", "u,v,|u-v|", "--pooling", "mean"]
    model = (
        short_nli(count, 0) if rate == RATE else trained(f"nli-{count}-rate{rate}", Rows(NLI, count), *flags)
    )
    return Row(f"{count:,} pairs, learning rate {rate}", model, sts(scale))


def table2(scale: Scale) -> list[Row]:
    rows = [Row("bi-encoder, NLI", nli(scale), STSB_TEST), Row("untrained, mean", UNTRAINED, STSB_TEST)]
    crossed = cross_nli(scale.cross_nli_pairs)
    for seed in scale.seeds:
        models = {
            "bi-encoder, STSb": stsb(scale, seed),
            "cross-encoder, STSb": stsb(scale, seed, cross=True),
            "bi-encoder, NLI + STSb": stsb(scale, seed, start=nli(scale)),
            "cross-encoder, NLI + STSb": stsb(scale, seed, start=crossed, cross=True),
        }
        rows += [Row(label, model, STSB_TEST, seed) for label, model in models.items()]
    # Extra: does NLI before STSb hurt a small bi-encoder, or does classification on NLI?
    ranked, label = watched_ranking(scale), "bi-encoder, NLI ranking + STSb"
    rows += [Row(label, stsb(scale, seed, start=ranked), STSB_TEST, seed) for seed in scale.seeds]
    # Extra: do NLI pairs not help the cross-encoder because there are too few of them?
    more, label = cross_nli(4 * scale.cross_nli_pairs), "cross-encoder, more NLI + STSb"
    rows += [Row(label, stsb(scale, seed, start=more, cross=True), STSB_TEST, seed) for seed in scale.seeds]
    return rows


def table3(scale: Scale) -> list[Row]:
    """Fixed encoders first; then each fold trained and tested on what it left out."""
    whole = Suite("arguments", "arguments", (Rows((ARGUMENTS,)),))
    fixed = {"Avg. GloVe": GLOVE, "untrained, mean": UNTRAINED, "NLI, classification": nli(scale)}
    fixed |= {"all-MiniLM-L6-v2": PUBLISHED}
    rows = [Row(label, model, whole) for label, model in fixed.items()]
    # No regression on the 20,000 numbers of tf-idf: only its cosine, as in the paper.
    cosine = Suite("arguments-cosine", "sts", (Rows((ARGUMENTS,), shape="arguments"),))
    rows.append(Row("tf-idf", TFIDF, cosine))
    for number in range(scale.folds):
        for by in ("pairs", "topics"):
            rows += [_fold(scale, by, number, kind) for kind in ("bi-encoder", "cross-encoder")]
            rows.append(Row(f"tf-idf, {FOLDS[by]}", TFIDF, rows[-1].suite, number))
    # Extra: is the bi-encoder worse because its start model was not trained on sentences?
    ranked = watched_ranking(scale)
    return [*rows, *(_fold(scale, "pairs", number, "bi-encoder", ranked) for number in range(scale.folds))]


def _fold(scale: Scale, by: str, number: int, kind: str, start: Made = UNTRAINED) -> Row:
    fold = (by, number, scale.folds)
    rate = CROSS_RATE if kind == "cross-encoder" else REGRESSION_RATE
    flags = ("--kind", kind, "--objective", "regression", "--batch-size", "16", "--learning-rate", rate)
    after = "" if start is UNTRAINED else " after NLI ranking"
    model = trained(
        f"arguments-{scale.argument_epochs}-{kind}-{by}{number}of{scale.folds}{_after(start)}",
        Rows((ARGUMENTS,), scale.argument_pairs, shape="arguments", fold=fold),
        *flags, "--epochs", str(scale.argument_epochs), "--score-range", "0", "2", start=start,
    )  # fmt: skip
    suite = Suite(f"held-{by}", "sts", (Rows((ARGUMENTS,), shape="arguments", fold=fold, held_out=True),))
    return Row(f"{kind}{after}, {FOLDS[by]}", model, suite, number)


def table5(scale: Scale) -> list[Row]:
    settings = (
        ("only", ",".join(scale.senteval)),
        ("limit", scale.senteval_rows),
        ("folds", scale.senteval_folds),
    )
    suite = Suite("senteval", "transfer", settings=settings)
    models = {"untrained, mean": UNTRAINED, "NLI, classification": nli(scale), "Avg. GloVe": GLOVE}
    rows = [Row(label, model, suite) for label, model in models.items()]
    rows.append(Row("untrained, CLS", UNTRAINED, suite, pooling="cls"))
    return [*rows, Row("all-MiniLM-L6-v2", PUBLISHED, suite)]


def table6(scale: Scale) -> list[Row]:
    """One seed after the other, so that an interrupted run has complete seeds."""
    count, rows = scale.ablation_pairs, []
    for seed in scale.seeds:
        rows += [Row(f"({form})", short_nli(count, seed, form), STSB_DEV, seed) for form in CONCATS]
        for pooling in POOLINGS:
            rows.append(Row(f"NLI, {pooling}", short_nli(count, seed, pooling=pooling), STSB_DEV, seed))
        for pooling in POOLINGS:
            model = stsb(scale, seed, pooling="" if pooling == "mean" else pooling)
            rows.append(Row(f"STSb, {pooling}", model, STSB_DEV, seed))
    return rows


def _student_texts(scale: Scale) -> Rows:
    return Rows(STUDENT_FILES, each=scale.student_texts, shape="texts")


def students(scale: Scale) -> dict[str, Made]:
    """Models that learn the teacher's vectors of the same texts, as LEAF does: label to model."""
    count, texts = scale.student_texts, _student_texts(scale)
    # Without dropout: the target is a vector, and noise in it is only noise.
    training = ("--batch-size", "32", "--dropout", "0", "--learning-rate")
    recipes: dict[str, tuple[Made | None, tuple[str, ...]]] = {
        "two layers": (None, ("--how", "layers", "--keep", "0,1", *training, "1e-3", "--epochs", "2")),
        "three layers": (None, ("--how", "layers", "--keep", "0,1,2", *training, "1e-3")),
        START: (UNTRAINED, ("--how", "vectors", "--bridge", "dense", *training, "5e-4")),
        "static": (None, ("--how", "static", "--dim", "256")),
    }
    return {
        label: Made(
            f"student-{label.replace(' ', '-')}-{count or 'all'}",
            verb="distill",
            start=start,
            rows=texts,
            flags=flags,
        )
        for label, (start, flags) in recipes.items()
    }


def student(scale: Scale) -> list[Row]:
    """The teacher and its students on sentences, in search and in clustering; and queries on the teacher's index."""
    retrieval = Suite("retrieval", "retrieval", folder="retrieval")
    clustering = Suite(
        "clustering",
        "clustering",
        tuple(Rows((f"clustering/{name}",)) for name in ("agnews8000", "searchsnippets")),
    )
    models = {"teacher": PUBLISHED, **students(scale)}
    # Sentences of STS are in other data sets, too: are students better on those that they saw?
    tests = (Rows((f"sts/{name}-test",), without=_student_texts(scale)) for name in scale.sts)
    unseen = Suite("unseen", "sts", tuple(tests))
    suites = (sts(scale), unseen, retrieval, clustering) if scale.retrieval else (sts(scale),)
    rows = [Row(label, model, suite) for suite in suites for label, model in models.items()]
    if scale.retrieval:
        queries = {label: model for label, model in students(scale).items() if label != "static"}
        rows += [
            Row(f"{label}, queries only", model, retrieval, documents=PUBLISHED)
            for label, model in queries.items()
        ]
    return rows


def rate_runs(scale: Scale) -> list[Row]:
    """Three rates of each kind of training, measured on the development part."""
    return [
        Row(rates.label(kind, rate), _at(kind, rate, scale), STSB_PART, rates.SEED)
        for kind in rates.KINDS
        for rate in rates.CANDIDATES
    ]


def _at(kind: str, rate: str, scale: Scale) -> Made:
    """The run of a kind at a rate; those on STSb leave the development part out."""
    name, seed = f"rates-{kind}-{rate}", rates.SEED
    pairs = Rows(NLI, scale.ablation_pairs, seed)
    if kind in ("classification", "ranking"):
        flags = SHORT if kind == "classification" else RANKING
        return trained(name, pairs, *flags, "--learning-rate", rate, seed=seed)
    cross, start = kind.startswith("cross"), UNTRAINED
    if kind == "cross-classification":
        start = cross_nli(scale.cross_nli_pairs, rate, f"{name}-nli", seed)
        rate = rates.MIDDLE
    rest = Rows(("sts/stsb-train",), scale.stsb_pairs, seed, fold=rates.FOLD)
    return trained(name, rest, *_regression(scale, rate, cross=cross), start=start, seed=seed)


TABLES: dict[str, Callable[[Scale], list[Row]]] = {
    "rates": rate_runs,
    "6": table6,
    "2": table2,
    "1": table1,
    "5": table5,
    "3": table3,
    "curve": curve,
    "student": student,
}
"""In the order in which a run of limited time should answer them."""
