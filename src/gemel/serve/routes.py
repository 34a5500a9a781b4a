"""Routes: the models of requests, a function for each path, and JSON in and out.

A route is registered once, with the models of its body and its answer; the router and the OpenAPI document are both
made of it. A body that does not fit its model is refused with one sentence about the first mistake: lists stop at their
first wrong element, objects at their first unknown field. Answers are written by orjson, which takes NumPy arrays as
they are; a large answer is written and sent part by part, so that it neither blocks the event loop nor needs its memory
twice. Errors are answered by the middleware.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, get_type_hints

import numpy as np
import orjson
import pydantic
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError, from_json
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gemel.errors import InputError, did_you_mean
from gemel.serve.errors import RouteError
from gemel.serve.services import Call, Services
from gemel.types import Vectors

INLINE_BYTES = 64_000  # parsed on the event loop; a larger body goes to a thread
QUOTED_CHARACTERS = 100  # of a client's own words in an error message
LARGE_NUMBERS = 200_000  # in an answer that is written at once: about 2 MB of JSON, some milliseconds

_PARSING = ThreadPoolExecutor(1, thread_name_prefix="gemel-parse")
"""One thread: two large bodies are never parsed at the same time, which bounds the memory for it."""


# Models of requests.


class FailFast(pydantic.FailFast):
    """Makes the validation of a list stop at its first wrong element; hashable, as a member of a union must be."""

    __hash__ = object.__hash__


Texts: TypeAlias = Annotated[list[str], FailFast()]
TokenIds: TypeAlias = Annotated[list[int], FailFast()]
TokenLists: TypeAlias = Annotated[list[TokenIds], FailFast()]


class ForeignRequest(BaseModel):
    """A request of a protocol that others define: unknown fields are ignored, as their clients send many."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())

    refused: ClassVar[Mapping[str, str]] = {}
    """Fields of the protocol that would change the answer and are not supported, with the reason."""

    @model_validator(mode="before")
    @classmethod
    def _none_refused(cls, content: Any) -> Any:  # noqa: ANN401 - any JSON
        if isinstance(content, dict):
            for name, reason in cls.refused.items():
                if content.get(name) not in (None, False, []):
                    sentence = f"{name} is not supported: {reason}"
                    raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return content


class OwnRequest(BaseModel):
    """A request of our own protocol: an unknown field is refused."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_fields_only(cls, content: Any) -> Any:  # noqa: ANN401 - any JSON
        """Before the fields are checked: an unknown one explains why another is missing. The first is enough."""
        if isinstance(content, dict):
            wrong = next((name for name in content if name not in cls.model_fields), None)
            if wrong is not None:
                hint = did_you_mean(wrong[:QUOTED_CHARACTERS], cls.model_fields)
                known = ", ".join(cls.model_fields)
                sentence = f"unknown field {wrong[:QUOTED_CHARACTERS]!r}.{hint} Known: {known}"
                raise PydanticCustomError("unknown_field", "{sentence}", {"sentence": sentence})
        return content


def example(**content: Any) -> ConfigDict:
    """The `model_config` of a request that shows this example in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [content]})


# Routes.

Handler = Callable[..., Awaitable[Response]]
"""Takes the call, then `body` if it has one, then the parameters of its path by name."""
Function = TypeVar("Function", bound=Handler)


