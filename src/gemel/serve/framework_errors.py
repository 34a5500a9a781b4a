"""Errors that the web framework raises by itself, in the shape of the protocol that was spoken."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gemel.serve.errors import Problem, error_body, problem_of


def _problem_of(error: Exception) -> Problem:
    match error:
        case HTTPException():
            return Problem(error.status_code, str(error.detail), headers=error.headers or {})
        case RequestValidationError():
            return Problem(422, _first_mistake(error), "invalid_request")
    return problem_of(error)


def _first_mistake(error: RequestValidationError) -> str:
    mistakes = error.errors()
    if not mistakes:
        return "the request is not of the form that this route takes"
    place = ".".join(str(part) for part in mistakes[0].get("loc", ()) if part != "body")
    text = str(mistakes[0].get("msg", "not of the right form"))
    return f"{place}: {text}" if place else text


def add_error_handlers(app: FastAPI) -> None:
    """Errors that FastAPI would answer by itself get their protocol's shape; all others reach the shell."""

    async def answer(request: Request, error: Exception) -> Response:
        path, problem = request.scope["path"], _problem_of(error)  # request.url would decode the query
        return Response(
            error_body(path, problem), problem.status, dict(problem.headers), media_type="application/json"
        )

    for kind in (HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answer)
