"""POST /search, and the search of an index for POST /indexes/{name}/search.

The texts of an index, or of the request itself, that match a query best: by vectors, by weights of words, by vectors of
tokens, by words, or by several of these rankings fused. The answer has the same form for both.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
from pydantic import BaseModel, Field, model_validator
from starlette.responses import Response

from gemel.cross_model import CrossModel, ScoreKind
from gemel.errors import InputError, ModelError, WorkError
from gemel.options import CrossOptions, EncodeOptions
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import PlainError, RouteError
from gemel.serve.options import DeadlineExceeded, Overloaded, TooLarge
from gemel.serve.protocols.rerank import reranker, score_pairs
from gemel.serve.protocols.sparse import weights_of_words
from gemel.serve.protocols.texts import (
    check_tokens,
    check_where,
    embed_many,
    embed_query_and_documents,
    is_long,
    unit_norm,
)
from gemel.serve.routes import OwnRequest, Routes, Texts, example, json_response
from gemel.serve.services import Call
from gemel.types import Vectors
from gemel.vectors.bm25 import BM25Index, fuse
from gemel.vectors.calibration import Calibration
from gemel.vectors.search import Hits, search

if TYPE_CHECKING:
    from gemel.index.index import Index
    from gemel.index.query import Answer
    from gemel.texts.late_model import LateModel

CANDIDATES = 50  # texts that fusion and reranking consider

_MOST_DIVERSE = 1000  # documents that are compared with one another

Mode: TypeAlias = Literal["dense", "sparse", "late", "words", "hybrid"]
Kind: TypeAlias = Literal["dense", "sparse", "late", "words"]
Where: TypeAlias = str | dict[str, Any]
Result = TypeVar("Result")

WHERE = 'a condition on fields, such as lang = \'en\' and year >= 2020, or {"lang": "en"}'


class HitChoice(OwnRequest):
    """Which documents of an index are answers, and how many."""

    k: int = Field(10, ge=1, le=1000, description="Number of results")
    offset: int = Field(0, ge=0, le=10_000, description="Results to skip, for paging")
    where: Where | None = Field(None, description=WHERE)
    exact: bool = Field(False, description="Compare every passage, however many there are")
    recall: float | None = Field(
        None, gt=0, le=1, description="Find at least this share of the exact results; null: about 0.985"
    )
    candidates: int | None = Field(
        None, ge=1, le=11_000, description="Documents for fusion, reranking and diversity; null: 50"
    )
    min_score: float | None = Field(None, description="Results of lower scores are left out")
    diversity: float | None = Field(
        None, ge=0, le=1, description="How much results avoid being like better ones (MMR); null: not at all"
    )
    group_by: str | None = Field(
        None, max_length=1000, description="A field, of each value of which per_group results are found"
    )
    per_group: int = Field(1, ge=1, le=1000)

    @model_validator(mode="after")
    def _few_are_made_diverse(self) -> HitChoice:
        if self.diversity and max(self.offset + self.k, self.candidates or 0) > _MOST_DIVERSE:
            raise ValueError(
                f"diversity compares all candidates: offset + k and candidates are at most {_MOST_DIVERSE:,} with it"
            )
        return self

    def for_index(self) -> dict[str, Any]:
        """As arguments of a search of an index."""
        return {name: getattr(self, name) for name in HitChoice.model_fields}


class IndexQuestion(HitChoice):
    """A query to one index."""

    model_config = example(query="Who plays music?", k=3)

    query: str
    mode: Mode | None = Field(
        None,
        description="dense: by vectors; sparse: by weights of words; late: by vectors of tokens (MaxSim); words: by "
        "words (BM25); hybrid: these rankings fused. null: that of the index; dense for texts",
    )
    weights: dict[Kind, Annotated[float, Field(ge=0, le=1e6)]] | None = Field(
        None, description='Of the rankings that hybrid fuses, such as {"dense": 1, "words": 0.5}'
    )
    hybrid: bool = Field(False, description='The same as "mode": "hybrid"')
    rerank: bool = Field(
        False,
        description="Rerank the best results by the cross-encoder, else by the model for late interaction",
    )

    @model_validator(mode="after")
    def _one_mode(self) -> IndexQuestion:
        if self.hybrid and self.mode not in (None, "hybrid"):
            raise ValueError(f"hybrid is true, but mode is {self.mode!r}: give one of them")
        if self.weights is not None and self.chosen_mode not in (None, "hybrid"):
            raise ValueError(
                f"weights are for mode 'hybrid', which fuses several rankings; mode is {self.mode!r}"
            )
        return self

    @property
    def chosen_mode(self) -> Mode | None:
        """What the client chose, in either way; None: nothing."""
        return "hybrid" if self.hybrid else self.mode


class SearchRequest(IndexQuestion):
    """A query, and where to look: an index by its name, or texts."""

    model_config = example(
        query="Who plays music?",
        k=2,
        texts=["A man is playing a guitar.", "The stock market fell today.", "A child is reading a book."],
    )

    index: str | None = Field(None, description="The name of an index that the server has opened")
    texts: Texts | None = Field(None, description="Texts to search, instead of an index")

    @model_validator(mode="after")
    def _one_source(self) -> SearchRequest:
        if (self.index is None) == (self.texts is None):
            raise ValueError("give either index, the name of one, or texts")
        if self.texts is not None and self.where is not None:
            raise ValueError("where filters by the fields of an index; texts have none")
        for name in ("recall", "candidates", "min_score", "diversity", "group_by"):
            if self.texts is not None and getattr(self, name) is not None:
                raise ValueError(f"{name} is for searches of an index, not of texts")
        return self


class HitRow(BaseModel):
    """One document or text that was found."""

    id: str = Field(description="Of the document; the position of a text of the request")
    score: float = Field(description="What ordered the answers: see scored_by")
    cosine: float | None = Field(
        description="Of the query and the text; null: the search did not use such vectors"
    )
    percentile: float | None = Field(
        description="Percentage of random pairs with a lower cosine; null: unknown"
    )
    text: str = Field(description="The best passage")
    part: int = Field(description="Which passage of the document it is, from 0")
    fields: dict[str, Any]
    relation: dict[str, float] | None = Field(
        description="Probabilities of the labels of the model's classification head; null: it has none"
    )


class SearchAnswer(BaseModel):
    """Best first."""

    hits: list[HitRow]
    mode: Mode = Field(description="How it was searched")
    scored_by: Literal["cosine", "sparse", "late", "words", "fusion", "cross"] = Field(
        description="What score is: the cosine, the product of weights of words, MaxSim, BM25, reciprocal ranks, or "
        "the cross-encoder's"
    )
    score_kind: ScoreKind | Literal["maxsim"] | None = Field(
        description="What the scores of the reranker are, as its checkpoint says; null: it was not used"
    )
    exact: bool = Field(description="Every passage was compared")
    seconds: float


ROUTES = Routes("Search", error=PlainError)


@ROUTES.add("POST", "/search", SearchAnswer, name="search")
async def search_route(call: Call, body: SearchRequest) -> Response:
    """The nearest texts, best first."""
    call.limits.check_texts([body.query], "query")
    if body.index is not None:
        return await search_index(call, body.index, body)
    return await _search_texts(call, body)


async def _search_texts(call: Call, body: SearchRequest) -> Response:
    started, texts = perf_counter(), body.texts or []
    call.limits.check_texts(texts, "texts")
    mode = body.chosen_mode or ("dense" if body.weights is None else "hybrid")
    weights = _weights(call, mode, body.weights)
    scorer = _needed_reranker(call) if body.rerank else None
    last = body.offset + body.k
    width = min(max(last, CANDIDATES) if mode == "hybrid" or body.rerank else last, len(texts))
    ranked = [await _RANKINGS[kind](call, body.query, texts, width) for kind in weights]
    vectors = next((each.vectors for each in ranked if each.vectors is not None), None)

    def work() -> list[dict[str, Any]]:
        hits = ranked[0].hits
        if mode == "hybrid":
            hits = fuse([each.hits for each in ranked], width, weights=list(weights.values()))
        if scorer is not None:
            hits = _rerank(scorer, body.query, texts, hits)
        rows = _text_rows(texts, hits, vectors)[body.offset : last]
        calibration = vectors and call.services.calibrations.between(call.client, vectors[1])
        return _add_percentiles(rows, calibration)

    rows = await _add_relations(call, body.query, await call.work(work, long=body.rerank))
    how = {"mode": mode, "scored_by": _scored_by(mode, scorer), "score_kind": scorer and scorer.score_kind}
    return json_response({"hits": rows, **how, "exact": True, "seconds": perf_counter() - started})


def text_modes(call: Call) -> list[Mode]:
    """How texts of a request can be searched: by what is loaded."""
    services = call.services
    there: list[Mode] = ["dense"]
    there += ["sparse"] if services.sparse is not None else []
    there += ["late"] if services.late is not None else []
    return [*there, "words", "hybrid"]


def _weights(call: Call, mode: Mode, given: Mapping[Kind, float] | None) -> dict[Kind, float]:
    """The rankings of a search in this mode, each with its weight; as an index has them."""
    modes = text_modes(call)
    for wanted in (mode, *(given or ())):
        if wanted not in modes:
            raise InputError(
                f"nothing is loaded for searches by {wanted!r}. Start the server with --{wanted}; texts can be "
                f"searched by: {', '.join(modes)}"
            )
    if mode != "hybrid":
        return {mode: 1.0}
    there: dict[Kind, float] = {kind: 1.0 for kind in _RANKINGS if kind in modes}
    there["words"] = 0.0 if "sparse" in modes else 1.0
    used = {kind: weight for kind, weight in {**there, **(given or {})}.items() if weight}
    if not used:
        raise InputError("all weights are 0, so there is nothing to search by. Give one that is greater")
    return used


@dataclass(frozen=True, eq=False)
class RankedTexts:
    """One ranking of the texts of a request."""

    hits: Hits
    """Of one query; a text that has nothing in common with it is left out of some rankings."""
    vectors: tuple[Vectors, Vectors] | None = None
    """(1, dim) and (n, dim): of the query and the texts, if the ranking is by these."""


async def _by_vectors(call: Call, query: str, texts: list[str], width: int) -> RankedTexts:
    normalized = EmbedOptions(normalize=unit_norm(call.model))
    one, many = await embed_query_and_documents(call, query, texts, normalized)
    hits = await call.work(lambda: search(one.vectors, many.vectors, width))
    return RankedTexts(hits, (one.vectors, many.vectors))


async def _by_weights_of_words(call: Call, query: str, texts: list[str], width: int) -> RankedTexts:
    one, tokens = await weights_of_words(call, [query], "query")
    many, _ = await weights_of_words(call, texts, "document", before=tokens)
    return RankedTexts(await call.work(lambda: _best(one.similarity(many)[0], width, shared=True)))


async def _by_tokens(call: Call, query: str, texts: list[str], width: int) -> RankedTexts:
    late = call.services.late
    assert late is not None
    scored = await score_pairs(call, late, [query] * len(texts), texts, truncate=True, once=[query])
    return RankedTexts(_best(scored.logits[:, 0], width))


async def _by_words(call: Call, query: str, texts: list[str], width: int) -> RankedTexts:
    return RankedTexts(await call.work(lambda: BM25Index(texts).rank([query], width), long=is_long(texts)))


_RANKINGS: Mapping[Kind, Callable[[Call, str, list[str], int], Awaitable[RankedTexts]]] = {
    "dense": _by_vectors,
    "sparse": _by_weights_of_words,
    "late": _by_tokens,
    "words": _by_words,
}


def _best(scores: Vectors, width: int, *, shared: bool = False) -> Hits:
    """The best positions; `shared`: without those that score 0, as they have nothing in common with the query."""
    order = np.argsort(-scores, kind="stable")[:width]
    order = order[scores[order] != 0] if shared else order
    return Hits(order[None], scores[order][None])


def _text_rows(texts: list[str], hits: Hits, vectors: tuple[Vectors, Vectors] | None) -> list[dict[str, Any]]:
    """Rows without percentiles and relations."""
    cosine = None if vectors is None else np.clip(vectors[1] @ vectors[0][0], -1, 1)
    return [
        {
            "id": str(position),
            "score": score,
            "cosine": None if cosine is None else float(cosine[position]),
            "text": texts[position],
            "part": 0,
            "fields": {},
        }
        for position, score in zip(hits.index[0].tolist(), hits.score[0].tolist(), strict=True)
        if position >= 0
    ]


def _scored_by(mode: Mode, scorer: CrossModel | LateModel | None) -> str:
    if scorer is not None:
        return "cross" if isinstance(scorer, CrossModel) else "late"
    return {"dense": "cosine", "hybrid": "fusion"}.get(mode, mode)


def _rerank(scorer: CrossModel | LateModel, query: str, texts: list[str], hits: Hits) -> Hits:
    candidates = hits.index[0][hits.index[0] >= 0]
    if not len(candidates):
        return hits
    documents = [texts[position] for position in candidates]
    ranked = scorer.rank(query, documents, options=CrossOptions(on_long="truncate"))
    return Hits(candidates[ranked.index][None], ranked.score[None])


def _needed_reranker(call: Call) -> CrossModel | LateModel:
    scorer = reranker(call)
    if scorer is None:
        raise InputError("nothing is loaded that could rerank. Start the server with --rerank or --late")
    return scorer


def _add_percentiles(rows: list[dict[str, Any]], calibration: Calibration | None) -> list[dict[str, Any]]:
    """Rows of an answer with the percentiles of their cosines."""
    return [
        {
            **row,
            "percentile": None
            if calibration is None or row["cosine"] is None
            else calibration.percentile(row["cosine"]),
        }
        for row in rows
    ]


async def _add_relations(call: Call, query: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of an answer with how the query relates to each text, where the model has a classification head."""
    labels = call.model.labels
    if labels is None or not rows:
        return [{**row, "relation": None} for row in rows]
    # Not the vectors of the search: the head was trained on those of default options.
    texts = [query, *(row["text"] for row in rows)]
    vectors = (await embed_many(call, texts, EmbedOptions(), limited=False)).vectors
    probabilities = call.model.relation_of(vectors[:1].repeat(len(rows), axis=0), vectors[1:]).tolist()
    return [
        {**row, "relation": dict(zip(labels, p, strict=True))}
        for row, p in zip(rows, probabilities, strict=True)
    ]


