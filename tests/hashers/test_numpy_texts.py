"""A saved hasher projects texts without torch as it does with it."""

from __future__ import annotations

import numpy as np
import pytest

from transhash.errors import DataError
from transhash.hashers import KNOWN, make_hasher
from transhash.hashers.thn import THN
from transhash.model.query_encoder import needed_arrays, text_projector

from .test_finer import rows_with_both
from .worlds import World

QUICK = {"steps": 20, "batch": 64, "target_batch": 32, "epochs": 1}
HERE = {"CVH", "QCH", "IMH"} | {m.name for m in KNOWN if m.home == "thn.THN"}


@pytest.mark.parametrize("method", [method.name for method in KNOWN if method.has_codes])
def test_projections_of_texts_are_torchs_wherever_they_can_be_had_without_it(method: str) -> None:
    known = make_hasher(method, bits=16).settings()
    quick = {name: value for name, value in QUICK.items() if name in known}
    if method == "CCA-fed":
        del quick["steps"]
    training = World(gap=1.0).training(150)
    hasher = make_hasher(method, bits=16, **quick).fit(training)
    state = hasher.state()
    names = needed_arrays(state)
    assert (names is not None) == (method in HERE)
    if names is None:
        return
    project = text_projector({name: state[name] for name in names})
    found = project(training.target_texts)
    np.testing.assert_allclose(
        found, hasher.project_texts(training.target_texts), rtol=1e-4, atol=1e-5
    )
    assert found.dtype == np.float32
    with pytest.raises(DataError, match="texts have shape"):
        project(training.texts[:, 1:])
    with pytest.raises(DataError, match="not a finite number"):
        project(np.full_like(training.texts[:1], np.nan))


def test_finer_bits_stand_beside_the_towers_there_too() -> None:
    _, _, both = rows_with_both(World(), 200)
    hasher = THN(bits=64, steps=5).fit(both)
    names = needed_arrays(hasher.state())
    assert names is not None
    project = text_projector({name: hasher.state()[name] for name in names})
    assert project(both.texts).shape[1] == 64
    np.testing.assert_allclose(
        project(both.texts), hasher.project_texts(both.texts), rtol=1e-4, atol=1e-5
    )
