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
from starlette.requests import Request
from starlette.responses import Response

from gemel.errors import InputError
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import PlainError, RouteError
from gemel.serve.limits import TooLarge
from gemel.serve.protocols.cohere import logits_of
from gemel.serve.protocols.requests import OwnRequest, Texts, client_of, example, json_response
from gemel.serve.protocols.texts import check_tokens, embed_many
from gemel.serve.routes import Routes
from gemel.serve.services import Services
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
    """The cells of either table sum to the score; a negative one speaks against."""

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


def routes(services: Services) -> Routes:
    """POST /explain and /relation."""
    route = Routes("Explain", error=PlainError)

    @route.post("/explain", ExplainAnswer)
    async def explain_route(request: Request, body: ExplainRequest) -> Response:
        """Why two texts score as they do. Texts are cut as in encoding."""
        for name in ("left", "right"):
            services.limits.check_texts([getattr(body, name)], name)
        result = await services.work(lambda: _explain(services, body), client=client_of(request))
        return json_response(result.to_json())

    @route.post("/relation", RelationAnswer)
    async def relation(request: Request, body: RelationRequest) -> Response:
        """Probabilities of labels such as entailment. 404 where nothing that is loaded tells labels apart."""
        if find_classes(services) is None:
            raise _no_labels(services)
        if len(body.left) != len(body.right):
            raise InputError(
                f"left has {len(body.left)} texts but right has {len(body.right)}; they are compared one to one"
            )
        for name, texts in (("left", body.left), ("right", body.right)):
            services.limits.check_texts(texts, name)
        result = await classes(services, body.left, body.right, EmbedOptions(client=client_of(request)))
        return json_response({"labels": result.labels, "probabilities": result.probabilities})

    return route


def _explain(services: Services, body: ExplainRequest) -> Explanation:
    """Runs on a worker thread."""
    from gemel.texts.explanation import explain  # imported late: a server starts sooner without it

    model = services.model
    check_tokens(services, [body.left, body.right])
    if model.max_length is None or model.max_length > MOST_TOKENS:
        for name, content in zip(
            ("left", "right"), model.tokenizer.content([body.left, body.right]), strict=True
        ):
            if len(content) > MOST_TOKENS:
                raise TooLarge(
                    f"{name} has {len(content):,} tokens; an explanation takes at most {MOST_TOKENS}"
                )
    return explain(model, body.left, body.right, on_long="truncate")


def check_head(services: Services) -> None:
    """Refuse (404) where the model has no classification head."""
    if services.model.labels is None:
        raise _no_labels(services)


def _no_labels(services: Services) -> RouteError:
    return RouteError(
        404,
        f"{services.model_name} has no classification head. Serve a model trained with --objective classification, "
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


@dataclass(frozen=True)
class Classifier:
    """What classifies pairs: the cross-encoder, or the model's classification head."""

    labels: tuple[str, ...]
    cross: bool


def find_classes(services: Services) -> Classifier | None:
    """What can classify pairs here; None: nothing that is loaded."""
    if services.cross is not None and len(services.cross.labels) > 1:
        return Classifier(services.cross.labels, True)
    return None if services.model.labels is None else Classifier(services.model.labels, False)


async def classes(
    services: Services, left: Sequence[str], right: Sequence[str], options: EmbedOptions
) -> PairClasses:
    """The classes of pairs left[i], right[i]. Only where `find_classes` gives something."""
    classifier = find_classes(services)
    assert classifier is not None, "call find_classes first"
    cross = services.cross
    if classifier.cross and cross is not None:
        raw = await logits_of(services, cross, left, right, options)
        if cross.checkpoint.activation == "sigmoid":
            return PairClasses(
                classifier.labels, np.asarray(1 / (1 + np.exp(-raw.clip(-80, 80))), np.float32), raw
            )
        powers = np.exp(raw - raw.max(axis=1, keepdims=True))
        return PairClasses(classifier.labels, powers / powers.sum(axis=1, keepdims=True), raw)
    # The head was trained on the vectors of default options.
    vectors = (
        await embed_many(
            services, [*left, *right], EmbedOptions(client=options.client, truncate=options.truncate)
        )
    ).vectors
    probabilities = services.model.relation_of(vectors[: len(left)], vectors[len(left) :])
    return PairClasses(classifier.labels, probabilities, np.log(np.maximum(probabilities, np.float32(1e-30))))
