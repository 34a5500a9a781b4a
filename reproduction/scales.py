"""How large a reproduction is: pairs, seeds, folds. A smaller scale answers fewer claims, by the same commands."""

from __future__ import annotations

from dataclasses import dataclass

STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")
SENTEVAL = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")


@dataclass(frozen=True)
class Scale:
    """Numbers that a table's plan is made of. None is all that there is."""

    name: str
    seeds: tuple[int, ...]
    """Of runs that are repeated."""
    nli_pairs: int | None
    """Of the models of Table 1."""
    cosent_pairs: int | None
    triplets: int | None
    curve: tuple[int, ...]
    """Smaller numbers of NLI pairs for the curve; its last point is `nli_pairs`."""
    ablation_pairs: int
    """NLI pairs of each run of Table 6."""
    cross_nli_pairs: int
    """Of the cross-encoder that Table 2 starts from in its NLI row; an extra row has four times as many."""
    stsb_pairs: int | None
    stsb_epochs: int
    rates: tuple[str, ...]
    """Learning rates of the extra experiment on classification."""
    collapse_pairs: int
    """NLI pairs of each short run whose steps are followed."""
    collapse_rates: tuple[str, ...]
    """Learning rates of these runs; with only one, just the fix is tried, at one seed."""
    folds: int
    """Of Table 3: random ones, and as many groups of topics."""
    argument_epochs: int
    argument_pairs: int | None
    """Of those outside a fold."""
    sts: tuple[str, ...]
    """Sets of Table 1."""
    senteval: tuple[str, ...]
    senteval_rows: int
    """The most training rows that a classifier of Table 5 sees; 0 is all."""
    senteval_folds: int
    """Of sets without a split, and inside each of them; SentEval has 10."""
    student_texts: int | None
    """Of each file."""
    retrieval: bool
    """The students also search and cluster."""
    rounds: int
    """Bootstrap draws of an interval."""


SCALES = {
    "small": Scale(
        name="small",
        seeds=(0,),
        nli_pairs=4000,
        cosent_pairs=4000,
        triplets=2000,
        curve=(1000,),
        ablation_pairs=500,
        cross_nli_pairs=500,
        stsb_pairs=500,
        stsb_epochs=1,
        rates=("2e-5", "2e-4"),
        collapse_pairs=320,
        collapse_rates=("2e-4",),
        folds=2,
        argument_epochs=1,
        argument_pairs=500,
        sts=("sts13", "sts16", "stsb"),
        senteval=("cr", "trec", "mrpc"),
        senteval_rows=2000,
        senteval_folds=3,
        student_texts=200,
        retrieval=False,
        rounds=200,
    ),
    "medium": Scale(
        name="medium",
        seeds=(0, 1, 2),
        nli_pairs=None,
        cosent_pairs=20_000,
        triplets=None,
        curve=(4_000, 16_000, 48_000),
        ablation_pairs=16_000,
        cross_nli_pairs=20_000,
        stsb_pairs=None,
        stsb_epochs=2,
        rates=("2e-5", "2e-4", "5e-4"),
        collapse_pairs=8_000,
        collapse_rates=("2e-5", "6e-5", "2e-4"),
        folds=3,
        argument_epochs=2,
        argument_pairs=None,
        sts=STS,
        senteval=SENTEVAL,
        senteval_rows=10_000,
        senteval_folds=5,
        student_texts=10_000,
        retrieval=True,
        rounds=1000,
    ),
    "full": Scale(
        name="full",
        seeds=tuple(range(5)),
        nli_pairs=None,
        cosent_pairs=None,
        triplets=None,
        curve=(2_500, 10_000, 40_000, 80_000),
        ablation_pairs=40_000,
        cross_nli_pairs=40_000,
        stsb_pairs=None,
        stsb_epochs=4,
        rates=("2e-5", "5e-5", "1e-4", "2e-4", "5e-4"),
        collapse_pairs=16_000,
        collapse_rates=("2e-5", "6e-5", "2e-4"),
        folds=10,
        argument_epochs=4,
        argument_pairs=None,
        sts=STS,
        senteval=SENTEVAL,
        senteval_rows=0,
        senteval_folds=10,
        student_texts=None,
        retrieval=True,
        rounds=1000,
    ),
}
