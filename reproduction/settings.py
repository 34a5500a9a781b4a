"""What a scale means for a table, in a sentence of its page."""

from __future__ import annotations

from reproduction.scales import SCALES, Scale


def _many(count: int | None) -> str:
    return f"{count:,}" if count else "all"


def _runs(scale: Scale) -> str:
    return f"STSb: {_many(scale.stsb_pairs)} pairs, {scale.stsb_epochs} epochs, at least {len(scale.seeds)} seeds"


def sentence(table: str, scale_name: str) -> str:
    """Empty where nothing depends on the scale."""
    scale = SCALES[scale_name]
    sentences = {
        "rates": f"NLI: {scale.ablation_pairs:,} pairs, cross-encoder {scale.cross_nli_pairs:,}; one seed.",
        "1": f"NLI: {_many(scale.nli_pairs)} pairs, CoSENT {_many(scale.cosent_pairs)}; "
        f"{_many(scale.triplets)} triplets; one seed.",
        "2": f"{_runs(scale)}. NLI before it: bi-encoder {_many(scale.nli_pairs)} pairs, "
        f"cross-encoder {scale.cross_nli_pairs:,}, or four times that.",
        "3": f"{scale.folds} folds, {scale.argument_epochs} epochs.",
        "5": f"At most {_many(scale.senteval_rows)} training rows for a classifier, {scale.senteval_folds} folds.",
        "6": f"NLI: {scale.ablation_pairs:,} pairs a run, at least {len(scale.seeds)} seeds. {_runs(scale)}.",
        "collapse": f"NLI: {scale.collapse_pairs:,} pairs in batches of 32; {len(scale.seeds)} seeds of the fix.",
        "student": "All texts."
        if scale.student_texts is None
        else f"At most {scale.student_texts:,} texts of a file.",
    }
    return f"Scale `{scale_name}`. {sentences.get(table, '')}".rstrip()
