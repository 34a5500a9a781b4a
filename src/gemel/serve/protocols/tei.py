"""The protocol of text-embeddings-inference: its routes that give vectors, and the router of them all.

The routes of text-embeddings-inference that give no vectors: rerank, predict, tokens and texts, info.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from gemel.errors import InputError
from gemel.model import TokenEmbeddings
from gemel.serve.errors import RouteError, TeiError
from gemel.serve.limits import TooLarge
from gemel.serve.port import Ask, Services
from gemel.serve.protocols import tei_models as shapes
from gemel.serve.protocols.cohere import ranker, score
from gemel.serve.protocols.explain import Classes, classes, find_classes
from gemel.serve.protocols.openai import texts_of
from gemel.serve.protocols.requests import (
    answer,
    answer_list,
    answer_vectors,
    answer_written,
    client_of,
    dumps,
)
from gemel.serve.protocols.texts import (
    check_dimensions,
    check_sizes,
    check_tokens,
    is_long,
    last_tokens_of,
    many_ids,
    texts_of_ids,
    unit,
)
from gemel.serve.routes import Routes

MOST_NUMBERS = 4_000_000  # in an answer with token vectors: about 45 MB of JSON


def routes(services: Services) -> Routes:
    """The routes of this protocol."""
    route = Routes("text-embeddings-inference", error=TeiError)

    @route.post("/embed", shapes.Vectors)
    async def embed(request: Request, body: shapes.EmbedRequest) -> Response:
        """A vector for each text."""
        return await _embed(services, request, body)

    @route.post("/embed_all", shapes.TokenVectors)
    async def embed_all(request: Request, body: shapes.EmbedAllRequest) -> Response:
        """The vectors of the tokens, before pooling, marks included."""
        return await _embed_all(services, request, body)

    @route.post("/embed_sparse")
    async def embed_sparse(request: Request, body: shapes.EmbedAllRequest) -> Response:
        """Always 424: for models with sparse vectors only, which gemel does not load."""
        raise RouteError(424, f"{services.model_name} gives no sparse vectors. Use /embed", code="Backend")

    @route.post("/similarity", shapes.Similarities)
    async def similarity(request: Request, body: shapes.SimilarityRequest) -> Response:
        """The cosine of one text with others."""
        return await _similarity(services, request, body.inputs, body.parameters)

    @route.post("/", shapes.RootAnswer)
    async def root(request: Request, body: shapes.RootRequest) -> Response:
        """What clients mean that know only the server's address: /embed or /similarity, by the inputs."""
        if isinstance(body.inputs, shapes.Comparison):
            return await _similarity(services, request, body.inputs, body.parameters)
        return await _embed(services, request, body)

    _add_more(route, services)
    return route


async def _embed(services: Services, request: Request, body: shapes.EmbedRequest) -> Response:
    check_dimensions(services, body.dimensions)
    texts = await texts_of(services, request, body.inputs, "inputs")
    ask = Ask(
        client=client_of(request),
        prompt_name=body.prompt_name,
        normalize=False if body.normalize is False else unit(services.model),
        dim=body.dimensions,
        cut=body.truncate is not False,
    )
    texts = await _cut_left(services, request, body, texts, body.prompt_name)
    found = await services.embed(texts, ask)
    return answer_vectors(found.vectors)


async def _embed_all(services: Services, request: Request, body: shapes.EmbedAllRequest) -> Response:
    texts = await texts_of(services, request, body.inputs, "inputs")
    texts = await _cut_left(services, request, body, texts, body.prompt_name)
    client = client_of(request)
    with services.reserve(client):
        found = await services.work(lambda: _tokens(services, texts, body), client=client, long=True)
    width = max(each.vectors.size for each in found)
    return answer_list(
        len(found),
        width,
        lambda start, stop: [np.ascontiguousarray(each.vectors) for each in found[start:stop]],
    )