def index_of(call: Call, name: str) -> Index:
    """The index of this name, or a refusal (404)."""
    indexes = call.services.indexes
    if name not in indexes:
        raise RouteError(
            404,
            f"no index {name[:100]!r} is open here. Open: {', '.join(indexes) or 'none'}",
            code="index_not_found",
            param="index",
        )
    return indexes[name]


def with_model_of(call: Call, index: Index) -> Call:
    """The call with the model that made the index."""
    models = call.services.models
    made = next((each for each in models if index.query_options_for(each.model) is not None), None)
    return replace(call, chosen=made)


async def on_index(
    call: Call, name: str, function: Callable[[Index], Result], *, long: bool = False
) -> Result:
    """The result of `function` for the index of this name, on a worker thread. Errors never show where it is stored."""
    index = index_of(call, name)
    try:
        return await call.work(lambda: function(index), long=long)
    except (Overloaded, TooLarge, DeadlineExceeded):
        raise
    except (InputError, ModelError, WorkError) as error:
        error_class = InputError if isinstance(error, InputError) else WorkError
        raise error_class(_hide_location(str(error), index.location, name)) from error


def _hide_location(message: str, location: str, name: str) -> str:
    message = message.replace(str(Path(location).resolve()), name)
    return message.replace(location, name) if "/" in location else message


