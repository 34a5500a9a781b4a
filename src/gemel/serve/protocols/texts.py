"""Texts of a request: checks, vectors and their number formats, token ids instead of texts, truncation, prompts, and
the names of models.

A name of a model is only ever compared with the loaded ones, never looked up on disk.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np

from gemel.encoder.tokenizer import TextTokenizer
from gemel.errors import InputError
from gemel.model import Model
from gemel.serve.batcher import EmbedOptions, EmbedResult
from gemel.serve.errors import RouteError
from gemel.serve.options import TooLarge
from gemel.serve.routes import Texts, TokenIds, TokenLists
from gemel.serve.services import Call, PromptSide, ServedModel, is_called
from gemel.types import AnyVectors, Vectors
from gemel.vectors.search import quantize

CHUNK = 512  # texts of a large request that wait at once, so that it never fills the queue alone
WHERE_CHARACTERS = 50_000  # of a condition
WHERE_VALUES = 5_000  # of a condition written as JSON
LONG_CHARACTERS = 20_000  # in a request, from which work on its texts may take a second
CHARACTERS_PER_TOKEN = 4  # a list of ids may have as many as a text of the longest length has, roughly
TOKENIZED_AT_ONCE = 64  # texts


class ReadingModel(Protocol):
    """A model of any kind, as far as it reads texts."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> TextTokenizer: ...

    @property
    def max_length(self) -> int | None: ...


def is_long(texts: Sequence[str]) -> bool:
    """Work on these texts is long work: see `Call.work`."""
    return sum(map(len, texts)) > LONG_CHARACTERS


def check_where(where: object, name: str = "where") -> None:
    """Refuse a condition that is too long to be parsed quickly."""
    size = len(where) if isinstance(where, str) else _leaves(where)
    most = WHERE_CHARACTERS if isinstance(where, str) else WHERE_VALUES
    if size > most:
        unit = "characters" if isinstance(where, str) else "values"
        raise TooLarge(f"{name} has {size:,} {unit}; a condition takes at most {most:,}")


def _leaves(part: object) -> int:
    inside = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return 1 + sum(map(_leaves, inside))


def check_tokens(call: Call, texts: Sequence[str]) -> int:
    """How many tokens texts have; more together than one request may have are refused. Runs on a worker thread.

    Special tokens count. For work that does not go through the batcher, which counts its own. Tokens are those of the
    model, also where a cross-encoder reads the texts. One text at a time: of a request that is far too large only the
    first part is tokenized.
    """
    tokenizer, count = call.model.tokenizer, 0
    for text in texts:
        count += len(tokenizer.content([text])[0]) + len(tokenizer.special)
        call.limits.check_tokens(count, all_counted=False)
    return count


def check_dimensions(call: Call, dimensions: int | None, name: str = "dimensions") -> None:
    """Refuse more numbers than a vector has; `name` is the field of the request."""
    if dimensions is not None and dimensions > call.model.dim:
        raise InputError(f"{name} must be at most {call.model.dim}, the model's own, got {dimensions}")


_SIDES: Mapping[str, PromptSide] = {side: side for side in get_args(PromptSide)}

PURPOSES = {
    "query": "query",
    "search_query": "query",
    "retrieval.query": "query",
    "document": "document",
    "passage": "document",
    "search_document": "document",
    "retrieval.passage": "document",
    "classification": "classification",
    "clustering": "clustering",
    "separation": "clustering",
    "text-matching": "text-matching",
}
"""What texts are encoded for, in the words of Voyage, Cohere, Jina and NVIDIA."""


def prompt_for_purpose(call: Call, purpose: str | None, name: str) -> str | None:
    """The name of the checkpoint's own prompt for texts of this purpose; None where it has none for it.

    `name` is the field of the request, for errors. Without a purpose, the name of the model chooses.
    """
    if purpose is None:
        return call.prompt_name
    if purpose not in PURPOSES:
        raise InputError(f"{name} must be one of {', '.join(PURPOSES)}, got {purpose[:100]!r}")
    wanted, checkpoint = PURPOSES[purpose], call.model.checkpoint
    if (side := _SIDES.get(wanted)) is not None:
        prompt_name = checkpoint.prompt_name(side)
    else:
        prompt_name = next((each for each in (wanted, purpose) if each in checkpoint.prompts), None)
    check_one_prompt(call, prompt_name, name, purpose)
    return prompt_name


