"""A gemel model as an encoder for the benchmark `mteb` (version 2).

    import mteb
    mteb.evaluate(GemelEncoder(gemel.load("all-MiniLM-L6-v2")), mteb.get_tasks(["STSBenchmark"]))

mteb requires four names (its EncoderProtocol): `encode`, `similarity`, `similarity_pairwise`, `mteb_model_meta`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from gemel.errors import InputError, MissingExtra
from gemel.model import Model
from gemel.options import EncodeOptions
from gemel.types import AnyVectors, Encoder

_METRICS = ("cosine", "dot", "euclidean")  # that mteb can compute by name


class GemelEncoder:
    """An encoder for `mteb.evaluate` from any object with an `encode`; prompts and options need a gemel model."""

    def __init__(self, model: Encoder, options: EncodeOptions | None = None) -> None:
        if options is not None and not isinstance(model, Model):
            raise InputError(f"options are for a gemel model, got a {type(model).__name__}: leave them out")
        self.model = model
        self.options = options or EncodeOptions()

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,  # noqa: ANN401 - mteb.TaskMetadata, which is not there without mteb
        prompt_type: Any = None,  # noqa: ANN401 - mteb.types.PromptType or None
        **_: Any,
    ) -> AnyVectors:
        """(n, dim) vectors of all texts of mteb's batches. Other arguments (split, batch size) are ignored."""
        texts: list[str] = []
        for batch in inputs:
            if "text" not in batch:
                raise InputError(
                    f"gemel encodes texts; the task {task_metadata.name} gives {', '.join(batch)}"
                )
            texts += batch["text"]
        if not isinstance(self.model, Model):
            return self.model.encode(texts)
        role = getattr(prompt_type, "value", prompt_type)
        name = self._prompt_name(task_metadata.name, task_metadata.type, role)
        options = replace(self.options, prompt_name=name or self.options.prompt_name)
        if options.prompt_name is None and self.model.checkpoint.default_prompt_name is None:
            options = replace(options, prompt=options.prompt or "")  # on purpose: it has none for this task
        return self.model.encode(texts, options)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:  # noqa: ANN401 - arrays or tensors, as mteb has
        """(n, m) scores by the similarity of the checkpoint, or cosine where mteb does not support it."""
        from mteb.similarity_functions import select_similarity

        return select_similarity(embeddings1, embeddings2, self.mteb_model_meta.similarity_fn_name)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:  # noqa: ANN401 - as above
        """(n,) scores of row i with row i."""
        from mteb.similarity_functions import select_pairwise_similarity

        return select_pairwise_similarity(embeddings1, embeddings2, self.mteb_model_meta.similarity_fn_name)

    @cached_property
    def mteb_model_meta(self) -> Any:  # noqa: ANN401 - mteb.ModelMeta, which is not there without mteb
        """Name, revision and size for the results of mteb; the revision depends on weights and options."""
        try:
            from mteb.models.model_meta import ModelMeta, ScoringFunction
        except ImportError as error:
            raise MissingExtra("running mteb", "mteb", "mteb") from error
        name = str(getattr(self.model, "name", "") or type(self.model).__name__)
        facts: dict[str, Any] = {"revision": "unknown", "similarity_fn_name": ScoringFunction("cosine")}
        if isinstance(self.model, Model):
            similarity = self.model.checkpoint.similarity
            facts = {
                "revision": self.model.fingerprint_for(self.options).digest,
                "max_tokens": self.options.max_length or self.model.max_length,
                "use_instructions": bool(self.model.checkpoint.prompts),
                "similarity_fn_name": ScoringFunction(similarity if similarity in _METRICS else "cosine"),
            }
        return ModelMeta.create_empty(
            {
                # mteb requires owner/name, for the folder of the results
                "name": name if "/" in name else f"gemel/{name}",
                "embed_dim": self.options.dim or self.model.dim,
                **facts,
            }
        )

    def _prompt_name(self, task: str, kind: str, role: str | None) -> str | None:
        """The prompt of the checkpoint for this task, the most specific one first, in the order of mteb."""
        assert isinstance(self.model, Model)
        prompts = self.model.checkpoint.prompts
        names = [f"{task}-{role}", task, f"{kind}-{role}", kind, role]
        if role == "document":
            names += ["passage", "corpus"]  # the names in older checkpoints
        return next((name for name in names if name and name in prompts), None)