async def search_index(call: Call, name: str, body: IndexQuestion) -> Response:
    """The answer of an index."""
    call = with_model_of(call, index_of(call, name))
    check_where(body.where)
    scorer = _needed_reranker(call) if body.rerank else None
    mode = body.chosen_mode or ("hybrid" if body.weights is not None else index_of(call, name).mode)
    query = await _query(call, name, body) if mode == "dense" else body.query

    def work(index: Index) -> tuple[Answer, Calibration | None]:
        weights = None if body.weights is None else {str(kind): w for kind, w in body.weights.items()}
        results = index.search(query, mode=mode, weights=weights, rerank=scorer, **body.for_index())
        return results, _calibration(call, name, index)

    results, calibration = await on_index(call, name, work, long=body.rerank or _is_long(body))
    rows = _add_percentiles([hit.row() for hit in results], calibration)
    kind = None if scorer is None else scorer.score_kind
    return _answer(results, await _add_relations(call, body.query, rows), mode, kind)


async def search_by_examples(
    call: Call, name: str, choice: HitChoice, examples: Mapping[str, Any]
) -> Response:
    """The documents of an index that are like some documents and texts; `examples` are arguments of `more_like`."""
    call = with_model_of(call, index_of(call, name))
    check_where(choice.where)

    def work(index: Index) -> tuple[Answer, Calibration | None]:
        check_tokens(call, [*examples["texts"], *examples["unlike_texts"]])
        results = index.more_like(**choice.for_index(), **examples)
        return results, _calibration(call, name, index)

    results, calibration = await on_index(call, name, work, long=_is_long(choice))
    rows = _add_percentiles([hit.row() for hit in results], calibration)
    return _answer(results, [{**row, "relation": None} for row in rows], "dense", None)


