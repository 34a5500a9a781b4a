"""A classifier in a folder: classifier.json, head.safetensors, and model/ where the model is no name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.json_file import read_object
from gemel.checkpoint.new_folder import new_folder, write_json
from gemel.errors import InputError, ModelError
from gemel.model import Model
from gemel.sklearn.head import Head

_ABOUT, _HEAD, _MODEL = "classifier.json", "head.safetensors", "model"
_KINDS = "biufU"  # of labels that JSON can say; objects are looked at one by one


@dataclass(frozen=True, eq=False)
class StoredClassifier:
    """All of a classifier but the model's weights."""

    parameters: Mapping[str, Any]
    classes: NDArray[Any]
    head: Head
    model: str
    """The name or the folder of the model that the head knows."""
    fingerprint: str
    """Of the vectors that the head knows."""
    tuned: bool

    def check_parameters(self, known: Collection[str]) -> None:
        """Refuse parameters that this version does not have."""
        strange = sorted(set(self.parameters) - set(known))
        if strange:
            raise ModelError(
                f"the saved classifier has the parameter {strange[0]!r}, which FewShotClassifier does not take. "
                f"It takes: {', '.join(known)}. Load it with the version that saved it, or fit it again"
            )

    def check(self, fingerprint: str) -> None:
        """Refuse another model than the one that the head was fitted on."""
        if fingerprint != self.fingerprint:
            raise ModelError(
                f"the model {self.model} makes other vectors ({fingerprint}) than when the classifier was saved "
                f"({self.fingerprint}). Give it the model of that time, or fit it again"
            )


def write_classifier(stored: StoredClassifier, model: Model, folder: str | Path, *, overwrite: bool) -> Path:
    """The folder appears whole or not at all; only a classifier is ever overwritten."""
    from safetensors.numpy import save_file

    target = Path(folder).absolute()
    _check_target(target, overwrite)
    classes = _plain(stored.classes)
    own = Path(stored.model).expanduser().is_dir()
    about = {
        "parameters": {name: _said(value) for name, value in stored.parameters.items()},
        "classes": classes,
        "dtype": "object" if stored.classes.dtype == object else stored.classes.dtype.str,
        "model": None if own else stored.model,
        "fingerprint": stored.fingerprint,
        "tuned": stored.tuned,
    }
    with new_folder(target) as working:
        write_json(working / _ABOUT, about)
        tensors = {"weight": stored.head.weight, "bias": stored.head.bias}
        save_file({name: np.ascontiguousarray(each) for name, each in tensors.items()}, working / _HEAD)
        if own:
            model.save(working / _MODEL)
    return Path(folder)


def read_classifier(folder: str | Path) -> StoredClassifier:
    """What `write_classifier` wrote."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    place = Path(folder).expanduser()
    if not (place / _ABOUT).is_file():
        raise ModelError(f"no classifier in {place}: there is no {_ABOUT}. Give a folder that save() made")
    about = read_object(place / _ABOUT)
    try:
        tensors = load_file(place / _HEAD)
        return StoredClassifier(
            parameters={**about["parameters"]},
            classes=np.array(about["classes"], dtype=np.dtype(about["dtype"])),
            head=Head(tensors["weight"], tensors["bias"]),
            model=about["model"] or str(place / _MODEL),
            fingerprint=about["fingerprint"],
            tuned=about["tuned"],
        )
    except (KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
        raise ModelError(f"the classifier in {place} cannot be read: {error}. Save it again") from error


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not overwrite:
        raise InputError(
            f"{target} exists and is not empty. Give a new folder, or overwrite it (overwrite=True)"
        )
    if not (target / _ABOUT).is_file():
        raise InputError(f"{target} holds no classifier and is not overwritten. Give a new folder")


def _plain(classes: NDArray[Any]) -> list[Any]:
    """The labels as JSON has them."""
    values: list[Any] = classes.tolist()
    if classes.dtype.kind in _KINDS or all(isinstance(value, str | bool | int | float) for value in values):
        return values
    raise InputError(f"classes of the type {classes.dtype} cannot be saved as JSON. Use texts or numbers")


def _said(value: object) -> object:
    """A parameter as JSON has it; searches over grids give numpy's numbers."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value
