"""What a run has learned from votes: enough to mark it, and to leave voted items out of scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transhash.data.collection import Auxiliary
from transhash.data.votes import VotedRelation
from transhash.errors import DataError
from transhash.features.picture import content_digest
from transhash.storage import read_json, write_json

if TYPE_CHECKING:
    from transhash.hashers import Hasher

LEARNED_VOTES = "learned_votes.json"


@dataclass(frozen=True)
class LearnedVotes:
    """How many, and the digests of the pictures and texts they were on."""

    up: int
    down: int
    images: frozenset[str]
    texts: frozenset[str]

    @classmethod
    def of(cls, auxiliary: Auxiliary) -> LearnedVotes | None:
        relation = auxiliary.relation
        if not isinstance(relation, VotedRelation):
            return None
        rows, columns = (
            part.nonzero()[0].tolist() for part in (relation.voted_images, relation.voted_texts)
        )
        pictures = (auxiliary.images.items[row] for row in rows)
        return cls(
            relation.votes.positives,
            relation.votes.known - relation.votes.positives,
            frozenset(found for picture in pictures if (found := image_digest(picture))),
            frozenset(text_digest(auxiliary.texts.items[column]) for column in columns),
        )

    @property
    def counts(self) -> dict[str, int]:
        return {
            "up": self.up,
            "down": self.down,
            "images": len(self.images),
            "texts": len(self.texts),
        }

    def save(self, folder: Path) -> None:
        content = {**self.counts, "images": sorted(self.images), "texts": sorted(self.texts)}
        write_json(folder / LEARNED_VOTES, content)

    @classmethod
    def load(cls, folder: Path) -> LearnedVotes:
        found = read_json(folder / LEARNED_VOTES)
        try:
            images, texts = (frozenset(map(str, found[name])) for name in ("images", "texts"))
            return cls(int(found["up"]), int(found["down"]), images, texts)
        except (TypeError, KeyError, ValueError):
            raise DataError(f"{folder / LEARNED_VOTES} lists no votes; fit it anew") from None


def check_voting(learners: Mapping[str, Hasher], *, target: bool, trials: int) -> None:
    """Refuse votes where they do harm: CVH, IMH and QCH lost elsewhere what they won, and more.

    Rivals that are shown the target take over relations in proportion, and would take the weight
    of a vote for a share.
    """
    for name, learner in learners.items():
        if learner.name != "THN" or not learner.uses_target:
            raise DataError(
                f"{name} takes no votes, or not with these settings; learn from them with thn, "
                "which is shown the target too"
            )
    if not target:
        raise DataError("votes are learned beside what they were given on: give images or texts")
    if trials:
        raise DataError("settings are not chosen by votes: tune without them, then give --set")


def image_digest(picture: Path | bytes) -> str | None:
    """Of a picture's content; None if it cannot be read."""
    try:
        data = picture if isinstance(picture, bytes) else picture.read_bytes()
    except OSError:
        return None
    return content_digest(data).hex()


def text_digest(text: str) -> str:
    return content_digest(text.encode("utf-8", "replace")).hex()
