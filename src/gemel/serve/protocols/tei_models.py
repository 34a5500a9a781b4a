"""What the routes of text-embeddings-inference take and answer. A field that may be left out may also be null."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, RootModel

from gemel.serve.protocols.requests import FailFast, ForeignRequest, Texts, TokenIds, TokenLists, example

Inputs: TypeAlias = str | Texts | TokenIds | TokenLists

Direction: TypeAlias = Literal["Left", "Right", "left", "right"]

_INPUTS = "a string, a list of strings, a list of token ids of this model, or a list of such lists"

_TEXTS = ["A man is playing a guitar.", "Someone plays an instrument."]


class Cut(ForeignRequest):
    """What to do with texts that are longer than the model reads."""

    truncate: bool | None = Field(None, description="false: refuse them; else they are cut")
    truncation_direction: Direction | None = Field("Right", description="The side that is cut off")

    @property
    def left(self) -> bool:
        return self.truncate is not False and (self.truncation_direction or "Right").lower() == "left"


class EmbedRequest(Cut):
    model_config = example(inputs=_TEXTS)

    inputs: Inputs = Field(description=_INPUTS)
    normalize: bool | None = Field(True, description="Vectors of length 1")
    prompt_name: str | None = Field(None, description="A prompt that the model brings")
    dimensions: int | None = Field(None, ge=1, description="Keep only the first numbers of each vector")


class EmbedAllRequest(Cut):
    model_config = example(inputs="A man is playing a guitar.")

    inputs: Inputs = Field(description=_INPUTS)
    prompt_name: str | None = Field(None, description="A prompt that the model brings")


class Comparison(ForeignRequest):
    source_sentence: str
    sentences: Texts


class SimilarityParameters(Cut):
    prompt_name: str | None = Field(None, description="A prompt that the model brings")


class SimilarityRequest(ForeignRequest):
    model_config = example(inputs={"source_sentence": _TEXTS[0], "sentences": _TEXTS[1:]})

    inputs: Comparison
    parameters: SimilarityParameters | None = None


class RootRequest(EmbedRequest):
    """/embed, or /similarity where the inputs are a source and sentences."""

    model_config = example(inputs=_TEXTS)

    inputs: Comparison | Inputs = Field(  # type: ignore[assignment]  # as /embed, and more
        description=f"{_INPUTS}; or an object with source_sentence and sentences"
    )
    parameters: SimilarityParameters | None = None


class RerankRequest(Cut):
    model_config = example(query="Who plays music?", texts=_TEXTS)

    query: str
    texts: Texts
    raw_scores: bool | None = Field(False, description="The number before the sigmoid, or the cosine")
    return_text: bool | None = False


class PredictRequest(Cut):
    model_config = example(inputs=_TEXTS)

    inputs: str | Texts | Annotated[list[Texts], FailFast()] = Field(
        description="a pair of texts as a list of two strings, or a list of pairs"
    )
    raw_scores: bool | None = Field(False, description="Logits, or the logarithms of the probabilities")


class TokenizeRequest(ForeignRequest):
    model_config = example(inputs="A man is playing a guitar.")

    inputs: str | Texts = Field(description="a string or a list of strings")
    add_special_tokens: bool | None = True
    prompt_name: str | None = Field(None, description="A prompt that the model brings")


class DecodeRequest(ForeignRequest):
    model_config = example(ids=[101, 7592, 2088, 102])

    ids: TokenIds | TokenLists = Field(description="a list of token ids, or a list of such lists")
    skip_special_tokens: bool | None = True


# Answers.


class Vectors(RootModel[list[list[float]]]):
    """A vector for each input."""


class TokenVectors(RootModel[list[list[list[float]]]]):
    """A vector for each token of each input."""


class Similarities(RootModel[list[float]]):
    """A cosine for each sentence."""


class RootAnswer(RootModel[list[list[float]] | list[float]]):
    """Vectors, or cosines."""


class Rank(BaseModel):
    index: int
    score: float
    text: str | None = None


class Ranks(RootModel[list[Rank]]):
    """Best first."""


class Prediction(BaseModel):
    label: str
    score: float


class Predictions(RootModel[list[Prediction] | list[list[Prediction]]]):
    """Labels of one pair, or of each, most probable first."""


class SimpleToken(BaseModel):
    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Tokens(RootModel[list[list[SimpleToken]]]):
    """Tokens of each text, with their places in it, counted in characters."""


class DecodedTexts(RootModel[list[str]]):
    """A text for each list of ids."""


class Info(BaseModel):
    """The model and the limits."""

    model_config = ConfigDict(protected_namespaces=())

    model_id: str
    model_sha: str | None
    model_dtype: str
    model_type: dict[str, Any]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None
    docker_label: str | None
