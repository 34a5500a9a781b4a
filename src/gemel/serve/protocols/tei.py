"""The protocol of text-embeddings-inference: vectors, rerank, predict, tokenize, decode, info.

An optional field of a request may also be null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from gemel.cross_model import CrossModel
from gemel.errors import InputError
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import RouteError, TeiError
from gemel.serve.options import TooLarge
from gemel.serve.protocols.explain import class_labels, classify
from gemel.serve.protocols.rerank import (
    Documents,
    OlderRerankAnswer,
    OlderRerankRequest,
    older,
    reranker,
    score,
)
from gemel.serve.protocols.texts import (
    check_dimensions,
    check_tokens,
    decode_ids,
    input_texts,
    is_long,
    is_long_ids,
    keep_ends,
    unit_norm,
)
from gemel.serve.routes import (
    FailFast,
    ForeignRequest,
    Routes,
    Texts,
    TokenIds,
    TokenLists,
    dumps,
    encoded_list_response,
    example,
    json_list_response,
    json_response,
    vectors_response,
)
from gemel.serve.services import Call, is_called
from gemel.types import TokenEmbeddings

MOST_NUMBERS = 4_000_000  # in an answer with token vectors: about 45 MB of JSON

Inputs: TypeAlias = str | Texts | TokenIds | TokenLists

Direction: TypeAlias = Literal["Left", "Right", "left", "right"]

_INPUTS = "a string, a list of strings, a list of token ids of this model, or a list of such lists"

_TEXTS = ["A man is playing a guitar.", "Someone plays an instrument."]


class Truncation(ForeignRequest):
    """What to do with texts that are longer than the model reads."""

    truncate: bool | None = Field(None, description="false: refuse them; otherwise they are truncated")
    truncation_direction: Direction | None = Field("Right", description="The side that is cut off")

    @property
    def left(self) -> bool:
        return self.truncate is not False and (self.truncation_direction or "Right").lower() == "left"


class EmbedRequest(Truncation):
    model_config = example(inputs=_TEXTS)

    inputs: Inputs = Field(description=_INPUTS)
    normalize: bool | None = Field(True, description="Vectors of length 1")
    prompt_name: str | None = Field(None, description="The name of a prompt of the model")
    dimensions: int | None = Field(None, ge=1, description="Keep only the first numbers of each vector")


class EmbedAllRequest(Truncation):
    model_config = example(inputs="A man is playing a guitar.")

    inputs: Inputs = Field(description=_INPUTS)
    prompt_name: str | None = Field(None, description="The name of a prompt of the model")


class EmbedSparseRequest(EmbedAllRequest):
    model_config = example(inputs="A man is playing a guitar.")

    inputs: Inputs = Field(description=_INPUTS.replace("this model", "the sparse encoder"))
    prompt_name: str | None = Field(
        None,
        description="The name of a prompt of the sparse encoder; query or document where it has modules for each",
    )


class Comparison(ForeignRequest):
    source_sentence: str
    sentences: Texts


class SimilarityParameters(Truncation):
    prompt_name: str | None = Field(None, description="The name of a prompt of the model")


class SimilarityRequest(ForeignRequest):
    model_config = example(inputs={"source_sentence": _TEXTS[0], "sentences": _TEXTS[1:]})

    inputs: Comparison
    parameters: SimilarityParameters | None = None


class RootRequest(EmbedRequest):
    """/embed, or /similarity where the inputs are a source and sentences."""

    model_config = example(inputs=_TEXTS)

    inputs: Comparison | Inputs = Field(  # type: ignore[assignment]  # as /embed, and more
        description=f"{_INPUTS}; or an object with source_sentence and sentences"
    )
    parameters: SimilarityParameters | None = None


class RerankRequest(OlderRerankRequest, Truncation):
    """Texts to put in order. With `documents` instead of `texts` it is a request for /v1/rerank."""

    model_config = example(query="Who plays music?", texts=_TEXTS)

    texts: Texts | None = None
    documents: Documents | None = Field(  # type: ignore[assignment]  # or texts
        None,
        description="Instead of texts, by clients of vLLM and infinity: the answer is that of /v1/rerank",
    )
    raw_scores: bool | None = Field(
        False, description="The number before the sigmoid, the MaxSim, or the cosine"
    )
    return_text: bool | None = False

    @model_validator(mode="after")
    def _one_list(self) -> RerankRequest:
        if self.texts is None and self.documents is None:
            sentence = "the field 'texts' is missing. Required: query, texts"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        if self.texts is not None and self.documents is not None:
            raise ValueError("give either texts or documents")
        return self


class PredictRequest(Truncation):
    model_config = example(inputs=_TEXTS)

    inputs: str | Texts | Annotated[list[Texts], FailFast()] = Field(
        description="a pair of texts as a list of two strings, or a list of pairs"
    )
    raw_scores: bool | None = Field(False, description="Logits, or the logarithms of the probabilities")


class TokenizeRequest(ForeignRequest):
    model_config = example(inputs="A man is playing a guitar.")

    inputs: str | Texts = Field(description="a string or a list of strings")
    add_special_tokens: bool | None = True
    prompt_name: str | None = Field(None, description="The name of a prompt of the model")


class DecodeRequest(ForeignRequest):
    model_config = example(ids=[101, 7592, 2088, 102])

    ids: TokenIds | TokenLists = Field(description="a list of token ids, or a list of such lists")
    skip_special_tokens: bool | None = True


# Answers.


class Vectors(RootModel[list[list[float]]]):
    """A vector for each input."""


class TokenVectors(RootModel[list[list[list[float]]]]):
    """A vector for each token of each input."""


class SparseValue(BaseModel):
    index: int
    value: float


class SparseValues(RootModel[list[list[SparseValue]]]):
    """The weights of each input that are not zero, by their columns."""


class Similarities(RootModel[list[float]]):
    """A cosine for each sentence."""


class RootAnswer(RootModel[list[list[float]] | list[float]]):
    """Vectors, or cosines."""


class Rank(BaseModel):
    index: int
    score: float
    text: str | None = None


class Ranks(RootModel[list[Rank] | OlderRerankAnswer]):
    """Best first; for documents, the answer of /v1/rerank."""


class Prediction(BaseModel):
    label: str
    score: float


class Predictions(RootModel[list[Prediction] | list[list[Prediction]]]):
    """Labels of one pair, or of each, most probable first."""


class SimpleToken(BaseModel):
    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Tokens(RootModel[list[list[SimpleToken]]]):
    """Tokens of each text, with their offsets in characters."""


class DecodedTexts(RootModel[list[str]]):
    """A text for each list of ids."""


class Info(BaseModel):
    """The model and the limits."""

    model_config = ConfigDict(protected_namespaces=())

    model_id: str
    model_sha: str | None
    model_dtype: str
    model_type: dict[str, Any]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None
    docker_label: str | None


# Vectors.

ROUTES = Routes("text-embeddings-inference", error=TeiError)


@ROUTES.add("POST", "/embed", Vectors)
async def embed(call: Call, body: EmbedRequest) -> Response:
    """A vector for each text."""
    check_dimensions(call, body.dimensions)
    texts = await _input_texts(call, body)
    options = EmbedOptions(
        prompt_name=body.prompt_name,
        normalize=False if body.normalize is False else unit_norm(call.model),
        dim=body.dimensions,
        truncate=body.truncate is not False,
    )
    return vectors_response((await call.embed(texts, options)).vectors)


@ROUTES.add("POST", "/embed_all", TokenVectors)
async def embed_all(call: Call, body: EmbedAllRequest) -> Response:
    """The vectors of the tokens, before pooling, special tokens included."""
    texts = await _input_texts(call, body)
    with call.reserve():
        tokens = await call.work(lambda: _token_vectors(call, texts, body), long=True)
    return json_list_response(
        len(tokens),
        max(each.vectors.size for each in tokens),
        lambda start, stop: [np.ascontiguousarray(each.vectors) for each in tokens[start:stop]],
    )


@ROUTES.add("POST", "/embed_sparse", SparseValues)
async def embed_sparse(call: Call, body: EmbedSparseRequest) -> Response:
    """The weights of words that are not zero, by the ids of their tokens. 424 without a sparse encoder."""
    served = call.services.sparse
    if served is None:
        raise RouteError(
            424,
            f"{call.model_name} gives no sparse vectors. Start the server with --sparse, or use /embed",
            code="Backend",
        )
    model = served.model
    texts = await input_texts(call, body.inputs, "inputs", model=model)
    if body.left:
        prompt = model.checkpoint.document.checkpoint.prompts.get(body.prompt_name or "", "")
        texts = await keep_ends(call, texts, prompt, model)
    options = EmbedOptions(prompt_name=body.prompt_name, truncate=body.truncate is not False)
    rows = (await call.embed_sparse(texts, options)).rows

    def part(start: int, stop: int) -> list[list[dict[str, Any]]]:
        return [
            [
                {"index": index, "value": value}
                for index, value in zip(row["index"].tolist(), row["value"], strict=True)
            ]
            for row in rows[start:stop]
        ]

    return json_list_response(len(rows), 2 * max(map(len, rows)), part)


@ROUTES.add("POST", "/similarity", Similarities)
async def similarity(call: Call, body: SimilarityRequest) -> Response:
    """The cosine of one text with others."""
    return await _similarity(call, body.inputs, body.parameters)


@ROUTES.add("POST", "/", RootAnswer)
async def root(call: Call, body: RootRequest) -> Response:
    """/embed or /similarity, depending on the inputs, for clients that know only the server's address."""
    if isinstance(body.inputs, Comparison):
        return await _similarity(call, body.inputs, body.parameters)
    return await embed(call, body)


