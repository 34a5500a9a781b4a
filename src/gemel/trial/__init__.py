"""Engines, precisions and batch sizes measured on this machine, and the winners kept for later."""

from gemel.trial.keeping import (
    SavedChoices,
    SavedEngine,
    SavedPrecision,
    forget_choices,
    keep_winners,
    saved_choices,
    saved_precision,
)
from gemel.trial.measuring import Agreement, Trial, Trials, agreement, run_trials

__all__ = [
    "Agreement",
    "SavedChoices",
    "SavedEngine",
    "SavedPrecision",
    "Trial",
    "Trials",
    "agreement",
    "forget_choices",
    "keep_winners",
    "run_trials",
    "saved_choices",
    "saved_precision",
]
