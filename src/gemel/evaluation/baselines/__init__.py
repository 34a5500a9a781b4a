"""Simple systems that a model should beat, opened by name: word vectors, word counts, plain transformers."""

from gemel.evaluation.baselines.names import BASELINES, is_baseline, open_baseline

__all__ = ["BASELINES", "is_baseline", "open_baseline"]
