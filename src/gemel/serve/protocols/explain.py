"""POST /explain, why two texts score as they do, and POST /relation, the classes of pairs of texts.

A cosine is explained by a table of tokens; the scores of the other modes of search by the words or tokens that match,
with what each adds and where it is in the text. The classes (such as entailment) come from the cross-encoder where it
has several, else from the model's classification head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, RootModel
from starlette.responses import Response

from gemel.cross_model import CrossModel
from gemel.encoder.head import sigmoid
from gemel.errors import InputError
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import PlainError, RouteError
from gemel.serve.options import TooLarge
from gemel.serve.protocols.rerank import score_pairs
from gemel.serve.protocols.search import Kind, index_of, with_model_of
from gemel.serve.protocols.sparse import needed_sparse
from gemel.serve.protocols.texts import check_tokens, embed_many
from gemel.serve.routes import OwnRequest, Routes, Texts, example, json_response
from gemel.serve.services import Call
from gemel.types import Vectors
from gemel.vectors.bm25 import WordRules

if TYPE_CHECKING:
    from gemel.index.index import Index
    from gemel.texts.explanation import Explanation
    from gemel.texts.late_model import LateModel
    from gemel.texts.sparse_model import SparseModel

MOST_TOKENS = 512  # of a text: the table has the product of two such numbers


class ExplainRequest(OwnRequest):
    """Two texts; for the modes other than dense, a query and a text that it found."""

    model_config = example(left="A man is playing a guitar.", right="Someone plays an instrument.")

    left: str
    right: str
    mode: Kind = Field(
        "dense",
        description="Of the score: dense (the cosine), sparse (weights of words), late (vectors of tokens), or words",
    )
    index: str | None = Field(
        None, description="The name of an index: its models are used, and its rules for words"
    )


class CosineExplanation(BaseModel):
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


class Match(BaseModel):
    """What the two texts have in common."""

    left: str = Field(description="A word or a token of left, as the vocabulary writes it")
    right: str = Field(description="That of right: the same one, or for mode late the best token")
    adds: float = Field(
        description="What it adds to the score: a product of two weights, or of two vectors; for words 1"
    )
    spans: list[tuple[int, int]] = Field(
        description="Where it is in right, as start and stop in characters; empty: right only implies it, or it is a "
        "special token"
    )


class MatchExplanation(BaseModel):
    """What all matches add sums to the score."""

    left: str
    right: str
    mode: Literal["sparse", "late", "words"]
    score: float = Field(
        description="The product of weights of words, the MaxSim, or how many words of left are in right"
    )
    matches: list[Match] = Field(description="The one that adds most first")
    missing: list[str] = Field(description="Words of left that right does not have, heaviest first")


class ExplainAnswer(RootModel[CosineExplanation | MatchExplanation]):
    """The first for mode dense, the second for the others."""


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
    """Why two texts score as they do, or why a text matches a query. Texts are truncated as in encoding."""
    for name in ("left", "right"):
        call.limits.check_texts([getattr(body, name)], name)
    index = None if body.index is None else index_of(call, body.index)
    if index is not None and body.mode not in (*index.kinds, "words"):
        raise InputError(
            f"the index has no {body.mode} vectors. Its searches can be explained by: "
            f"{', '.join((*index.kinds, 'words'))}"
        )
    if body.mode == "dense":
        call = call if index is None else with_model_of(call, index)
        return json_response((await call.work(lambda: _explain(call, body))).to_json())
    explain = {"sparse": _shared_weights, "late": _best_tokens, "words": _shared_words}[body.mode]
    return json_response(await call.work(lambda: explain(call, body, index)))


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


def _shared_weights(call: Call, body: ExplainRequest, index: Index | None) -> dict[str, Any]:
    """Runs on a worker thread."""
    model: SparseModel | None = None if index is None else index.kind_model("sparse")
    if model is None:
        model = needed_sparse(call).model
    check_tokens(call, [body.left, body.right])
    result = model.explain(body.left, body.right, on_long="truncate")
    spans: dict[str, list[tuple[int, int]]] = {}
    for piece in model.tokenizer.pieces(body.right, special=False):
        spans.setdefault(piece.token, []).append((piece.start, piece.stop))
    matches = [
        Match(left=each.token, right=each.token, adds=each.contribution, spans=spans.get(each.token, []))
        for each in result.matches
    ]
    return _matches(body, result.score, matches, [token for token, _ in result.missing])


def _best_tokens(call: Call, body: ExplainRequest, index: Index | None) -> dict[str, Any]:
    """Runs on a worker thread. Tokens that fill up the query are in the score, and in the list as one each."""
    late: LateModel | None = call.services.late if index is None else index.kind_model("late")
    if late is None:
        raise RouteError(
            404, "no model for late interaction is loaded. Start the server with --late", code="no_late_model"
        )
    check_tokens(call, [body.left, body.right])
    result = late.explain(body.left, body.right, on_long="truncate")
    matches = [
        Match(
            left=each.query,
            right=each.document,
            adds=each.product,
            spans=[] if each.start is None or each.stop is None else [(each.start, each.stop)],
        )
        for each in sorted(result.matches, key=lambda match: -match.product)
    ]
    return _matches(body, max(result.score, float(np.finfo(np.float32).min)), matches, [])


def _shared_words(call: Call, body: ExplainRequest, index: Index | None) -> dict[str, Any]:
    """Runs on a worker thread."""
    found = (WordRules() if index is None else index).shared_words(body.left, body.right)
    matches = [Match(left=word, right=word, adds=1.0, spans=spans) for word, spans in found.items() if spans]
    return _matches(body, float(len(matches)), matches, [word for word, spans in found.items() if not spans])


def _matches(
    body: ExplainRequest, score: float, matches: Sequence[Match], missing: Sequence[str]
) -> dict[str, Any]:
    rows = [each.model_dump() for each in matches]
    texts = {"left": body.left, "right": body.right}
    return {**texts, "mode": body.mode, "score": score, "matches": rows, "missing": list(missing)}


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