async def _similarity(call: Call, inputs: Comparison, parameters: SimilarityParameters | None) -> Response:
    settings = parameters or SimilarityParameters.model_validate({})
    call.limits.check_texts(inputs.sentences, "sentences", call.limits.texts - 1)
    call.limits.check_texts([inputs.source_sentence], "source_sentence")
    texts = [inputs.source_sentence, *inputs.sentences]
    options = EmbedOptions(
        prompt_name=settings.prompt_name,
        normalize=unit_norm(call.model),
        truncate=settings.truncate is not False,
    )
    texts = await _truncate_left(call, settings, texts, settings.prompt_name)
    vectors = (await call.embed(texts, options)).vectors
    return json_response(np.clip(vectors[1:] @ vectors[0], -1, 1))


async def _input_texts(call: Call, body: EmbedRequest | EmbedAllRequest) -> list[str]:
    texts = await input_texts(call, body.inputs, "inputs")
    return await _truncate_left(call, body, texts, body.prompt_name)


async def _truncate_left(
    call: Call, body: Truncation, texts: list[str], prompt_name: str | None
) -> list[str]:
    """The ends of long texts, where the client wants their beginnings cut off."""
    prompt = call.model.checkpoint.prompts.get(prompt_name or "", "")
    return await keep_ends(call, texts, prompt) if body.left else texts


