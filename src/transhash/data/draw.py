"""Draws a part of the images and texts of a relation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from transhash.data.relation import Relation, Rows


class Draw(NamedTuple):
    """Random images and texts of a relation, sorted."""

    images: Rows
    texts: Rows
    partners_first: bool  # texts related to the images came first, so pairs are too frequent


def put_partners_first(
    relation: Relation, images: Rows, texts: Rows, rng: np.random.Generator
) -> Rows:
    """Return the texts, with one related to each of the images first."""
    order = np.concatenate([relation.sample_partners(images, rng), texts])
    return np.asarray(order[np.sort(np.unique(order, return_index=True)[1])])  # first of each


def draw_items(relation: Relation, count: int, enough: int, rng: np.random.Generator) -> Draw:
    """Draw up to `count` images and as many texts.

    Independent draws keep a share (count / n)² of one-to-one pairs. If fewer than `enough` related
    pairs would be left, texts related to the images are drawn first.
    """
    n, m = relation.shape
    images, order = np.sort(rng.permutation(n)[:count]), rng.permutation(m)
    left = relation.positives * min(1.0, count / n) * min(1.0, count / m)
    partners_first = max(n, m) > count and left < enough
    if partners_first:
        order = put_partners_first(relation, images, order, rng)
    return Draw(images, np.sort(order[:count]), partners_first)
