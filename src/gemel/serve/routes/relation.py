"""POST /relation: how each of some texts relates to another one."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from gemel.errors import InputError
from gemel.serve.errors import RouteError
from gemel.serve.port import Ask, Services
from gemel.serve.routes.answering import answer
from gemel.serve.routes.classes import classes, find_classes
from gemel.serve.routes.reading import Own, Texts, client_of, example, read, takes
from gemel.serve.routes.texts import check_sizes


class RelationRequest(Own):
    """Pairs left[i], right[i]."""

    model_config = example(left=["A man is playing a guitar."], right=["Someone plays an instrument."])

    left: Texts
    right: Texts


class RelationAnswer(BaseModel):
    """In the order of the pairs."""

    labels: list[str]
    probabilities: list[list[float]] = Field(description="A row for each pair, in the order of labels")


def add_relation(routes: APIRouter, services: Services) -> None:
    """Add the route."""

    @routes.post(
        "/relation", response_model=RelationAnswer, openapi_extra=takes(RelationRequest), tags=["Explain"]
    )
    async def relation(request: Request) -> Response:
        """Probabilities of labels such as entailment. 404 where nothing that is loaded tells labels apart."""
        asked = await read(request, RelationRequest)
        if find_classes(services) is None:
            raise _no_labels(services)
        if len(asked.left) != len(asked.right):
            raise InputError(
                f"left has {len(asked.left)} texts but right has {len(asked.right)}; they are compared one to one"
            )
        for name, texts in (("left", asked.left), ("right", asked.right)):
            check_sizes(services, texts, name)
        found = await classes(services, asked.left, asked.right, Ask(client=client_of(request)))
        content: dict[str, Any] = {"labels": found.labels, "probabilities": found.probabilities}
        return answer(content)


def check_head(services: Services) -> None:
    """Refuse (404) where the model keeps no relation head."""
    if services.model.labels is None:
        raise _no_labels(services)


def _no_labels(services: Services) -> RouteError:
    return RouteError(
        404,
        f"{services.model_name} keeps no relation head. Serve a model trained with --objective classification, "
        "or a cross-encoder with classes",
        code="no_relation",
    )