def check_one_prompt(call: Call, prompt_name: str | None, name: str, value: str) -> None:
    """Refuse a field of the request that chooses another prompt than the name of the model does."""
    if call.side is not None and prompt_name != call.prompt_name:
        raise InputError(
            f"the model {call.model_name!r} chooses the prompt {call.prompt_name!r}, but {name} is {value[:100]!r}. "
            f"Leave out {name}, or name the model {call.served.name!r}"
        )


def unit_norm(model: Model) -> bool | None:
    """`normalize` for clients that expect vectors of length 1; None where those of the model have it anyway."""
    return None if model.checkpoint.normalize else True


async def embed_many(
    call: Call, texts: Sequence[str], options: EmbedOptions, *, before: int = 0, limited: bool = True
) -> EmbedResult:
    """As `Call.embed`, in chunks that leave room in the queue for other requests.

    The limit of tokens is that of all chunks together; `before`: tokens that the request has had already; `limited`
    False: for texts that were stored in an index, not sent by the client.
    """
    parts: list[EmbedResult] = []
    for start in range(0, max(len(texts), 1), CHUNK):
        parts.append(await call.embed(texts[start : start + CHUNK], options))
        before += sum(parts[-1].tokens)
        if limited:
            call.limits.check_tokens(before, all_counted=False)
    if len(parts) == 1:
        return parts[0]
    return EmbedResult(
        np.concatenate([part.vectors for part in parts]),
        [tokens for part in parts for tokens in part.tokens],
        [kept for part in parts for kept in part.kept],
    )


async def embed_query_and_documents(
    call: Call, query: str, documents: Sequence[str], options: EmbedOptions
) -> tuple[EmbedResult, EmbedResult]:
    """Vectors of a query and of documents, each with the prompt of its side."""
    query_options = replace(options, prompt_name=call.model.checkpoint.prompt_name("query"))
    query_result = await call.embed([query], query_options)
    document_options = replace(options, prompt_name=call.model.checkpoint.prompt_name("document"))
    before = sum(query_result.tokens)
    return query_result, await embed_many(call, documents, document_options, before=before)


# Vectors in other number formats.

VectorType: TypeAlias = Literal["float", "int8", "uint8", "binary", "ubinary"]
"""int8: each vector scaled so that its largest number is 127; uint8: that plus 128. ubinary: one bit for each number, 1
where it is above 0, eight to a byte; binary: that minus 128."""


def vectors_as(vectors: Vectors, kind: VectorType) -> AnyVectors:
    """(n, dim) vectors in this number format, each from itself alone."""
    if kind == "float":
        return vectors
    if kind == "int8":
        return quantize(vectors, "int8")
    if kind == "uint8":
        return (quantize(vectors, "int8").astype(np.int16) + 128).astype(np.uint8)
    packed = quantize(vectors, "binary")
    return packed if kind == "ubinary" else (packed.astype(np.int16) - 128).astype(np.int8)


def check_vector_types(kinds: Iterable[str], dim: int) -> None:
    """Refuse bits that fill no whole bytes, before the texts are encoded and before the answer begins."""
    if dim % 8 and any(kind in ("binary", "ubinary") for kind in kinds):
        raise InputError(
            f"binary packs 8 dimensions to a byte; these vectors have {dim}. Request a multiple of 8"
        )


def as_base64(row: AnyVectors) -> str:
    """The bytes of a vector, little-endian."""
    return base64.b64encode(row.astype(row.dtype.newbyteorder("<")).tobytes()).decode("ascii")


# Token ids instead of texts.