async def _similarity(
    services: Services,
    request: Request,
    inputs: shapes.Comparison,
    parameters: shapes.SimilarityParameters | None,
) -> Response:
    settings = parameters or shapes.SimilarityParameters.model_validate({})
    check_sizes(services, inputs.sentences, "sentences", services.limits.texts - 1)
    check_sizes(services, [inputs.source_sentence], "source_sentence")
    texts = [inputs.source_sentence, *inputs.sentences]
    texts = await _cut_left(services, request, settings, texts, settings.prompt_name)
    ask = Ask(
        client=client_of(request),
        prompt_name=settings.prompt_name,
        normalize=unit(services.model),
        cut=settings.truncate is not False,
    )
    vectors = (await services.embed(texts, ask)).vectors
    return answer(np.clip(vectors[1:] @ vectors[0], -1, 1))


async def _cut_left(
    services: Services, request: Request, body: shapes.Cut, texts: list[str], prompt_name: str | None
) -> list[str]:
    """The ends of long texts, where the client wants the beginnings cut off."""
    if not body.left:
        return texts
    prompt = services.model.checkpoint.prompts.get(prompt_name or "", "")
    return await services.work(
        lambda: last_tokens_of(services, texts, prompt), client=client_of(request), long=is_long(texts)
    )


def _tokens(services: Services, texts: Sequence[str], body: shapes.EmbedAllRequest) -> list[TokenEmbeddings]:
    """Runs on a worker thread."""
    model, limit = services.model, services.model.max_length
    check_tokens(services, texts)
    lengths = [len(ids) + len(model.tokenizer.marks) for ids in model.tokenizer.content(texts)]
    numbers = sum(length if limit is None else min(length, limit) for length in lengths) * model.width
    if numbers > MOST_NUMBERS:
        raise TooLarge(
            f"the token vectors of these texts are {numbers:,} numbers; an answer has at most {MOST_NUMBERS:,}. "
            "Send fewer or shorter texts"
        )
    on_long = "error" if body.truncate is False else "truncate"
    return model.tokens(texts, on_long=on_long, prompt_name=body.prompt_name)


def _add_more(route: Routes, services: Services) -> None:
    """Add these routes to those of the protocol."""

    @route.post("/rerank", shapes.Ranks)
    async def rerank(request: Request, body: shapes.RerankRequest) -> Response:
        """Texts by how well they answer a query, best first."""
        return await _rerank(services, request, body)

    @route.post("/predict", shapes.Predictions)
    async def predict(request: Request, body: shapes.PredictRequest) -> Response:
        """How two texts relate: the labels of the relation head or of the cross-encoder, most probable first."""
        return await _predict(services, request, body)

    @route.post("/tokenize", shapes.Tokens)
    async def tokenize(request: Request, body: shapes.TokenizeRequest) -> Response:
        """The tokens of texts, whole."""
        return await _tokenize(services, request, body)

    @route.post("/decode", shapes.DecodedTexts)
    async def decode(request: Request, body: shapes.DecodeRequest) -> Response:
        """The texts that token ids stand for."""
        return await _decode(services, request, body)

    @route.get("/info", shapes.Info)
    async def info(request: Request) -> Response:
        """The loaded model and the limits of a request."""
        return answer(_info(services))


async def _rerank(services: Services, request: Request, body: shapes.RerankRequest) -> Response:
    check_sizes(services, [body.query], "query")
    check_sizes(services, body.texts, "texts")
    texts = body.texts
    whole = body.left and ranker(services) is not None
    if body.left and not whole:
        texts = await services.work(
            lambda: last_tokens_of(services, body.texts), client=client_of(request), long=is_long(texts)
        )
    ask = Ask(client=client_of(request), cut=body.truncate is not False and not whole)
    with _only_whole(whole):
        found = await score(services, body.query, texts, ask)
    scores = found.raw if body.raw_scores else found.between
    rows: list[dict[str, Any]] = [{"index": int(at), "score": float(scores[at])} for at in found.best()]
    if body.return_text:
        rows = [{**row, "text": body.texts[row["index"]]} for row in rows]
    return answer(rows)


async def _predict(services: Services, request: Request, body: shapes.PredictRequest) -> Response:
    if find_classes(services) is None:
        raise RouteError(424, f"{services.model_name} tells no classes apart", code="Backend")
    pairs = _pairs(body.inputs)
    left, right = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for texts in (left, right):
        check_sizes(services, texts, "inputs")
    ask = Ask(client=client_of(request), cut=body.truncate is not False and not body.left)
    with _only_whole(body.left):
        rows = _sorted(await classes(services, left, right, ask), raw=body.raw_scores is True)
    return answer(rows if isinstance(body.inputs[0], list) else rows[0])


