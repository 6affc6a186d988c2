"""A short version of the script that decodes mutated images."""

from __future__ import annotations

import pytest
from image_fuzz import FORMATS, available, fuzz

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", FORMATS)
def test_a_mutated_image_is_decoded_or_refused_with_a_reason(kind: str) -> None:
    if not available(kind):
        pytest.skip(f"{kind} is not installed")
    tally = fuzz(kind, rounds=300)
    assert tally.decoded
    assert tally.refused
    assert not tally.stopped