async def input_texts(
    call: Call,
    given: str | Texts | TokenIds | TokenLists,
    name: str = "input",
    *,
    accept_ids: bool = True,
    model: ReadingModel | None = None,
) -> list[str]:
    """The texts of an `input` in any of its four forms; `name` is its field, for errors.

    `accept_ids` False: ids are refused, as they may be those of another tokenizer. `model`: whose ids they are; None:
    those of the model of the call.
    """
    if not isinstance(given, str) and not given:
        raise InputError(f"{name} is empty: give at least one text")
    every: list[Any] = (
        [given] if isinstance(given, str) else given
    )  # all of one type: the model has checked it
    if not isinstance(every[0], str):
        if not accept_ids:
            raise InputError(
                f"{name} has token ids instead of texts, and ids of another tokenizer, such as tiktoken, would be read "
                "as other words. Send texts: for OpenAIEmbeddings of LangChain, set check_embedding_ctx_length=False. "
                f"If they are ids of the tokenizer of {call.model_name}, start the server with --accept-token-ids"
            )
        lists = every if isinstance(every[0], list) else [every]
        every = await call.work(lambda: decode_exact_ids(call, lists, name, model), long=is_long_ids(lists))
    call.limits.check_texts(every, name)
    return every


def is_long_ids(lists: Sequence[Sequence[int]]) -> bool:
    """Work on these ids is long work: see `Call.work`."""
    return CHARACTERS_PER_TOKEN * sum(map(len, lists)) > LONG_CHARACTERS


