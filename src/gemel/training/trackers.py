"""Metrics to TensorBoard, Weights & Biases or MLflow, through accelerate's trackers; to none unless asked.

The journal is the record of a run. A tracker is a copy of it elsewhere, so one that fails ends itself, not the run.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemel.errors import InputError, WorkError

if TYPE_CHECKING:
    from accelerate import Accelerator

PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "mlflow": ("mlflow",)}
"""Name of each tracker to the packages of which one must be there; the first is the one to install."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a name that is not known, or whose package is not installed (accelerate would leave it out in silence)."""
    for name in names:
        if name not in PACKAGES:
            close = get_close_matches(name, PACKAGES, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise InputError(f"unknown tracker {name!r}.{hint} Known: {', '.join(PACKAGES)}")
        if not any(find_spec(package) for package in PACKAGES[name]):
            package = PACKAGES[name][0]
            raise InputError(
                f"tracker {name!r} needs the package {package!r}, which is not installed. Install it with: "
                f"pip install {package}"
            )


class Trackers:
    """The trackers of one run; without names all methods do nothing."""

    def __init__(
        self,
        accelerator: Accelerator,
        names: Sequence[str],
        run_name: str,
        options: Mapping[str, Any],
        *,
        folder: Path | str | None = None,
    ) -> None:
        """`options` are shown as the run's settings; `folder` is where TensorBoard's files go, ./runs if not given."""
        check_trackers(names)
        self._accelerator: Accelerator | None = accelerator if names else None
        if not names:
            return
        from accelerate.utils import LoggerType

        accelerator.project_configuration.logging_dir = str(folder or accelerator.logging_dir or "runs")
        accelerator.log_with = [LoggerType(name) for name in dict.fromkeys(names)]
        try:
            accelerator.init_trackers(run_name, config=_flat(options))
        except Exception as error:  # whatever a tracker raises: no key, no server, no disk
            raise WorkError(
                f"cannot report to {', '.join(names)}: {error}. Train without tracker, or set it up first"
            ) from error

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers of this step; those that are None are left out."""
        if self._accelerator is None:
            return
        known = {name: value for name, value in values.items() if value is not None}
        try:
            self._accelerator.log(known, step=step)
        except Exception as error:  # as above; hours of work must not end with a lost connection
            self._accelerator = None
            warnings.warn(
                f"a tracker failed at step {step} and gets nothing more: {error}. The metrics are in the journal",
                stacklevel=2,
            )

    def end(self) -> None:
        """Let the trackers write what they still hold."""
        if self._accelerator is None:
            return
        # Not accelerator.end_training(), which also takes down the process group, and others may still need that.
        for tracker in self._accelerator.trackers:
            tracker.finish()
        self._accelerator.trackers, self._accelerator = [], None


def _flat(options: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Settings as trackers take them: TensorBoard refuses lists, and leaves out what is None."""
    return {
        name: value if isinstance(value, str | int | float | bool) else _text(value)
        for name, value in options.items()
    }


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
