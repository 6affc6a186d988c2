"""Features that were computed elsewhere: the rows of a .npy file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.data.tables import cause
from transhash.errors import DataError

_WHOLE = 1 << 28  # bytes of a file that is read as a whole; a larger one stays where it is
_PART = 1 << 25  # bytes of a larger one that are looked at together


def read_array(source: Path) -> npt.NDArray[np.float32]:
    """The rows of a .npy of finite numbers, (items, features).

    A large one of float32 is not copied: it is mapped, and what is never asked for is never held.
    """
    try:
        with np.errstate(over="ignore"):
            # Mapped, so that a header that promises more than the file holds allocates nothing.
            mapped = np.load(source, mmap_mode="r", allow_pickle=False)
            if not isinstance(mapped, np.ndarray):
                raise ValueError("it is an archive of arrays")
            if mapped.ndim == 2 and mapped.dtype.kind in "fiu":
                stays = mapped.dtype == np.float32 and mapped.nbytes > _WHOLE
                array = mapped if stays else np.array(mapped, dtype=np.float32)
    except Exception as error:  # a damaged header fails in tokenize, ast, struct, mmap and zipfile
        raise DataError(f"{source} is not a plain .npy array ({cause(error)})") from None
    if mapped.ndim != 2 or mapped.dtype.kind not in "fiu" or not array.size:
        raise DataError(
            f"{source} must be a matrix of numbers (items x features), "
            f"got {mapped.dtype} of shape {mapped.shape}"
        )
    bad = _not_finite(array, source)
    if len(bad):
        raise DataError(
            f"{source}, row {bad[0]}: a feature is not a finite number (NaN, infinity, or beyond "
            f"3e38), as in {len(bad)} of {len(array)} rows; remove or mend them"
        )
    return array


def _not_finite(array: npt.NDArray[Any], source: Path) -> npt.NDArray[np.int64]:
    """Numbers of the rows that are not."""
    mapped = isinstance(array, np.memmap) and array.flags.c_contiguous
    size = array.itemsize * array.shape[1]
    count = max(1, _PART // size)
    bad = []
    for start in range(0, len(array), count):
        part = array[start : start + count]
        if mapped:  # by a map of its own: pages of the other one would stay and count as memory
            offset = array.offset + start * size  # type: ignore[attr-defined]
            part = np.memmap(source, array.dtype, "r", offset, part.shape)
        bad.append(start + np.flatnonzero(~np.isfinite(part).all(axis=1)))
    return np.concatenate(bad)
