"""From a request's body to a checked object, or to an error that says which field is wrong and what belongs there.

Bodies are parsed and checked here, not through FastAPI's parameters: that is faster, and one sentence about the first
mistake goes back instead of a list of complaints. Nothing makes an error for each element: lists stop at their first
wrong element, objects at their first unknown field.

From an answer to bytes: orjson writes arrays of numpy as they are, so no vector is ever a Python list.

A large answer is written and sent part by part: writing it at once would hold up everything else, and need its memory
twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, TypeAlias, TypeVar

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, from_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gemel.errors import InputError
from gemel.serve.connection import RequestBody
from gemel.serve.errors import RouteError
from gemel.types import Vectors

INLINE_BYTES = 64_000  # parsed at once; a larger body goes to a thread

SHOWN = 100  # characters of a client's own words in an error

_PARSING = ThreadPoolExecutor(1, thread_name_prefix="gemel-parse")
"""One thread: two large bodies are never parsed at the same time, which bounds the memory for it."""


@dataclass(frozen=True)
class StopAtFirst:
    """Of a list: its first wrong element is the only one that an error is made for.

    As pydantic's FailFast, which cannot be part of a union because it has no hash.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        schema = handler(source)
        assert schema["type"] == "list", f"{source} is no list"
        return {**schema, "fail_fast": True}


Texts: TypeAlias = Annotated[list[str], StopAtFirst()]

TokenIds: TypeAlias = Annotated[list[int], StopAtFirst()]

TokenLists: TypeAlias = Annotated[list[TokenIds], StopAtFirst()]


