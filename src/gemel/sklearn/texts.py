"""What scikit-learn hands to an estimator -> texts; and models that estimators share."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gemel.errors import InputError
from gemel.model import Model, load
from gemel.text.tokenizer import check_texts

_MODELS = 4  # kept in memory: a search over parameters makes dozens of estimators with the same one


def texts_of(given: Any) -> list[str]:  # noqa: ANN401 - a list, an array, a column or a frame of one column
    """The texts of a list, an array, a Series, or a table of one column."""
    if isinstance(given, str | bytes):
        raise InputError("the input is a list of texts, got one string. Write [text]")
    if getattr(given, "ndim", 1) == 2:
        columns = given.shape[1]
        if columns != 1:
            raise InputError(
                f"the input is one column of texts, got {columns}. Take a column, or give each column a "
                "SentenceVectors of its own with ColumnTransformer"
            )
        given = np.asarray(given, dtype=object)[:, 0]
    return check_texts(given)


def shared_model(model: object) -> Model:
    """The model of a name or folder, one for all estimators of the process; a folder that changed is read again."""
    if not isinstance(model, str | Path):
        kind = type(model).__name__
        raise InputError(f"model is a name or a folder, so that it can be cloned and pickled; got a {kind}")
    folder = Path(model).expanduser()
    stamp = max((path.stat().st_mtime_ns for path in folder.iterdir()), default=0) if folder.is_dir() else 0
    return _loaded(str(model), stamp)


@lru_cache(maxsize=_MODELS)
def _loaded(model: str, stamp: int) -> Model:
    """`stamp` tells two states of a folder apart."""
    return load(model)
