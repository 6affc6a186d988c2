"""Shards of ids and codes on disk, and job.json, which says what they were computed from."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transhash.codes import Codes
from transhash.data.collection import MODALITIES, Collection, Modality, Problem
from transhash.errors import DataError
from transhash.model.files import model_digest
from transhash.storage import read_json, write_bytes

if TYPE_CHECKING:
    from transhash.model.encoder import EncodedBatch

JOB_VERSION = 2


@dataclass(frozen=True)
class EncodeJob:
    """Description of a folder of shards, stored in job.json so that no two jobs are mixed."""

    version: int
    modality: Modality
    bits: int
    items: int
    shard_size: int
    model: str  # digest of the run's model
    input: str  # digest of ids and items
    source: str  # folder or file that lists the items

    @property
    def shards(self) -> int:
        return -(-self.items // self.shard_size)

    def rows(self, number: int) -> range:
        return range(number * self.shard_size, min((number + 1) * self.shard_size, self.items))


class CodeShard(NamedTuple):
    """Codes of items that were encoded elsewhere."""

    source: str
    ids: Sequence[str]
    keys: Sequence[str]
    codes: Codes


def read_job(folder: str | Path, run: str | Path) -> EncodeJob:
    """Return the job of a folder; raise if it is incomplete or of another model than `run`."""
    folder = Path(folder)
    if not job_file(folder).is_file():
        raise DataError(f"{folder} has no codes. Pass a folder created by `transhash encode`.")
    job = _read_job_file(folder)
    if job.model != model_digest(Path(run)):
        raise DataError(
            f"{folder} was encoded with a different model than {run}. Encode the items again."
        )
    for number in range(job.shards):
        _require_shard(shard_path(folder, number))
    return job


def read_shards(folder: str | Path) -> Iterator[CodeShard]:
    """Yield ids and codes, one shard at a time, in the order of the input."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(folder)
    job = _read_job_file(folder)
    for number in range(job.shards):
        path = _require_shard(shard_path(folder, number))
        try:
            table = pq.read_table(path)
            ids = table["id"].to_pylist()
            packed = np.frombuffer(b"".join(table["code"].to_pylist()), np.uint8)
            codes = Codes(packed.reshape(len(table), job.bits // 8), job.bits)
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path} is corrupt ({error}). Delete it and run the encode command again."
            ) from None
        keys = table["key"].to_pylist() if "key" in table.column_names else ids
        yield CodeShard(job.source or str(folder.resolve()), ids, keys, codes)


def _require_shard(path: Path) -> Path:
    if not path.exists():
        raise DataError(f"{path} is missing. Run the encode command again to finish the job.")
    return path


def _read_job_file(folder: Path) -> EncodeJob:
    path = job_file(folder)
    content = read_json(path)
    types = {"str": str, "int": int, "Modality": str}
    fields = {name: types[kind] for name, kind in EncodeJob.__annotations__.items()}
    if (
        not isinstance(content, dict)
        or any(not isinstance(content.get(name), kind) for name, kind in fields.items())
        or content["version"] != JOB_VERSION
        or content["modality"] not in MODALITIES
        or min(content["bits"], content["shard_size"]) < 1
    ):
        raise DataError(f"{path} does not describe a job of this version. Encode the items again.")
    return EncodeJob(**{name: content[name] for name in fields})


def job_file(folder: Path) -> Path:
    return folder / "job.json"


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def write_batch(
    path: Path, items: Collection[Any], batch: EncodedBatch, keys: Sequence[str]
) -> None:
    """Write a batch as one shard."""
    ids = [items.ids[i] for i in batch.readable]
    batch_keys = [keys[i] for i in batch.readable]
    write_codes(path, ids, batch_keys, batch.codes, batch_problems(items, batch))


def batch_problems(items: Collection[Any], batch: EncodedBatch) -> list[Problem]:
    return [Problem(items.describe(i), items.ids[i], reason) for i, reason in batch.unreadable]


def write_codes(
    path: Path,
    ids: Sequence[str],
    keys: Sequence[str],
    codes: Codes,
    problems: Sequence[Problem],
) -> None:
    """Write a parquet file with columns id, code and, if they differ from the ids, item key.

    Skipped items are listed in its metadata.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    packed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(codes.bits // 8), len(codes), [None, pa.py_buffer(codes.packed.tobytes())]
    )
    columns = {"id": pa.array(ids, pa.string()), "code": packed}
    if keys != ids:
        columns["key"] = pa.array(keys, pa.string())
    skipped = json.dumps([problem._asdict() for problem in problems])
    metadata = {"bits": str(codes.bits), "skipped": skipped}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), buffer)
    write_bytes(path, buffer.getvalue())


def shard_metadata(path: Path) -> tuple[int, list[Problem]]:
    """Return the number of codes and the skipped items of a shard."""
    import pyarrow.parquet as pq

    footer = pq.read_metadata(path)
    return footer.num_rows, [Problem(**row) for row in json.loads(footer.metadata[b"skipped"])]


def input_digest(items: Collection[Any]) -> str:
    """Return a digest of ids and items; of precomputed features, about 64 rows are sampled."""
    digest = hashlib.blake2b(digest_size=16)
    for name, item in zip(items.ids, items.items):
        digest.update(f"{name}\x00{item}\x00".encode(errors="surrogatepass"))
    if items.features is not None:
        digest.update(np.ascontiguousarray(items.features[:: max(1, len(items) // 64)]).tobytes())
    return digest.hexdigest()
