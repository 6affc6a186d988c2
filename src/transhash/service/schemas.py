"""Request and reply schemas; FastAPI builds the OpenAPI document from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from transhash.data.collection import Modality
from transhash.index.weighted import RankingMode
from transhash.search.catalog import DATE_PATTERN
from transhash.search.engine import DEFAULT_RANKING
from transhash.search.keywords import DEFAULT_SEARCH, SearchMode
from transhash.training.calibration import RelevanceLabel

MAX_RESULTS = 200
MAX_TEXT_LENGTH = 4000
MAX_ITEM_NUMBER = 2**53 - 1  # the largest integer that every JSON parser reads exactly
_MAX_QUERIES = 64
_MAX_TEXTS = 256

QueryText = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=MAX_TEXT_LENGTH, pattern=r"\S"
    ),
]
# An id is printed, never opened: anything but control characters.
ItemId = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
]

FolderName = Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00]*$")]
DateText = Annotated[str, StringConstraints(pattern=DATE_PATTERN)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorOut(BaseModel):
    """Body of every reply with a 4xx or 5xx status."""

    error: str


class ItemOut(BaseModel):
    number: int = Field(description="item number, used in URLs")
    modality: Modality
    id: str = Field(description="id of the item in its source")
    file: str | None = Field(description="file name without folder")
    text: str | None
    thumbnail: str | None = Field(description="URL of a small JPEG, for images")
    code: str = Field(description="hash code, one character per bit")
    title: str | None = Field(description="title in the image file")
    caption: str | None = Field(description="caption in the image file")
    keywords: list[str] = Field(description="keywords in the image file")
    taken: str | None = Field(description="date or local time at which the image was taken")


class HitOut(ItemOut):
    distance: int = Field(description="Hamming distance to the query, 0 to bits")
    differing_bits: list[int] = Field(description="positions of the differing bits, from 0")
    probability: float | None = Field(
        description="probability that query and result are related, from the distance alone and "
        "calibrated on held-out pairs; null: not calibrated, or both are of one modality"
    )
    relevance: RelevanceLabel | None = Field(
        description="the probability as a label; null also for an item that has most of the words "
        "of the query, if its distance alone would make it unlikely"
    )
    matched: list[str] = Field(
        description="why it is a result: file name, folder, title, caption, keywords or text if "
        "these have words of the query, and similar if its code is near"
    )
    coverage: float = Field(
        description="how much of the query's words the item has, 0 to 1, rare words counting more"
    )
    duplicates: list[ItemOut] = Field(description="copies of the item, which would come later")
    vote: Literal[0, 1] | None = Field(
        default=None, description="vote on query and result: 1 up, 0 down"
    )


class QueryOut(BaseModel):
    text: str | None = None
    item: ItemOut | None = None
    code: str
    known_words: list[str] | None = Field(
        default=None, description="words of the text that affect its code; null: not applicable"
    )
    unknown_words: list[str] | None = Field(
        default=None, description="content words of the text that the model does not know"
    )
    unknown_image: bool | None = Field(
        default=None,
        description="whether the image is far from all that the model was trained on; null: not "
        "applicable",
    )


class _ReplyOut(BaseModel):
    modality: Modality = Field(description="modality of the results")
    ranking: RankingMode = Field(
        description="weighted: by query confidence; tiebreak: Hamming distance, ties by "
        "confidence; hamming: Hamming distance, always used for items"
    )
    search: SearchMode = Field(
        description="hybrid: by codes and keywords; codes or keywords: by one of them; always "
        "codes for images and items"
    )
    rerank_pool: int | None = Field(
        description="number of nearest items by Hamming distance that were reranked; null: all"
    )
    total: int = Field(description="number of items searched")
    bits: int
    took_ms: float = Field(description="time to encode and search, without the network")


class SearchOut(_ReplyOut):
    query: QueryOut
    max_relevance: RelevanceLabel | None = Field(
        description="best label that this model gives to any result; null: not calibrated"
    )
    is_chance: bool = Field(
        description="whether no result has half of the query's words or a code nearer than the "
        "nearest of as many random codes"
    )
    hits: list[HitOut]


class TextQuery(_Strict):
    text: QueryText


class ItemQuery(_Strict):
    number: Annotated[int, Field(ge=0, le=MAX_ITEM_NUMBER)]


class BatchIn(_Strict):
    queries: Annotated[list[TextQuery | ItemQuery], Field(min_length=1, max_length=_MAX_QUERIES)]
    modality: Modality = "images"
    k: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = 10
    ranking: RankingMode = DEFAULT_RANKING
    search: SearchMode = DEFAULT_SEARCH
    folder: FolderName | None = None
    after: DateText | None = None
    before: DateText | None = None
    source: FolderName | None = None
    collapse: bool = False


class BatchOut(_ReplyOut):
    results: list[list[HitOut]] = Field(description="one list per query, in order")


class TextIn(_Strict):
    text: QueryText
    id: ItemId | None = Field(default=None, description="generated if omitted")


class TextsIn(_Strict):
    texts: Annotated[list[TextIn], Field(min_length=1, max_length=_MAX_TEXTS)]


class ItemsOut(BaseModel):
    items: list[ItemOut]


class RemovedOut(BaseModel):
    removed: int


class VoteIn(_Strict):
    image: Annotated[int, Field(ge=0, le=MAX_ITEM_NUMBER, description="number of an image")]
    text: TextQuery | ItemQuery = Field(description="a typed text, or the number of a text")
    vote: Literal[0, 1] = Field(description="1: a correct match; 0: a wrong one")


class VoteOut(BaseModel):
    image: int
    text: str
    vote: Literal[0, 1] | None = Field(description="null: removed")


class ExamplesOut(BaseModel):
    texts: list[ItemOut]
    images: list[ItemOut]


class SyncResult(BaseModel):
    added: int
    updated: int
    unchanged: int
    removed: int
    skipped: int
    error: str | None = Field(description="sources that could not be synced, and why")
    finished: str = Field(description="time in UTC")


class SyncStatus(BaseModel):
    running: bool
    requested: bool = Field(description="whether another sync follows")
    sources: list[str] = Field(description="names of folders and files, without their paths")
    task: str | None = Field(description="what is being done")
    done: int | None = Field(description="items of the task that are done")
    total: int | None = Field(description="items of the task")
    syncs: int = Field(description="finished since the service started")
    last: SyncResult | None


class FiltersOut(BaseModel):
    """What filters can choose from."""

    sources: list[str] = Field(description="folders and files that were indexed, names only")
    folders: list[str] = Field(description="folders inside the sources, at most 500")
    first_date: str | None = Field(description="of all images; null: no image has a date")
    last_date: str | None


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
    originals: bool = Field(description="whether original files can be viewed and downloaded")
    sync: bool = Field(description="whether the service can sync its sources")
    max_upload: int = Field(description="bytes")


class Diagnostics(BaseModel):
    """Alignment map, training report and results of a run; each may be missing."""

    map: dict[str, dict[str, list[list[float]]]] | None
    report: dict[str, Any] | None
    results: list[dict[str, Any]]


class Status(BaseModel):
    status: Literal["ok"] = "ok"


class Health(Status):
    image_model_loaded: bool = Field(description="false: the first image search loads the model")