def _is_long(choice: HitChoice) -> bool:
    return bool(choice.diversity) or choice.group_by is not None


def _answer(results: Answer, rows: list[dict[str, Any]], mode: Mode, score_kind: str | None) -> Response:
    how = {"mode": mode, "scored_by": results.scored_by, "score_kind": score_kind}
    return json_response({"hits": rows, **how, "exact": results.exact, "seconds": results.seconds})


async def _query(call: Call, name: str, body: IndexQuestion) -> str | Vectors:
    """The vector of the query, from a batch with other requests; the query itself where the index needs its words."""
    if body.rerank:
        return body.query
    wanted = index_of(call, name).query_options_for(call.model)
    options = None if wanted is None else _batched(wanted)
    if options is None:
        return body.query
    vector: Vectors = (await call.embed([body.query], options)).vectors[0]
    return vector if vector.any() else body.query  # zeros have no direction: the index refuses the query


def _batched(wanted: EncodeOptions) -> EmbedOptions | None:
    """These options for the batcher; None: they need something that the batcher does not offer."""
    shared = {name: getattr(wanted, name) for name in ("prompt", "prompt_name", "normalize", "dim")}
    unimportant = {name: getattr(wanted, name) for name in ("threads", "memory", "progress")}
    on_long = wanted.on_long if wanted.on_long in ("warn", "truncate") else "warn"
    same = wanted == EncodeOptions(**shared, **unimportant, on_long=on_long)
    return EmbedOptions(**shared) if same else None


def _calibration(call: Call, name: str, index: Index) -> Calibration | None:
    """Computed again whenever the index has grown by half; None without vectors. Runs on a worker thread."""
    if "dense" not in index.kinds:
        return None
    size = int(math.log(1 + len(index), 1.5))
    return call.services.calibrations.cached((name, size), lambda: (index.sample_vectors(), None))
