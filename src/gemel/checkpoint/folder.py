"""A model folder to a `Checkpoint`: what to run, as plain data. No code of a checkpoint is ever run.

Four layouts are read: sentence-transformers (modules.json), a plain Hugging Face encoder (config.json, pooled by the
mean), a table of token vectors (StaticEmbedding or model2vec), and an adapter (LoRA) on one of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import (
    architecture_of,
    first_class,
    has_task_folders,
    least,
    max_positions,
)
from gemel.checkpoint.files import (
    Tensors,
    has_m3_layers,
    is_adapter,
    module_weights,
    other_format,
    read_object_if_there,
)
from gemel.checkpoint.head import ClassificationHead, Dense, PoolingConfig, read_classification_head
from gemel.checkpoint.settings import (
    LATE_TRANSFORMER,
    Side,
    TransformerSettings,
    read_settings,
    read_transformer_settings,
)
from gemel.errors import GemelError, InputError, ModelError

if TYPE_CHECKING:
    from gemel.checkpoint.adapter import Adapter
    from gemel.checkpoint.modules import Steps

__all__ = ["Checkpoint", "Dense", "PoolingConfig", "is_model_folder", "read_checkpoint"]

SearchSide = Literal["query", "document"]

_SIDES: Mapping[SearchSide, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}
"""What checkpoints call the prompts of queries and documents."""

_SIDE_TASKS: Mapping[SearchSide, str] = {"query": "retrieval.query", "document": "retrieval.passage"}
"""What they call the adapters for them, and the prompts that were trained with these."""

_STATIC_TABLES = ("embedding.weight", "embeddings")

_MODEL2VEC_LENGTH = 512  # what model2vec's own encode cuts at


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """One model as its folder describes it."""

    folder: Path
    """Where it was read from: a folder, or a GGUF file."""
    name: str
    kind: Literal["transformer", "static"]
    config: Mapping[str, Any]
    """config.json of the transformer, with `config_args` of sentence_bert_config.json over it; or empty."""
    weights: Tensors
    """Of the transformer, or of the static table."""
    tokenizer_file: Path
    """tokenizer.json, or the vocab.txt of a BERT WordPiece; `load_tokenizer` reads both."""
    lowercase: bool
    """Texts are lower-cased; `load_tokenizer` sees to it."""
    max_length: int | None
    """Tokens of a text that count, special tokens included. None: no limit."""
    pooling: PoolingConfig
    dense: tuple[Dense, ...]
    normalize: bool
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    similarity: str | None
    """cosine, dot, euclidean or manhattan"""
    notes: tuple[str, ...]
    """Assumptions that were made, for people to read."""
    skip_unknown: bool = False
    """Unknown tokens do not count (model2vec's rule)."""
    parts: tuple[Path, ...] = field(default=())
    """Every weight file, of the dense layers too; not of the classification head, on which no vector depends."""
    relation: ClassificationHead | None = None
    """The classification head that training on labeled pairs gave the model."""
    truncate_dim: int | None = None
    """Numbers of a finished vector that count, unless the caller gives `dim`; None: all."""
    truncation_side: Side | None = None
    """The end at which a long text loses tokens; None: as tokenizer.json says, else the right one."""
    tokenizer_settings: Mapping[str, Any] = field(default_factory=dict)
    """tokenizer_config.json of a transformer, with `tokenizer_args` over it; `load_tokenizer` follows it."""
    adapter: Adapter | None = None
    """The adapter that `weights` adds to those of the base model."""
    query_side: Checkpoint | None = None
    """What encodes queries, where they have modules (a Router) or an adapter of their own; this one: documents."""
    default_side: SearchSide | None = None
    """Of a checkpoint with two sides, the one of a text without a side: as a Router or the chosen task says."""

    @property
    def sides_are_tasks(self) -> bool:
        """The two sides are adapters of one network (jina-embeddings-v3), not modules of their own."""
        return self.query_side is not None and bool(self.config.get("lora_adaptations"))

    @property
    def task(self) -> str | None:
        """The task that `load` was given or config.json names; None: none, or both sides of a search."""
        if self.sides_are_tasks:
            return None if self.default_side is None else _SIDE_TASKS[self.default_side]
        task = self.config.get("default_task")
        return task if isinstance(task, str) else None

    @property
    def plain(self) -> Checkpoint:
        """The side that the chosen task names; without one, the checkpoint itself."""
        if self.query_side is None or self.task is None:
            return self
        own = self.query_side if self.default_side == "query" else self
        return replace(own, query_side=None, default_side=None)

    def with_pooling(self, modes: tuple[str, ...]) -> Checkpoint:
        """With other poolings than its own, of both sides where it has two."""
        query, pooling = self.query_side, replace(self.pooling, modes=modes)
        if query is not None and not self.sides_are_tasks:
            raise InputError(f"the pooling of {self.name}, a model of two sides, cannot be replaced")
        # A classification head was trained on the vectors of the checkpoint's own pooling.
        return replace(
            self, pooling=pooling, relation=None, query_side=query and replace(query, pooling=pooling)
        )

    def same_network(self, other: Checkpoint) -> bool:
        """Both run the same network with the same weights; what comes after it may differ."""
        mine, theirs = ((each.kind, each.config, each.adapter, each.weights.files) for each in (self, other))
        return mine == theirs

    def prompt_name(self, side: SearchSide) -> str | None:
        """The name of the checkpoint's prompt for queries or documents; None: it has none."""
        task, tasks = self.config.get("default_task"), self.config.get("lora_adaptations")
        if task in _SIDE_TASKS.values() and isinstance(tasks, list) and _SIDE_TASKS[side] not in tasks:
            raise ModelError(
                f"{self.name} was loaded for the task {task!r}, and a {side} needs {_SIDE_TASKS[side]!r}, for which it "
                "has no adapter. Load it for a task without sides"
            )
        return next((name for name in self._side_names(side) if name in self.prompts), None)

    def side_of(self, name: str | None) -> SearchSide | None:
        """The side of a search that the name of a prompt or of a task stands for; None: neither."""
        return next((side for side in _SIDES if name in self._side_names(side)), None)

    def no_side(self, name: str | None) -> InputError:
        """The error for a text without a side, or with a prompt of this name, of which there are two."""
        neither = "" if name is None else f", and the prompt {name!r} names neither"
        sides = (self.prompt_name("query"), self.prompt_name("document"))
        what = "adapters" if self.sides_are_tasks else "modules"
        return InputError(
            f"the model {self.name} encodes queries and documents with different {what}{neither}. Use encode_query or "
            f"encode_document, or prompt_name={' or '.join(map(repr, sides))}"
            f"{', or load it for another task: load(..., task=...)' * self.sides_are_tasks}"
        )

    def _side_names(self, side: SearchSide) -> tuple[str, ...]:
        return (*_SIDES[side], *[_SIDE_TASKS[side]] * self.sides_are_tasks)

    @property
    def width(self) -> int | None:
        """Numbers per token; None if the config does not say."""
        if self.kind == "static":
            return self.weights.shape(next(name for name in _STATIC_TABLES if name in self.weights))[1]
        architecture = architecture_of(self.config)
        keys = ("hidden_size", "dim", "d_model") if architecture is None else (architecture.width_key,)
        values = (self.config.get(key) for key in keys)
        return next((value for value in values if isinstance(value, int)), None)

    @property
    def parameters(self) -> int:
        """Numbers of all weights, heads that are not run included."""
        dense = sum(
            layer.weight.size + (0 if layer.bias is None else layer.bias.size) for layer in self.dense
        )
        return sum(prod(self.weights.shape(name)) for name in self.weights) + dense

    @property
    def network_folder(self) -> Path:
        """The folder of the transformer's config.json: `folder`, or the sub-folder of its module."""
        parents = self.weights.files[0].parents
        return next((parent for parent in parents if (parent / "config.json").is_file()), self.folder)

    @property
    def dim(self) -> int | None:
        """Numbers per text; None if the config does not say."""
        if self.dense:
            full = self.dense[-1].outputs
        elif self.width is not None:
            full = self.width * len(self.pooling.modes)
        else:
            return None
        return min(full, self.truncate_dim or full)


def is_model_folder(folder: Path) -> bool:
    """True if `folder` looks like a checkpoint of any layout."""
    names = ("modules.json", "config.json", "adapter_config.json")
    return any((folder / name).is_file() for name in names)


def is_cross_encoder(folder: Path) -> bool:
    """True if the model in `folder` is a cross-encoder, which scores pairs of texts and makes no vectors."""
    settings = read_object_if_there(folder / "config_sentence_transformers.json")
    if "model_type" in settings or (folder / "modules.json").is_file():
        return settings.get("model_type") == "CrossEncoder"
    return first_class(read_object_if_there(folder / "config.json")).endswith("ForSequenceClassification")


def is_sparse_encoder(folder: Path) -> bool:
    """True if the model in `folder` says that it is a sparse encoder, which gives weights of words."""
    settings = read_object_if_there(folder / "config_sentence_transformers.json")
    return settings.get("model_type") == "SparseEncoder"


def is_language_model(folder: Path) -> bool:
    """True for a plain language model, a ...ForCausalLM without modules.json."""
    config = read_object_if_there(folder / "config.json")
    return not (folder / "modules.json").is_file() and first_class(config).endswith("ForCausalLM")


def read_checkpoint(
    folder: Path,
    *,
    name: str | None = None,
    cross: bool = False,
    task: str | None = None,
    offline: bool = False,
    late: Steps | None = None,
) -> Checkpoint:
    """The checkpoint in `folder`; `name` is what messages call it (default: the folder's own).

    `cross`: the encoder inside a cross-encoder, without its head (`checkpoint/cross.py` reads that). `task`: of those
    that the checkpoint has an adapter for. `offline`: the base model of an adapter is not downloaded. `late`: the
    network of a model for late interaction (`encoder/late.py` reads the rest).
    """
    folder = Path(folder)
    if folder.suffix == ".gguf" and not cross:
        from gemel.checkpoint.gguf import read_gguf

        return read_gguf(folder, name=name)
    if not folder.is_dir():
        raise ModelError(
            f"no model folder {folder}. Give an existing folder or the name of a model", code="GEM-202"
        )
    if not is_model_folder(folder):
        other = other_format(folder)
        reason = "it has neither modules.json nor config.json" if other is None else other
        raise ModelError(f"{folder} is not a model that gemel reads: {reason}", code="GEM-202")
    if late is not None:
        return _read(folder, late, name, _Request(cross, task, offline, late=True))
    _check_kind(folder, cross)
    if is_adapter(folder) and not (folder / "modules.json").is_file():
        return _adapted(folder, name, offline)
    from gemel.checkpoint.modules import Steps, plain_steps, read_side_steps

    request = _Request(cross, task, offline)
    if not (folder / "modules.json").is_file():
        notes: list[str] = []
        plain = Steps("transformer", folder, None, (), (), False) if cross else plain_steps(folder, notes)
        return _with_task_sides(_read(folder, plain, name, request, notes))
    sides = read_side_steps(folder)
    if sides.document.logit_score is not None and not cross:
        raise ModelError(
            f"{folder} scores pairs by the answers of a language model, but its config_sentence_transformers.json "
            "does not call it a CrossEncoder. Add that 'model_type', and load it with gemel.load_cross(...)"
        )
    document = _read(folder, sides.document, name, request)
    if sides.query is None:
        return _with_task_sides(document)
    query = _read(folder, sides.query, name, request)
    note = "queries and documents have modules of their own: use encode_query and encode_document"
    return _with_query_side(document, query, sides.default, note)


def _with_task_sides(checkpoint: Checkpoint) -> Checkpoint:
    """With both sides of a search, where it has an adapter for each and was not requested for another task."""
    tasks, task = checkpoint.config.get("lora_adaptations"), checkpoint.config.get("default_task")
    sides = {name: side for side, name in _SIDE_TASKS.items()}
    if not isinstance(tasks, list) or not all(name in tasks for name in sides) or task not in (None, *sides):
        return checkpoint
    if not any(name.endswith(".lora_A") for name in checkpoint.weights):
        return checkpoint  # saved without the adapters that config.json lists
    document, query = (
        replace(checkpoint, config={**checkpoint.config, "default_task": _SIDE_TASKS[side]})
        for side in ("document", "query")
    )
    note = "queries and documents have adapters of their own: use encode_query and encode_document, or load for a task"
    both = _with_query_side(document, query, sides.get(task or ""), note)
    default = None if both.side_of(both.default_prompt_name) else both.default_prompt_name
    query = replace(query, prompts=both.prompts, default_prompt_name=default or both.prompt_name("query"))
    own = default or both.prompt_name("document")
    return replace(both, default_prompt_name=own, query_side=query)


def _with_query_side(
    document: Checkpoint, query: Checkpoint, default: SearchSide | None, note: str
) -> Checkpoint:
    """The two sides as one checkpoint; a prompt names the side, so that each has one, if only an empty one."""
    if document.dim != query.dim:
        raise ModelError(
            f"{document.folder}: vectors of queries have {query.dim} numbers and those of documents {document.dim}: "
            "they cannot be compared"
        )
    both = replace(document, query_side=query, default_side=default)
    prompts = dict(document.prompts)
    prompts |= {side: "" for side in _SIDES if both.prompt_name(side) is None}
    query = replace(query, prompts=prompts, relation=None)
    parts = tuple(dict.fromkeys((*document.parts, *query.parts)))
    changes: dict[str, Any] = {"prompts": prompts, "relation": None, "parts": parts, "query_side": query}
    return replace(both, **changes, notes=(*document.notes, note))


def read_sparse_part(folder: Path, steps: Steps, *, name: str | None, offline: bool) -> Checkpoint:
    """The network of a sparse encoder, with these steps; `checkpoint/sparse.py` reads what comes after them."""
    return _read(folder, steps, name, _Request(False, None, offline, sparse=True))


class _Request(NamedTuple):
    """What `read_checkpoint` was called with."""

    cross: bool
    task: str | None
    offline: bool
    sparse: bool = False
    late: bool = False


def _read(
    folder: Path, steps: Steps, name: str | None, request: _Request, notes: Sequence[str] = ()
) -> Checkpoint:
    """The checkpoint of these steps, which are in `folder`."""
    cross, task, offline, sparse, late = request
    base = _base_of(steps.folder, offline) if is_adapter(steps.folder) else None
    own = _own_settings(steps, request, base)
    if cross and own.truncation_side == "left":
        raise ModelError(f"{folder}: 'truncation_side' is left, which is not supported for pairs of texts")
    config = own.config if task is None else _with_task(own.config, task, folder)
    settings = read_settings(folder, sparse=sparse, late=late)
    weights = module_weights(folder, steps.folder) if base is None else base.weights
    adapter = None if base is None else base.adapter
    if has_task_folders(config):
        from gemel.checkpoint.adapter import AdaptedTensors, read_task_adapter

        adapter = read_task_adapter(steps.folder, config)
        weights = weights if adapter is None else AdaptedTensors(weights, adapter)
    if steps.kind == "static":
        _check_static(steps.folder, weights)
    elif not isinstance(config.get("model_type"), str):
        raise ModelError(f"no config.json with a 'model_type' in {steps.folder}: which architecture is it?")
    unpooled = cross or late or steps.masked
    if steps.kind == "transformer" and steps.pooling is None and not unpooled:
        notes = (*notes, "no pooling is configured: token vectors are averaged (mean)")
    model2vec = steps.kind == "static" and not (folder / "modules.json").is_file()
    checkpoint = Checkpoint(
        folder=folder,
        name=name or name_of(folder),
        kind=steps.kind,
        config=config,
        weights=weights,
        tokenizer_file=tokenizer_file(folder, steps.folder, base),
        lowercase=own.lowercase,
        max_length=_max_length(steps, own) if not model2vec else _MODEL2VEC_LENGTH,
        pooling=steps.pooling or PoolingConfig(),
        dense=steps.dense,
        normalize=steps.normalize,
        prompts=settings.get("prompts") or {},
        default_prompt_name=settings.get("default_prompt_name") or _task_prompt(config, settings),
        similarity=_similarity(settings.get("similarity_fn_name")),
        notes=tuple(notes),
        skip_unknown=model2vec,
        parts=(
            *weights.files,
            *([] if adapter is None else [adapter.path]),
            *(path / "model.safetensors" for path in steps.dense_folders),
        ),
        truncate_dim=settings.get("truncate_dim"),
        truncation_side=own.truncation_side,
        tokenizer_settings=own.tokenizer,
        adapter=adapter,
    )
    check_layers(checkpoint, checkpoint.dense)
    if has_m3_layers(folder):
        note = "also gives weights of words (load_sparse) and vectors of tokens (load_late); all at once: load_m3"
        checkpoint = replace(checkpoint, notes=(*checkpoint.notes, note))
    return checkpoint if cross or late else _with_relation(checkpoint)


def _with_task(config: Mapping[str, Any], task: str, folder: Path) -> Mapping[str, Any]:
    if not config.get("lora_adaptations") and not has_task_folders(config):
        raise ModelError(f"{folder} has no adapters for tasks, task={task!r} was requested. Leave it out")
    return {**config, "default_task": task}


def _task_prompt(config: Mapping[str, Any], settings: Mapping[str, Any]) -> str | None:
    """The prompt that is called like the task of the adapter: the two were trained together."""
    task = config.get("default_task")
    return task if isinstance(task, str) and task in (settings.get("prompts") or {}) else None


def _base_of(folder: Path, offline: bool) -> Checkpoint:
    """The base model of the adapter in `folder`, with the adapter added to its weights."""
    from gemel.checkpoint.adapter import AdaptedTensors, read_adapter
    from gemel.checkpoint.sources import find_model

    adapter = read_adapter(folder)
    try:
        revision = None if Path(adapter.base).is_dir() else adapter.revision
        found = find_model(adapter.base, revision=revision, offline=offline)
        if any(is_adapter(path.parent) for path in found.rglob("adapter_config.json")):
            raise ModelError(f"{found} is an adapter itself. Merge it into its own base model first")
        base = read_checkpoint(found, offline=offline)
    except (ModelError, OSError) as error:  # also a name that is too long for a path
        raise ModelError(
            f"{folder} is an adapter to the model {adapter.base!r:.200}, which cannot be read: {error}. "
            "'base_model_name_or_path' in adapter_config.json may also be a folder"
        ) from error
    if base.kind != "transformer":
        raise ModelError(f"{folder} is an adapter, but its base model {adapter.base!r} is a table of vectors")
    parts = (*base.weights.files, adapter.path, *base.parts[len(base.weights.files) :])
    return replace(base, weights=AdaptedTensors(base.weights, adapter), parts=parts, adapter=adapter)


def _adapted(folder: Path, name: str | None, offline: bool) -> Checkpoint:
    """An adapter without modules.json: everything but the weights and perhaps the tokenizer is that of its base."""
    base = _base_of(folder, offline)
    changes: dict[str, Any] = {"folder": folder, "name": name or name_of(folder), "relation": None}
    if (folder / "tokenizer.json").is_file():
        settings = read_object_if_there(folder / "tokenizer_config.json")
        changes |= {"tokenizer_file": folder / "tokenizer.json"}
        changes |= {"tokenizer_settings": settings} if settings else {}
    return replace(base, **changes)


def _with_relation(checkpoint: Checkpoint) -> Checkpoint:
    """With its classification head; a head for vectors of another size is left out, with a note."""
    head = read_classification_head(checkpoint.folder)
    if head is None or checkpoint.dim in (None, head.dim):
        return replace(checkpoint, relation=head)
    note = f"the classification head takes vectors of {head.dim} numbers, the model's have {checkpoint.dim}: left out"
    return replace(checkpoint, notes=(*checkpoint.notes, note))


def _check_kind(folder: Path, cross: bool) -> None:
    """Refuse a cross-encoder where a sentence encoder is expected, and the reverse; and a sparse encoder.

    A plain language model may be either: `read_cross` decides whether it is known how it scores a pair.
    """
    from gemel.checkpoint.modules import is_late_model

    if is_sparse_encoder(folder):
        raise ModelError(
            f"{folder} is a sparse encoder: it gives weights of words instead of dense vectors. Load it with "
            "gemel.load_sparse(...)"
        )
    if is_late_model(folder):
        raise ModelError(
            f"{folder} is a model for late interaction (ColBERT): it makes a vector of each token, not one of a text. "
            "Load it with gemel.load_late(...)"
        )
    if is_cross_encoder(folder) == cross or (cross and is_language_model(folder)):
        return
    if cross:
        raise ModelError(
            f"{folder} is a sentence encoder, not a cross-encoder: it makes a vector of each text. Load it with "
            "gemel.load(...)",
            code="GEM-210",
        )
    raise ModelError(
        f"{folder} is a cross-encoder, not a sentence encoder: it scores pairs and makes no vectors. Load it with "
        "gemel.load_cross(...)",
        code="GEM-210",
    )


def _own_settings(steps: Steps, request: _Request, base: Checkpoint | None) -> TransformerSettings:
    """The settings of the first module; a table of token vectors has none but its tokenizer."""
    if steps.kind == "transformer":
        config = None if base is None else base.config
        extra = LATE_TRANSFORMER if request.late else ()
        return read_transformer_settings(
            steps.folder, cross=request.cross, masked=steps.masked, config=config, extra=extra
        )
    return TransformerSettings(read_object_if_there(steps.folder / "config.json"), {}, False, None, None)


def _max_length(steps: Steps, own: TransformerSettings) -> int | None:
    """As the checkpoint or the tokenizer says, and at most the number of positions."""
    if steps.kind == "static":
        return None
    return least(own.max_length, max_positions(own.config))


def tokenizer_file(model: Path, folder: Path, base: Checkpoint | None = None) -> Path:
    """The tokenizer of the module in `folder`, or else that of the model or of its base."""
    for path in (folder / "tokenizer.json", folder / "vocab.txt", model / "tokenizer.json"):
        if path.is_file():
            return path
    if base is not None:
        return base.tokenizer_file
    pieces = sentencepiece_file(folder) or sentencepiece_file(model)
    needs = "gemel[train]" if pieces is None else f"gemel[train] and sentencepiece, for {pieces.name}"
    raise ModelError(
        f"no tokenizer.json in {folder}. Write one with: gemel models convert {model} (needs {needs})"
    )


def sentencepiece_file(folder: Path) -> Path | None:
    """The SentencePiece model of a tokenizer, under the names that transformers saves it as."""
    names = ("spiece.model", "sentencepiece.bpe.model", "spm.model", "sentencepiece.model", "tokenizer.model")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _similarity(name: object) -> str | None:
    return {"cosine": "cosine", "cos_sim": "cosine", "dot": "dot", "dot_score": "dot"}.get(
        str(name), str(name) if name in ("euclidean", "manhattan") else None
    )


def name_of(folder: Path) -> str:
    """The folder's name; for a snapshot in the Hub's cache, the name of its repository."""
    folder = folder.resolve()
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.name


def _check_static(folder: Path, weights: Tensors) -> None:
    found = [name for name in _STATIC_TABLES if name in weights]
    if not found or len(weights.shape(found[0])) != 2:
        raise ModelError(
            f"{folder}: no token table; expected a matrix {' or '.join(map(repr, _STATIC_TABLES))}"
        )
    if 0 in weights.shape(found[0]):
        shape = weights.shape(found[0])
        raise ModelError(f"{folder}: the token table {found[0]!r} is empty, its shape is {shape}")


def check_layers(
    checkpoint: Checkpoint, layers: Sequence[Dense], error: type[GemelError] = ModelError
) -> int | None:
    """Numbers that the last of these layers gives, None if unknown; layers that do not fit one another are refused."""
    width = checkpoint.width
    numbers = None if width is None else width * len(checkpoint.pooling.modes)
    for position, layer in enumerate(layers, start=1):
        if numbers is not None and layer.inputs != numbers:
            raise error(
                f"{checkpoint.folder}: dense layer {position} takes {layer.inputs} numbers, but gets {numbers}"
            )
        numbers = layer.outputs
    return numbers


def static_table(checkpoint: Checkpoint) -> NDArray[np.float32]:
    """(vocabulary, dim) float32; model2vec's row mapping and token weights are applied.

    A view of the file where that is possible.
    """
    weights = checkpoint.weights
    table = weights["embedding.weight"] if "embedding.weight" in weights else weights["embeddings"]
    mapping, factors = weights.get("mapping"), weights.get("weights")
    if mapping is not None:
        rows = np.asarray(mapping, dtype=np.int64)
        if rows.ndim != 1 or (len(rows) and not 0 <= rows.min() <= rows.max() < len(table)):
            raise ModelError(
                f"{checkpoint.folder}: 'mapping' points outside the {len(table):,} rows of the table"
            )
        table = table[rows]
    table = np.asarray(table, dtype=np.float32)
    if factors is not None:
        if factors.shape != table.shape[:1]:
            raise ModelError(
                f"{checkpoint.folder}: {table.shape[0]:,} tokens, but token weights of shape {factors.shape}"
            )
        table = table * np.asarray(factors, dtype=np.float32)[:, None]
    return table
