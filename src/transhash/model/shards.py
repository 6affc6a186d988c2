"""The files: shards of ids and codes, and the note that says what they are of."""

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


@dataclass(frozen=True)
class EncodeJob:
    """What a folder of shards is the result of; kept there, so that no two are mixed."""

    modality: Modality
    bits: int
    items: int
    shard_size: int
    model: str  # digest of the run's files
    input: str  # digest of ids and items
    origin: str = ""  # where the items were listed; "" in jobs that did not note it

    @property
    def shards(self) -> int:
        return -(-self.items // self.shard_size)

    def rows(self, number: int) -> slice:
        return slice(number * self.shard_size, (number + 1) * self.shard_size)


class CodeShard(NamedTuple):
    """Codes of items that were encoded elsewhere."""

    origin: str  # where they were listed
    ids: Sequence[str]
    keys: Sequence[str]
    codes: Codes


def read_job(folder: str | Path, run: str | Path) -> EncodeJob:
    """What `folder` holds; refused unless it is whole and `run` encoded it."""
    folder = Path(folder)
    if not folder.exists():
        raise DataError(f"{folder} does not exist; give a folder that `transhash encode` wrote")
    if not job_file(folder).is_file():
        raise DataError(f"{folder} holds no codes; give a folder that `transhash encode` wrote")
    job = _read_note(folder)
    if job.model != model_digest(Path(run)):
        raise DataError(f"{folder} was encoded by another model than {run}; encode it anew")
    for number in range(job.shards):
        if not shard_path(folder, number).exists():
            raise DataError(
                f"{shard_path(folder, number)} is missing; give the encode command again to "
                "finish the job"
            )
    return job


def read_shards(folder: str | Path) -> Iterator[CodeShard]:
    """Ids and codes, a shard at a time, in the order of the input."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(folder)
    job = _read_note(folder)
    for number in range(job.shards):
        path = shard_path(folder, number)
        if not path.exists():
            raise DataError(f"{path} is missing; give the encode command again to finish the job")
        try:
            table = pq.read_table(path)
            ids = table["id"].to_pylist()
            packed = np.frombuffer(b"".join(table["code"].to_pylist()), np.uint8)
            codes = Codes(packed.reshape(len(table), job.bits // 8), job.bits)
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path} is damaged ({error}); delete it and give the encode command again"
            ) from None
        keys = table["key"].to_pylist() if "key" in table.column_names else ids
        yield CodeShard(job.origin or str(folder.resolve()), ids, keys, codes)


def _read_note(folder: Path) -> EncodeJob:
    note = read_json(job_file(folder))
    kinds = {"str": str, "int": int, "Modality": str}
    needed = {
        name: kinds[kind] for name, kind in EncodeJob.__annotations__.items() if name != "origin"
    }
    if (
        not isinstance(note, dict)
        or any(not isinstance(note.get(name), kind) for name, kind in needed.items())
        or note["modality"] not in MODALITIES
        or min(note["bits"], note["shard_size"]) < 1
    ):
        raise DataError(f"{job_file(folder)} does not describe a job; encode it anew")
    return EncodeJob(**{name: note[name] for name in needed}, origin=str(note.get("origin", "")))


def job_file(folder: Path) -> Path:
    return folder / "job.json"


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def write_block(
    path: Path, items: Collection[Any], block: EncodedBatch, keys: Sequence[str] | None = None
) -> None:
    """The block as a shard."""
    problems = block_problems(items, block)
    names = None if keys is None else [keys[i] for i in block.readable]
    write_codes(path, [items.ids[i] for i in block.readable], block.codes, problems, names)


def block_problems(items: Collection[Any], block: EncodedBatch) -> list[Problem]:
    return [Problem(items.describe(i), items.ids[i], reason) for i, reason in block.unreadable]


def write_codes(
    path: Path,
    ids: Sequence[str],
    codes: Codes,
    problems: Sequence[Problem] = (),
    keys: Sequence[str] | None = None,
) -> None:
    """One parquet file of id, code and, where it is not the id, what the source calls the item.

    What was skipped is listed in its metadata.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    packed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(codes.bits // 8), len(codes), [None, pa.py_buffer(codes.packed.tobytes())]
    )
    columns = {"id": pa.array(ids, pa.string()), "code": packed}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.string())
    listed = json.dumps([problem._asdict() for problem in problems])
    metadata = {"bits": str(codes.bits), "bad": listed}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), buffer)
    write_bytes(path, buffer.getvalue())


def shard_metadata(path: Path) -> tuple[int, list[Problem]]:
    import pyarrow.parquet as pq

    shard_metadata = pq.read_metadata(path)
    return shard_metadata.num_rows, [
        Problem(**row) for row in json.loads(shard_metadata.metadata[b"bad"])
    ]


def input_digest(items: Collection[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, item in zip(items.ids, items.items):
        digest.update(f"{name}\x00{item}\x00".encode(errors="surrogatepass"))
    if items.features is not None:
        digest.update(np.ascontiguousarray(items.features[:: max(1, len(items) // 64)]).tobytes())
    return digest.hexdigest()