class Foreign(BaseModel):
    """A request of a protocol that others define: their clients send fields that mean nothing here."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())


class Own(BaseModel):
    """A request of our own: a field that is not known is a mistake."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_fields_only(cls, content: Any) -> Any:  # noqa: ANN401 - any JSON
        """Before the fields are checked: an unknown one explains why another is missing. The first is enough."""
        if isinstance(content, dict):
            wrong = next((name for name in content if name not in cls.model_fields), None)
            if wrong is not None:
                near = get_close_matches(wrong[:SHOWN], cls.model_fields, 1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                known = ", ".join(cls.model_fields)
                sentence = f"unknown field {wrong[:SHOWN]!r}.{hint} Known: {known}"
                raise PydanticCustomError("unknown_field", "{sentence}", {"sentence": sentence})
        return content


def example(**content: Any) -> ConfigDict:
    """Settings of a request class that show one request in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [content]})


Asked = TypeVar("Asked", bound=BaseModel)


async def read(request: Request, kind: type[Asked]) -> Asked:
    """The body as `kind`. Raises InputError for what does not fit, RouteError (415) for what is not said to be JSON."""
    # A page of another origin may send a form or plain text without asking first, but not this type.
    sort = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sort != "application/json" and not sort.endswith("+json"):
        said = repr(sort[:SHOWN]) if sort else "no type"
        raise RouteError(
            415, f"the body must be sent as application/json, got {said}", code="unsupported_media_type"
        )
    body: RequestBody = request.state.body
    if len(body) <= INLINE_BYTES:
        return _checked(_parsed(body), kind)
    # Two calls, so that other threads get their turn between parsing and checking.
    run = asyncio.get_running_loop().run_in_executor
    tree = await run(_PARSING, _parsed, body)
    return await run(_PARSING, _checked, tree, kind)


def _parsed(body: RequestBody) -> Any:  # noqa: ANN401 - any JSON
    """The bytes are gone afterwards."""
    try:
        return from_json(body.take(), cache_strings="none")
    except ValueError as error:
        raise InputError(f"the body is no JSON that can be read: {error}") from None


def _checked(tree: Any, kind: type[Asked]) -> Asked:  # noqa: ANN401 - any JSON
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise InputError(_sentence(error, kind)) from None


def client_of(request: Request) -> str:
    """Who asks, for fairness between clients: the name of the key, else the address."""
    named = getattr(request.state, "client", None)
    return named if isinstance(named, str) else request.client.host if request.client else ""


def check_may_write(request: Request) -> None:
    """Refuse (403) a key that may not change an index. Every route that changes something begins with this."""
    if request.state.read_only:
        raise RouteError(
            403, "this API key is read-only: it may search, not change an index", code="read_only_key"
        )


def _sentence(error: ValidationError, kind: type[BaseModel]) -> str:
    """One line about the first thing that is wrong."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    first = next((each for each in found if each["type"] == "unknown_field"), found[0])
    place, what = first["loc"], first["msg"]
    if not place:
        return f"the body must be a JSON object: {what}" if first["type"] == "model_type" else _plain(what)
    name = str(place[0])
    if first["type"] == "missing" and len(place) == 1:
        return f"the field {name!r} is missing. Required: {', '.join(_required(kind))}"
    field = kind.model_fields.get(name)
    if (
        len(found) > 1
        and field is not None
        and field.description
        and all(e["loc"][:1] == place[:1] for e in found)
    ):
        return f"{name} cannot be read. It takes: {field.description}"
    return f"{_path(place)}: {_plain(what)}"


def _plain(what: str) -> str:
    what = what.removeprefix("Value error, ").replace("Input should be", "must be")
    return (
        what.replace("a valid integer", "a whole number")
        .replace("a valid array", "a list")
        .replace("a valid ", "a ")
    )


def _required(kind: type[BaseModel]) -> list[str]:
    return [name for name, field in kind.model_fields.items() if field.is_required()]


def _path(place: tuple[int | str, ...]) -> str:
    """documents[3].text out of ("documents", 3, "text"); names of a union's members are left out."""
    out = ""
    for part in place:
        if isinstance(part, int):
            out += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            out += f".{part[:SHOWN]}" if out else part[:SHOWN]
    return out


_OPTIONS = orjson.OPT_SERIALIZE_NUMPY

LARGE_NUMBERS = 200_000  # in an answer that is written at once: about 2 MB of JSON, some milliseconds


def answer(content: Any, status: int = 200) -> Response:  # noqa: ANN401 - any JSON
    """A JSON response. Arrays must be contiguous; a NaN becomes null."""
    return Response(dumps(content), status, media_type="application/json")


def dumps(content: Any) -> bytes:  # noqa: ANN401 - any JSON
    return orjson.dumps(content, option=_OPTIONS)


def answer_list(
    count: int,
    numbers: int,
    part: Callable[[int, int], Sequence[Any]],
    *,
    before: bytes = b"",
    after: bytes = b"",
) -> Response:
    """A list of `count` elements that have `numbers` numbers each, `part(start, stop)` of them at a time.

    `before` and `after` are JSON around the list.
    """
    step = max(1, LARGE_NUMBERS // max(1, numbers))
    if count <= step:
        return Response(before + dumps(part(0, count)) + after, media_type="application/json")

    async def parts() -> AsyncIterator[bytes]:
        yield before + b"["
        for start in range(0, count, step):
            written = await asyncio.to_thread(_part, part, start, min(start + step, count))
            yield (b"," if start else b"") + written[1:-1]
        yield b"]" + after

    return StreamingResponse(parts(), media_type="application/json")


def _part(part: Callable[[int, int], Sequence[Any]], start: int, stop: int) -> bytes:
    return dumps(part(start, stop))


def answer_vectors(vectors: Vectors) -> Response:
    """(n, dim) as a list of lists."""
    rows = np.ascontiguousarray(vectors)
    return answer_list(len(rows), rows.shape[1], lambda start, stop: rows[start:stop])  # type: ignore[arg-type, return-value]


def answer_written(parts: Sequence[bytes]) -> Response:
    """A list whose elements are JSON already."""

    async def pieces() -> AsyncIterator[bytes]:
        for at, part in enumerate(parts):
            yield (b"," if at else b"[") + part
        yield b"]" if parts else b"[]"

    return StreamingResponse(pieces(), media_type="application/json")