def decode_ids(
    call: Call,
    lists: Sequence[Sequence[int]],
    name: str,
    model: ReadingModel | None = None,
    *,
    special: bool = False,
) -> list[str]:
    """The texts that lists of token ids stand for. `special`: special tokens are written too."""
    tokenizer, limits, count = (model or call.model).tokenizer, call.limits, sum(map(len, lists))
    model_name = call.model_name if model is None else model.name
    if len(lists) > limits.texts:
        raise TooLarge(f"{name} has {len(lists):,} lists; one request takes at most {limits.texts:,}")
    if count > limits.tokens:
        raise TooLarge(f"{name} has {count:,} tokens; one request takes at most {limits.tokens:,}")
    longest = max(1, limits.characters // CHARACTERS_PER_TOKEN)
    for position, ids in enumerate(lists):
        if len(ids) > longest:
            where = f"{name}[{position}]" if len(lists) > 1 else name
            raise TooLarge(f"{where} has {len(ids):,} tokens; a text takes at most {longest:,}. Send several")
    size = tokenizer.vocabulary
    for ids in lists:
        wrong = next((each for each in ids if not 0 <= each < size), None)
        if wrong is not None:
            raise InputError(
                f"{name} has the token id {wrong}; {model_name} knows ids from 0 to {size - 1}. "
                "Send texts, or ids of this model's own tokenizer (those of tiktoken mean other words)"
            )
    return [tokenizer.text(ids, special=special) for ids in lists]


def decode_exact_ids(
    call: Call, lists: Sequence[Sequence[int]], name: str, model: ReadingModel | None = None
) -> list[str]:
    """As `decode_ids`, refusing ids that the tokenizer would not make of that text.

    So a vector is that of the very ids that were sent, and most ids of another tokenizer are noticed.
    """
    tokenizer = (model or call.model).tokenizer
    texts = decode_ids(call, lists, name, model)
    contents = (
        content
        for start in range(0, len(texts), TOKENIZED_AT_ONCE)
        for content in tokenizer.content(texts[start : start + TOKENIZED_AT_ONCE])
    )
    for position, (ids, again) in enumerate(zip(lists, contents, strict=True)):
        sent = [each for each in ids if each not in tokenizer.special_ids]
        if sent != [each for each in again.tolist() if each not in tokenizer.special_ids]:
            model_name = call.model_name if model is None else model.name
            raise InputError(
                f"{name}[{position}] is no sequence of token ids that the tokenizer of {model_name} makes. "
                "Send texts, or ids of this model's own tokenizer (those of tiktoken mean other words)"
            )
    return texts


def last_tokens(model: ReadingModel, text: str, prompt: str = "") -> str:
    """As much of the end of a text as the model reads."""
    if model.max_length is None:
        return text
    room = model.max_length - len(model.tokenizer.special)
    room -= len(model.tokenizer.content([prompt])[0]) if prompt else 0
    pieces = model.tokenizer.pieces(text, special=False)
    if room < 1 or len(pieces) <= room:
        return text
    for piece in pieces[len(pieces) - room :]:
        end = text[piece.start :]
        # The rest of a divided word may take more tokens than it had before.
        if len(model.tokenizer.content([end])[0]) <= room:
            return end
    return text


async def keep_ends(
    call: Call, texts: list[str], prompt: str = "", model: ReadingModel | None = None
) -> list[str]:
    """Of each text as much of the end as the model (None: that of the call) reads after the prompt."""

    def work() -> list[str]:
        check_tokens(call, texts)
        return [last_tokens(model or call.model, text, prompt) for text in texts]

    return await call.work(work, long=is_long(texts))


def first_tokens(model: Model, text: str, most: int) -> str:
    """The beginning of a text, at most `most` tokens."""
    if len(text) <= most:  # a token has at least one character, except for special tokens
        return text
    pieces = model.tokenizer.pieces(text, special=False)
    return text if len(pieces) <= most else text[: pieces[most - 1].stop]


def loaded_models(call: Call) -> list[str]:
    """The names of the loaded models, as clients should use them."""
    services = call.services
    others = (
        services.cross_name,
        None if services.sparse is None else services.sparse.name,
        None if services.late is None else services.late.name,
    )
    return [*(each.name for each in services.models), *(each for each in others if each is not None)]


def offered_models(call: Call) -> list[Call]:
    """The call with each name that an encoder may be called by: MODEL, MODEL:query and MODEL:document.

    The last two where the checkpoint has such prompts, and the operator gave the name to no other model.
    """
    taken = set(loaded_models(call))
    offered = []
    for each in call.services.models:
        chosen = replace(call, chosen=each)
        sides = (replace(chosen, side=side) for side in each.sides)
        offered += [chosen, *(side for side in sides if side.model_name not in taken)]
    return offered


def with_model(call: Call, name: str | None, *, reranks: bool = False) -> Call:
    """The call with the model of this name; a name that is not loaded is refused (404).

    None: the only one. `reranks`: the name may also be that of the cross-encoder or of the model for late interaction,
    but not MODEL:query or MODEL:document.
    """
    models, cross = call.services.models, call.services.cross_name if reranks else None
    late = call.services.late if reranks else None
    if name is None and (len(models) == 1 or cross is not None or late is not None):
        return call
    if name is None:
        raise InputError(
            f"{len(models)} models are loaded. Name one in the field 'model': {', '.join(loaded_models(call))}"
        )
    chosen = _model_named(models, name)
    if chosen is not None:
        return replace(call, chosen=chosen)
    if cross is not None and name in (cross, cross.rpartition("/")[2]):
        return call
    if late is not None and is_called(name, late.name):
        return replace(call, late_chosen=True)
    base, _, tag = name.rpartition(":")
    side, chosen = _SIDES.get(tag), _model_named(models, base)
    if side is not None and chosen is not None:
        return _with_side(replace(call, chosen=chosen), side, reranks)
    raise RouteError(
        404,
        _other_use(call, name)
        or f"the model {name[:100]!r} is not loaded here. Loaded: {', '.join(loaded_models(call))}",
        code="model_not_found",
        param="model",
    )


def _other_use(call: Call, name: str) -> str | None:
    """Where a model that cannot answer this request can be used; None: it is not loaded."""
    sparse, late = call.services.sparse, call.services.late
    if sparse is not None and is_called(name, sparse.name):
        return f"the model {sparse.name!r} gives sparse vectors: use it with /v1/sparse or /embed_sparse"
    if late is not None and is_called(name, late.name):
        return f"the model {late.name!r} compares texts by their tokens: use it with a route for reranking"
    return None


def _model_named(models: Sequence[ServedModel], name: str) -> ServedModel | None:
    exact = next((each for each in models if each.name == name), None)
    return exact or next((each for each in models if each.has_name(name)), None)


def _with_side(call: Call, side: PromptSide, reranks: bool) -> Call:
    """The call for texts of one side of a search: those of the model's prompt for it, or an error."""
    name, sides = call.served.name, call.served.sides
    if reranks:
        raise InputError(
            f"{name}:{side} encodes texts of one side, and here are both; each gets its prompt. Name the model {name!r}"
        )
    if side not in sides:
        texts = "queries" if side == "query" else "documents"
        offered = ", ".join([name, *(f"{name}:{each}" for each in sides)])
        raise RouteError(
            404,
            f"the model {name!r} has no prompt for {texts}, so there is no '{name}:{side}'. Use: {offered}",
            code="model_not_found",
            param="model",
        )
    return replace(call, side=side)