def _token_vectors(call: Call, texts: Sequence[str], body: EmbedAllRequest) -> list[TokenEmbeddings]:
    """Runs on a worker thread."""
    model, limit = call.model, call.model.max_length
    check_tokens(call, texts)
    lengths = [len(ids) + len(model.tokenizer.special) for ids in model.tokenizer.content(texts)]
    numbers = sum(length if limit is None else min(length, limit) for length in lengths) * model.width
    if numbers > MOST_NUMBERS:
        raise TooLarge(
            f"the token vectors of these texts are {numbers:,} numbers; an answer has at most {MOST_NUMBERS:,}. "
            "Send fewer or shorter texts"
        )
    on_long: Literal["error", "truncate"] = "error" if body.truncate is False else "truncate"
    return model.tokens(texts, on_long=on_long, prompt_name=body.prompt_name)


# Scores and classes.


@ROUTES.add("POST", "/rerank", Ranks)
async def rerank(call: Call, body: RerankRequest) -> Response:
    """Texts by how well they answer a query, best first. With `documents`, as /v1/rerank."""
    if body.texts is None:
        return await older(call, body)
    if (
        (late := call.services.late) is not None
        and body.model is not None
        and is_called(body.model, late.name)
    ):
        call = replace(call, late_chosen=True)
    call.limits.check_texts([body.query], "query")
    call.limits.check_texts(body.texts, "texts")
    pairs = body.left and reranker(call) is not None
    texts = await keep_ends(call, body.texts) if body.left and not pairs else body.texts
    options = EmbedOptions(truncate=body.truncate is not False and not pairs)
    with _explain_left(pairs):
        scored = await score(call, body.query, texts, options)
    scores = scored.raw if body.raw_scores else scored.relevance
    rows: list[dict[str, Any]] = [{"index": int(at), "score": float(scores[at])} for at in scored.best()]
    if body.return_text:
        rows = [{**row, "text": body.texts[row["index"]]} for row in rows]
    return json_response(rows)


@ROUTES.add("POST", "/predict", Predictions)
async def predict(call: Call, body: PredictRequest) -> Response:
    """How two texts relate: the labels of the cross-encoder or the classification head, most probable first."""
    if class_labels(call) is None:
        raise RouteError(424, f"{call.model_name} does not classify pairs of texts", code="Backend")
    pairs = _pairs(body.inputs)
    left, right = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for texts in (left, right):
        call.limits.check_texts(texts, "inputs")
    with _explain_left(body.left):
        result = await classify(call, left, right, truncate=body.truncate is not False and not body.left)
    rows = [
        [{"label": result.labels[at], "score": float(row[at])} for at in np.argsort(-row, kind="stable")]
        for row in (result.raw if body.raw_scores else result.probabilities)
    ]
    return json_response(rows if isinstance(body.inputs[0], list) else rows[0])


