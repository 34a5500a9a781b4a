"""`SentenceTransformer` and `CrossEncoder` with gemel models.

What is not supported raises an error that names the gemel way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, cast

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.write import write_checkpoint
from gemel.compat.util import as_rows, is_one, quantize_embeddings, score_table, to_tensor
from gemel.cross_model import CrossModel, load_cross
from gemel.encoder.head import sigmoid, softmax
from gemel.errors import NOT_MEMBERS, InputError
from gemel.model import Model, load
from gemel.options import CrossOptions, EncodeOptions, EngineName
from gemel.vectors.similarity import METRICS, normalize, row_scores, scores

if TYPE_CHECKING:
    from gemel.compat.losses import Loss


_ENGINES: dict[str, EngineName] = {"torch": "auto", "onnx": "onnxruntime"}


class SentenceTransformer:
    """The class of sentence-transformers with a gemel model, which is `model`.

    A text that is too long for the model is truncated without a warning, as in sentence-transformers.
    """

    def __init__(
        self,
        model_name_or_path: str | Path | Model | None = None,
        *,
        device: str | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        backend: str = "torch",
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
        **others: Any,
    ) -> None:
        """`device` None is the CPU. `backend` torch is the default engine of gemel, onnx is ONNX Runtime."""
        refuse(others, LOADING)
        if model_name_or_path is None:
            raise InputError("SentenceTransformer takes the name or the folder of a model, got none")
        if backend not in _ENGINES:
            raise InputError(
                f"backend must be torch or onnx, got {backend!r}. gemel's engines: docs/reference/engines.md"
            )
        self.device = str(device or "cpu")
        if isinstance(model_name_or_path, Model):
            self.model = model_name_or_path
        else:
            engine = _ENGINES[backend]
            self.model = load(
                model_name_or_path,
                revision=revision,
                offline=local_files_only,
                device=self.device,
                engine=engine,
            )
        checkpoint = self.model.checkpoint
        self.prompts: dict[str, str] = {"query": "", "document": "", **checkpoint.prompts, **(prompts or {})}
        both = checkpoint.sides_are_tasks and checkpoint.task is None
        self.default_prompt_name = default_prompt_name or (
            None if both else checkpoint.plain.default_prompt_name
        )
        self._prompt_text(None, self.default_prompt_name)
        self.similarity_fn_name = similarity_fn_name or checkpoint.similarity or "cosine"
        self.truncate_dim = truncate_dim
        self.max_seq_length = self.model.max_length

    def encode(  # noqa: PLR0913, PLR0917 - their arguments
        self,
        inputs: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        *,
        task: str | None = None,
        sentences: str | Sequence[str] | None = None,
        **others: Any,
    ) -> Any:  # noqa: ANN401 - an array, a tensor or a list, as the arguments say
        """(n, dim), or (dim,) for one string. `sentences` is the older name of `inputs`.

        `task`: "query" or "document", for a model with modules (a Router) or adapters of their own for each. None: the
        default route of the Router. Other models ignore it, as in sentence-transformers.
        `batch_size` is ignored: gemel makes batches by length and memory, and results do not depend on them.
        """
        refuse(others, MEMBERS)
        self._check_device(device)
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        given = inputs if inputs is not None else sentences
        if given is None:
            raise InputError("encode takes a text or a list of texts, got none")
        single = isinstance(given, str)
        texts = [given] if isinstance(given, str) else given
        options = self._options(self._prompt_text(prompt, prompt_name), task, bool(show_progress_bar))
        tensors = convert_to_tensor or not convert_to_numpy
        if output_value != "sentence_embedding":
            return self._tokens(texts, options, output_value, single=single, tensors=tensors)
        vectors = self._cut(self.model.encode(texts, options), truncate_dim)
        ready = quantize_embeddings(normalize(vectors) if normalize_embeddings else vectors, precision)
        result = to_tensor(ready) if tensors else ready
        if single:
            return result[0]
        return result if convert_to_tensor or not tensors else list(result)

    def encode_query(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *arguments: Any,
        **named: Any,
    ) -> Any:  # noqa: ANN401 - as encode
        """`encode` with the task and the prompt "query", where none is given; the default prompt is not used."""
        own = self._side_prompt("query") if prompt_name is None and prompt is None else prompt
        return self.encode(inputs, prompt_name, own, *arguments, **{"task": "query", **named})

    def encode_document(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *arguments: Any,
        **named: Any,
    ) -> Any:  # noqa: ANN401 - as encode
        """`encode` with the task and the prompt "document", where none is given; the default prompt is not used."""
        own = self._side_prompt("document") if prompt_name is None and prompt is None else prompt
        return self.encode(inputs, prompt_name, own, *arguments, **{"task": "document", **named})

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:  # noqa: ANN401 - arrays or tensors
        """(n, m) scores by `similarity_fn_name`. Arrays give an array, tensors a tensor."""
        return score_table(
            scores(as_rows(embeddings1), as_rows(embeddings2), self.similarity_fn_name),
            embeddings1,
            embeddings2,
        )

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:  # noqa: ANN401 - as above
        """(n,) scores of row i with row i; a number for two single vectors."""
        rows = row_scores(as_rows(embeddings1), as_rows(embeddings2), self.similarity_fn_name)
        result = score_table(rows, embeddings1, embeddings2)
        return result[0] if is_one(embeddings1) and is_one(embeddings2) else result

    def get_sentence_embedding_dimension(self) -> int:
        """Numbers in a vector, `truncate_dim` considered."""
        return min(self.truncate_dim or self.model.dim, self.model.dim)

    get_embedding_dimension = get_sentence_embedding_dimension

    def get_max_seq_length(self) -> int | None:
        return self.max_seq_length

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Inside the `with` block, vectors have `truncate_dim` numbers."""
        before, self.truncate_dim = self.truncate_dim, truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    truncate_sentence_embeddings = truncate_embeddings

    def fit(
        self,
        train_objectives: Sequence[tuple[Any, Loss]],
        evaluator: Callable[..., Any] | None = None,
        epochs: int = 1,
        *,
        warmup_steps: int | None = None,
        optimizer_params: Mapping[str, float] | None = None,
        weight_decay: float = 0.01,
        output_path: str | Path | None = None,
        show_progress_bar: bool = True,
        **others: Any,
    ) -> None:
        """Train by `gemel.train` on InputExamples with a loss of `gemel.compat.losses`; the model is then the new one.

        A data loader is used for its data set and batch size; batches are drawn by gemel. `warmup_steps` None: a tenth
        of the steps. The evaluator is called once, at the end. `output_path` must be a new folder.
        """
        from gemel.compat.losses import fit

        refuse(others, {**FITTING, **MEMBERS})
        rate = (optimizer_params or {}).get("lr", 2e-5)
        request: dict[str, Any] = {"epochs": epochs, "learning_rate": rate, "weight_decay": weight_decay}
        request |= {"progress": show_progress_bar, "max_length": self.max_seq_length}
        self.model = fit(self.model, train_objectives, output_path, warmup_steps, request)
        if evaluator is not None:
            evaluator(self, output_path=None if output_path is None else str(output_path))

    def evaluate(self, evaluator: Callable[..., Any], output_path: str | None = None) -> Any:  # noqa: ANN401 - as given
        """What an evaluator of `gemel.compat.evaluation`, or any function of a model, gives for this one."""
        return evaluator(self, output_path)

    def save(self, path: str | Path, **others: Any) -> None:
        """Write a folder that gemel and sentence-transformers load, prompts and max_seq_length with it.

        An existing model is replaced, as in sentence-transformers; any other folder is not.
        """
        if others.pop("safe_serialization", True) is not True:
            raise InputError("safe_serialization=False would write a pickle; gemel writes safetensors only")
        ignored = {"model_name", "create_model_card", "train_datasets"}
        refuse({name: value for name, value in others.items() if name not in ignored}, MEMBERS)
        checkpoint = replace(
            self.model.checkpoint,
            prompts=dict(self.prompts),
            default_prompt_name=self.default_prompt_name,
            max_length=self.max_seq_length,
            similarity=self.similarity_fn_name,
        )
        write_checkpoint(checkpoint, path, overwrite=True)

    save_pretrained = save

    def to(self, device: str) -> Self:
        """The model itself, which cannot move to another device."""
        self._check_device(device)
        return self

    def eval(self) -> Self:
        """The model itself, which has no training mode."""
        return self

    @property
    def similarity_fn_name(self) -> str:
        """cosine, dot, euclidean or manhattan"""
        return self._similarity

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: str) -> None:
        METRICS[str(getattr(name, "value", name))]
        self._similarity = str(getattr(name, "value", name))

    def __getattr__(self, name: str) -> NoReturn:
        # An AttributeError, so that hasattr() is False.
        instead = f" {MEMBERS[name]}" if name in MEMBERS else ""
        raise AttributeError(
            f"gemel.compat.SentenceTransformer has no {name!r}.{instead}", name=name, obj=self
        )

    def __repr__(self) -> str:
        return f"SentenceTransformer({self.model!r})"

    # The meaning of their arguments in gemel.

    def _prompt_text(self, prompt: str | None, name: str | None) -> str:
        if prompt is not None:
            return prompt
        name = name or self.default_prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            names = ", ".join(sorted(self.prompts))
            raise InputError(f"unknown prompt {name!r}. The prompts of {self.model.name}: {names}")
        return self.prompts[name]

    def _side_prompt(self, side: Literal["query", "document"]) -> str:
        """The prompt of that name; of adapters for tasks, the one that was trained with the side's."""
        checkpoint = self.model.checkpoint
        name = checkpoint.prompt_name(side) if checkpoint.sides_are_tasks else side
        return self.prompts.get(name or side, "")

    def _options(self, prompt: str, task: str | None, progress: bool) -> EncodeOptions:
        length = None if self.max_seq_length == self.model.max_length else self.max_seq_length
        return EncodeOptions(
            prompt=prompt,
            prompt_name=self._side(task),
            max_length=length,
            on_long="truncate",
            progress=progress,
        )

    def _side(self, task: str | None) -> str | None:
        """The name that chooses the side of a model with two; None: it has one."""
        checkpoint = self.model.checkpoint
        if checkpoint.query_side is None:
            return None
        side = checkpoint.default_side if task is None else checkpoint.side_of(task)
        if side is None and task is None:
            raise InputError(
                f"{self.model.name} encodes queries and documents differently, and names no default. Use encode_query "
                "or encode_document, or encode(..., task='query') or 'document'"
            )
        if side is None:
            raise InputError(
                f"task must be 'query' or 'document' for {self.model.name}, got {task!r}. A model with adapters is "
                "loaded for another task with SentenceTransformer(gemel.load(name, task=...))"
            )
        return checkpoint.prompt_name(side)

    def _cut(self, vectors: NDArray[Any], truncate_dim: int | None) -> NDArray[np.float32]:
        """The first numbers, not normalized, which `normalize_embeddings` does."""
        dim = truncate_dim or self.truncate_dim
        return np.ascontiguousarray(vectors[:, :dim] if dim else vectors)

    def _tokens(
        self, texts: Sequence[str], options: EncodeOptions, value: str | None, *, single: bool, tensors: bool
    ) -> Any:  # noqa: ANN401 - one (t, width) or a list of them
        if value != "token_embeddings":
            raise InputError(
                f"output_value must be sentence_embedding or token_embeddings, got {value!r}. "
                "Tokens by name with their vectors: gemel.load(...).tokens(texts)"
            )
        arrays = [each.vectors for each in self.model.tokens(texts, options)]
        result: list[Any] = [to_tensor(each) for each in arrays] if tensors else cast("list[Any]", arrays)
        return result[0] if single else result

    def _check_device(self, device: object) -> None:
        if device is not None and str(device) != self.device:
            raise InputError(
                f"the model runs on {self.device!r} and cannot be moved, got device={device!r}. "
                "Load it for another device: SentenceTransformer(name, device=...); one process uses all cores anyway"
            )


