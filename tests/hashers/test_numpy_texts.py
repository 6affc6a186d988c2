"""A saved hasher projects texts without torch as it does with it."""

from __future__ import annotations

import numpy as np
import pytest

from transhash.errors import DataError
from transhash.hashers import METHODS, make_hasher
from transhash.hashers.thn import THN
from transhash.model.query_encoder import make_text_projector, numpy_arrays_for_texts

from .test_residual_bits import rows_with_both
from .worlds import World

QUICK = {"steps": 20, "batch_size": 64, "target_batch_size": 32, "epochs": 1}
HERE = {"CVH", "QCH", "IMH"} | {m.name for m in METHODS if m.home == "thn.THN"}


@pytest.mark.parametrize("method", [method.name for method in METHODS if method.has_codes])
def test_projections_of_texts_are_torchs_wherever_they_can_be_had_without_it(method: str) -> None:
    known = make_hasher(method, bits=16).settings()
    quick = {name: value for name, value in QUICK.items() if name in known}
    if method == "CCA+target":
        del quick["steps"]
    training = World(gap=1.0).training(150)
    hasher = make_hasher(method, bits=16, **quick).fit(training)
    state = hasher.state()
    names = numpy_arrays_for_texts(state)
    assert (names is not None) == (method in HERE)
    if names is None:
        return
    project = make_text_projector({name: state[name] for name in names})
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
    names = numpy_arrays_for_texts(hasher.state())
    assert names is not None
    project = make_text_projector({name: hasher.state()[name] for name in names})
    assert project(both.texts).shape[1] == 64
    np.testing.assert_allclose(
        project(both.texts), hasher.project_texts(both.texts), rtol=1e-4, atol=1e-5
    )