class NamedRoute(Route):
    """A route whose path the log and the counters show, also for a method that it does not have."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self
        await super().handle(scope, receive, send)


@dataclass(frozen=True, kw_only=True)
class RouteEntry:
    """One route: its function and its entry in the OpenAPI document."""

    method: str
    path: str
    function: Handler
    answer: type[BaseModel] | None
    """None: any JSON."""
    tag: str
    error: type[BaseModel] | None
    name: str
    summary: str | None = None
    """None: the name."""
    responses: Mapping[str, str] = field(default_factory=dict)
    """Further statuses and their descriptions."""
    media_type: str | None = "application/json"
    """Of the answer; None: not stated."""
    guard: Callable[..., object] | None = None
    """Called before the body is parsed, with the call and the parameters of the path; raises for a refusal."""


class JsonRoute(NamedRoute):
    """A route that calls its function with the parsed body."""

    def __init__(self, entry: RouteEntry, services: Services) -> None:
        self.body_model: type[BaseModel] | None = get_type_hints(entry.function).get("body")
        self.entry, self._services = entry, services
        super().__init__(entry.path, entry.function, methods=[entry.method], name=entry.name)
        self.methods = {entry.method}  # Starlette adds HEAD to GET
        self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        call = Call(self._services, state["client"], state["read_only"])
        arguments = dict(scope["path_params"])
        if self.entry.guard is not None:
            self.entry.guard(call, **arguments)
        if self.body_model is not None:
            arguments["body"] = await parse_body(scope, self.body_model)
        response = await self.entry.function(call, **arguments)
        await response(scope, receive, send)


class Routes:
    """Routes of one tag: `@routes.add("POST", path, Answer)` above `async def name(call, body: Model) -> Response`.

    The function's name and docstring are the summary and the description in the OpenAPI document.
    """

    def __init__(self, tag: str, *, prefix: str = "", error: type[BaseModel] | None = None) -> None:
        self._tag, self._prefix, self._error = tag, prefix, error
        self._entries: list[RouteEntry] = []

    def __iter__(self) -> Iterator[RouteEntry]:
        return iter(self._entries)

    def add(
        self, method: str, path: str, answer: type[BaseModel] | None = None, **more: Any
    ) -> Callable[[Function], Function]:
        """`more` are fields of RouteEntry."""

        def register(function: Function) -> Function:
            defaults = {"tag": self._tag, "error": self._error, "name": function.__name__}
            self._entries.append(
                RouteEntry(
                    method=method,
                    path=self._prefix + path,
                    function=function,
                    answer=answer,
                    **{**defaults, **more},
                )
            )
            return function

        return register


# Reading a request.

Body = TypeVar("Body", bound=BaseModel)


async def parse_body(scope: Scope, model: type[Body]) -> Body:
    """The body as `model`. Raises InputError (400) if it does not fit, RouteError (415) if it is not sent as JSON."""
    # A page of another origin may send a form, plain text or no type without a preflight request, but not this type.
    # Clients that forget the type (LiteLLM's for Voyage) are no browsers: these always send an origin.
    headers = Headers(scope=scope)
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    forgotten = not media_type and not {"origin", "sec-fetch-site"} & set(headers.keys())
    if media_type != "application/json" and not media_type.endswith("+json") and not forgotten:
        got = repr(media_type[:QUOTED_CHARACTERS]) if media_type else "no type"
        raise RouteError(
            415, f"the body must be sent as application/json, got {got}", code="unsupported_media_type"
        )
    state = scope["state"]  # the body is taken from it, so that its bytes are freed when they are parsed
    if len(state["body"]) <= INLINE_BYTES:
        return _validated(_parsed(state.pop("body")), model)
    # Two calls, so that other threads get their turn between parsing and validation.
    run = asyncio.get_running_loop().run_in_executor
    content = await run(_PARSING, _parsed, state.pop("body"))
    return await run(_PARSING, _validated, content, model)


def _parsed(body: bytes) -> Any:  # noqa: ANN401 - any JSON
    try:
        return from_json(body, cache_strings="none")
    except ValueError as error:
        raise InputError(f"the body is no JSON that can be read: {error}") from None


def _validated(content: Any, model: type[Body]) -> Body:  # noqa: ANN401 - any JSON
    try:
        return model.model_validate(content)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        raise InputError(_first_mistake(errors, model)) from None


def _first_mistake(errors: Sequence[ErrorDetails], model: type[BaseModel]) -> str:
    """One sentence about the first thing that is wrong."""
    first = next((each for each in errors if each["type"] in ("unknown_field", "refused")), errors[0])
    location, message = first["loc"], first["msg"]
    if first["type"] == "refused":
        return message
    if not location:
        is_object = first["type"] != "model_type"
        return _plain(message) if is_object else f"the body must be a JSON object: {message}"
    name = str(location[0])
    if first["type"] == "missing" and len(location) == 1:
        required = ", ".join(name for name, field in model.model_fields.items() if field.is_required())
        return f"the field {name!r} is missing. Required: {required}"
    field = model.model_fields.get(name)
    several = len(errors) > 1 and all(each["loc"][:1] == location[:1] for each in errors)
    if several and field is not None and field.description:
        return f"{name} cannot be read. It takes: {field.description}"
    return f"{_path(location)}: {_plain(message)}"


def _plain(message: str) -> str:
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    return (
        message.replace("a valid integer", "a whole number")
        .replace("a valid array", "a list")
        .replace("a valid ", "a ")
    )


def _path(location: tuple[int | str, ...]) -> str:
    """documents[3].text for ("documents", 3, "text"); names of a union's members are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            path += f".{part[:QUOTED_CHARACTERS]}" if path else part[:QUOTED_CHARACTERS]
    return path


# Writing an answer.


def json_response(content: Any, status: int = 200) -> Response:  # noqa: ANN401 - any JSON
    """Arrays must be contiguous; a NaN becomes null."""
    return Response(dumps(content), status, media_type="application/json")


def dumps(content: Any) -> bytes:  # noqa: ANN401 - any JSON
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def json_list_response(
    count: int,
    numbers: int,
    part: Callable[[int, int], Sequence[Any]],
    *,
    before: bytes = b"",
    after: bytes = b"",
) -> Response:
    """A list of `count` elements with `numbers` numbers each; `part(start, stop)` gives some of them.

    `before` and `after` are JSON around the list.
    """
    return json_lists_response([JsonList(before, count, numbers, part)], after)


@dataclass(frozen=True)
class JsonList:
    """One of the lists of an answer: see `json_list_response`."""

    before: bytes
    count: int
    numbers: int
    part: Callable[[int, int], Sequence[Any]]


def json_lists_response(lists: Sequence[JsonList], after: bytes) -> Response:
    """Several lists, each after its own `before`, and what comes after the last."""
    if sum(each.count * each.numbers for each in lists) <= LARGE_NUMBERS:
        written = b"".join(each.before + dumps(each.part(0, each.count)) for each in lists)
        return Response(written + after, media_type="application/json")

    async def parts() -> AsyncIterator[bytes]:
        for each in lists:
            yield each.before + b"["
            step = max(1, LARGE_NUMBERS // max(1, each.numbers))
            for start in range(0, each.count, step):
                written = await asyncio.to_thread(_dump_part, each.part, start, min(start + step, each.count))
                yield (b"," if start else b"") + written[1:-1]
            yield b"]"
        yield after

    return StreamingResponse(parts(), media_type="application/json")


def _dump_part(part: Callable[[int, int], Sequence[Any]], start: int, stop: int) -> bytes:
    return dumps(part(start, stop))


def vectors_response(vectors: Vectors) -> Response:
    """(n, dim) as a list of lists."""
    rows = np.ascontiguousarray(vectors)
    return json_list_response(len(rows), rows.shape[1], lambda start, stop: rows[start:stop])  # type: ignore[arg-type, return-value]


def encoded_list_response(elements: Sequence[bytes]) -> Response:
    """A list whose elements are JSON already."""

    async def parts() -> AsyncIterator[bytes]:
        for position, element in enumerate(elements):
            yield (b"," if position else b"[") + element
        yield b"]" if elements else b"[]"

    return StreamingResponse(parts(), media_type="application/json")
