"""Votes on results: given, taken back, and shown with the results they were given on."""

from __future__ import annotations

import logging

from transhash.errors import DataError, TranshashError
from transhash.runs.catalog import Item
from transhash.runs.feedback import Vote, VotedImage, Votes, voted_digest
from transhash.runs.search import SearchEngine
from transhash.service.desk import Desk, NoSuchItemError
from transhash.service.models import ItemQuery, SearchOut, TextQuery, VoteIn, VoteOut

_BOTH = "a vote is on an image and a text"
_log = logging.getLogger("transhash.service")


class Voting:
    """Of a writable service."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def put(self, request: VoteIn) -> VoteOut:
        with self._desk.changing() as engine:
            image = VotedImage.of(engine.catalog, self._image(request.image))
            text, text_id = self._words(request.text)
            Votes(engine.run).put(Vote(image, text, request.vote, text_id))
        return VoteOut(image=request.image, text=text, vote=request.vote)

    def take_back(self, image: int, asked: TextQuery | ItemQuery) -> VoteOut:
        with self._desk.changing() as engine:
            item = self._image(image)
            text, _ = self._words(asked)
            Votes(engine.run).take_back(voted_digest(engine.catalog, item.number), text)
        return VoteOut(image=image, text=text, vote=None)

    def marked(self, found: SearchOut) -> SearchOut:
        """The reply with the votes on its results; a search goes on without them."""
        try:
            _mark(self._desk.engine, found)
        except TranshashError as error:
            _log.warning("votes are not shown: %s", error)
        return found

    def _image(self, number: int) -> Item:
        item = self._desk.item_of(number)
        if item.modality != "images":
            raise NoSuchItemError(f"item {number} is a text; {_BOTH}")
        return item

    def _words(self, asked: TextQuery | ItemQuery) -> tuple[str, str | None]:
        """The text, and its id if it is an item."""
        if isinstance(asked, TextQuery):
            return asked.text, None
        item = self._desk.item_of(asked.number)
        if item.modality != "texts":
            raise NoSuchItemError(
                f"item {item.number} is an image; a vote is on an image and a text"
            )
        if not item.text:
            raise DataError(f"item {item.number} has no words, so nothing can be learned from it")
        return item.text, item.id


def _mark(engine: SearchEngine, found: SearchOut) -> None:
    votes, item = Votes(engine.run), found.query.item
    if found.among == "texts":
        if item is not None and item.modality == "images":
            texts = votes.on_image(voted_digest(engine.catalog, item.number))
            for hit in found.hits:
                hit.vote = texts.get(hit.text or "")  # type: ignore[assignment]
        return
    words = found.query.text or (item.text if item is not None else None)
    images = votes.on_text(words) if words else {}
    for hit in found.hits if images else ():
        hit.vote = images.get(voted_digest(engine.catalog, hit.number))  # type: ignore[assignment]
