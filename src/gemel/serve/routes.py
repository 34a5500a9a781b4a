"""Routes: a function, the model of its body and the model of its answer, registered once.

The router of Starlette and the OpenAPI document are both made of these routes, so the document shows the models that
parse the requests. Bodies are parsed by `protocols/requests.py`, errors are answered by the middleware.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gemel.serve.protocols.requests import parse_body

Handler = Callable[..., Awaitable[Response]]
"""Takes the request, then `body` if it has one, then the parameters of its path by name."""
Guard = Callable[[Request], None]
"""Raises for a request that is refused whatever its body is."""


class NamedRoute(Route):
    """A route whose path the log and the counters show, also for a method that it does not have."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self
        await super().handle(scope, receive, send)


class JsonRoute(NamedRoute):
    """A route that calls its function with the parsed body."""

    def __init__(self, path: str, function: Handler, method: str, entry: DocumentEntry) -> None:
        self.body_model: type[BaseModel] | None = get_type_hints(function).get("body")
        self.function, self.entry = function, entry
        super().__init__(path, function, methods=[method], name=entry.name)
        self.method, self.methods = method, {method}  # Starlette adds HEAD to GET
        self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        arguments = dict(scope["path_params"])
        if self.entry.guard is not None:
            self.entry.guard(request)
        if self.body_model is not None:
            arguments["body"] = await parse_body(request, self.body_model)
        response = await self.function(request, **arguments)
        await response(scope, receive, send)


@dataclass(frozen=True, kw_only=True)
class DocumentEntry:
    """The entry of a route in the OpenAPI document, and its guard."""

    name: str
    tag: str
    summary: str
    description: str | None
    answer: type[BaseModel] | None
    """None: any JSON."""
    error: type[BaseModel] | None
    responses: Mapping[str, str] = field(default_factory=dict)
    """Further statuses and their descriptions."""
    media_type: str | None = "application/json"
    """Of the answer; None: not stated."""
    guard: Guard | None = None


class Routes:
    """Routes of one tag: `@routes.post(path, Answer)` above `async def name(request, body: Model) -> Response`.

    The function's name and docstring are the summary and the description in the OpenAPI document.
    """

    def __init__(self, tag: str, *, prefix: str = "", error: type[BaseModel] | None = None) -> None:
        self._tag, self._prefix, self._error = tag, prefix, error
        self._routes: list[JsonRoute] = []

    def __iter__(self) -> Iterator[JsonRoute]:
        return iter(self._routes)

    def get(
        self, path: str, answer: type[BaseModel] | None = None, **more: Any
    ) -> Callable[[Handler], Handler]:
        return self._add("GET", path, answer, **more)

    def post(
        self, path: str, answer: type[BaseModel] | None = None, **more: Any
    ) -> Callable[[Handler], Handler]:
        return self._add("POST", path, answer, **more)

    def delete(
        self, path: str, answer: type[BaseModel] | None = None, **more: Any
    ) -> Callable[[Handler], Handler]:
        return self._add("DELETE", path, answer, **more)

    def _add(
        self, method: str, path: str, answer: type[BaseModel] | None, **more: Any
    ) -> Callable[[Handler], Handler]:
        """`more` are fields of DocumentEntry."""

        def register(function: Handler) -> Handler:
            name: str = function.__name__
            entry: dict[str, Any] = {
                "name": name,
                "tag": self._tag,
                "summary": name.replace("_", " ").title(),
                "description": inspect.getdoc(function),
                "answer": answer,
                "error": self._error,
            }
            self._routes.append(
                JsonRoute(self._prefix + path, function, method, DocumentEntry(**{**entry, **more}))
            )
            return function

        return register


def openapi_document(routes: Iterable[JsonRoute], *, title: str, version: str) -> dict[str, Any]:
    """The OpenAPI document of these routes, in their order."""
    routes = list(routes)
    models = {
        model: None
        for route in routes
        for model in (route.entry.answer, route.entry.error)
        if model is not None
    }
    template = "#/components/schemas/{model}"
    references, definitions = models_json_schema(
        [(model, "serialization") for model in models], ref_template=template
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operations = paths.setdefault(route.path_format, {})
        operations[route.method.lower()] = _operation(route, lambda model: references[model, "serialization"])
    document = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {"schemas": dict(sorted(definitions.get("$defs", {}).items()))},
    }
    cleaned: dict[str, Any] = _without_nulls(document)
    return cleaned


def _operation(route: JsonRoute, reference: Callable[[type[BaseModel]], dict[str, Any]]) -> dict[str, Any]:
    entry = route.entry
    operation: dict[str, Any] = {
        "tags": [entry.tag],
        "summary": entry.summary,
        "description": entry.description,
    }
    identifier = re.sub(r"\W", "_", entry.name + route.path_format)
    operation["operationId"] = f"{identifier}_{route.method.lower()}"
    if route.param_convertors:
        operation["parameters"] = [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "string", "title": name.title()},
            }
            for name in route.param_convertors
        ]
    if route.body_model is not None:
        operation["requestBody"] = {
            "required": True,
            "content": _json(_inlined(route.body_model.model_json_schema())),
        }
    success: dict[str, Any] = {"description": "Successful Response"}
    if entry.media_type is not None:
        success["content"] = _json({} if entry.answer is None else reference(entry.answer))
    responses = {"200": success}
    for status, description in entry.responses.items():
        responses[status] = {"description": description}
    if entry.error is not None:
        content = _json(reference(entry.error))
        responses["4XX"] = {"description": "The request cannot be answered as it is", "content": content}
        responses["5XX"] = {"description": "The server could not do it", "content": content}
    return {**operation, "responses": responses}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its definitions written out where they are used."""
    definitions = schema.pop("$defs", {})

    def inline(part: Any) -> Any:  # noqa: ANN401 - any JSON
        if isinstance(part, dict):
            if "$ref" in part:
                rest = {name: value for name, value in part.items() if name != "$ref"}
                return inline({**definitions[part["$ref"].rpartition("/")[2]], **rest})
            return {name: inline(value) for name, value in part.items()}
        return [inline(each) for each in part] if isinstance(part, list) else part

    return dict(inline(schema))


def _without_nulls(part: Any) -> Any:  # noqa: ANN401 - any JSON
    """Fields that are null are left out, such as the default of an optional field."""
    if isinstance(part, dict):
        return {name: _without_nulls(value) for name, value in part.items() if value is not None}
    return [_without_nulls(each) for each in part] if isinstance(part, list) else part