FITTING = {
    "scheduler": "gemel.train(..., schedule='cosine')",
    "steps_per_epoch": "gemel.train(..., max_steps=...)",
    "evaluation_steps": "gemel.train(..., eval_data=..., eval_steps=...) evaluates during training",
    "save_best_model": "gemel.train(..., eval_data=...) saves the best model",
    "max_grad_norm": "gemel.train(..., clip=...)",
    "use_amp": "gemel.train(..., mixed_precision='bf16')",
    "callback": "gemel.train(..., tracker=...) writes to a tracker",
    "optimizer_class": "The optimizer is AdamW",
    **dict.fromkeys(
        ("checkpoint_path", "checkpoint_save_steps", "checkpoint_save_total_limit"),
        "gemel.train(..., checkpoint_steps=..., keep_checkpoints=...); resume=True resumes",
    ),
}
"""Unsupported arguments of `fit`, with what to use instead."""

LOADING = {
    "modules": "gemel reads finished checkpoints. A new one comes from gemel.train(bert, data, pooling=...)",
    "trust_remote_code": "gemel runs no code of a checkpoint. Leave it out",
    "cache_folder": "Set the environment variable GEMEL_CACHE",
    **dict.fromkeys(("token", "use_auth_token"), "Set the environment variable HF_TOKEN"),
    "model_kwargs": "Precision and engine: gemel.load(name, precision='int8', engine=...)",
    **dict.fromkeys(
        ("processor_kwargs", "tokenizer_kwargs"),
        "The tokenizer is the checkpoint's. Its length: max_seq_length",
    ),
    "config_kwargs": "The configuration is the checkpoint's",
    "model_card_data": "gemel.train writes a model card",
}
"""Unsupported arguments of the class, with what to use instead."""

