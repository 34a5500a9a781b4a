"""POST /explain, the cosine of two texts as a table of tokens, and POST /relation, the classes of pairs of texts.

The classes (such as entailment) come from the cross-encoder where it has several, else from the model's
classification head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, Field
from starlette.responses import Response

from gemel.cross_model import CrossModel
from gemel.encoder.head import sigmoid
from gemel.errors import InputError
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import PlainError, RouteError
from gemel.serve.options import TooLarge
from gemel.serve.protocols.rerank import score_pairs
from gemel.serve.protocols.texts import check_tokens, embed_many
from gemel.serve.routes import OwnRequest, Routes, Texts, example, json_response
from gemel.serve.services import Call
from gemel.types import Vectors

if TYPE_CHECKING:
    from gemel.texts.explanation import Explanation

MOST_TOKENS = 512  # of a text: the table has the product of two such numbers


class ExplainRequest(OwnRequest):
    """Two texts."""

    model_config = example(left="A man is playing a guitar.", right="Someone plays an instrument.")

    left: str
    right: str


class ExplainAnswer(BaseModel):
    """The cells of either table sum to the score; a negative cell lowers it."""

    left: str
    right: str
    score: float = Field(description="Cosine")
    left_tokens: list[str]
    right_tokens: list[str]
    table: list[list[float]] = Field(description="A row for each token of left")
    left_words: list[str]
    right_words: list[str]
    word_table: list[list[float]] = Field(description="A row for each word of left")


class RelationRequest(OwnRequest):
    """Pairs left[i], right[i]."""

    model_config = example(left=["A man is playing a guitar."], right=["Someone plays an instrument."])

    left: Texts
    right: Texts


class RelationAnswer(BaseModel):
    """In the order of the pairs."""

    labels: list[str]
    probabilities: list[list[float]] = Field(description="A row for each pair, in the order of labels")


ROUTES = Routes("Explain", error=PlainError)


@ROUTES.add("POST", "/explain", ExplainAnswer)
async def explain_route(call: Call, body: ExplainRequest) -> Response:
    """Why two texts score as they do. Texts are truncated as in encoding."""
    for name in ("left", "right"):
        call.limits.check_texts([getattr(body, name)], name)
    return json_response((await call.work(lambda: _explain(call, body))).to_json())


@ROUTES.add("POST", "/relation", RelationAnswer)
async def relation(call: Call, body: RelationRequest) -> Response:
    """Probabilities of labels such as entailment. 404 if neither the model nor the cross-encoder has labels."""
    if class_labels(call) is None:
        raise no_labels(call)
    if len(body.left) != len(body.right):
        raise InputError(
            f"left has {len(body.left)} texts but right has {len(body.right)}; they are compared one to one"
        )
    call.limits.check_texts(body.left, "left")
    call.limits.check_texts(body.right, "right")
    result = await classify(call, body.left, body.right)
    return json_response({"labels": result.labels, "probabilities": result.probabilities})


def _explain(call: Call, body: ExplainRequest) -> Explanation:
    """Runs on a worker thread."""
    from gemel.texts.explanation import explain  # imported late: a server starts sooner without it

    model, texts = call.model, [body.left, body.right]
    check_tokens(call, texts)
    if model.max_length is None or model.max_length > MOST_TOKENS:
        for name, content in zip(("left", "right"), model.tokenizer.content(texts), strict=True):
            if len(content) > MOST_TOKENS:
                raise TooLarge(
                    f"{name} has {len(content):,} tokens; an explanation takes at most {MOST_TOKENS}"
                )
    return explain(model, body.left, body.right, on_long="truncate")


def no_labels(call: Call) -> RouteError:
    """404: nothing that is loaded classifies pairs."""
    return RouteError(
        404,
        f"{call.model_name} has no classification head. Serve a model trained with --objective classification, "
        "or a cross-encoder with classes",
        code="no_relation",
    )


@dataclass(frozen=True, eq=False)
class PairClasses:
    """The classes of pairs of texts."""

    labels: tuple[str, ...]
    probabilities: Vectors
    """(n, labels)"""
    raw: Vectors
    """(n, labels) logits of a cross-encoder, or the logarithms of the probabilities."""


def _classifier(call: Call) -> CrossModel | None:
    """The cross-encoder, if it has several classes."""
    cross = call.services.cross
    return cross if cross is not None and len(cross.labels) > 1 else None


def class_labels(call: Call) -> tuple[str, ...] | None:
    """The classes of the cross-encoder, else those of the model's classification head; None: neither has any."""
    cross = _classifier(call)
    return call.model.labels if cross is None else cross.labels


async def classify(
    call: Call, left: Sequence[str], right: Sequence[str], *, truncate: bool = True
) -> PairClasses:
    """The classes of pairs left[i], right[i]. Only where there are `class_labels`."""
    labels, cross = class_labels(call) or (), _classifier(call)
    if cross is not None:
        raw = (await score_pairs(call, cross, left, right, truncate=truncate)).logits
        if cross.checkpoint.activation == "sigmoid":
            return PairClasses(labels, sigmoid(raw), raw)
        powers = np.exp(raw - raw.max(axis=1, keepdims=True))
        return PairClasses(labels, powers / powers.sum(axis=1, keepdims=True), raw)
    # The head was trained on the vectors of default options.
    vectors = (await embed_many(call, [*left, *right], EmbedOptions(truncate=truncate))).vectors
    probabilities = call.model.relation_of(vectors[: len(left)], vectors[len(left) :])
    return PairClasses(labels, probabilities, np.log(np.maximum(probabilities, np.float32(1e-30))))
