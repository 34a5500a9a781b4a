"""All checks, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gemel.objectives.table import Needs
from gemel.training.doctor.diagnosis import Diagnosis, Finding, worst_first
from gemel.training.doctor.evidence import Evidence
from gemel.training.doctor.in_batch import crowded_texts, false_negatives
from gemel.training.doctor.label_values import class_balance, constant_label, group_sizes, out_of_scale
from gemel.training.doctor.leakage import leaked_pairs
from gemel.training.doctor.overlap import (
    positives_against_negatives,
    premises_against_hypotheses,
    scores_against_words,
)
from gemel.training.doctor.repeats import conflicting_labels, exchanged_texts, repeated_rows
from gemel.training.doctor.same_texts import same_negatives, same_texts
from gemel.training.doctor.text_lengths import Tokenizer, cut_texts, empty_texts
from gemel.training.examples import Examples

CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    constant_label,
    out_of_scale,
    same_texts,
    same_negatives,
    scores_against_words,
    positives_against_negatives,
    premises_against_hypotheses,
    conflicting_labels,
    exchanged_texts,
    repeated_rows,
    false_negatives,
    crowded_texts,
    group_sizes,
    class_balance,
    empty_texts,
)


def examine(
    examples: Examples,
    needs: Needs,
    *,
    batch_size: int,
    tokenizer: Tokenizer | None = None,
    max_length: int | None = None,
    evaluation_texts: Iterable[tuple[str, str]] = (),
) -> Diagnosis:
    """What is wrong or odd about a data set. Reads every row once and looks closely at a sample of 2,000.

    `evaluation_texts`: the pairs that the model will be scored on. Truncation is looked at if both `tokenizer` and
    `max_length` (marks included) are given. Nothing is changed and nothing is refused: that is the caller's to do.
    """
    evidence = Evidence(examples, needs, batch_size)
    found = [finding for check in CHECKS for finding in check(evidence)]
    if tokenizer is not None and max_length is not None:
        found += cut_texts(evidence, tokenizer, max_length)
    found += leaked_pairs(evidence, evaluation_texts)
    return Diagnosis(examples.name, len(examples), len(evidence.sample_rows), worst_first(found))
