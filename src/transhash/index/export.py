"""Takes the items of any index elsewhere: a FAISS binary index file, or plain .npy arrays."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from transhash.index.base import Index


def write_faiss(index: Index, path: Path) -> None:
    """A file for `faiss.read_index_binary`: a flat index that answers with our ids."""
    import faiss

    ids, codes = index.export()
    flat = faiss.IndexBinaryFlat(index.bits)
    mapped = faiss.IndexBinaryIDMap2(flat)
    mapped.add_with_ids(codes.packed, ids)
    draft = path.with_name(path.name + ".draft")
    faiss.write_index_binary(mapped, str(draft))
    draft.replace(path)


def write_npy(index: Index, folder: Path) -> None:
    """ids.npy (n,) int64 ascending and codes.npy (n, bits // 8) uint8, first bit highest."""
    ids, codes = index.export()
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in (("ids", ids), ("codes", codes.packed)):
        draft = folder / f"{name}.draft"
        with draft.open("wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / f"{name}.npy")
