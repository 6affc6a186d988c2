"""Features that were computed elsewhere: the rows of a .npy file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from transhash.data.tables import cause
from transhash.errors import DataError


def read_array(source: Path) -> npt.NDArray[np.float32]:
    """The rows of a .npy of finite numbers, (items, features)."""
    try:
        with np.errstate(over="ignore"):
            # Mapped, so that a header that promises more than the file holds allocates nothing.
            mapped = np.load(source, mmap_mode="r", allow_pickle=False)
            if not isinstance(mapped, np.ndarray):
                raise ValueError("it is an archive of arrays")
            if mapped.ndim == 2 and mapped.dtype.kind in "fiu":
                array = np.array(mapped, dtype=np.float32)
    except Exception as error:  # a damaged header fails in tokenize, ast, struct, mmap and zipfile
        raise DataError(f"{source} is not a plain .npy array ({cause(error)})") from None
    if mapped.ndim != 2 or mapped.dtype.kind not in "fiu" or not array.size:
        raise DataError(
            f"{source} must be a matrix of numbers (items x features), "
            f"got {mapped.dtype} of shape {mapped.shape}"
        )
    if len(bad := np.flatnonzero(~np.isfinite(array).all(axis=1))):
        raise DataError(
            f"{source}, row {bad[0]}: a feature is not a finite number (NaN, infinity, or beyond "
            f"3e38), as in {len(bad)} of {len(array)} rows; remove or mend them"
        )
    return array
