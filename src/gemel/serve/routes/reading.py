"""From a request's body to a checked object, or to an error that says which field is wrong and what belongs there.

Bodies are parsed and checked in one go by pydantic's own JSON reader, not through FastAPI's parameters: that is faster,
and one sentence instead of a list of complaints goes back.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError

from gemel.errors import InputError
from gemel.serve.errors import RouteError


class Foreign(BaseModel):
    """A request of a protocol that others define: their clients send fields that mean nothing here."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())


class Own(BaseModel):
    """A request of our own: a field that is not known is a mistake."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def example(**content: Any) -> ConfigDict:
    """Settings of a request class that show one request in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [content]})


Body = TypeVar("Body", bound=BaseModel)


async def read(request: Request, kind: type[Body]) -> Body:
    """The body as `kind`. Raises InputError for what does not fit, RouteError (415) for what is not said to be JSON."""
    # A page of another origin may send a form or plain text without asking first, but not this type.
    sort = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sort != "application/json" and not sort.endswith("+json"):
        said = repr(sort) if sort else "no type"
        raise RouteError(
            415, f"the body must be sent as application/json, got {said}", code="unsupported_media_type"
        )
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise InputError(_sentence(error, kind)) from None


def client_of(request: Request) -> str:
    """Who asks, for fairness between clients: the name of the key, else the address."""
    named = getattr(request.state, "client", None)
    return named if isinstance(named, str) else request.client.host if request.client else ""


def takes(kind: type[BaseModel]) -> dict[str, Any]:
    """What goes into the OpenAPI document of a route that reads `kind`: `openapi_extra=takes(Kind)`."""
    schema = _whole(kind.model_json_schema())
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _whole(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its definitions put where they are used: there is no other place for them in a request."""
    known = schema.pop("$defs", {})

    def put(part: Any) -> Any:  # noqa: ANN401 - any JSON
        if isinstance(part, dict):
            if "$ref" in part:
                return put({**known[part["$ref"].rpartition("/")[2]], **_without(part, "$ref")})
            return {key: put(value) for key, value in part.items()}
        return [put(each) for each in part] if isinstance(part, list) else part

    return dict(put(schema))


def _without(part: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != key}


def _sentence(error: ValidationError, kind: type[BaseModel]) -> str:
    """One line about the first thing that is wrong."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    # A field that nobody knows explains why another one is missing.
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    place, what = first["loc"], first["msg"]
    if first["type"] == "json_invalid":
        return f"the body is no JSON that can be read: {what.removeprefix('Invalid JSON: ')}"
    if not place:
        return f"the body must be a JSON object: {what}" if first["type"] == "model_type" else _plain(what)
    name = str(place[0])
    if first["type"] == "missing" and len(place) == 1:
        return f"the field {name!r} is missing. Required: {', '.join(_required(kind))}"
    if first["type"] == "extra_forbidden" and len(place) == 1:
        near = get_close_matches(name, kind.model_fields, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"unknown field {name!r}.{hint} Known: {', '.join(kind.model_fields)}"
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
            out += f".{part}" if out else part
    return out
