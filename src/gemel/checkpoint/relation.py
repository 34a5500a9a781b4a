"""The relation head of a checkpoint: what training on labelled pairs leaves behind, as plain data.

It lies in the folder `relation` of the model, beside the modules and not among them: modules.json does not name it,
so other programs read the model as if it were not there. `encoder/relation.py` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.json_file import read_object
from gemel.checkpoint.new_folder import write_json
from gemel.checkpoint.weights import module_weights
from gemel.errors import InputError, ModelError

FOLDER = "relation"
PARTS = ("u", "v", "|u-v|", "u*v")
"""What the two vectors u and v can be joined from."""


@dataclass(frozen=True, eq=False)
class RelationHead:
    """softmax(weight @ joined + bias), where `joined` is made of the vectors u and v as `concat` says."""

    concat: str
    """Parts in their order, such as "u,v,|u-v|"."""
    weight: NDArray[np.float32]
    """(k, parts * dim)"""
    bias: NDArray[np.float32] | None
    """(k,)"""
    labels: tuple[str, ...]
    """k names, in the order of the rows of `weight`."""

    @property
    def dim(self) -> int:
        """Numbers in each of the two vectors."""
        return int(self.weight.shape[1]) // len(parse_concat(self.concat))


def parse_concat(spec: str) -> tuple[str, ...]:
    """The parts of a spec such as "u,v,|u-v|"; refused when one is unknown, comes twice, or a vector is left out."""
    parts = tuple("".join(part.split()) for part in spec.split(","))
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise InputError(f"concat has an unknown part {unknown[0]!r}, in {spec!r}. Known: {', '.join(PARTS)}")
    if len(set(parts)) < len(parts):
        raise InputError(f"concat names a part twice: {spec!r}. Name each once")
    if set(parts) in ({"u"}, {"v"}):
        raise InputError(f"concat {spec!r} looks at one of the two vectors only. Try 'u,v,|u-v|'")
    return parts


def read_relation(model: Path) -> RelationHead | None:
    """The head in the folder of a model; None if it has none."""
    folder = model / FOLDER
    if not folder.is_dir():
        return None
    config = read_object(folder / "config.json")
    weights = module_weights(model, folder)
    if "weight" not in weights:
        raise ModelError(f"{folder}: a relation head needs the tensor 'weight', found {', '.join(weights)}")
    head = RelationHead(
        str(config.get("concat")), weights["weight"], weights.get("bias"), _labels(folder, config)
    )
    try:
        check_relation(head)
    except InputError as error:
        raise ModelError(f"{folder}: {error}") from error
    return head


def write_relation(head: RelationHead, model: Path) -> None:
    """Put the head into the folder of a model that has none."""
    from safetensors.numpy import save_file

    check_relation(head)
    folder = model / FOLDER
    write_json(folder / "config.json", {"concat": head.concat, "labels": list(head.labels)})
    tensors = {"weight": head.weight} if head.bias is None else {"weight": head.weight, "bias": head.bias}
    ready = {name: np.array(tensor, np.float32, order="C") for name, tensor in tensors.items()}
    save_file(ready, folder / "model.safetensors", metadata={"format": "pt"})


def check_relation(head: RelationHead) -> None:
    """Refuse a head whose parts do not fit together."""
    parts, labels = parse_concat(head.concat), len(head.labels)
    if labels < 2 or len(set(head.labels)) < labels:
        raise InputError(f"a relation head needs two or more different labels, got {list(head.labels)}")
    shape = head.weight.shape
    bias = (labels,) if head.bias is None else head.bias.shape
    if len(shape) != 2 or shape[0] != labels or shape[1] < 1 or shape[1] % len(parts) or bias != (labels,):
        raise InputError(
            f"a weight of shape {shape} and a bias of shape {None if head.bias is None else bias} "
            f"do not fit {labels} labels and the parts {head.concat!r}"
        )
    if not (np.isfinite(head.weight).all() and (head.bias is None or np.isfinite(head.bias).all())):
        raise InputError("the relation head has weights that are NaN or infinite. Train it again")


def _labels(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    labels = config.get("labels")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ModelError(f"{folder / 'config.json'}: 'labels' must be a list of names, got {labels!r}")
    return tuple(labels)