@contextmanager
def _only_whole(wanted: bool) -> Iterator[None]:
    """The texts of pairs are cut at the end only; `wanted`: the client body for the other side, so say that."""
    try:
        yield
    except TooLarge:
        raise
    except InputError as error:
        if not wanted:
            raise
        what = str(error).partition(". ")[0]
        raise InputError(
            f"{what}, and truncation_direction 'Left' is not possible here. Shorten it, or let its end be cut off"
        ) from error


async def _tokenize(services: Services, request: Request, body: shapes.TokenizeRequest) -> Response:
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    check_sizes(services, texts, "inputs")
    prompt, marked = _prompt(services, body.prompt_name), body.add_special_tokens is not False
    whole = [prompt + each for each in texts]

    def work() -> list[bytes]:
        check_tokens(services, whole)
        return [dumps(_tokens_of(services, each, marked)) for each in whole]  # as objects, many times larger

    return answer_written(await services.work(work, client=client_of(request), long=is_long(whole)))


async def _decode(services: Services, request: Request, body: shapes.DecodeRequest) -> Response:
    if not body.ids:
        raise InputError("ids is empty: give at least one token id")
    lists: Any = body.ids if isinstance(body.ids[0], list) else [body.ids]
    marks = body.skip_special_tokens is False
    long = many_ids(lists)
    found = await services.work(
        lambda: texts_of_ids(services, lists, "ids", marks=marks), client=client_of(request), long=long
    )
    return answer(found)


def _pairs(inputs: str | list[str] | list[list[str]]) -> list[list[str]]:
    pairs: Any = (
        inputs if not isinstance(inputs, str) and inputs and isinstance(inputs[0], list) else [inputs]
    )
    for place, pair in enumerate(pairs):
        if isinstance(pair, str) or len(pair) != 2:
            what = "one text" if isinstance(pair, str) else f"{len(pair)} texts"
            raise InputError(f"inputs[{place}] is {what}: the classes are those of pairs, two texts each")
    return list(pairs)


def _sorted(found: Classes, *, raw: bool) -> list[list[dict[str, Any]]]:
    out = []
    for row in found.raw if raw else found.probabilities:
        order = np.argsort(-row, kind="stable")
        out.append([{"label": found.labels[at], "score": float(row[at])} for at in order])
    return out


def _prompt(services: Services, name: str | None) -> str:
    prompts = services.model.checkpoint.prompts
    if name is not None and name not in prompts:
        known = ", ".join(sorted(prompts)) or "none"
        raise InputError(f"unknown prompt {name[:100]!r}. The model brings: {known}")
    return prompts[name] if name is not None else ""


def _tokens_of(services: Services, text: str, marked: bool) -> list[dict[str, Any]]:
    return [
        {
            "id": piece.id,
            "text": piece.token if piece.mark else text[piece.start : piece.stop],
            "special": piece.mark,
            "start": None if piece.mark else piece.start,
            "stop": None if piece.mark else piece.stop,
        }
        for piece in services.model.tokenizer.pieces(text, marked=marked)
    ]


def _info(services: Services) -> dict[str, Any]:
    from importlib.metadata import version

    model, limits = services.model, services.limits
    found = find_classes(services)
    kind: dict[str, Any] = {"embedding": {"pooling": "+".join(model.checkpoint.pooling.modes)}}
    if ranker(services) is not None:
        kind["reranker"] = _labels(services.cross.labels if services.cross else ())
    if found is not None:
        kind["classifier"] = _labels(found.labels)
    return {
        "model_id": services.model_name,
        "model_sha": None,
        "model_dtype": model.precision,
        "model_type": kind,
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


def _labels(labels: Sequence[str]) -> dict[str, Any]:
    return {
        "id2label": {str(place): label for place, label in enumerate(labels)},
        "label2id": {label: place for place, label in enumerate(labels)},
    }