@contextmanager
def _explain_left(wanted: bool) -> Iterator[None]:
    """Pairs can only be truncated at the end. `wanted`: the client wants the other side, so explain it in the error."""
    try:
        yield
    except TooLarge:
        raise
    except InputError as error:
        if not wanted:
            raise
        reason = str(error).partition(". ")[0]
        raise InputError(
            f"{reason}, and truncation_direction 'Left' is not possible here. Shorten it, or let its end be cut off"
        ) from error


def _pairs(inputs: str | list[str] | list[list[str]]) -> list[list[str]]:
    pairs: Any = (
        inputs if not isinstance(inputs, str) and inputs and isinstance(inputs[0], list) else [inputs]
    )
    for position, pair in enumerate(pairs):
        if isinstance(pair, str) or len(pair) != 2:
            what = "one text" if isinstance(pair, str) else f"{len(pair)} texts"
            raise InputError(f"inputs[{position}] is {what}: the classes are those of pairs, two texts each")
    return list(pairs)


# Tokens, and the model.


@ROUTES.add("POST", "/tokenize", Tokens)
async def tokenize(call: Call, body: TokenizeRequest) -> Response:
    """The tokens of texts, without truncation."""
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    call.limits.check_texts(texts, "inputs")
    prompt, special = _prompt(call, body.prompt_name), body.add_special_tokens is not False
    prompted = [prompt + each for each in texts]

    def work() -> list[bytes]:
        check_tokens(call, prompted)
        # As JSON: its objects would take many times the memory.
        return [dumps(_tokens_of(call, each, special)) for each in prompted]

    return encoded_list_response(await call.work(work, long=is_long(prompted)))


@ROUTES.add("POST", "/decode", DecodedTexts)
async def decode(call: Call, body: DecodeRequest) -> Response:
    """The texts that token ids stand for."""
    if not body.ids:
        raise InputError("ids is empty: give at least one token id")
    lists: Any = body.ids if isinstance(body.ids[0], list) else [body.ids]
    special = body.skip_special_tokens is False
    return json_response(
        await call.work(lambda: decode_ids(call, lists, "ids", special=special), long=is_long_ids(lists))
    )


@ROUTES.add("GET", "/info", Info)
async def info(call: Call) -> Response:
    """The loaded model and the limits of a request."""
    model, limits, cross = call.model, call.limits, reranker(call)
    model_type: dict[str, Any] = {"embedding": {"pooling": "+".join(model.checkpoint.pooling.modes)}}
    if isinstance(cross, CrossModel):
        model_type["reranker"] = _labels(cross.labels)
    if (sparse := call.services.sparse) is not None:
        model_type["sparse"] = {
            "model_id": sparse.name,
            "dimensions": sparse.model.dim,
            "max_input_length": sparse.model.max_length,
        }
    if (late := call.services.late) is not None:
        model_type["late_interaction"] = {
            "model_id": late.name,
            "dimensions": late.dim,
            "max_query_length": late.query_length,
            "max_input_length": late.document_length,
        }
    if (labels := class_labels(call)) is not None:
        model_type["classifier"] = _labels(labels)
    return json_response(
        {
            "model_id": call.model_name,
            "model_sha": None,
            "model_dtype": model.precision,
            "model_type": model_type,
            "max_concurrent_requests": limits.queue_tokens // (model.max_length or limits.tokens),
            "max_input_length": model.max_length or limits.tokens,
            "max_batch_tokens": limits.tokens,
            "max_batch_requests": None,
            "max_client_batch_size": limits.texts,
            "auto_truncate": True,
            "tokenization_workers": 1,
            "version": version("gemel"),
            "sha": None,
            "docker_label": None,
        }
    )


def _prompt(call: Call, name: str | None) -> str:
    prompts = call.model.checkpoint.prompts
    if name is not None and name not in prompts:
        available = ", ".join(sorted(prompts)) or "none"
        raise InputError(f"unknown prompt {name[:100]!r}. The model brings: {available}")
    return prompts[name] if name is not None else ""


def _tokens_of(call: Call, text: str, special: bool) -> list[dict[str, Any]]:
    return [
        {
            "id": piece.id,
            "text": piece.token if piece.special else text[piece.start : piece.stop],
            "special": piece.special,
            "start": None if piece.special else piece.start,
            "stop": None if piece.special else piece.stop,
        }
        for piece in call.model.tokenizer.pieces(text, special=special)
    ]


def _labels(labels: Sequence[str]) -> dict[str, Any]:
    return {
        "id2label": {str(position): label for position, label in enumerate(labels)},
        "label2id": {label: position for position, label in enumerate(labels)},
    }
