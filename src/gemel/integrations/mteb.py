"""A gemel model as an encoder of the `mteb` package (version 2), so that the standard benchmark runs on it.

    import mteb
    mteb.evaluate(GemelEncoder(gemel.load("all-MiniLM-L6-v2")), mteb.get_tasks(["STSBenchmark"]))

mteb asks for four names (its EncoderProtocol): `encode`, `similarity`, `similarity_pairwise`, `mteb_model_meta`.
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

_METRICS = ("cosine", "dot", "euclidean")  # those that mteb can compute from a name


class GemelEncoder:
    """An encoder for `mteb.evaluate`. Any object with an `encode` will do; prompts and options need a gemel model."""

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
        """(n, dim) for all texts of mteb's batches. What else mteb says (split, batch size) changes nothing here."""
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
        return self.model.encode(texts, replace(self.options, prompt_name=name or self.options.prompt_name))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:  # noqa: ANN401 - arrays or tensors, as mteb has
        """(n, m) scores by the checkpoint's similarity, cosine where it names none that mteb knows."""
        from mteb.similarity_functions import select_similarity

        return select_similarity(embeddings1, embeddings2, self.mteb_model_meta.similarity_fn_name)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:  # noqa: ANN401 - as above
        """(n,) scores of row i with row i."""
        from mteb.similarity_functions import select_pairwise_similarity

        return select_pairwise_similarity(embeddings1, embeddings2, self.mteb_model_meta.similarity_fn_name)

    @cached_property
    def mteb_model_meta(self) -> Any:  # noqa: ANN401 - mteb.ModelMeta, which is not there without mteb
        """Name, revision and size for mteb's results; the revision stands for weights and options alike."""
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
                # mteb wants owner/name, for the folder of the results
                "name": name if "/" in name else f"gemel/{name}",
                "embed_dim": self.options.dim or self.model.dim,
                **facts,
            }
        )

    def _prompt_name(self, task: str, kind: str, role: str | None) -> str | None:
        """The checkpoint's prompt for this use, the most special one first, in mteb's own order."""
        assert isinstance(self.model, Model)
        known = self.model.checkpoint.prompts
        names = [f"{task}-{role}", task, f"{kind}-{role}", kind, role]
        if role == "document":
            names += ["passage", "corpus"]  # what older checkpoints call it
        return next((name for name in names if name and name in known), None)
