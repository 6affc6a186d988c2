"""A saved hasher projects texts without torch as with torch."""

from __future__ import annotations

import numpy as np
import pytest

from transhash.errors import DataError
from transhash.hashers import METHODS, make_hasher
from transhash.hashers.thn import THN
from transhash.model.query_encoder import make_text_projector, numpy_arrays_for_texts

from .test_residual_bits import labels_and_pairs
from .worlds import World, relation_sort

QUICK = {"steps": 20, "batch_size": 64, "target_batch_size": 32, "epochs": 1}
NUMPY = {"CVH", "QCH", "IMH"} | {m.name for m in METHODS if m.class_path == "thn.THN"}


@pytest.mark.parametrize("method", [method.name for method in METHODS if method.has_codes])
def test_numpy_projections_equal_those_of_torch(method: str) -> None:
    known = make_hasher(method, bits=16).settings()
    quick = {name: value for name, value in QUICK.items() if name in known}
    if method == "CCA+target":
        del quick["steps"]
    training = World(gap=1.0).training(150, relation_sort(method))
    hasher = make_hasher(method, bits=16, **quick).fit(training)
    state = hasher.state()
    names = numpy_arrays_for_texts(state)
    assert (names is not None) == (method in NUMPY)
    if names is None:
        return
    project = make_text_projector({name: state[name] for name in names})
    z = project(training.target_texts)
    np.testing.assert_allclose(z, hasher.project_texts(training.target_texts), rtol=1e-4, atol=1e-5)
    assert z.dtype == np.float32
    with pytest.raises(DataError, match="shape"):
        project(training.texts[:, 1:])
    with pytest.raises(DataError, match="finite"):
        project(np.full_like(training.texts[:1], np.nan))


def test_numpy_projections_include_residual_bits() -> None:
    _, _, both = labels_and_pairs(World(), 200)
    hasher = THN(bits=64, steps=5).fit(both)
    names = numpy_arrays_for_texts(hasher.state())
    assert names is not None
    project = make_text_projector({name: hasher.state()[name] for name in names})
    assert project(both.texts).shape[1] == 64
    np.testing.assert_allclose(
        project(both.texts), hasher.project_texts(both.texts), rtol=1e-4, atol=1e-5
    )