MEMBERS = {**NOT_MEMBERS, "tokenizer": NOT_MEMBERS["tokenize"]}
"""Unsupported members of the class and arguments of its methods, with what to use instead."""


def refuse(given: Mapping[str, Any], unsupported: Mapping[str, str]) -> None:
    """Raise an InputError for the first argument with a value other than None or False."""
    for name, value in given.items():
        if name not in unsupported:
            raise InputError(f"unknown argument {name!r}. The arguments of gemel.compat: docs/migrating.md")
        if value is not None and value is not False:
            raise InputError(f"{name} is not supported by gemel.compat. {unsupported[name]}")


Pair = Sequence[str]

_TRAIN = "Train with gemel.train(model, data, objective=..., kind='cross-encoder', out=...)"

CROSS_MEMBERS = {
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
        refuse(others, CROSS_MEMBERS)
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
        refuse({name: value for name, value in others.items() if name != "safe_serialization"}, CROSS_MEMBERS)
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
        instead = f" {CROSS_MEMBERS[name]}" if name in CROSS_MEMBERS else ""
        raise AttributeError(f"gemel.compat.CrossEncoder has no {name!r}.{instead}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"CrossEncoder({self.model!r})"


def _pair(pair: object, position: int) -> Pair:
    if isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair):
        return pair
    raise InputError(f"inputs[{position}] must be a pair of texts, got {pair!r:.60}. Write (query, document)")
