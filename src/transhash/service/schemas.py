"""What the API says and accepts; FastAPI turns these into the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from transhash.data.collection import Modality
from transhash.index.weighted import RankingMode
from transhash.search.engine import DEFAULT_RANKING
from transhash.training.calibration import RelevanceLabel

MAX_RESULTS = 200
LONGEST_TEXT = 4000
LARGEST_NUMBER = 2**53 - 1  # what every reader of JSON tells from its neighbours
MOST_QUERIES = 64
MOST_TEXTS = 256

QueryText = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_TEXT, pattern=r"\S"),
]
# An id is printed, never opened: anything but control characters.
Id = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorOut(BaseModel):
    """Every refusal, with any 4xx or 5xx status."""

    error: str


class ItemOut(BaseModel):
    number: int = Field(description="what links and thumbnails are made of")
    modality: Modality
    id: str = Field(description="what the owner of the files calls it")
    file: str | None = Field(description="name of its file, without the folder")
    text: str | None
    thumbnail: str | None = Field(description="address of a small JPEG, for images")
    code: str = Field(description="the hash code, one character a bit")


class HitOut(ItemOut):
    distance: int = Field(description="Hamming distance to the query, 0 to bits")
    differing: list[int] = Field(description="positions of the bits that differ, first bit 0")
    probability: float | None = Field(
        description="that query and result are related, as of held-out auxiliary pairs that "
        "differ so much; null: not known, and always between items of one kind"
    )
    relevance: RelevanceLabel | None = Field(description="the probability in a word")
    vote: Literal[0, 1] | None = Field(
        default=None, description="what was voted on query and result: 1 up, 0 down"
    )


class QueryOut(BaseModel):
    text: str | None = None
    item: ItemOut | None = None
    code: str
    known_words: list[str] | None = Field(
        default=None, description="words of the text that the model learned; null: not applicable"
    )
    unknown_words: list[str] | None = Field(
        default=None, description="words of the text that nothing is known of, so they do not count"
    )


class SearchOut(BaseModel):
    query: QueryOut
    modality: Modality
    ranking: RankingMode = Field(
        description="all: bits that the query is sure of count more; ties: only inside equal "
        "Hamming distances; hamming: never, as for neighbours of an item"
    )
    rerank: int | None = Field(
        description="how many of the nearest by Hamming distance the engine ranked finer; null: all"
    )
    total: int = Field(description="how many items were searched")
    bits: int
    took_ms: float = Field(description="encoding and search, without the network")
    surest: RelevanceLabel | None = Field(
        description="the most that this run can say of a result; null: it says nothing"
    )
    hits: list[HitOut]


class TextQuery(_Strict):
    text: QueryText


class ItemQuery(_Strict):
    number: Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]


class BatchIn(_Strict):
    queries: Annotated[list[TextQuery | ItemQuery], Field(min_length=1, max_length=MOST_QUERIES)]
    modality: Modality = "images"
    k: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = 10
    ranking: RankingMode = DEFAULT_RANKING


class BatchOut(BaseModel):
    modality: Modality
    ranking: RankingMode = Field(description="of the texts; items are ranked by Hamming distance")
    rerank: int | None
    total: int
    bits: int
    took_ms: float
    results: list[list[HitOut]] = Field(description="one list a query, in the order asked")


class TextIn(_Strict):
    text: QueryText
    id: Id | None = Field(default=None, description="chosen by the service when left out")


class TextsIn(_Strict):
    texts: Annotated[list[TextIn], Field(min_length=1, max_length=MOST_TEXTS)]


class Added(BaseModel):
    items: list[ItemOut]


class Removed(BaseModel):
    removed: int


class VoteIn(_Strict):
    image: Annotated[int, Field(ge=0, le=LARGEST_NUMBER, description="number of an image")]
    text: TextQuery | ItemQuery = Field(description="words that were typed, or a text's number")
    vote: Literal[0, 1] = Field(description="1: they belong together; 0: they do not")


class VoteOut(BaseModel):
    image: int
    text: str
    vote: Literal[0, 1] | None = Field(description="null: none any more")


class Examples(BaseModel):
    texts: list[ItemOut]
    images: list[ItemOut]


class About(BaseModel):
    name: Literal["transhash"] = "transhash"
    version: str
    method: str
    bits: int
    images: int
    texts: int
    accepts_text: bool = Field(description="false: the model takes precomputed text features")
    accepts_images: bool
    writable: bool
    originals: bool = Field(description="whether files may be opened, and shown large")
    max_upload: int = Field(description="bytes")


class Diagnostics(BaseModel):
    """What the training run left behind for the eye; every part may be missing."""

    map: dict[str, dict[str, list[list[float]]]] | None
    report: dict[str, Any] | None
    results: list[dict[str, Any]]


class Status(BaseModel):
    status: Literal["ok"] = "ok"
