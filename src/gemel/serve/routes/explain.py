"""POST /explain: the cosine of two texts as a table of tokens that sums to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from gemel.serve.limits import TooLarge
from gemel.serve.port import Services
from gemel.serve.routes.answering import answer
from gemel.serve.routes.reading import Own, client_of, example, read, takes
from gemel.serve.routes.texts import check_sizes, check_tokens

if TYPE_CHECKING:
    from gemel.explanation import Explanation

MOST_TOKENS = 512  # of a text: the table has the product of two such numbers


class ExplainRequest(Own):
    """Two texts."""

    model_config = example(left="A man is playing a guitar.", right="Someone plays an instrument.")

    left: str
    right: str


class ExplainAnswer(BaseModel):
    """The cells of either table sum to the score; a negative one speaks against."""

    left: str
    right: str
    score: float = Field(description="Cosine")
    left_tokens: list[str]
    right_tokens: list[str]
    table: list[list[float]] = Field(description="A row for each token of left")
    left_words: list[str]
    right_words: list[str]
    word_table: list[list[float]] = Field(description="A row for each word of left")


def add_explain(routes: APIRouter, services: Services) -> None:
    """Add the route."""

    @routes.post(
        "/explain", response_model=ExplainAnswer, openapi_extra=takes(ExplainRequest), tags=["Explain"]
    )
    async def explain_route(request: Request) -> Response:
        """Why two texts score as they do. Texts are cut as in encoding."""
        asked = await read(request, ExplainRequest)
        for name in ("left", "right"):
            check_sizes(services, [getattr(asked, name)], name)
        found = await services.work(lambda: _explained(services, asked), client=client_of(request))
        return answer(found.to_json())


def _explained(services: Services, asked: ExplainRequest) -> Explanation:
    """Runs on a worker thread."""
    from gemel.explanation import explain  # a server starts sooner without it

    model = services.model
    check_tokens(services, [asked.left, asked.right])
    if model.max_length is None or model.max_length > MOST_TOKENS:
        for name, content in zip(
            ("left", "right"), model.tokenizer.content([asked.left, asked.right]), strict=True
        ):
            if len(content) > MOST_TOKENS:
                raise TooLarge(
                    f"{name} has {len(content):,} tokens; an explanation takes at most {MOST_TOKENS}"
                )
    return explain(model, asked.left, asked.right, on_long="truncate")
