"""The protocol of text-embeddings-inference: its routes that give vectors, and the router of them all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from fastapi import APIRouter, Request, Response

from gemel.model import TokenVectors
from gemel.serve.errors import RouteError
from gemel.serve.limits import TooLarge
from gemel.serve.port import Ask, Services
from gemel.serve.routes import tei_shapes as shapes
from gemel.serve.routes.answering import answer, answer_list, answer_vectors
from gemel.serve.routes.failures import TeiError, errors
from gemel.serve.routes.openai import texts_of
from gemel.serve.routes.reading import client_of, read, takes
from gemel.serve.routes.tei_more import add_more
from gemel.serve.routes.texts import check_dimensions, check_sizes, check_tokens, is_long, unit
from gemel.serve.routes.tokens import last_tokens_of

MOST_NUMBERS = 4_000_000  # in an answer with token vectors: about 45 MB of JSON


def router(services: Services) -> APIRouter:
    """The routes of this protocol."""
    routes = APIRouter(tags=["text-embeddings-inference"], responses=errors(TeiError))

    @routes.post("/embed", response_model=shapes.Vectors, openapi_extra=takes(shapes.EmbedRequest))
    async def embed(request: Request) -> Response:
        """A vector for each text."""
        return await _embed(services, request, await read(request, shapes.EmbedRequest))

    @routes.post(
        "/embed_all", response_model=shapes.TokenVectors, openapi_extra=takes(shapes.EmbedAllRequest)
    )
    async def embed_all(request: Request) -> Response:
        """The vectors of the tokens, before pooling, marks included."""
        return await _embed_all(services, request, await read(request, shapes.EmbedAllRequest))

    @routes.post("/embed_sparse", response_model=None, openapi_extra=takes(shapes.EmbedAllRequest))
    async def embed_sparse(request: Request) -> Response:
        """Always 424: for models with sparse vectors only, which gemel does not load."""
        await read(request, shapes.EmbedAllRequest)
        raise RouteError(424, f"{services.model_name} gives no sparse vectors. Use /embed", code="Backend")

    @routes.post(
        "/similarity", response_model=shapes.Similarities, openapi_extra=takes(shapes.SimilarityRequest)
    )
    async def similarity(request: Request) -> Response:
        """The cosine of one text with others."""
        asked = await read(request, shapes.SimilarityRequest)
        return await _similarity(services, request, asked.inputs, asked.parameters)

    @routes.post("/", response_model=shapes.RootAnswer, openapi_extra=takes(shapes.RootRequest))
    async def root(request: Request) -> Response:
        """What clients mean that know only the server's address: /embed or /similarity, by the inputs."""
        asked = await read(request, shapes.RootRequest)
        if isinstance(asked.inputs, shapes.Comparison):
            return await _similarity(services, request, asked.inputs, asked.parameters)
        return await _embed(services, request, asked)

    add_more(routes, services)
    return routes


async def _embed(services: Services, request: Request, asked: shapes.EmbedRequest) -> Response:
    check_dimensions(services, asked.dimensions)
    texts = await texts_of(services, request, asked.inputs, "inputs")
    ask = Ask(
        client=client_of(request),
        prompt_name=asked.prompt_name,
        normalize=False if asked.normalize is False else unit(services.model),
        dim=asked.dimensions,
        cut=asked.truncate is not False,
    )
    texts = await _cut_left(services, request, asked, texts, asked.prompt_name)
    found = await services.embed(texts, ask)
    return answer_vectors(found.vectors)


async def _embed_all(services: Services, request: Request, asked: shapes.EmbedAllRequest) -> Response:
    texts = await texts_of(services, request, asked.inputs, "inputs")
    texts = await _cut_left(services, request, asked, texts, asked.prompt_name)
    client = client_of(request)
    with services.reserve(client):
        found = await services.work(lambda: _tokens(services, texts, asked), client=client, long=True)
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
    services: Services, request: Request, asked: shapes.Cut, texts: list[str], prompt_name: str | None
) -> list[str]:
    """The ends of long texts, where the client wants the beginnings cut off."""
    if not asked.left:
        return texts
    prompt = services.model.checkpoint.prompts.get(prompt_name or "", "")
    return await services.work(
        lambda: last_tokens_of(services, texts, prompt), client=client_of(request), long=is_long(texts)
    )


def _tokens(services: Services, texts: Sequence[str], asked: shapes.EmbedAllRequest) -> list[TokenVectors]:
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
    on_long = "error" if asked.truncate is False else "truncate"
    return model.tokens(texts, on_long=on_long, prompt_name=asked.prompt_name)
