"""`CrossEncoder` of sentence-transformers with a gemel cross-encoder: `predict` and `rank`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from gemel.compat.model import LOADING, refuse
from gemel.compat.util import to_tensor
from gemel.cross_model import CrossModel, load_cross
from gemel.encoder.head import sigmoid, softmax
from gemel.errors import NOT_MEMBERS, InputError
from gemel.options import CrossOptions

Pair = Sequence[str]

_TRAIN = "Train with gemel.train(model, data, objective=..., kind='cross-encoder', out=...)"

MEMBERS = {
    **NOT_MEMBERS,
    **dict.fromkeys(("fit", "train", "old_fit"), _TRAIN),
    "tokenizer": "The tokenizer is the checkpoint's",
    "evaluate": "Score it with gemel.evaluate(gemel.load_cross(name), task='reranking', data=...)",
}
"""Unsupported members of the class and arguments of its methods, with what to use instead."""


class CrossEncoder:
    """The class of sentence-transformers with a gemel cross-encoder, which is `model`.

    A pair that is too long for the model is truncated without a warning, as in sentence-transformers.
    """

    def __init__(
        self,
        model_name_or_path: str | Path | CrossModel,
        num_labels: int | None = None,
        max_length: int | None = None,
        *,
        activation_fn: Any = None,  # noqa: ANN401 - a module of torch
        device: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **others: Any,
    ) -> None:
        """`device` None is the CPU. `num_labels` is checked against the checkpoint, which has a trained head."""
        refuse(others, LOADING)
        if isinstance(model_name_or_path, CrossModel):
            self.model = model_name_or_path
        else:
            self.model = load_cross(
                model_name_or_path, revision=revision, offline=local_files_only, device=str(device or "cpu")
            )
        if num_labels not in (None, self.num_labels):
            raise InputError(
                f"{self.model.name} has {self.num_labels} labels, got num_labels={num_labels}. {_TRAIN}"
            )
        self.max_length = max_length or self.model.max_length
        self.activation_fn = activation_fn

    @property
    def num_labels(self) -> int:
        return len(self.model.labels)

    def predict(
        self,
        inputs: Sequence[Pair] | Pair | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Any = None,  # noqa: ANN401 - a module of torch
        apply_softmax: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        *,
        sentences: Sequence[Pair] | Pair | None = None,
        **others: Any,
    ) -> Any:  # noqa: ANN401 - an array, a tensor, a list, or a number for one pair
        """(n,) scores of pairs, or (n, labels) outputs of the network if there are several labels.

        `sentences` is the older name of `inputs`. `batch_size` is ignored, as in `encode`.
        """
        refuse(others, MEMBERS)
        given = inputs if inputs is not None else sentences
        if given is None:
            raise InputError("predict takes a pair of texts or a list of pairs, got none")
        single = len(given) == 2 and all(isinstance(text, str) for text in given)
        pairs = [cast("Pair", given)] if single else [_pair(pair, i) for i, pair in enumerate(given)]
        options = CrossOptions(
            max_length=self.max_length, on_long="truncate", progress=bool(show_progress_bar)
        )
        logits = self.model.logits([pair[0] for pair in pairs], [pair[1] for pair in pairs], options)
        result = self._activated(logits, activation_fn or self.activation_fn, apply_softmax)
        tensors = convert_to_tensor or not convert_to_numpy
        scores = to_tensor(result) if tensors else result
        if single:
            return scores[0]
        return scores if convert_to_tensor or not tensors else list(scores)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        *arguments: Any,
        **named: Any,
    ) -> list[dict[str, Any]]:
        """The documents by their score for the query, best first: dicts of corpus_id, score and text if requested."""
        if self.num_labels != 1:
            raise InputError(
                f"{self.model.name} has {self.num_labels} labels, so a pair has no single score. Use predict"
            )
        scores = self.predict([(query, document) for document in documents], *arguments, **named)
        order = np.argsort(-np.asarray(scores), kind="stable")[:top_k]
        return [
            {"corpus_id": int(i), "score": scores[i], **({"text": documents[i]} if return_documents else {})}
            for i in order
        ]

    def save(self, path: str | Path, **others: Any) -> None:
        """Write a folder that gemel and sentence-transformers load; an existing model is replaced."""
        refuse({name: value for name, value in others.items() if name != "safe_serialization"}, MEMBERS)
        self.model.save(path, overwrite=True)

    save_pretrained = save

    def _activated(
        self, logits: NDArray[np.float32], activation: object, apply_softmax: bool
    ) -> NDArray[Any]:
        name = type(activation).__name__ if activation is not None else self._default()
        if name not in ("Sigmoid", "Identity"):
            raise InputError(
                f"activation_fn must be torch.nn.Sigmoid() or Identity(), got {name}. "
                "Outputs of the network: gemel.load_cross(name).logits(left, right)"
            )
        scores = sigmoid(logits) if name == "Sigmoid" else logits
        if apply_softmax and self.num_labels > 1:
            scores = softmax(scores)
        return scores[:, 0] if self.num_labels == 1 else scores

    def _default(self) -> str:
        one = self.num_labels == 1 and self.model.checkpoint.activation != "identity"
        return "Sigmoid" if one else "Identity"

    def __getattr__(self, name: str) -> NoReturn:
        # An AttributeError, so that hasattr() is False.
        instead = f" {MEMBERS[name]}" if name in MEMBERS else ""
        raise AttributeError(f"gemel.compat.CrossEncoder has no {name!r}.{instead}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"CrossEncoder({self.model!r})"


def _pair(pair: object, position: int) -> Pair:
    if isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair):
        return pair
    raise InputError(f"inputs[{position}] must be a pair of texts, got {pair!r:.60}. Write (query, document)")
